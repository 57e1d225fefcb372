"""How token losses add up to the loss of a batch, as one scale on the advantages of each trajectory.

With N scored trajectories in the batch, o_i sampled tokens in trajectory i, ℓ_it the loss of a token and L the
trajectory budget, the loss is

    sample_sum    1/N Σ_i Σ_t ℓ_it                 every token the same; long trajectories weigh more
    sample_mean   1/N Σ_i 1/o_i Σ_t ℓ_it           every trajectory the same (GRPO, arXiv 2402.03300)
    token_mean    1/Σ_i o_i Σ_i Σ_t ℓ_it           every token the same, over the tokens seen (DAPO, arXiv 2503.14476)
    fixed_length  1/(N L) Σ_i Σ_t ℓ_it             every token the same, over a constant (Dr. GRPO, arXiv 2503.20783)

N and Σ o_i count every scored trajectory, those included that are left out of the call because their advantage is zero
or masked: leaving them out saves work and changes nothing.

The service sums the token losses of a call and divides by a denominator D of its own: the number of datums in the call
(`total_samples`), its targets that are not ignored (`active_tokens`), or 1 (`none`). All losses but `dro` are
homogeneous in the advantage, so advantages multiplied by `weight · D` give the gradient of the table under each of the
three. For the recommended `sample_sum` under `total_samples` that factor is kept / total: the batch mean keeps its
denominator though degenerate groups are dropped.

Contents: `LossAggregation`, `Normalisation` (the names), `BatchSize`, `token_weight`, `service_denominator`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from retool.policy.types import TokenDatum

IGNORED_TARGET = -100
"""The target that every loss and every count of active tokens leaves out."""


class LossAggregation(StrEnum):
    """What the loss of a batch is a mean of."""

    SAMPLE_SUM = "sample_sum"
    """Mean over trajectories of the sum over their tokens."""
    SAMPLE_MEAN = "sample_mean"
    """Mean over trajectories of the mean over their tokens."""
    TOKEN_MEAN = "token_mean"
    """Mean over all sampled tokens."""
    FIXED_LENGTH = "fixed_length"
    """Mean over trajectories of the sum over their tokens, divided by the trajectory budget."""


class Normalisation(StrEnum):
    """What the service divides the token sum of one call by."""

    TOTAL_SAMPLES = "total_samples"
    """The number of datums in the call."""
    ACTIVE_TOKENS = "active_tokens"
    """The number of targets in the call that are not -100."""
    NONE = "none"
    """Nothing: the gradient is that of the sum."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What a batch, or the part of it that a minibatch stands for, holds; fractional for a minibatch."""

    trajectories: float
    sampled_tokens: float


def token_weight(
    aggregation: LossAggregation, batch: BatchSize, *, sampled_tokens: int, max_trajectory_tokens: int
) -> float:
    """The weight of each token of a trajectory of `sampled_tokens` (o_i, at least 1) in the loss of `batch`."""
    match aggregation:
        case LossAggregation.SAMPLE_SUM:
            return 1.0 / batch.trajectories
        case LossAggregation.SAMPLE_MEAN:
            return 1.0 / (batch.trajectories * sampled_tokens)
        case LossAggregation.TOKEN_MEAN:
            return 1.0 / batch.sampled_tokens
        case LossAggregation.FIXED_LENGTH:
            return 1.0 / (batch.trajectories * max_trajectory_tokens)


def service_denominator(data: Sequence[TokenDatum], normalisation: Normalisation) -> float:
    """What the service divides the token sum of a call with `data` by."""
    match normalisation:
        case Normalisation.TOTAL_SAMPLES:
            return float(len(data))
        case Normalisation.ACTIVE_TOKENS:
            return float(sum(target != IGNORED_TARGET for datum in data for target in datum.target_tokens))
        case Normalisation.NONE:
            return 1.0
