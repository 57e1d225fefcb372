r"""Tool calls as Markdown: one block fenced with ```` ```python ```` that ends the turn.

| the turn | is |
| --- | --- |
| no Python block | an answer |
| one Python block at the end, text before it or not (a boxed answer too) | a call |
| a Python block, then text with `\boxed{` | an answer: the policy showed code and went on to answer |
| a Python block, then other text | malformed (text after the call) |
| several Python blocks, and no `\boxed{` after the last | malformed (several calls) |
| a Python block without an end | malformed (unclosed) |

Blocks of other languages, and untagged ones, are text. A block ends at the first line that is only a fence of at least
the length of the opening one; where the code up to there is not Python but the code up to a later fence is, at that
one, so that code may hold fences in its strings.

Contents: `SYNTAX`.
"""

import re
from dataclasses import dataclass

from retool.protocol.python_code import is_python
from retool.protocol.types import CallSyntax, ParsedTurn, ParseProblem, ToolFormat

_OPENING = re.compile(r"^ {0,3}(`{3,})[ \t]*([\w+-]*)[^`\n]*$", re.MULTILINE)
_LANGUAGES = frozenset({"python", "py", "python3"})
_MAX_READINGS = 8
"""How many later fences are tried as the end of a block that is not Python up to its first."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A fenced block; `code` is `None` where it has no end. `end` is the offset after it."""

    language: str
    code: str | None
    end: int


def _render(code: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code}\n{fence}"


def _parse(text: str) -> ParsedTurn:
    blocks = [block for block in _blocks(text) if block.language in _LANGUAGES]
    if not blocks:
        return ParsedTurn.answer()
    last = blocks[-1]
    rest = text[last.end :]
    if r"\boxed{" in rest and last.code is not None:
        return ParsedTurn.answer()
    if len(blocks) > 1:
        return ParsedTurn.malformed(
            ParseProblem.MULTIPLE_CALLS,
            "there is more than one Python block in the turn. Write one and wait for its output.",
        )
    if last.code is None:
        return ParsedTurn.malformed(ParseProblem.UNCLOSED, "the Python block has no end. Close it with ``` on a line.")
    if rest.strip():
        return ParsedTurn.malformed(
            ParseProblem.TEXT_AFTER_CALL, "text follows the Python block. End the turn right after it."
        )
    if not last.code.strip():
        return ParsedTurn.malformed(ParseProblem.EMPTY_CODE, "the Python block is empty.")
    return ParsedTurn.call(last.code)


def _blocks(text: str) -> list[_Block]:
    found: list[_Block] = []
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        block = _read_block(text, opening)
        found.append(block)
        position = block.end
    return found


def _read_block(text: str, opening: re.Match[str]) -> _Block:
    language = opening.group(2).lower()
    start = opening.end() + 1
    closing = re.compile(rf"^ {{0,3}}`{{{len(opening.group(1))},}}[ \t]*$", re.MULTILINE)
    ends = list(closing.finditer(text, start)) if start <= len(text) else []
    if not ends:
        return _Block(language, None, len(text))
    end = ends[0]
    if language in _LANGUAGES and len(ends) > 1:
        end = next((e for e in ends[:_MAX_READINGS] if is_python(_between(text, start, e))), end)
    return _Block(language, _between(text, start, end), end.end())


def _between(text: str, start: int, end: re.Match[str]) -> str:
    return text[start : end.start()].removesuffix("\n")


SYNTAX = CallSyntax(
    tool_format=ToolFormat.FENCED_PYTHON,
    parse=_parse,
    render=_render,
    instructions=f"To call it, end your turn with one block in exactly this form:\n{_render('your Python code')}",
)
