"""How far the policy moved from the one that sampled: ratios, clipping, divergence, over the trained tokens.

With `old` the sampler's logprob of a token, `new` the one that `forward_backward` returns (from before its optimizer
step) and r = exp(new - old). After one update a batch these compare the same weights, so that r shows how well sampler
and trainer agree; with more updates they show the drift within the batch.

    kl_k1  mean(-log r), kl_k3  mean(r - 1 - log r)     estimates of KL(old ‖ new), Schulman 2020,
                                                        http://joschu.net/blog/kl-approx.html
    entropy_proxy          mean(-old)                   estimates the sampling policy's entropy, in nats a token
    effective_sample_size  (Σ r)² / (n Σ r²)            in (0, 1], 1 where all ratios are the same
    clip_fraction_low      ppo: r < low and A < 0;   cispo: r < low
    clip_fraction_high     ppo: r > high and A > 0;  cispo: r > high

    mismatch_*             the first update's |log r|: its weights are those that sampled, so that nothing but the
                           difference between sampler and trainer is left

Contents: `TokenColumns`, `token_columns`, `ratio_metrics`, `mismatch_metrics`, `composition_metrics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retool.errors import InfrastructureError
from retool.policy.types import TokenDatum
from retool.ppo.advantages import is_degenerate
from retool.ppo.losses import LossSettings, PolicyLoss
from retool.rollout.trajectory import TrajectoryGroup

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """One entry a trained token: the sampler's logprob, the current one and the advantage. Shapes (n,)."""

    old: FloatArray
    new: FloatArray
    advantages: FloatArray


def token_columns(
    data: Sequence[TokenDatum], masks: Sequence[Sequence[bool]], logprobs: Sequence[Sequence[float]]
) -> TokenColumns:
    """Picks the sampled tokens of all datums. `masks[i]` has the length of datum i and is true at sampled targets.

    Raises `InfrastructureError` where the returned logprobs do not fit the datums.
    """
    lengths, returned = [len(d.tokens) for d in data], [len(row) for row in logprobs]
    if lengths != returned:
        raise InfrastructureError(f"The service returned logprobs of lengths {returned} for datums of {lengths}.")
    mask = np.concatenate([np.asarray(m, dtype=bool) for m in masks])

    def column(rows: Sequence[Sequence[float]]) -> FloatArray:
        values: FloatArray = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])[mask]
        return values

    return TokenColumns(
        old=column([d.logprobs or () for d in data]),
        new=column(logprobs),
        advantages=column([d.advantages or () for d in data]),
    )


def ratio_metrics(parts: Sequence[TokenColumns], settings: LossSettings) -> dict[str, float]:
    """The figures above over all tokens of all minibatches, under `ppo/`. A loss without a clip has no clip figures."""
    old = np.concatenate([p.old for p in parts])
    new = np.concatenate([p.new for p in parts])
    advantages = np.concatenate([p.advantages for p in parts])
    log_ratio = new - old
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, which the caller refuses
        ratio = np.exp(log_ratio)
        effective = ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())
    metrics = {
        "ppo/ratio_mean": float(ratio.mean()),
        "ppo/ratio_max": float(ratio.max()),
        "ppo/ratio_min": float(ratio.min()),
        "ppo/log_ratio_abs_mean": float(np.abs(log_ratio).mean()),
        "ppo/log_ratio_abs_max": float(np.abs(log_ratio).max()),
        "ppo/kl_k1": float(-log_ratio.mean()),
        "ppo/kl_k3": float((ratio - 1.0 - log_ratio).mean()),
        "ppo/entropy_proxy": float(-old.mean()),
        "ppo/effective_sample_size": float(effective),
    }
    if settings.clips:
        low, high = settings.thresholds
        below, above = ratio < low, ratio > high
        if settings.loss is PolicyLoss.PPO:
            below, above = below & (advantages < 0), above & (advantages > 0)
        metrics["ppo/clip_fraction_low"] = float(below.mean())
        metrics["ppo/clip_fraction_high"] = float(above.mean())
    return metrics


def mismatch_metrics(first: TokenColumns) -> dict[str, float]:
    """How far trainer and sampler are apart under the same weights: those of a batch's first update."""
    log_ratio = np.abs(first.new - first.old)
    return {
        "ppo/mismatch_log_ratio_mean": float(log_ratio.mean()),
        "ppo/mismatch_log_ratio_max": float(log_ratio.max()),
    }


def composition_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Groups by outcome, before anything is masked or dropped: all right, all wrong, mixed, and without a signal."""
    right = wrong = mixed = degenerate = unscored = 0
    for group in groups:
        verdicts = [t.verdict for t in group.scored if t.verdict is not None]
        correct = sum(v.correct for v in verdicts)
        unscored += not verdicts
        right += bool(verdicts) and correct == len(verdicts)
        wrong += bool(verdicts) and correct == 0
        mixed += 0 < correct < len(verdicts)
        degenerate += is_degenerate(np.asarray([v.reward for v in verdicts], dtype=np.float64))
    return {
        "train/groups": float(len(groups)),
        "train/groups_right": float(right),
        "train/groups_wrong": float(wrong),
        "train/groups_mixed": float(mixed),
        "train/groups_unscored": float(unscored),
        "train/groups_degenerate": float(degenerate),
    }
