r"""The shape of an answer: one value, several, a tuple or interval, a relation, a matrix, words.

`Kind`: those shapes. `Answer`: an answer's tree. `read_answer`: normalised text to tree. Expressions inside are only
read, by `retool.reward.expression`, never evaluated.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from retool.reward.expression import Node, TooComplexError, UnreadableError, read_expression
from retool.reward.guard import MAX_LENGTH, refuse_complex
from retool.reward.units import split_quantity

_MATRIX = re.compile(r"^\\begin\{([pbvBV]?(?:small)?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}$", re.DOTALL)
_WORD_SEPARATOR = re.compile(
    r"\\text\{\s*,?\s*(?:or|and|或|或者|和|以及|且|与)\s*\}|(?:或者|或|以及|和|且|与)", re.IGNORECASE
)
_RELATIONS = (
    r"\le",
    r"\ge",
    r"\ne",
    r"\in",
    r"\approx",
    r"\equiv",
    r"\sim",
    r"\to",
    r"\subset",
    r"\subseteq",
    r"\implies",
)
_RELATION = re.compile(rf"(?:{'|'.join(re.escape(name) for name in _RELATIONS)})(?![A-Za-z])|\\Rightarrow|[=<>:]")
_NAME = re.compile(r"\\?[A-Za-z]+'*(?:_(?:\{[^{}]*\}|\w))?(?:\([A-Za-z\d, ]*\))?|\\text\{[^{}]*\}")
_TUPLE_OF_NAMES = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)")
_SET_BUILDER = re.compile(r"\s*[A-Za-z]\s*(?:\\in\s*(?:\\mathbb\s*\{?R\}?|R)\s*)?[|:](?P<condition>.+)", re.DOTALL)
_OR = re.compile(r"or|或|或者", re.IGNORECASE)
_OPENING = {"(": "(", "[": "[", r"\{": "{", r"\langle": "<", "{": ""}
_CLOSING = {")": ")", "]": "]", r"\}": "}", r"\rangle": ">", "}": ""}
_DELIMITER = re.compile(r"\\langle(?![A-Za-z])|\\rangle(?![A-Za-z])|\\begin|\\end|\\.|[()\[\]{}]")
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_COMMA = re.compile("[,;]")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_UNVALUED = re.compile(r"[+-]?\\infty|\\emptyset|\\mathbb\s*\{?[A-Z]\}?")
_KNOWN_WORDS = frozenset(("yes", "no", "even", "odd", "true", "false", "none"))
_MAX_PARTS = 64
_MAX_DEPTH = 8


class Kind(StrEnum):
    """The shape of an answer."""

    VALUE = "value"
    """One expression, perhaps with a unit or a name (`x = 5`)."""
    COLLECTION = "collection"
    """Several values without order: a set, a list, alternatives, a plus-minus."""
    BRACKETED = "bracketed"
    """Values in order between brackets that matter: a tuple, a point, an interval."""
    UNION = "union"
    """Several sets joined by unions."""
    MATRIX = "matrix"
    """Rows of values."""
    RELATION = "relation"
    """Sides joined by relation signs: an equation, an inequality."""
    TEXT = "text"
    """Words."""
    NAMED = "named"
    """Something with a name that is no number: infinity, the empty set, the real numbers. It equals the same text."""
    OTHER = "other"
    """Anything else. It equals only the same text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's tree. `text` is the canonical text without spaces; equal texts are equal answers.

    `parts`: the values of all kinds but `VALUE`, `TEXT` and `OTHER`; a matrix has one `BRACKETED` part a row.
    `marks`: the brackets of `BRACKETED`, the signs of `RELATION`, "or" of alternatives. `name`: `x` in `x = 5` and in
    `x \\in [1, 2]`.
    `expression`: of a `VALUE`, without unit and percent sign; None if it cannot be read. `too_complex`: refused.
    """

    kind: Kind
    text: str
    parts: tuple["Answer", ...] = ()
    marks: tuple[str, ...] = ()
    name: str = ""
    latex: str = ""
    unit: str = ""
    percent: bool = False
    expression: Node | None = None
    too_complex: bool = False
    braced: bool = False

    def leaves(self) -> tuple["Answer", ...]:
        """The parts that have no parts."""
        return tuple(leaf for part in self.parts for leaf in part.leaves()) if self.parts else (self,)


def read_answer(text: str, depth: int = 0) -> Answer:
    """The tree of a normalised answer. Never fails: what has no shape is `OTHER`."""
    if len(text) > MAX_LENGTH:
        return Answer(Kind.OTHER, text, too_complex=True)
    text = text.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return Answer(Kind.VALUE, text, latex=text, expression=read_expression(text))
    text = _unwrap(text)
    key = canonical_text(text)
    if depth > _MAX_DEPTH:
        return Answer(Kind.OTHER, key, too_complex=True)
    if is_words(text):
        return Answer(Kind.TEXT, text_key(text))
    for read in (_read_matrix, _read_list, _read_relation, _read_union, _read_bracketed, _read_plus_minus):
        answer = read(text, key, depth)
        if answer is not None:
            return answer
    return _read_value(text, key)


def canonical_text(text: str) -> str:
    """Text for comparison: without spaces, except where they end a command or part two numbers."""
    return re.sub(r"(\\[A-Za-z]+|[\d.])\s+(?=[A-Za-z\d.])|\s+", _keep_needed_space, text)


def _keep_needed_space(match: re.Match[str]) -> str:
    before = match[1]
    if before is None:
        return ""
    follows_number = match.string[match.end()] in "0123456789."
    return f"{before} " if (before[0] == "\\") != follows_number else before


def text_key(text: str) -> str:
    """Words for comparison: letters and digits alone, lower case."""
    return " ".join(re.findall(r"[^\W_]+", re.sub(r"\\text(?![A-Za-z])|\\[ ,;:]", " ", text).casefold()))


def is_words(text: str) -> bool:
    """Whether the text is words and no mathematics: text commands, or bare words that no product would spell."""
    outside = re.sub(r"\\text\{[^{}]*\}", " ", text)
    inside = " ".join(re.findall(r"\\text\{([^{}]*)\}", text))
    if re.search(r"[^A-Za-z\s,.'’\-\u3400-\u9fff]", outside):
        return False
    bare = re.findall(r"[A-Za-z]+|[\u3400-\u9fff]+", outside)
    if re.search(r"[^\W\d_]{2,}|[\u3400-\u9fff]", inside):
        return not bare or all(len(word) > 1 for word in bare)
    return bool(bare) and any(len(word) >= 4 or word.lower() in _KNOWN_WORDS or word >= "\u3400" for word in bare)


def _unwrap(text: str) -> str:
    """Takes plain brackets around the whole off, where they hold a single value."""
    for _ in range(_MAX_DEPTH):
        if not _is_enclosed(text) or text[0] not in "({" or text[-1] not in ")}" or text[-2] == "\\":
            return text
        inner = text[1:-1].strip()
        if not inner or len(split_top(inner, _COMMA)) > 1:
            return text
        text = inner
    return text


def _is_enclosed(text: str) -> bool:
    """Whether the first character opens a bracket that the last one closes. Any closing one closes any opening one."""
    depth = 0
    for match in _DELIMITER.finditer(text):
        if match.start() > 0 and depth == 0:
            return False
        depth += _step(match.group())
        if depth == 0:
            return match.end() == len(text)
    return False


def _step(token: str) -> int:
    return (token in _OPENING or token == r"\begin") - (token in _CLOSING or token == r"\end")


def split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """Splits at a separator outside all brackets. Any closing bracket closes any opening one, as in `[1, 2)`."""
    pieces: list[str] = []
    begin = position = depth = 0
    while position < len(text):
        found = separator.match(text, position)
        if found is not None and depth == 0:
            pieces.append(text[begin:position])
            begin = position = found.end()
            continue
        token = found or _DELIMITER.match(text, position)
        if token is None:
            position += 1
            continue
        if found is None:
            depth = max(0, depth + _step(token.group()))
        position = token.end()
    return [*pieces, text[begin:]]


def _parts(pieces: list[str], depth: int) -> tuple[Answer, ...] | None:
    """The answers in `pieces`, or None if one is blank or there are too many."""
    if len(pieces) > _MAX_PARTS or any(not piece.strip() for piece in pieces):
        return None
    return tuple(read_answer(piece, depth + 1) for piece in pieces)


def _read_matrix(text: str, key: str, depth: int) -> Answer | None:
    match = _MATRIX.match(text)
    if match is None:
        return None
    if match[1][0] in "vV":
        return Answer(Kind.OTHER, key, too_complex=True)
    rows = [row for row in re.split(r"\\\\", match[2]) if row.strip() and row.strip() != r"\hline"]
    read = []
    for row in rows:
        cells = _parts(row.split("&"), depth)
        if cells is None:
            return Answer(Kind.OTHER, key)
        read.append(Answer(Kind.BRACKETED, canonical_text(row), cells, ("", "")))
    return Answer(Kind.MATRIX, key, tuple(read))


def _read_list(text: str, key: str, depth: int) -> Answer | None:
    pieces = [piece for part in split_top(text, _WORD_SEPARATOR) for piece in split_top(part, _COMMA)]
    if len(pieces) == 1:
        return None
    if len(pieces) > 2:
        # "1, 2, and 3" has an empty piece where the comma meets the word.
        pieces = [piece for piece in pieces if piece.strip()]
    parts = _parts(pieces, depth)
    if parts is None:
        return Answer(Kind.OTHER, key)
    words = _WORD_SEPARATOR.findall(text)
    alternatives = len(words) == len(parts) - 1 and all(_OR.search(word) for word in words)
    return Answer(Kind.COLLECTION, key, parts, ("or",) if alternatives else ())


def _read_relation(text: str, key: str, depth: int) -> Answer | None:
    sides = split_top(text, _RELATION)
    if len(sides) == 1:
        return None
    signs, position = [], 0
    for side in sides[:-1]:
        position = text.index(side, position) + len(side)
        match = _RELATION.match(text, position)
        assert match is not None
        signs.append(match.group())
        position = match.end()
    parts = _parts(sides, depth)
    if parts is None:
        return Answer(Kind.OTHER, key)
    if len(parts) == 2 and signs[0] == "=" and is_name(sides[1]) and not is_name(sides[0]):
        sides, parts = sides[::-1], parts[::-1]
    if len(parts) == 2 and signs[0] in ("=", r"\in") and is_name(sides[0]):
        value = parts[1]
        if signs[0] == "=" or value.kind in (Kind.COLLECTION, Kind.BRACKETED, Kind.UNION):
            return replace(value, text=key, name=canonical_text(sides[0]))
    return Answer(Kind.RELATION, key, parts, tuple(signs))


def is_name(text: str) -> bool:
    """Whether the text names what is asked for: `x`, `f(x)`, `(x, y)` in alphabetical order."""
    text = text.strip()
    letters = re.findall("[A-Za-z]", text)
    return bool(_NAME.fullmatch(text)) or (bool(_TUPLE_OF_NAMES.fullmatch(text)) and letters == sorted(letters))


def _read_union(text: str, key: str, depth: int) -> Answer | None:
    pieces = split_top(text, _UNION)
    if len(pieces) == 1:
        return None
    parts = _parts(pieces, depth)
    return Answer(Kind.OTHER, key) if parts is None else Answer(Kind.UNION, key, parts)


def _read_bracketed(text: str, key: str, depth: int) -> Answer | None:
    opening = _DELIMITER.match(text)
    if opening is None or opening.group() not in _OPENING or not _is_enclosed(text):
        return None
    closing = list(_DELIMITER.finditer(text))[-1]
    pieces = split_top(text[opening.end() : closing.start()], _COMMA)
    braced = opening.group() == r"\{" and closing.group() == r"\}"
    if len(pieces) == 1 and not braced:
        return None
    builder = _SET_BUILDER.fullmatch(pieces[0]) if braced and len(pieces) == 1 else None
    if builder is not None:
        condition = read_answer(builder["condition"], depth + 1)
        if condition.kind in (Kind.RELATION, Kind.COLLECTION):
            return replace(condition, text=key)
    parts = _parts(pieces, depth)
    if parts is None:
        return Answer(Kind.OTHER, key)
    if braced:
        return Answer(Kind.COLLECTION, key, parts, braced=True)
    return Answer(Kind.BRACKETED, key, parts, (_OPENING[opening.group()], _CLOSING[closing.group()]))


def _read_plus_minus(text: str, key: str, depth: int) -> Answer | None:
    signs = list(re.finditer(r"\\(?:pm|mp)(?![A-Za-z])", text))
    if not signs:
        return None
    if len(signs) > 1:
        return Answer(Kind.OTHER, key)
    before, after = text[: signs[0].start()], text[signs[0].end() :]
    parts = _parts([f"{before}+{after}", f"{before}-{after}"], depth)
    return Answer(Kind.OTHER, key) if parts is None else Answer(Kind.COLLECTION, key, parts)


def _read_value(text: str, key: str) -> Answer:
    quantity = split_quantity(text)
    value = _unwrap(quantity.value)
    if _UNVALUED.fullmatch(value):
        return Answer(Kind.NAMED, key.removeprefix("+"))
    expression: Node | None = None
    too_complex = refuse_complex(value)
    if not too_complex:
        try:
            expression = read_expression(value)
        except TooComplexError:
            too_complex = True
        except UnreadableError:
            pass
    prose = expression is None and (r"\text" in value or r"\ldots" in value or re.search("[\u3400-\u9fff]", value))
    return Answer(
        Kind.OTHER if prose else Kind.VALUE,
        key,
        latex=value,
        unit=quantity.unit,
        percent=quantity.percent,
        expression=expression,
        too_complex=too_complex,
    )
