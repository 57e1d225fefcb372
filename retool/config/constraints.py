"""What a key of the schema may hold beyond its type, declared next to the key.

`option` makes a dataclass field with a `Constraint`; `constraint_of` reads it back; `Constraint.violation` says in
words what is wrong with a value; `did_you_mean` suggests the nearest known word.
"""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import MISSING

_METADATA_KEY = "retool.constraint"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` Did you mean 'x'?` for the nearest known word, else the empty string."""
    near = get_close_matches(word, known, n=1, cutoff=0.7)
    near = near or [name for name in known if len(word) > 2 and name.startswith(word)]
    return f" Did you mean '{near[0]}'?" if near else ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Bounds are inclusive except `above`. `file`: a file or directory must exist there; `filled`: no blank text.

    `schema`: the value is null or a mapping of that dataclass. OmegaConf cannot give keys to a null of a dataclass type
    on the command line, so such a key is annotated `Any`.
    """

    choices: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    file: bool = False
    filled: bool = False
    schema: type | None = None

    def violation(self, value: object) -> str | None:
        """What is wrong with `value`, or `None`. `None` values are the type's business and always pass."""
        if value is None:
            return None
        if self.schema is not None:
            names = ", ".join(schema_field.name for schema_field in fields(self.schema))
            return f"'{value}' is not a mapping with the keys {names}."
        if self.choices is not None and value not in self.choices:
            return f"'{value}' is not one of {', '.join(self.choices)}.{did_you_mean(str(value), self.choices)}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._number_violation(value)
        if self.file and not Path(str(value)).expanduser().exists():
            return f"there is no file or directory at '{value}' (looked from {Path.cwd()})."
        if self.filled and not str(value).strip():
            return "it is empty."
        return None

    def _number_violation(self, value: float) -> str | None:
        if not math.isfinite(value):
            return f"{value} is not a finite number."
        if self.low is not None and value < self.low:
            return f"{value} is below the smallest allowed value, {self.low}."
        if self.high is not None and value > self.high:
            return f"{value} is above the largest allowed value, {self.high}."
        if self.above is not None and value <= self.above:
            return f"{value} must be above {self.above}."
        return None


def option(
    default: object = MISSING,
    *,
    choices: Sequence[str] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    file: bool = False,
    filled: bool = False,
    schema: type | None = None,
) -> Any:  # noqa: ANN401 - like dataclasses.field, it stands for a value of the key's own type
    """A dataclass field with a constraint. Without a default the option's YAML must give the value."""
    constraint = Constraint(tuple(choices) if choices is not None else None, low, high, above, file, filled, schema)
    metadata = {_METADATA_KEY: constraint}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def constraint_of(schema_field: "Field[Any]") -> Constraint | None:
    """The constraint that `option` attached to a dataclass field."""
    constraint = schema_field.metadata.get(_METADATA_KEY)
    return constraint if isinstance(constraint, Constraint) else None
