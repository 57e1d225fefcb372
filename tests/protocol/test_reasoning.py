"""Reasoning is removed before anything is parsed or scored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.protocol.reasoning import is_reasoning_open, remove_reasoning, without_closed_reasoning


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("x<think>a</think>y<think>b</think>z", "xyz"),
        ("a</think>b", "b"),  # the generation prompt opened it
        ("a</think>b</think>c", "c"),
        ("x<think>a", "x"),  # no end: reasoning to the end of the text
        ("<think>a", ""),
        ("<think>a<think>b</think>c", "c"),
        ("<think>\n\n</think>\n\nb", "\n\nb"),
        ("<think>\\boxed{1}</think>\\boxed{2}", "\\boxed{2}"),
    ],
)
def test_what_is_kept(text, kept):
    assert remove_reasoning(text) == kept


def test_a_text_that_never_leaves_the_opened_block_is_reasoning():
    assert remove_reasoning("only thoughts", opened=True) == ""
    assert remove_reasoning("thoughts</think>answer", opened=True) == "answer"


def test_generation_prompts():
    assert is_reasoning_open("<|im_start|>assistant\n<think>\n")
    assert not is_reasoning_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert without_closed_reasoning("assistant\n<think>\n\n</think>\n\n") == "assistant\n"
    assert without_closed_reasoning("assistant\n<think>\n") == "assistant\n<think>\n"


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n"])).map("".join), st.booleans())
def test_no_tag_is_kept_and_removal_is_complete(text, opened):
    kept = remove_reasoning(text, opened=opened)
    assert "think>" not in kept
    assert remove_reasoning(kept) == kept


PLAIN = st.text(alphabet=st.characters(exclude_characters="<>"))


@given(st.lists(st.tuples(PLAIN, PLAIN)), PLAIN)
def test_what_stands_outside_of_blocks_is_kept_to_the_letter(parts, last):
    text = "".join(f"{outside}<think>{inside}</think>" for outside, inside in parts) + last
    assert remove_reasoning(text) == "".join(outside for outside, _ in parts) + last
