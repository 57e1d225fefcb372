"""Which trajectories stay out of the loss. They keep their reward in the group's baseline.

Contents: `MaskReason`, `mask_reason`, `has_void_turn`.
"""

from enum import StrEnum

from retool.policy.types import SamplerStop
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, Turn


class MaskReason(StrEnum):
    """Why a trajectory is not trained on."""

    INFRASTRUCTURE = "infrastructure"
    """A machine failed. It has no reward either, and is not part of its group."""
    TRUNCATED = "truncated"
    """The token budget ran out, so that its reward says little about its tokens (`mask_truncated`)."""
    VOID_TURN = "void_turn"
    """A turn has neither code nor an answer (`mask_void_turns`; SimpleTIR, arXiv 2509.02479)."""


def mask_reason(trajectory: Trajectory, *, mask_truncated: bool, mask_void_turns: bool) -> MaskReason | None:
    """Why the trajectory stays out of the loss under these options, or `None` if it enters it."""
    if trajectory.verdict is None:
        return MaskReason.INFRASTRUCTURE
    if mask_truncated and trajectory.stop_reason is StopReason.TOKEN_LIMIT:
        return MaskReason.TRUNCATED
    if mask_void_turns and has_void_turn(trajectory):
        return MaskReason.VOID_TURN
    return None


def has_void_turn(trajectory: Trajectory) -> bool:
    """Whether some turn holds neither a well-formed call (run or not) nor, as the last one, a boxed answer.

    A turn that the sampler cut and the next one continues counts as part of that one.
    """
    last = len(trajectory.turns) - 1
    for index, turn in enumerate(trajectory.turns):
        if index < last and _is_continued(turn):
            continue
        answered = index == last and trajectory.stop_reason is StopReason.ANSWERED and _has_answer(trajectory)
        if not answered and not _has_code(turn):
            return True
    return False


def _is_continued(turn: Turn) -> bool:
    return turn.sampler_stop is SamplerStop.LENGTH and not turn.observation_tokens


def _has_code(turn: Turn) -> bool:
    if turn.call is CallOutcome.MALFORMED:
        return False
    return turn.code is not None or turn.call in (CallOutcome.EXECUTED, CallOutcome.OVER_BUDGET)


def _has_answer(trajectory: Trajectory) -> bool:
    return trajectory.verdict is not None and trajectory.verdict.valid_format
