"""The XML parser: every kind of malformed call, and code kept to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.protocol.qwen_xml import SYNTAX
from retool.protocol.types import ParsedTurn, ParseProblem, TurnKind


def call(code: str) -> str:
    return (
        "<tool_call>\n<function=code_interpreter>\n<parameter=code>\n"
        + code
        + "\n</parameter>\n</function>\n</tool_call>"
    )


def function(inner: str, name: str = "code_interpreter") -> str:
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def parameter(value: str, name: str = "code") -> str:
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def test_wire_form():
    assert SYNTAX.render("print(1)") == (
        "<tool_call>\n<function=code_interpreter>\n<parameter=code>\nprint(1)\n</parameter>\n</function>\n</tool_call>"
    )


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "    indented = 1\n    print(indented)",
        "\n\nprint(1)\n\n",
        "\tprint(1)  ",
        "print('</tool_call>')",
        "print('</parameter>')\nprint('</function>')",
        "s = '''\n</parameter>\n</function>\n</tool_call>\n'''",
        "s = '</parameter>\\n<parameter=x>'\nprint('<tool_call>')",
        # The tags of a whole second call, in a string: one call, because it is Python.
        "s = '''\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=x>\n<parameter=code>\n1\n'''",
        "s = '''\n</parameter>\n<parameter=code>\n'''",
        "if x < 1 and y > 2:\n    print('&lt;')",
        "print('é → 漢字')",
        "not python at all (",
    ],
)
def test_code_is_kept_to_the_letter(code):
    assert SYNTAX.parse(f"Let me compute.\n\n{call(code)}\n") == ParsedTurn.call(code)


def test_exactly_one_newline_on_each_side_belongs_to_the_tags():
    parsed = SYNTAX.parse(function("<parameter=code>\n\n  a\n\n</parameter>"))
    assert parsed.code == "\n  a\n"
    assert SYNTAX.parse(function("<parameter=code>a</parameter>")).code == "a"


def test_tags_may_stand_apart_by_any_white_space():
    text = "<tool_call> <function=code_interpreter><parameter=code>1</parameter>\n\n</function></tool_call>"
    assert SYNTAX.parse(text).code == "1"


@pytest.mark.parametrize("text", ["", "The answer is \\boxed{4}.", "a < b > c", "```python\n1\n```"])
def test_text_without_a_trace_of_a_call_is_an_answer(text):
    assert SYNTAX.parse(text) == ParsedTurn.answer()


def test_boxed_answer_before_a_call_is_still_a_call():
    assert SYNTAX.parse(f"\\boxed{{4}}, but let me check.\n{call('1')}").kind is TurnKind.CALL


MALFORMED = [
    (function(parameter("1")).replace("<tool_call>\n", ""), ParseProblem.NOT_ENCLOSED, "<tool_call>"),
    ("Done.</tool_call>", ParseProblem.NOT_ENCLOSED, "<tool_call>"),
    ("<tool_call>\n<function=code_interpreter>\n<parameter=code>\n1", ParseProblem.UNCLOSED, "</tool_call>"),
    (call("1").removesuffix("</tool_call>"), ParseProblem.UNCLOSED, "</tool_call>"),
    (call("1") + "\n" + call("2"), ParseProblem.MULTIPLE_CALLS, "one call"),
    (call("1") + "\nAnd now:\n" + call("2"), ParseProblem.MULTIPLE_CALLS, "one call"),
    (call("1") + "\n<tool_call>\n<function=", ParseProblem.MULTIPLE_CALLS, "one call"),
    (call("1") + "\nThe output is 1.", ParseProblem.TEXT_AFTER_CALL, "End the turn"),
    (call("1") + "\nThat was </function></tool_call>.", ParseProblem.TEXT_AFTER_CALL, "End the turn"),
    (function(parameter("1"), name="python"), ParseProblem.WRONG_FUNCTION, "'python'"),
    (function(parameter("1", name="source"), name="python"), ParseProblem.WRONG_FUNCTION, "code_interpreter"),
    ('<tool_call>\n{"name": "code_interpreter"}\n</tool_call>', ParseProblem.BAD_STRUCTURE, "<function="),
    (function("print(1)\n"), ParseProblem.BAD_STRUCTURE, "<parameter=code>"),
    (function(parameter("1") + "stray\n"), ParseProblem.BAD_STRUCTURE, "<parameter=code>"),
    (function("<parameter=code>\n1\n"), ParseProblem.BAD_STRUCTURE, "</parameter>"),
    (function(parameter("1", name="source")), ParseProblem.UNKNOWN_PARAMETER, "'source'"),
    (function(parameter("a = ") + parameter("5", name="timeout")), ParseProblem.UNKNOWN_PARAMETER, "'timeout'"),
    (function(parameter("5", name="timeout") + parameter("1")), ParseProblem.UNKNOWN_PARAMETER, "'timeout'"),
    (function(parameter("1") + parameter("2")), ParseProblem.DUPLICATE_PARAMETER, "more than once"),
    (function(""), ParseProblem.MISSING_CODE, "no code"),
    (call(""), ParseProblem.EMPTY_CODE, "empty"),
    (call("  \n\t\n"), ParseProblem.EMPTY_CODE, "empty"),
]


@pytest.mark.parametrize(("text", "problem", "hint"), MALFORMED)
def test_each_malformed_call_is_told_what_is_wrong(text, problem, hint):
    parsed = SYNTAX.parse(text)
    assert (parsed.kind, parsed.problem, parsed.code) == (TurnKind.MALFORMED, problem, None)
    assert parsed.message.startswith("The tool call was not run: ")
    assert hint in parsed.message


def test_instructions_show_a_call_that_the_parser_reads():
    assert SYNTAX.parse(SYNTAX.instructions).kind is TurnKind.CALL


@given(code=st.text().filter(str.strip), before=st.text(alphabet=st.characters(exclude_characters="<")))
def test_any_code_comes_back(code, before):
    assert SYNTAX.parse(before + SYNTAX.render(code)) == ParsedTurn.call(code)


TAGS = ("<tool_call>", "</tool_call>", "<function=code_interpreter>", "<function=x>", "</function>")
TAGS += ("<parameter=code>", "<parameter=y>", "</parameter>")
FRAGMENTS = st.sampled_from((*TAGS, "\n", " ", "print(1)", "'''", "#"))


@given(st.lists(FRAGMENTS, max_size=25).map("".join))
def test_any_mixture_of_tags_is_read_without_an_error(text):
    parsed = SYNTAX.parse(text)
    assert (parsed.code is not None) == (parsed.kind is TurnKind.CALL)
    assert (parsed.message is not None) == (parsed.kind is TurnKind.MALFORMED)


@given(st.lists(FRAGMENTS, max_size=8).map("".join))
def test_tags_in_a_string_of_the_code_never_end_it(fragments):
    code = f"s = {fragments!r}\nprint(s)"
    assert SYNTAX.parse(SYNTAX.render(code)) == ParsedTurn.call(code)
