r"""Which `\boxed{...}` is the answer."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retool.reward import VerdictReason
from retool.reward.extract import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{5} then \boxed{6}", "6"),
        (r"\boxed {5}", "5"),
        ("\\boxed\n{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{2,5\}}", r"\{2,5\}"),
        (r"\boxed{\left\{ 2 \right.}", r"\left\{ 2 \right."),
        (r"\boxed{x = \boxed{5}}", "5"),
        (r"\boxed{5} and then \boxed{6", "5"),
        (r"\boxed{6 and then \boxed{5}", "5"),
        (r"a } stray { brace \boxed{5} }", "5"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{a \\ b}", r"a \\ b"),
        (r"$$\boxed{5}$$", "5"),
        (r"\boxed{  5 }   ", "5"),
        ("reasoning about \\boxed{4}</think>\n\\boxed{5}", "5"),
        ("<think>\\boxed{4}</think>\\boxed{5}", "5"),
        ("```python\n# \\boxed{4}\n```\nso \\boxed{5}", "5"),
        ("<tool_call>\\boxed{4}</tool_call>\\boxed{5}", "5"),
        ("~~~\n```\n~~~\n\\boxed{5}", "5"),
        ("inline ```\\boxed{5}``` code", "5"),
    ],
)
def test_the_last_balanced_box_is_the_answer(text, answer):
    assert extract_answer(text).answer == answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", VerdictReason.NO_BOX),
        ("the answer is 5", VerdictReason.NO_BOX),
        (r"\fbox{5}", VerdictReason.NO_BOX),
        (r"\boxed 5", VerdictReason.NO_BOX),
        (r"\boxedx{5}", VerdictReason.NO_BOX),
        (r"\boxed{5", VerdictReason.UNCLOSED_BOX),
        (r"\boxed{\frac{1}{2}", VerdictReason.UNCLOSED_BOX),
        (r"\boxed{}", VerdictReason.EMPTY_BOX),
        (r"\boxed{5} \boxed{ }", VerdictReason.EMPTY_BOX),
        ("<tool_call>\n# \\boxed{5}\n</tool_call>", VerdictReason.BOX_IN_TOOL_TEXT),
        ("<tool_call>\n# \\boxed{5}\n", VerdictReason.BOX_IN_TOOL_TEXT),
        ("<tool_response>\\boxed{5}</tool_response> done", VerdictReason.BOX_IN_TOOL_TEXT),
        ("<think>so \\boxed{5}", VerdictReason.BOX_IN_TOOL_TEXT),
        ("so \\boxed{5}</think> done", VerdictReason.BOX_IN_TOOL_TEXT),
        ("```python\nprint(r'\\boxed{5}')\n```", VerdictReason.BOX_IN_TOOL_TEXT),
        ("```\n\\boxed{5}", VerdictReason.BOX_IN_TOOL_TEXT),
        (r"\boxed{<tool_call>5</tool_call>}", VerdictReason.BOX_IN_TOOL_TEXT),
    ],
)
def test_no_answer_and_why(text, reason):
    assert (extract_answer(text).answer, extract_answer(text).reason) == (None, reason)


def test_the_window_is_counted_in_characters_of_the_stripped_text():
    box = r"\boxed{5}"
    assert extract_answer("\n" + box + "é" * (300 - len(box)) + "   \n").answer == "5"
    assert extract_answer(box + "é" * (301 - len(box))).reason is VerdictReason.NO_BOX
    assert extract_answer(box + "x" * 91, window=100).answer == "5"


def test_a_span_that_begins_before_the_window_still_counts():
    assert extract_answer("<tool_call>" + "x" * 500 + r"\boxed{5}").reason is VerdictReason.BOX_IN_TOOL_TEXT


def test_thousands_of_unclosed_boxes():
    assert extract_answer(r"\boxed{" * 20_000).reason is VerdictReason.UNCLOSED_BOX
    assert extract_answer(r"\boxed{" * 20_000, window=10**6).reason is VerdictReason.UNCLOSED_BOX


PIECES = st.sampled_from(
    [
        "\\boxed{",
        "\\boxed {",
        "{",
        "}",
        "\\{",
        "\\}",
        "\\\\",
        "5",
        " ",
        "\n",
        "```",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "\\boxed",
        "\\fbox{",
        "x",
    ]
)


@settings(deadline=None, derandomize=True)
@given(st.lists(PIECES, max_size=40).map("".join))
@example("\\boxed{5}")
def test_every_text_has_an_answer_or_a_reason(text):
    extraction = extract_answer(text)
    assert (extraction.answer is None) != (extraction.reason is None)
    if extraction.answer is not None:
        assert extraction.answer and extraction.answer in text
        plain = re.sub(r"\\[{}\\]", "", extraction.answer)
        assert plain.count("{") == plain.count("}")


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="ab \n{}\\", max_size=30), st.integers(0, 10**6))
def test_a_box_at_the_end_of_any_prose_is_found(prose, number):
    assert extract_answer(f"{prose} done: \\boxed{{{number}}}").answer == str(number)
