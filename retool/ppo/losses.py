"""The policy losses that the service offers, and their settings.

With r the probability ratio of the current to the sampling policy at a token, and A its advantage:

    ppo                  -min(r A, clip(r, low, high) A)                 Schulman et al. 2017, arXiv 1707.06347
    importance_sampling  -r A                                            the same without the clip
    cispo                -stop_gradient(clip(r, low, high)) A log π      MiniMax 2025, arXiv 2506.13585
    dro                  -(A log π - β/2 (log r)²)                       Richemond et al. 2024, arXiv 2405.19107

`low` and `high` are absolute ratios (0.8 and 1.28), not distances from 1 (0.2 and 0.28).

Contents: `PolicyLoss` (the names) and `LossSettings` (validated; knows the service's keys).
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from retool.errors import UserError


class PolicyLoss(StrEnum):
    """A loss by the name that the service knows it by."""

    PPO = "ppo"
    """Clipped surrogate: a token whose ratio left the range in the direction of its advantage has no gradient."""
    IMPORTANCE_SAMPLING = "importance_sampling"
    """Unclipped policy gradient with the importance ratio."""
    CISPO = "cispo"
    """Policy gradient with a clipped importance weight: every token keeps a gradient."""
    DRO = "dro"
    """Policy gradient with a quadratic penalty on the log ratio."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """A loss with its settings; `None` thresholds are the loss's own (ppo 0.8 and 1.28, cispo 0.0 and 4.0).

    The thresholds are unused by `importance_sampling` and `dro`, `dro_beta` by all but `dro`.
    Raises `UserError` for values that make no sense for the loss.
    """

    loss: PolicyLoss
    clip_low: float | None = None
    clip_high: float | None = None
    dro_beta: float = 0.05

    def __post_init__(self) -> None:
        if self.clips:
            low, high = self.thresholds
            if not (0.0 <= low <= 1.0 <= high and low < high and math.isfinite(high)):
                raise UserError(
                    f"ppo.clip_low={low:g} and ppo.clip_high={high:g} do not enclose the ratio 1. They are absolute "
                    "ratios such as 0.8 and 1.28, not distances from 1."
                )
        if self.loss is PolicyLoss.DRO and not (math.isfinite(self.dro_beta) and self.dro_beta >= 0.0):
            raise UserError(f"ppo.dro_beta={self.dro_beta:g} must be a finite number of at least 0.")

    @property
    def clips(self) -> bool:
        return self.loss in (PolicyLoss.PPO, PolicyLoss.CISPO)

    @property
    def thresholds(self) -> tuple[float, float]:
        """The absolute ratios between which nothing is clipped; (0, inf) for a loss without a clip."""
        if not self.clips:
            return 0.0, math.inf
        low, high = (0.8, 1.28) if self.loss is PolicyLoss.PPO else (0.0, 4.0)
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )

    def service_config(self, scale: float = 1.0) -> dict[str, float]:
        """The settings under the service's keys. `scale` is the factor on the advantages of the call.

        The penalty of `dro` does not contain the advantage, so its β takes the factor too.
        """
        if self.loss is PolicyLoss.DRO:
            return {"beta": self.dro_beta * scale}
        if not self.clips:
            return {}
        low, high = self.thresholds
        return {"clip_low_threshold": low, "clip_high_threshold": high}
