"""Advantages of a group, against hand-computed groups and an independent computation."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.ppo.advantages import AdvantageEstimator, group_advantages

REWARDS = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=2, max_size=16)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # r = 1, -1, -1, -1: mean -0.5, population std sqrt(0.75) = 0.8660254
        ("mean", [1.5, -0.5, -0.5, -0.5]),
        ("grpo", [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        # others' means: -1 for the first, (1 - 1 - 1) / 3 = -1/3 for the rest
        ("rloo", [2.0, -2 / 3, -2 / 3, -2 / 3]),
        ("dr_grpo", [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_hand_computed(estimator, expected):
    result = group_advantages([1.0, -1.0, -1.0, -1.0], AdvantageEstimator(estimator))
    assert result == pytest.approx(expected, abs=3e-6)


@pytest.mark.parametrize("estimator", AdvantageEstimator)
@pytest.mark.parametrize("rewards", [[], [1.0], [0.1, 0.1, 0.1], [-1.0] * 8])
def test_no_signal_is_exactly_zero(estimator, rewards):
    assert group_advantages(rewards, estimator).tolist() == [0.0] * len(rewards)


@given(REWARDS)
def test_equals_an_independent_computation(rewards):
    size, mean, spread = len(rewards), statistics.fmean(rewards), statistics.pstdev(rewards)
    expected = {
        "mean": [r - mean for r in rewards],
        "grpo": [(r - mean) / (spread + 1e-6) for r in rewards],
        "rloo": [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)],
        "dr_grpo": [size * (r - mean) / size for r in rewards],
    }
    for name, values in expected.items():
        assert group_advantages(rewards, AdvantageEstimator(name)) == pytest.approx(values, abs=1e-9)


@given(REWARDS, st.floats(-3, 3))
def test_sums_to_zero_and_ignores_a_shift(rewards, shift):
    for estimator in AdvantageEstimator:
        result = group_advantages(rewards, estimator)
        assert result.sum() == pytest.approx(0.0, abs=1e-9)
        # A shift can round two close rewards to one value; the tolerance is far above that and far below a reward step.
        assert group_advantages([r + shift for r in rewards], estimator) == pytest.approx(result, abs=1e-6)


@given(REWARDS, st.floats(0.1, 10))
def test_scale(rewards, factor):
    scaled = [factor * r for r in rewards]
    for estimator in (AdvantageEstimator.MEAN, AdvantageEstimator.RLOO, AdvantageEstimator.DR_GRPO):
        assert group_advantages(scaled, estimator) == pytest.approx(factor * group_advantages(rewards, estimator))
    grpo = group_advantages(rewards, AdvantageEstimator.GRPO)
    assert group_advantages(scaled, AdvantageEstimator.GRPO) == pytest.approx(grpo, rel=1e-3)


@given(REWARDS, st.randoms())
def test_order_of_the_group_does_not_matter(rewards, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    for estimator in AdvantageEstimator:
        permuted = group_advantages([rewards[i] for i in order], estimator)
        assert permuted == pytest.approx(group_advantages(rewards, estimator)[order])


@pytest.mark.parametrize("rewards", [[1.0, np.nan], [np.inf, 0.0], [[1.0], [0.0]]])
def test_refuses_what_is_no_list_of_rewards(rewards):
    with pytest.raises(ValueError, match="rewards of a group"):
        group_advantages(rewards, AdvantageEstimator.MEAN)
