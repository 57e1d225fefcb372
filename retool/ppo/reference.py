"""The penalty on the divergence from a reference policy, folded into the advantages of the tokens.

With the sampling policy's logprob of a token `old` and the reference's `ref`, and d = old - ref:

    A_token = A_trajectory + β · (mean(d) - d)        mean over all trained tokens of the batch

The gradient pushes down what the policy prefers more than the reference does, as that of β · KL(π ‖ π_ref) does token
by token (the k1 estimate of Schulman 2020, http://joschu.net/blog/kl-approx.html); the mean is a baseline, which keeps
the penalty from rewarding or punishing length.

Contents: `TrajectoryKey`, `key`, `TokenScorer`, `reference_logprobs`, `kl_offsets`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from retool.rollout.trajectory import Trajectory, TrajectoryGroup

TrajectoryKey = tuple[str, int]
"""A trajectory's place in a batch: its problem's id and its index in the group."""


class TokenScorer(Protocol):
    """Fixed weights that can say how likely they find a text."""

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """One logprob a token, given those before it; 0 for the first. Raises `InfrastructureError`."""
        ...


def key(trajectory: Trajectory) -> TrajectoryKey:
    """The trajectory's place in its batch."""
    return trajectory.problem.id, trajectory.sample_index


async def reference_logprobs(
    reference: TokenScorer, groups: Iterable[TrajectoryGroup]
) -> dict[TrajectoryKey, tuple[float, ...]]:
    """The reference's logprobs of the sampled tokens of every scored trajectory, in their order.

    Raises `InfrastructureError` when the service fails.
    """
    trajectories = [t for group in groups for t in group.scored if True in t.sampled_mask]
    rows = await asyncio.gather(*(_sampled_logprobs(reference, t) for t in trajectories))
    return {key(t): row for t, row in zip(trajectories, rows, strict=True)}


async def _sampled_logprobs(reference: TokenScorer, trajectory: Trajectory) -> tuple[float, ...]:
    mask = trajectory.sampled_mask
    end = len(mask) - mask[::-1].index(True)
    logprobs = await reference.logprobs(trajectory.tokens[:end])
    return tuple(logprob for logprob, sampled in zip(logprobs, mask[:end], strict=True) if sampled)


def kl_offsets(
    trajectories: Sequence[Trajectory], reference: Mapping[TrajectoryKey, Sequence[float]], coefficient: float
) -> tuple[dict[TrajectoryKey, tuple[float, ...]], float]:
    """What is added to the advantage of each sampled token, and the mean of d over all of them, in nats a token."""
    differences = {
        key(t): np.concatenate([turn.logprobs for turn in t.turns]) - np.asarray(reference[key(t)])
        for t in trajectories
        if key(t) in reference
    }
    if not differences:
        return {}, 0.0
    mean = float(np.concatenate(list(differences.values())).mean())
    offsets = {name: tuple((coefficient * (mean - d)).tolist()) for name, d in differences.items()}
    return offsets, mean
