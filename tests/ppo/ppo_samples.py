"""Small trajectories with literal tokens, and a trainer that differentiates policy losses in numpy."""

from collections.abc import Mapping, Sequence

import numpy as np

from retool.data.problem import Problem
from retool.policy.types import ForwardOutput, SamplerStop, TokenDatum
from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, TrajectoryGroup, Turn
from retool.sandbox.base import ExecutionResult, ExecutionStatus

RESULT = ExecutionResult(ExecutionStatus.OK, "4\n", "", 0, 0.01, 0.01, "4\n")


def problem(name: str = "p0") -> Problem:
    return Problem(id=name, question="2+2?", answer="4", data_source="test")


def verdict(reward: float, *, valid_format: bool = True) -> Verdict:
    correct = reward > 0
    reason = VerdictReason.CORRECT_NUMBER if correct else VerdictReason.WRONG_NUMBER
    return Verdict(reward, correct, valid_format, reason if valid_format else VerdictReason.NO_BOX, None)


def turn(
    prompt: Sequence[int], sampled: Sequence[int], observation: Sequence[int] = (), *, logprob: float = -0.5, **fields
) -> Turn:
    return Turn(
        prompt_tokens=tuple(prompt),
        completion_tokens=tuple(sampled),
        logprobs=tuple(logprob - 0.125 * i for i in range(len(sampled))),
        text="",
        sampler_stop=fields.pop("sampler_stop", SamplerStop.STOP),
        observation_tokens=tuple(observation),
        **fields,
    )


def tool_turns() -> tuple[Turn, ...]:
    """A call, its result, and an answer: prompt 1 2, sampled 10 11, observation 20 21, sampled 12 13 14."""
    return (
        turn((1, 2), (10, 11), (20, 21), call=CallOutcome.EXECUTED, code="print(2+2)", result=RESULT),
        turn((1, 2, 10, 11, 20, 21), (12, 13, 14)),
    )


def trajectory(
    reward: float | None,
    *,
    name: str = "p0",
    index: int = 0,
    turns: Sequence[Turn] | None = None,
    sampled: int | None = None,
    stop: StopReason = StopReason.ANSWERED,
    valid_format: bool = True,
) -> Trajectory:
    """`sampled`: a single turn of so many tokens instead of the two turns with a tool call."""
    if turns is None:
        turns = tool_turns() if sampled is None else (turn((1, 2, 3), [10 + i for i in range(sampled)]),)
    return Trajectory(
        problem=problem(name),
        sample_index=index,
        turns=tuple(turns),
        stop_reason=stop if reward is not None else StopReason.INFRASTRUCTURE,
        verdict=None if reward is None else verdict(reward, valid_format=valid_format),
    )


def group(rewards: Sequence[float | None], *, name: str = "p0", lengths: Sequence[int] | None = None):
    return TrajectoryGroup(
        problem(name),
        tuple(
            trajectory(reward, name=name, index=i, sampled=lengths[i] if lengths else None)
            for i, reward in enumerate(rewards)
        ),
    )


class NumpyTrainer:
    """Stands for the service: a policy with one free logit offset θ[token] a token id, on which logprobs depend.

    The logprob of target v is `old + θ[v]`, so that d loss / d θ[v] is a plain sum over targets. It divides the token
    sum as told, keeps the gradient of every call and moves θ by `rate` times the gradient.
    """

    def __init__(self, normalisation: str = "total_samples", rate: float = 0.0, vocabulary: int = 64) -> None:
        self.normalisation = normalisation
        self.rate = rate
        self.theta = np.zeros(vocabulary)
        self.calls: list[tuple[list[TokenDatum], str, dict[str, float], dict[str, float]]] = []
        self.gradients: list[np.ndarray] = []

    async def train_step(
        self, data: Sequence[TokenDatum], *, loss: str, config: Mapping[str, float], adam: Mapping[str, float]
    ) -> tuple[ForwardOutput, dict[str, float]]:
        self.calls.append((list(data), loss, dict(config), dict(adam)))
        gradient, total, count, logprobs = np.zeros_like(self.theta), 0.0, 0, []
        for datum in data:
            row = []
            for target, old, advantage in zip(datum.target_tokens, datum.logprobs, datum.advantages, strict=True):
                if target == -100:
                    row.append(0.0)
                    continue
                new = old + self.theta[target]
                value, slope = token_loss(loss, config, new, old, advantage)
                gradient[target] += slope
                total, count = total + value, count + 1
                row.append(new)
            logprobs.append(row)
        gradient /= {"total_samples": len(data), "active_tokens": count, "none": 1}[self.normalisation]
        self.gradients.append(gradient)
        self.theta -= self.rate * gradient
        metrics = {"loss_sum": total, "loss_mean": total / count, "token_count": float(count)}
        return ForwardOutput(logprobs, metrics), {"grad_norm": float(np.linalg.norm(gradient))}


def token_loss(loss: str, config: Mapping[str, float], new: float, old: float, advantage: float):
    """Value and derivative with respect to the new logprob."""
    ratio = np.exp(new - old)
    if loss == "importance_sampling":
        return -ratio * advantage, -ratio * advantage
    if loss == "dro":
        return (
            -(advantage * new - config["beta"] / 2 * (new - old) ** 2),
            -advantage + config["beta"] * (new - old),
        )
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    clipped = min(max(ratio, low), high)
    if loss == "cispo":
        return -clipped * advantage * new, -clipped * advantage
    if ratio * advantage <= clipped * advantage:
        return -ratio * advantage, -ratio * advantage
    return -clipped * advantage, 0.0
