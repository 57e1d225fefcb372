"""Small stand-ins for what a run talks to."""

from retool.data.problem import Problem
from retool.policy.types import SamplerStop
from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, TrajectoryGroup, Turn
from retool.sandbox.base import ExecutionResult, ExecutionStatus


def problem(name: str) -> Problem:
    return Problem(id=name, question=f"What is {name}?", answer="1", data_source="test")


def verdict(right: bool) -> Verdict:
    reason = VerdictReason.CORRECT_TEXT if right else VerdictReason.WRONG_NUMBER
    return Verdict(1.0 if right else -1.0, right, True, reason, "1" if right else "2")


def trajectory(of: Problem, index: int = 0, *, right: bool = True, calls_tool: bool = False) -> Trajectory:
    # prompt 1 2 3 | sampled 4 5 [| observation 6 7 | sampled 8]
    first = Turn((1, 2, 3), (4, 5), (-0.5, -0.25), "text", SamplerStop.STOP)
    turns = (first,)
    if calls_tool:
        result = ExecutionResult(ExecutionStatus.OK, "1\n", "", 0, 0.01, 0.02, "1")
        call = Turn(
            (1, 2, 3), (4, 5), (-0.5, -0.25), "call", SamplerStop.STOP, CallOutcome.EXECUTED, "print(1)", result, (6, 7)
        )
        turns = (call, Turn((1, 2, 3, 4, 5, 6, 7), (8,), (-0.125,), "text", SamplerStop.STOP))
    return Trajectory(of, index, turns, StopReason.ANSWERED, "text", verdict(right))


def failed(of: Problem, index: int = 0) -> Trajectory:
    return Trajectory(of, index, (), StopReason.INFRASTRUCTURE, error="the service is down")


def group(of: Problem, *right: bool) -> TrajectoryGroup:
    return TrajectoryGroup(of, tuple(trajectory(of, index, right=value) for index, value in enumerate(right)))
