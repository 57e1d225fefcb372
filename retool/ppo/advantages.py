"""Advantages of a group: how much better each reward is than what the same question usually earns.

For the rewards r_1 … r_G of all scored trajectories of one question:

    mean     A_i = r_i - mean(r)                        group-mean baseline (Sutton & Barto 2018, section 13.4)
    grpo     A_i = (r_i - mean(r)) / (std(r) + ε)       Shao et al. 2024, arXiv 2402.03300; ε = 1e-6, population std
    rloo     A_i = r_i - mean of the other rewards      Ahmadian et al. 2024, arXiv 2402.14740
    dr_grpo  A_i = r_i - mean(r)                        Liu et al. 2025, arXiv 2503.20783

`dr_grpo` has the values of `mean`: the paper's other half is a constant length instead of the trajectory's own, which
is `loss_aggregation=fixed_length`. A group of one has no baseline and gets zero.

Contents: `AdvantageEstimator` (the names), `group_advantages` (by name), and one function for each name.
"""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

GRPO_EPSILON = 1e-6
"""Added to the standard deviation, so that a group of almost equal rewards is not blown up without bound."""


class AdvantageEstimator(StrEnum):
    """How the rewards of a group become advantages."""

    MEAN = "mean"
    """The reward less the group's mean."""
    GRPO = "grpo"
    """The same, divided by the group's standard deviation."""
    RLOO = "rloo"
    """The reward less the mean of the others: the unbiased form of `mean`, larger by G / (G - 1)."""
    DR_GRPO = "dr_grpo"
    """The reward less the group's mean, meant for `loss_aggregation=fixed_length`."""


def mean_advantages(rewards: FloatArray) -> FloatArray:
    """A_i = r_i - mean(r). `rewards` and result: shape (G,)."""
    advantages: FloatArray = rewards - rewards.mean()
    return advantages


def grpo_advantages(rewards: FloatArray, epsilon: float = GRPO_EPSILON) -> FloatArray:
    """A_i = (r_i - mean(r)) / (std(r) + ε), std over the group itself (divisor G). Shapes (G,)."""
    advantages: FloatArray = (rewards - rewards.mean()) / (rewards.std() + epsilon)
    return advantages


def rloo_advantages(rewards: FloatArray) -> FloatArray:
    """A_i = r_i - (Σ_j r_j - r_i) / (G - 1). Shapes (G,), G at least 2."""
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    advantages: FloatArray = rewards - others
    return advantages


def dr_grpo_advantages(rewards: FloatArray) -> FloatArray:
    """A_i = r_i - mean(r), without the division by the standard deviation. Shapes (G,)."""
    return mean_advantages(rewards)


def group_advantages(rewards: npt.ArrayLike, estimator: AdvantageEstimator) -> FloatArray:
    """Advantages of one whole group, shape (G,); exactly zero where all rewards are equal.

    Raises `ValueError` for rewards that are not finite or not one-dimensional.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"The rewards of a group must be a list of finite numbers, not {rewards!r}.")
    if is_degenerate(values):
        return np.zeros_like(values)
    match estimator:
        case AdvantageEstimator.MEAN:
            return mean_advantages(values)
        case AdvantageEstimator.GRPO:
            return grpo_advantages(values)
        case AdvantageEstimator.RLOO:
            return rloo_advantages(values)
        case AdvantageEstimator.DR_GRPO:
            return dr_grpo_advantages(values)


def is_degenerate(rewards: FloatArray) -> bool:
    """Whether all rewards are equal, or there is at most one, so that the group carries no signal."""
    return len(rewards) < 2 or bool((rewards == rewards[0]).all())
