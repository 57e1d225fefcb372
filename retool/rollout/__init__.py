"""Rollouts: what a policy did on a problem (`Trajectory`, `Turn`, `StopReason`), within which limits (`RolloutLimits`).

`retool.rollout.groups.Rollout` runs them.
"""

from retool.rollout.limits import OnParseError, RolloutLimits
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, TrajectoryGroup, Turn

__all__ = [
    "CallOutcome",
    "OnParseError",
    "RolloutLimits",
    "StopReason",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
]
