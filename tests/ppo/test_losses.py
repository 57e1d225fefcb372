"""Names, settings and validation of the policy losses."""

import pytest

from retool.errors import UserError
from retool.ppo.losses import LossSettings, PolicyLoss


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        (LossSettings(PolicyLoss.PPO), {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}),
        (LossSettings(PolicyLoss.PPO, 0.9, 1.1), {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
        (LossSettings(PolicyLoss.CISPO), {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
        (LossSettings(PolicyLoss.IMPORTANCE_SAMPLING, 0.8, 1.28), {}),
        (LossSettings(PolicyLoss.DRO, dro_beta=0.2), {"beta": 0.2}),
    ],
)
def test_service_config(settings, config):
    assert settings.service_config() == config


def test_only_the_penalty_takes_the_scale_of_the_advantages():
    assert LossSettings(PolicyLoss.DRO, dro_beta=0.2).service_config(0.5) == {"beta": 0.1}
    assert LossSettings(PolicyLoss.PPO).service_config(0.5) == LossSettings(PolicyLoss.PPO).service_config()


@pytest.mark.parametrize("thresholds", [(0.2, 0.28), (1.1, 1.3), (-0.1, 1.2), (1.0, 1.0), (0.8, float("inf"))])
@pytest.mark.parametrize("loss", [PolicyLoss.PPO, PolicyLoss.CISPO])
def test_refuses_thresholds_that_are_no_ratios_around_one(loss, thresholds):
    with pytest.raises(UserError, match="absolute ratios"):
        LossSettings(loss, *thresholds)


@pytest.mark.parametrize("beta", [-0.1, float("nan")])
def test_refuses_a_beta_that_makes_no_sense(beta):
    with pytest.raises(UserError, match="dro_beta"):
        LossSettings(PolicyLoss.DRO, dro_beta=beta)
