"""From a publisher's row to our question, gold answer and id.

`FieldMapping` names the publisher's fields (a list is joined to one text, a dot reaches into nested objects);
`gold_text` writes a gold answer the way a scorer reads it, changing as little as possible.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from retool.data.files import Row
from retool.errors import UserError

OURS = ("id", "question", "answer", "data_source")
_WORKED_SOLUTION = re.compile(r"####[ \t]*(?P<answer>\S[^\n]*)\s*\Z")
_WHOLE_DECIMAL = re.compile(r"(?P<whole>[+-]?\d+)\.0+")
_DAPO_PROMPT = re.compile(
    r"\ASolve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.\s+(?P<question>.*?)\s+"
    r"Remember to put your answer on its own line after \"Answer:\"\.?\s*\Z",
    re.DOTALL,
)
_SENTENCE_END = ".?!:;,"


class MissingFieldError(Exception):
    """A row lacks a field; `field` is its name in the mapping."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


@dataclass(frozen=True)
class FieldMapping:
    """The publisher's names of our fields; several names are several parts of one text."""

    question: tuple[str, ...] = ("question",)
    answer: tuple[str, ...] = ("answer",)
    id: str | None = None
    data_source: str | None = None

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> "FieldMapping":
        """Reads the `fields` of a configuration. Raises `UserError` for names that are not ours."""
        for key in fields:
            if key not in OURS:
                close = difflib.get_close_matches(key, OURS, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else ""
                raise UserError(f"data.fields: '{key}' is none of {', '.join(OURS)}.{hint}")
        return cls(
            question=_names(fields, "question") or cls.question,
            answer=_names(fields, "answer") or cls.answer,
            id=_single(fields, "id"),
            data_source=_single(fields, "data_source"),
        )

    def question_of(self, row: Row) -> str:
        """The question; parts are joined as sentences. A chat message stands for its content."""
        return join_parts([_text(lookup(row, name)) for name in self.question])

    def answer_of(self, row: Row) -> str:
        """The gold answer, see `gold_text`."""
        return gold_text(lookup(row, self.answer[0]))

    def id_of(self, row: Row) -> str | None:
        """The publisher's id, or `None` where there is none."""
        value = _optional(row, self.id, "id")
        return None if value is None else str(value).strip() or None

    def data_source_of(self, row: Row) -> str | None:
        """The name of the set that the row itself carries, or `None`."""
        value = _optional(row, self.data_source, "data_source")
        return None if value is None else str(value).strip() or None


def lookup(row: Row, name: str) -> object:
    """`row[name]`, or the value at a dotted path. Raises `MissingFieldError`."""
    if name in row:
        return row[name]
    value: object = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise MissingFieldError(name)
        value = value[part]
    return value


def missing_field_message(field: str, row: Row, place: str) -> str:
    """What is wrong, what the row has instead, and the closest name."""
    close = difflib.get_close_matches(field.casefold(), [name.casefold() for name in row], n=1, cutoff=0.6)
    names = {name.casefold(): name for name in row}
    hint = f" Did you mean '{names[close[0]]}'?" if close else ""
    return (
        f"{place}: there is no field '{field}'. The fields found are {', '.join(map(str, row)) or 'none'}.{hint} "
        "Set data.fields={question: ..., answer: ...} to the file's own names."
    )


def gold_text(value: object) -> str:
    """A gold answer as text: whole floats lose their `.0`, a worked solution is cut to what follows its last `####`.

    Thousands separators and leading zeros stay, the scorer reads them. Returns "" for what holds no answer.
    """
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int | float):
        return _number_text(Decimal(repr(value)))
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
        return gold_text(value[0])
    if not isinstance(value, str):
        return ""
    text = value.strip()
    solution = _WORKED_SOLUTION.search(text)
    if solution is not None:
        text = solution["answer"].strip()
    whole = _WHOLE_DECIMAL.fullmatch(text)
    return whole["whole"] if whole is not None else text


def join_parts(parts: Sequence[str]) -> str:
    """Joins a problem's body and question; a part without punctuation at its end is an open clause: a comma follows."""
    stripped = [part.strip() for part in parts if part.strip()]
    joined = [f"{part}," if part[-1] not in _SENTENCE_END else part for part in stripped[:-1]]
    return " ".join([*joined, *stripped[-1:]])


def _text(value: object) -> str:
    if isinstance(value, str):
        wrapped = _DAPO_PROMPT.match(value)
        return wrapped["question"] if wrapped is not None else value
    if isinstance(value, Mapping):
        return _text(value.get("content", ""))
    if isinstance(value, Sequence) and len(value) == 1:
        return _text(value[0])
    return "" if value is None else str(value)


def _number_text(number: Decimal) -> str:
    if not number.is_finite():
        return ""
    if number == number.to_integral_value():
        return str(int(number))
    return format(number, "f")


def _names(fields: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = fields.get(key)
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"data.fields.{key}: expected a field name or a list of them, found {value!r}.")
    return tuple(str(name) for name in names)


def _single(fields: Mapping[str, object], key: str) -> str | None:
    names = _names(fields, key)
    if len(names) > 1:
        raise UserError(f"data.fields.{key}: expected one field name, found {list(names)}.")
    return names[0] if names else None


def _optional(row: Row, configured: str | None, default: str) -> object:
    return row.get(default) if configured is None else lookup(row, configured)
