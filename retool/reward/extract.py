r"""Finding the final answer: the last balanced `\boxed{...}` of a text that counts.

`Extraction`: the answer, or why there is none. `extract_answer`: one linear pass over the text.

A box counts if it starts within the last `window` characters of the text (stripped at both ends, in code points) and
stands outside tool calls, tool responses, reasoning and fenced code. Escaped braces do not count as braces.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

from retool.reward.verdict import VerdictReason

_EXCLUDING = ("tool_call", "tool_response", "think")
_STRUCTURE = re.compile(
    rf"<(?P<slash>/?)(?P<tag>{'|'.join(_EXCLUDING)})>"
    r"|^[ ]{0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)$",
    re.MULTILINE,
)
# A doubled backslash before `boxed` is an over-escaped box, or a line break followed by one.
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|\\\\(?!boxed\s*\{)|[{}]")


@dataclass(frozen=True, slots=True)
class Extraction:
    """The content of the box, or None and the reason: `NO_BOX`, `UNCLOSED_BOX`, `EMPTY_BOX` or `BOX_IN_TOOL_TEXT`."""

    answer: str | None
    reason: VerdictReason | None = None


def extract_answer(text: str, window: int = 300) -> Extraction:
    """The answer in `text`. Nested boxes count from the innermost: `\\boxed{x = \\boxed{5}}` answers 5."""
    text = text.strip()
    excluded = _excluded_spans(text)
    first = max(0, len(text) - window)
    spans, unclosed = _boxes(text, first)
    if not spans:
        return Extraction(None, VerdictReason.UNCLOSED_BOX if unclosed else VerdictReason.NO_BOX)
    counting = [span for span in spans if not _overlaps(span, excluded)]
    if not counting:
        return Extraction(None, VerdictReason.BOX_IN_TOOL_TEXT)
    start, end = max(counting)
    answer = text[text.index("{", start) + 1 : end - 1].strip()
    return Extraction(answer) if answer else Extraction(None, VerdictReason.EMPTY_BOX)


def _boxes(text: str, first: int) -> tuple[list[tuple[int, int]], bool]:
    """Spans of the balanced boxes that start at or after `first`, and whether there is an unbalanced one."""
    spans: list[tuple[int, int]] = []
    opened: list[int | None] = []
    for match in _BRACES.finditer(text, first):
        token = match.group()
        if token == "{":
            opened.append(None)
        elif token.startswith("\\boxed"):
            opened.append(match.start())
        elif token == "}" and opened:
            start = opened.pop()
            if start is not None:
                spans.append((start, match.end()))
    return spans, any(start is not None for start in opened)


def _excluded_spans(text: str) -> list[tuple[int, int]]:
    """Spans that do not belong to the answer, in order and disjoint. An unclosed one reaches to the end.

    A `</think>` that nothing opens ends reasoning that began in the prompt.
    """
    spans: list[tuple[int, int]] = []
    opened: tuple[str, int] | None = None
    for match in _STRUCTURE.finditer(text):
        fence, tag = match["fence"], match["tag"]
        if opened is None:
            if tag is not None and match["slash"]:
                if tag == "think":
                    spans = [(0, match.end())]
            elif tag is not None or not (fence[0] == "`" and "`" in match["info"]):
                opened = (tag or fence, match.start())
        elif _closes(opened[0], match):
            spans.append((opened[1], match.end()))
            opened = None
    if opened is not None:
        spans.append((opened[1], len(text)))
    return spans


def _closes(opened: str, match: re.Match[str]) -> bool:
    fence = match["fence"]
    if fence is None:
        return match["tag"] == opened and bool(match["slash"])
    return opened.startswith(fence[0]) and len(fence) >= len(opened) and not match["info"].strip()


def _overlaps(span: tuple[int, int], excluded: list[tuple[int, int]]) -> bool:
    index = bisect_right(excluded, (span[0], span[1])) - 1
    before = index >= 0 and excluded[index][1] > span[0]
    after = index + 1 < len(excluded) and excluded[index + 1][0] < span[1]
    return before or after
