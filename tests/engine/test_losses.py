"""Every loss against the formula written out in float64 numpy, and its gradient against a finite difference."""

import numpy as np
import pytest
import torch

from retool.engine.losses import Normalisation, TokenInputs, gradient_scale, token_loss
from retool.engine.types import BatchTotals, EngineError, LossSpec

LOGPROBS = np.array([-0.1, -2.0, -0.7, -1.5, -3.0, -0.2])
OLD = np.array([-0.6, -1.0, -0.7, -1.2, -5.0, -0.25])
ADVANTAGES = np.array([1.0, 1.0, -0.5, -2.0, 0.3, 0.0])
WEIGHTS = np.array([1.0, 0.0, 0.5, 2.0, 1.0, -1.0])


def reference(name: str, logprobs: np.ndarray, config: dict[str, float]) -> np.ndarray:
    ratio = np.exp(logprobs - OLD)
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    if name == "cross_entropy":
        return -WEIGHTS * logprobs
    if name == "importance_sampling":
        return -ratio * ADVANTAGES
    if name == "ppo":
        return -np.minimum(ratio * ADVANTAGES, np.clip(ratio, low, high) * ADVANTAGES)
    if name == "cispo":
        return -np.clip(np.exp(LOGPROBS - OLD), low, high) * ADVANTAGES * logprobs
    return -(logprobs * ADVANTAGES - config["beta"] / 2 * (logprobs - OLD) ** 2)


CASES = [
    ("cross_entropy", {}),
    ("importance_sampling", {}),
    ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}),
    ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    ("dro", {"beta": 0.1}),
]


@pytest.mark.parametrize(("name", "config"), CASES)
def test_value_and_gradient(name: str, config: dict[str, float]) -> None:
    function, settings = token_loss(LossSpec(name, config))
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    columns = (torch.tensor(column) for column in (WEIGHTS, OLD, ADVANTAGES))
    loss = function(TokenInputs(logprobs, *columns), settings)
    np.testing.assert_allclose(loss.detach().numpy(), reference(name, LOGPROBS, config), rtol=1e-12)
    loss.sum().backward()
    step = 1e-6
    difference = reference(name, LOGPROBS + step, config) - reference(name, LOGPROBS - step, config)
    np.testing.assert_allclose(logprobs.grad.numpy(), difference / (2 * step), rtol=1e-5, atol=1e-8)


def test_unknown_loss_and_setting_are_refused() -> None:
    with pytest.raises(EngineError, match="Known: cross_entropy"):
        token_loss(LossSpec("pppo"))
    with pytest.raises(EngineError, match="clip_ratio"):
        token_loss(LossSpec("ppo", {"clip_ratio": 0.2}))


def test_denominators() -> None:
    totals = BatchTotals(total_samples=8, total_active_tokens=100, total_advantage_tokens=40)
    assert gradient_scale(LossSpec("ppo"), totals, Normalisation.TOTAL_SAMPLES) == 1 / 8
    assert gradient_scale(LossSpec("ppo"), totals, Normalisation.ACTIVE_TOKENS) == 1 / 100
    assert gradient_scale(LossSpec("ppo"), totals, Normalisation.NONE) == 1
    assert gradient_scale(LossSpec("cross_entropy"), totals, Normalisation.TOTAL_SAMPLES) == 1
