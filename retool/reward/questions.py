"""Questions to the symbolic worker, and how they travel.

`QuestionKind`, `Question`: what can be asked. `question_to_line`, `question_from_line`: one line each way. `READY`,
`LOADED`, `GOLD_UNREADABLE`: the replies that are no `VerdictReason`.
"""

import json
from dataclasses import astuple, dataclass
from enum import StrEnum

READY = "ready"
"""A worker's first reply."""
LOADED = "loaded"
"""Math-verify has been imported for a question that needs it; the question's clock starts now."""
GOLD_UNREADABLE = "gold_unreadable"
"""The reply to a gold that neither this package nor math-verify can read."""


class QuestionKind(StrEnum):
    """What the symbolic worker can be asked."""

    EQUAL = "equal"
    """Are two expressions equal, for all values of their variables?"""
    RELATION = "relation"
    """Do two relations `left sign right` hold for the same values?"""
    LIBRARY = "library"
    """Does math-verify take two texts for equal? Asked where the gold is beyond this package's own grammar."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question: the expressions of the gold and of the answer, in LaTeX.

    `decimals`: the gold is rounded to so many decimals. `sign`: of a relation.
    """

    kind: QuestionKind
    gold: tuple[str, ...]
    answer: tuple[str, ...]
    decimals: int | None = None
    sign: str = ""


def question_to_line(question: Question) -> str:
    """One line of JSON."""
    return json.dumps(astuple(question)) + "\n"


def question_from_line(line: str) -> Question:
    """What `question_to_line` wrote."""
    kind, gold, answer, decimals, sign = json.loads(line)
    return Question(QuestionKind(kind), tuple(gold), tuple(answer), decimals, sign)
