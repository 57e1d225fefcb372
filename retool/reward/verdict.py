"""The scorer's answer to one final turn."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class VerdictReason(StrEnum):
    """Why a verdict is what it is; counted in metrics."""

    CORRECT_TEXT = "correct_text"
    """The normalised answer and gold are the same text."""
    CORRECT_NUMBER = "correct_number"
    """Both are rational numbers, and equal."""
    CORRECT_SYMBOLIC = "correct_symbolic"
    """Proved equal by the symbolic worker."""
    WRONG_NUMBER = "wrong_number"
    """Both are rational numbers, and different."""
    WRONG_TEXT = "wrong_text"
    """One of the two is words, and the other is not the same words."""
    WRONG_SYMBOLIC = "wrong_symbolic"
    """The symbolic worker found them different."""
    WRONG_KIND = "wrong_kind"
    """Several values, a range, a condition or prose for a gold of one value."""
    NO_BOX = "no_box"
    """No boxed answer in the answer window."""
    UNCLOSED_BOX = "unclosed_box"
    """The only box is cut off."""
    EMPTY_BOX = "empty_box"
    """The last box is blank."""
    BOX_IN_TOOL_TEXT = "box_in_tool_text"
    """The only box stands inside a tool call, a tool response or a reasoning block."""
    UNPARSEABLE = "unparseable"
    """The answer is not an expression that the symbolic worker can read."""
    TOO_COMPLEX = "too_complex"
    """The answer was refused before any parser saw it."""
    TIMEOUT = "timeout"
    """The symbolic worker reached its time limit on this answer."""
    OUT_OF_MEMORY = "out_of_memory"
    """The symbolic worker reached its memory limit on this answer."""
    WORKER_DIED = "worker_died"
    """The symbolic worker crashed on this answer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reward and its justification. `correct` implies `valid_format`."""

    reward: float
    correct: bool
    valid_format: bool
    reason: VerdictReason
    extracted: str | None


class AsyncScorer(Protocol):
    """What a rollout needs from a scorer."""

    async def ascore(self, text: str, gold: str) -> Verdict:
        """Scores the text of a final turn. Raises `InfrastructureError` when the scorer itself cannot run."""
        ...
