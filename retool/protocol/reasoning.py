"""Reasoning blocks: what a policy writes between `<think>` and `</think>` is neither parsed nor scored.

Contents: `remove_reasoning`, `is_reasoning_open`, `without_closed_reasoning`.
"""

import re

OPEN = "<think>"
CLOSE = "</think>"

_EMPTY_BLOCK_AT_END = re.compile(r"<think>\s*</think>\s*\Z")


def remove_reasoning(text: str, *, opened: bool = False) -> str:
    """`text` without its reasoning.

    A closing tag without an opening one ends reasoning that began before the text, in the generation prompt: all
    before it goes. A block without an end goes to the end of the text. `opened` says that the generation prompt
    opened a block, so that a text without any tag is reasoning as a whole.
    """
    kept = ""
    inside = opened
    position = 0
    while True:
        closing = text.find(CLOSE, position)
        if inside:
            if closing < 0:
                return kept
            position, inside = closing + len(CLOSE), False
            continue
        opening = text.find(OPEN, position)
        if closing >= 0 and (opening < 0 or closing < opening):
            kept, position = "", closing + len(CLOSE)
        elif opening >= 0:
            kept, position, inside = kept + text[position:opening], opening + len(OPEN), True
        else:
            return kept + text[position:]


def is_reasoning_open(prompt: str) -> bool:
    """Whether a generation prompt ends inside a reasoning block."""
    return prompt.rstrip().endswith(OPEN)


def without_closed_reasoning(prompt: str) -> str:
    """A generation prompt without the empty reasoning block at its end, if it has one."""
    return _EMPTY_BLOCK_AT_END.sub("", prompt)
