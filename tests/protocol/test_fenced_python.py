"""The Markdown parser, by the table in its docstring."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.protocol.fenced_python import SYNTAX
from retool.protocol.types import ParsedTurn, ParseProblem, TurnKind


def test_wire_form_and_longer_fences_for_code_with_fences():
    assert SYNTAX.render("print(1)") == "```python\nprint(1)\n```"
    assert SYNTAX.render("s = '```'") == "````python\ns = '```'\n````"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("Let me see.\n```python\n  a = 1\n\n  print(a)\n```\n\n", "  a = 1\n\n  print(a)"),
        ("```py\n1\n```", "1"),
        ("```Python\n1\n```", "1"),
        ("\\boxed{3}? I check.\n```python\n1\n```", "1"),
        ("```\nplain\n```\n```python\n1\n```", "1"),
        ("```text\nplain\n```\nthen\n```python\n1\n```", "1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("```python\ns = '''\n```\n'''\n```", "s = '''\n```\n'''"),  # a fence in a string does not end it
    ],
)
def test_one_block_at_the_end_is_a_call(text, code):
    assert SYNTAX.parse(text) == ParsedTurn.call(code)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\\boxed{3}",
        "```\nprint(1)\n```",
        "```json\n{}\n```",
        "Inline ```python print(1)``` text",
        "```python\nprint(1)\n```\nThis prints 1, so \\boxed{1}.",
        "```python\n1\n```\n```python\n2\n```\n\\boxed{2}",
    ],
)
def test_answers(text):
    assert SYNTAX.parse(text) == ParsedTurn.answer()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nprint(1)", ParseProblem.UNCLOSED),
        ("```python", ParseProblem.UNCLOSED),
        ("```python\nprint('\\boxed{1}')", ParseProblem.UNCLOSED),
        ("```python\n1\n```\n```python\n2\n```", ParseProblem.MULTIPLE_CALLS),
        ("```python\n1 +\n```\nno\n```python\n2\n```", ParseProblem.MULTIPLE_CALLS),
        ("```python\n1\n```\nThe output is 1.", ParseProblem.TEXT_AFTER_CALL),
        ("```python\n1\n```\n```output\n1\n```", ParseProblem.TEXT_AFTER_CALL),
        ("```python\n```", ParseProblem.EMPTY_CODE),
        ("```python\n\n  \n```", ParseProblem.EMPTY_CODE),
    ],
)
def test_each_malformed_call_is_told_what_is_wrong(text, problem):
    parsed = SYNTAX.parse(text)
    assert (parsed.kind, parsed.problem, parsed.code) == (TurnKind.MALFORMED, problem, None)
    assert parsed.message.startswith("The tool call was not run: ")


def test_instructions_show_a_call_that_the_parser_reads():
    assert SYNTAX.parse(SYNTAX.instructions).kind is TurnKind.CALL


@given(code=st.text().filter(str.strip))
def test_any_code_comes_back(code):
    assert SYNTAX.parse("Text.\n" + SYNTAX.render(code)) == ParsedTurn.call(code)


@given(
    st.lists(st.sampled_from(["```python", "```", "````", "\n", " ", "1", "\\boxed{", "'''"]), max_size=20).map("".join)
)
def test_any_mixture_of_fences_is_read_without_an_error(text):
    parsed = SYNTAX.parse(text)
    assert (parsed.code is not None) == (parsed.kind is TurnKind.CALL)
