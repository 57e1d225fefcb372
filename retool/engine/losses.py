"""Token losses by their protocol names, and what their sum is divided by.

With lp the logprob of the target under the current weights, old the sampler's, r = exp(lp - old), A the advantage:

    cross_entropy         -w lp
    importance_sampling   -r A
    ppo                   -min(r A, clip(r, low, high) A)                 Schulman et al. 2017, arXiv 1707.06347
    cispo                 -stop_gradient(clip(r, low, high)) A lp         MiniMax 2025, arXiv 2506.13585
    dro                   -(lp A - beta/2 (lp - old)^2)                   Richemond et al. 2024, arXiv 2405.19107
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from retool.engine.types import BatchTotals, EngineError, LossSpec


class Normalisation(StrEnum):
    """What the token sum of a policy loss is divided by. Cross entropy is always a plain sum."""

    TOTAL_SAMPLES = "total_samples"
    """The number of datums of the logical batch."""
    ACTIVE_TOKENS = "active_tokens"
    """The number of targets of the logical batch that are not ignored."""
    NONE = "none"
    """Nothing: the sum itself."""


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Loss inputs of n tokens, each a float tensor (n)."""

    logprobs: Tensor
    weights: Tensor
    old_logprobs: Tensor
    advantages: Tensor


TokenLoss = Callable[[TokenInputs, Mapping[str, float]], Tensor]


def _cross_entropy(inputs: TokenInputs, config: Mapping[str, float]) -> Tensor:
    return -inputs.weights * inputs.logprobs


def _importance_sampling(inputs: TokenInputs, config: Mapping[str, float]) -> Tensor:
    return -torch.exp(inputs.logprobs - inputs.old_logprobs) * inputs.advantages


def _ppo(inputs: TokenInputs, config: Mapping[str, float]) -> Tensor:
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)


def _cispo(inputs: TokenInputs, config: Mapping[str, float]) -> Tensor:
    ratio = torch.exp(inputs.logprobs.detach() - inputs.old_logprobs)
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -clipped * inputs.advantages * inputs.logprobs


def _dro(inputs: TokenInputs, config: Mapping[str, float]) -> Tensor:
    distance = inputs.logprobs - inputs.old_logprobs
    return -(inputs.logprobs * inputs.advantages - 0.5 * config["beta"] * distance.square())


def token_loss(spec: LossSpec) -> tuple[TokenLoss, dict[str, float]]:
    """The loss function and its complete settings. Raises `EngineError` for an unknown name or setting."""
    losses: dict[str, tuple[TokenLoss, dict[str, float]]] = {
        "cross_entropy": (_cross_entropy, {}),
        "importance_sampling": (_importance_sampling, {}),
        "ppo": (_ppo, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        "cispo": (_cispo, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
        "dro": (_dro, {"beta": 0.05}),
    }
    if spec.type not in losses:
        raise EngineError("invalid_loss", f"Unknown loss '{spec.type}'. Known: {', '.join(losses)}.")
    function, defaults = losses[spec.type]
    unknown = set(spec.config) - set(defaults)
    if unknown:
        known = ", ".join(defaults) or "none"
        raise EngineError("invalid_loss", f"Loss '{spec.type}' has no setting {sorted(unknown)}; it has {known}.")
    return function, {**defaults, **spec.config}


def needs_policy_inputs(spec: LossSpec) -> bool:
    """Whether the loss reads `logprobs` and `advantages` rather than `weights`."""
    return spec.type != "cross_entropy"


def gradient_scale(spec: LossSpec, totals: BatchTotals, normalisation: Normalisation) -> float:
    """The factor between the summed token loss and what is differentiated."""
    if not needs_policy_inputs(spec) or normalisation is Normalisation.NONE:
        return 1.0
    if normalisation is Normalisation.TOTAL_SAMPLES:
        return 1.0 / max(totals.total_samples, 1)
    return 1.0 / max(totals.total_active_tokens, 1)
