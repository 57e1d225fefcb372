"""The Hermes parser: JSON boundaries, and every kind of malformed call."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.protocol.hermes_json import SYNTAX
from retool.protocol.types import ParsedTurn, ParseProblem, TurnKind


def wrapped(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


def call(**fields: object) -> str:
    return wrapped(json.dumps({"name": "code_interpreter", **fields}))


def test_wire_form():
    assert SYNTAX.render('print("é")\n') == (
        '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(\\"é\\")\\n"}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    "code", ["  print(1)\n", "print('</tool_call>')", "print('<tool_call>')", 's = "}}"', "a\\nb", "\n\n1", "漢字 = 1"]
)
def test_code_is_kept_to_the_letter(code):
    assert SYNTAX.parse("Compute.\n" + SYNTAX.render(code) + "\n") == ParsedTurn.call(code)


def test_order_of_keys_and_white_space_do_not_matter():
    text = '<tool_call>{"arguments":\n{"code": "1"}, "name": "code_interpreter"}</tool_call>'
    assert SYNTAX.parse(text) == ParsedTurn.call("1")


@pytest.mark.parametrize("text", ["", "\\boxed{4}", '{"a": 1}', "<function=code_interpreter>"])
def test_text_without_a_trace_of_a_call_is_an_answer(text):
    assert SYNTAX.parse(text) == ParsedTurn.answer()


GOOD = call(arguments={"code": "1"})
MALFORMED = [
    ('{"name": "code_interpreter", "arguments": {"code": "1"}}', ParseProblem.NOT_ENCLOSED, "<tool_call>"),
    ("1\n</tool_call>", ParseProblem.NOT_ENCLOSED, "<tool_call>"),
    ('<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "1', ParseProblem.UNCLOSED, "no end"),
    (GOOD.removesuffix("\n</tool_call>"), ParseProblem.UNCLOSED, "no end"),
    (wrapped("print(1)"), ParseProblem.BAD_JSON, "JSON object"),
    (wrapped("[1]"), ParseProblem.BAD_JSON, "JSON object"),
    (
        wrapped('{"name": "code_interpreter", "arguments": {"code": "a\nb"}}'),
        ParseProblem.BAD_JSON,
        "line breaks",
    ),
    (wrapped('{"name": "code_interpreter", "arguments": {"code": "1"}'), ParseProblem.BAD_JSON, "not valid JSON"),
    (wrapped('{"name": "code_interpreter", "arguments": {"code": "1"}}}'), ParseProblem.BAD_JSON, "more text"),
    (wrapped('{"a":' * 100_000), ParseProblem.BAD_JSON, "nested too deeply"),
    (wrapped('{"a": ' + "9" * 5_000 + "}"), ParseProblem.BAD_JSON, "too large"),
    (
        wrapped('{"name": "code_interpreter", "arguments": {"code": "\\ud800"}}'),
        ParseProblem.BAD_JSON,
        "surrogate",
    ),
    (GOOD + "\n" + GOOD, ParseProblem.MULTIPLE_CALLS, "one call"),
    (GOOD + "\nThe output is 1.", ParseProblem.TEXT_AFTER_CALL, "End the turn"),
    (wrapped('{"name": "python", "arguments": {"code": "1"}}'), ParseProblem.WRONG_FUNCTION, "'python'"),
    (wrapped('{"arguments": {"code": "1"}}'), ParseProblem.WRONG_FUNCTION, "None"),
    (call(arguments="print(1)"), ParseProblem.BAD_STRUCTURE, "form"),
    (call(parameters={"code": "1"}), ParseProblem.BAD_STRUCTURE, "form"),
    (call(arguments={"code": ["1"]}), ParseProblem.BAD_STRUCTURE, "string"),
    (call(arguments={"code": "1", "timeout": 5}), ParseProblem.UNKNOWN_PARAMETER, "'timeout'"),
    (call(arguments={}), ParseProblem.MISSING_CODE, "no code"),
    (call(), ParseProblem.MISSING_CODE, "no code"),
    (call(arguments={"code": " \n"}), ParseProblem.EMPTY_CODE, "empty"),
]


@pytest.mark.parametrize(("text", "problem", "hint"), MALFORMED)
def test_each_malformed_call_is_told_what_is_wrong(text, problem, hint):
    parsed = SYNTAX.parse(text)
    assert (parsed.kind, parsed.problem, parsed.code) == (TurnKind.MALFORMED, problem, None)
    assert parsed.message.startswith("The tool call was not run: ")
    assert hint in parsed.message


def test_instructions_show_a_call_that_the_parser_reads():
    assert SYNTAX.parse(SYNTAX.instructions).kind is TurnKind.CALL


@given(code=st.text().filter(str.strip))
def test_any_code_comes_back(code):
    assert SYNTAX.parse("Text. " + SYNTAX.render(code)) == ParsedTurn.call(code)


@given(st.text(alphabet='{}[]",:\\ndcoe1<>/tl_au '), st.text(alphabet="</tol_ca>{} "))
def test_anything_between_the_tags_is_read_without_an_error(inner, rest):
    parsed = SYNTAX.parse(f"<tool_call>{inner}</tool_call>{rest}")
    assert parsed.kind is not TurnKind.ANSWER
