"""From groups of trajectories to the minibatches of one update, with every weight in its place.

In this order: rewards, less the penalty on overlong trajectories; advantages over each whole group; masks; what has no
gradient left (masked, zero advantage without an offset, no sampled token) is left out; the groups with something left
are dealt into minibatches; each trajectory becomes a datum whose advantages carry its weight in the loss. A minibatch
stands for the share of the whole batch that its trajectories are of all kept ones (by tokens for the token sum), so
that the weights of all minibatches refer to the same denominator.

Contents: `Offsets`, `BatchSettings`, `Minibatch`, `PreparedBatch`, `prepare`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retool.policy.types import TokenDatum
from retool.ppo.advantages import AdvantageEstimator, group_advantages
from retool.ppo.aggregation import (
    BatchSize,
    LossAggregation,
    Normalisation,
    service_denominator,
    token_weight,
)
from retool.ppo.datums import sampled_token_count, scaled, trajectory_datum
from retool.ppo.masks import MaskReason, mask_reason
from retool.ppo.overlong import overlong_penalty
from retool.ppo.reference import TrajectoryKey, key
from retool.rollout.trajectory import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What `prepare` needs to know of the configuration; `PPO` documents each."""

    estimator: AdvantageEstimator
    aggregation: LossAggregation
    normalisation: Normalisation
    updates_per_batch: int
    max_trajectory_tokens: int
    mask_truncated: bool
    mask_void_turns: bool
    ignore_unsampled_targets: bool
    overlong_buffer_tokens: int = 0
    overlong_penalty: float = 1.0

    def mask_reason(self, trajectory: Trajectory) -> MaskReason | None:
        """Why the trajectory stays out of the loss, or `None` if it enters it."""
        return mask_reason(trajectory, mask_truncated=self.mask_truncated, mask_void_turns=self.mask_void_turns)

    def overlong(self, trajectory: Trajectory) -> float:
        """What the trajectory's length adds to its reward."""
        return overlong_penalty(
            len(trajectory.tokens),
            budget=self.max_trajectory_tokens,
            buffer=self.overlong_buffer_tokens,
            penalty=self.overlong_penalty,
        )


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The datums of one `forward_backward` call.

    `sampled[i]` is true at the targets of datum i that the policy sampled. `denominator` is what the service divides
    the token sum by. `scale` is the factor on the advantages where it is the same for all datums, else `None`.
    """

    data: tuple[TokenDatum, ...]
    sampled: tuple[tuple[bool, ...], ...]
    denominator: float
    scale: float | None


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """`groups`: the input with advantages filled in (0 where masked, `None` where unscored). `masked`: counts."""

    minibatches: tuple[Minibatch, ...]
    groups: tuple[TrajectoryGroup, ...]
    masked: dict[MaskReason, int]
    scored: int
    sampled_tokens: int


Offsets = Mapping[TrajectoryKey, Sequence[float]]
"""Additions to the advantage of each sampled token, for the trajectories that have any."""


def prepare(
    groups: Sequence[TrajectoryGroup],
    settings: BatchSettings,
    *,
    seed: int,
    step: int,
    offsets: Offsets | None = None,
) -> PreparedBatch:
    """Builds the minibatches of one update. Their order depends on `seed` and `step`, never on the order of arrival."""
    offsets = offsets or {}
    masked: Counter[MaskReason] = Counter()
    advised = tuple(_with_advantages(group, settings, masked) for group in groups)
    scored = [t for group in advised for t in group.scored]
    sampled_tokens = sum(sampled_token_count(t) for t in scored)
    kept = [trainable for group in advised if (trainable := _trainable(group, offsets))]
    kept.sort(key=lambda trajectories: _order(trajectories[0]))
    whole = BatchSize(len(scored), sampled_tokens)
    minibatches = tuple(
        _minibatch(part, _share(whole, part, kept), settings, offsets)
        for part in _deal(kept, settings, seed=seed, step=step)
    )
    return PreparedBatch(minibatches, advised, dict(masked), len(scored), sampled_tokens)


def _with_advantages(group: TrajectoryGroup, settings: BatchSettings, masked: Counter[MaskReason]) -> TrajectoryGroup:
    rewards = [t.verdict.reward + settings.overlong(t) for t in group.trajectories if t.verdict is not None]
    remaining = iter(group_advantages(rewards, settings.estimator).tolist())
    members: list[Trajectory] = []
    for trajectory in group.trajectories:
        reason = settings.mask_reason(trajectory)
        if reason is not None:
            masked[reason] += 1
        if reason is MaskReason.INFRASTRUCTURE:
            members.append(replace(trajectory, advantage=None))
            continue
        advantage = next(remaining)
        members.append(trajectory.with_advantage(0.0 if reason is not None else advantage))
    return replace(group, trajectories=tuple(members))


def _trainable(group: TrajectoryGroup, offsets: Offsets) -> list[Trajectory]:
    moved = (t for t in group.scored if t.advantage or any(offsets.get(key(t), ())))
    return sorted((t for t in moved if sampled_token_count(t)), key=_order)


def _order(trajectory: Trajectory) -> tuple[str, int, tuple[int, ...]]:
    return trajectory.problem.id, trajectory.sample_index, trajectory.tokens


def _deal(
    kept: Sequence[list[Trajectory]], settings: BatchSettings, *, seed: int, step: int
) -> list[list[list[Trajectory]]]:
    count = min(settings.updates_per_batch, len(kept))
    if count == 0:
        return []
    order = np.random.default_rng([seed, step]).permutation(len(kept))
    return [[kept[i] for i in sorted(part)] for part in np.array_split(order, count)]


def _share(whole: BatchSize, part: Sequence[list[Trajectory]], kept: Sequence[list[Trajectory]]) -> BatchSize:
    def trajectories(groups: Sequence[list[Trajectory]]) -> int:
        return sum(len(group) for group in groups)

    def tokens(groups: Sequence[list[Trajectory]]) -> int:
        return sum(sampled_token_count(t) for group in groups for t in group)

    return BatchSize(
        trajectories=whole.trajectories * trajectories(part) / trajectories(kept),
        sampled_tokens=whole.sampled_tokens * tokens(part) / tokens(kept),
    )


def _minibatch(
    part: Sequence[list[Trajectory]], share: BatchSize, settings: BatchSettings, offsets: Offsets
) -> Minibatch:
    trajectories = [t for group in part for t in group]
    plain = [
        trajectory_datum(
            t,
            advantage=t.advantage or 0.0,
            offsets=offsets.get(key(t)),
            ignore_unsampled_targets=settings.ignore_unsampled_targets,
        )
        for t in trajectories
    ]
    denominator = service_denominator(plain, settings.normalisation)
    scales = [
        denominator
        * token_weight(
            settings.aggregation,
            share,
            sampled_tokens=sampled_token_count(t),
            max_trajectory_tokens=settings.max_trajectory_tokens,
        )
        for t in trajectories
    ]
    return Minibatch(
        data=tuple(scaled(datum, scale) for datum, scale in zip(plain, scales, strict=True)),
        sampled=tuple(t.sampled_mask[1 : len(d.tokens) + 1] for t, d in zip(trajectories, plain, strict=True)),
        denominator=denominator,
        scale=scales[0] if len(set(scales)) == 1 else None,
    )
