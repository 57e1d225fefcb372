"""Problems with gold answers: the unit that data sources produce and rollouts consume."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer.

    `id` is stable across runs and machines, so that splits and seeds derived from it are too.
    """

    id: str
    question: str
    answer: str
    data_source: str


@dataclass(frozen=True, slots=True)
class ProblemSplit:
    """Training problems and the held-out ones that evaluation uses. They share no id."""

    train: Sequence[Problem]
    holdout: Sequence[Problem]


class ProblemSource(Protocol):
    """Where problems come from. Implementations are instantiated from `conf/data/`."""

    def load(self) -> ProblemSplit:
        """Reads or generates all problems. Raises `UserError` on a missing file, an empty set or an unusable gold."""
        ...
