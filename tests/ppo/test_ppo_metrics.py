"""Ratios, clipping and divergence from hand-made logprobs."""

import math

import numpy as np
import pytest
from ppo_samples import group

from retool.errors import InfrastructureError
from retool.policy.types import TokenDatum
from retool.ppo.losses import LossSettings, PolicyLoss
from retool.ppo.metrics import TokenColumns, composition_metrics, ratio_metrics, token_columns

# Ratios 1, 2, 0.5, 2 and 0.5, with advantages +, +, +, - and -.
RATIOS = np.array([1.0, 2.0, 0.5, 2.0, 0.5])
COLUMNS = TokenColumns(
    old=np.full(5, -1.0), new=-1.0 + np.log(RATIOS), advantages=np.array([1.0, 1.0, 1.0, -1.0, -1.0])
)


def test_hand_computed_ratios():
    metrics = ratio_metrics([COLUMNS], LossSettings(PolicyLoss.PPO))
    log2 = math.log(2)
    assert metrics["ppo/ratio_mean"] == pytest.approx(1.2)
    assert metrics["ppo/ratio_max"] == pytest.approx(2.0)
    assert metrics["ppo/ratio_min"] == pytest.approx(0.5)
    assert metrics["ppo/log_ratio_abs_mean"] == pytest.approx(4 * log2 / 5)
    assert metrics["ppo/log_ratio_abs_max"] == pytest.approx(log2)
    assert metrics["ppo/kl_k1"] == pytest.approx(0.0, abs=1e-12)
    # r - 1 - log r: 0, 1 - log 2, -0.5 + log 2, and the last two again
    assert metrics["ppo/kl_k3"] == pytest.approx(2 * 0.5 / 5)
    assert metrics["ppo/entropy_proxy"] == pytest.approx(1.0)
    assert metrics["ppo/effective_sample_size"] == pytest.approx(36 / (5 * 9.5))


def test_ppo_counts_only_what_the_clip_binds():
    metrics = ratio_metrics([COLUMNS], LossSettings(PolicyLoss.PPO))
    # Above 1.28 with a positive advantage: one of two. Below 0.8 with a negative one: one of two.
    assert metrics["ppo/clip_fraction_high"] == pytest.approx(1 / 5)
    assert metrics["ppo/clip_fraction_low"] == pytest.approx(1 / 5)


def test_cispo_counts_every_clipped_weight():
    metrics = ratio_metrics([COLUMNS], LossSettings(PolicyLoss.CISPO, 0.75, 1.5))
    assert metrics["ppo/clip_fraction_high"] == pytest.approx(2 / 5)
    assert metrics["ppo/clip_fraction_low"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("loss", [PolicyLoss.IMPORTANCE_SAMPLING, PolicyLoss.DRO])
def test_no_clip_no_figure(loss):
    assert not [name for name in ratio_metrics([COLUMNS], LossSettings(loss)) if "clip" in name]


def test_minibatches_count_by_tokens():
    parts = [
        TokenColumns(c.old[s], c.new[s], c.advantages[s]) for c in [COLUMNS] for s in (slice(0, 1), slice(1, None))
    ]
    settings = LossSettings(PolicyLoss.PPO)
    assert ratio_metrics(parts, settings) == pytest.approx(ratio_metrics([COLUMNS], settings))


def test_token_columns_picks_sampled_targets():
    datum = TokenDatum((1, 2, 3), (2, 3, 4), logprobs=(0.0, -0.5, -0.25), advantages=(0.0, 1.0, 0.0))
    # sampled .  x  x: a sampled token whose advantage is zero counts too
    columns = token_columns([datum], [(False, True, True)], [[-9.0, -0.75, -0.5]])
    assert columns.old.tolist() == [-0.5, -0.25]
    assert columns.new.tolist() == [-0.75, -0.5]
    assert columns.advantages.tolist() == [1.0, 0.0]


def test_token_columns_refuses_logprobs_that_do_not_fit():
    datum = TokenDatum((1, 2), (2, 3), logprobs=(0.0, -0.5), advantages=(0.0, 1.0))
    with pytest.raises(InfrastructureError, match=r"\[1\] for datums of \[2\]"):
        token_columns([datum], [(False, True)], [[-0.5]])


def test_groups_by_outcome():
    groups = [
        group([1.0, 1.0]),
        group([-1.0, -1.0]),
        group([-1.0, -0.5]),
        group([1.0, -1.0, None]),
        group([1.0, None]),
        group([None, None]),
    ]
    assert composition_metrics(groups) == {
        "train/groups": 6,
        "train/groups_right": 2,
        "train/groups_wrong": 2,
        "train/groups_mixed": 1,
        "train/groups_unscored": 1,
        # [1, 1], [-1, -1], the lone scored one and the unscored one; [-1, -0.5] has a signal
        "train/groups_degenerate": 4,
    }
