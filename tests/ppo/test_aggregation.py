"""The four aggregations: the policy's gradient equals the definition, whatever the service divides by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_samples import NumpyTrainer, group, token_loss

from retool.ppo import PPO
from retool.ppo.datums import sampled_token_count

AGGREGATIONS = ("sample_sum", "sample_mean", "token_mean", "fixed_length")
NORMALISATIONS = ("total_samples", "active_tokens", "none")
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
BUDGET = 32


def groups_of(*specification):
    return [group(rewards, name=f"p{i}", lengths=lengths) for i, (rewards, lengths) in enumerate(specification)]


# Two groups with a signal and one without; o_i of 1 to 6 tokens. N = 8, Σ o_i = 25.
GROUPS = groups_of(
    ([1.0, -1.0, -1.0], [2, 5, 1]),
    ([1.0, 1.0], [4, 3]),
    ([1.0, -1.0, 1.0], [1, 6, 3]),
)


def reference_gradient(groups, aggregation):
    """The definition, written out over every scored trajectory with its group-mean advantage, at the old policy."""
    scored = [(g, t) for g in groups for t in g.scored]
    count, tokens = len(scored), sum(sampled_token_count(t) for _, t in scored)
    gradient = np.zeros(64)
    for group_, member in scored:
        advantage = member.verdict.reward - np.mean([t.verdict.reward for t in group_.scored])
        weight = {
            "sample_sum": 1 / count,
            "sample_mean": 1 / count / sampled_token_count(member),
            "token_mean": 1 / tokens,
            "fixed_length": 1 / count / BUDGET,
        }[aggregation]
        for turn in member.turns:
            for token, old in zip(turn.completion_tokens, turn.logprobs, strict=True):
                gradient[token] += weight * token_loss("ppo", CLIP, old, old, advantage)[1]
    return gradient


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("ignore", [False, True])
async def test_gradient_is_the_definition_under_every_normalisation(aggregation, normalisation, ignore):
    trainer = NumpyTrainer(normalisation)
    ppo = PPO(
        loss_aggregation=aggregation,
        normalisation=normalisation,
        max_trajectory_tokens=BUDGET,
        ignore_unsampled_targets=ignore,
    )
    await ppo.update(trainer, GROUPS, step=0)
    assert len(trainer.calls) == 1
    assert len(trainer.calls[0][0]) == 6  # the degenerate group is not sent
    assert trainer.gradients[0] == pytest.approx(reference_gradient(GROUPS, aggregation))


async def test_sample_sum_scales_by_kept_over_total():
    trainer = NumpyTrainer()
    await PPO().update(trainer, GROUPS, step=0)
    # p0: mean -1/3, so +4/3 and -2/3; six of eight trajectories are kept.
    first, second = trainer.calls[0][0][:2]
    assert max(first.advantages) == pytest.approx(4 / 3 * 6 / 8)
    assert min(second.advantages) == pytest.approx(-2 / 3 * 6 / 8)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
async def test_minibatches_average_to_the_whole(aggregation):
    """With weights that do not move, the weighted mean of the minibatches' gradients is the whole batch's."""
    groups = [g for g in GROUPS if len({t.verdict.reward for t in g.scored}) > 1]
    trainer = NumpyTrainer()
    ppo = PPO(loss_aggregation=aggregation, max_trajectory_tokens=BUDGET, updates_per_batch=2)
    await ppo.update(trainer, groups, step=0)
    shares = []
    for data, *_ in trainer.calls:
        tokens = sum(a != 0 for d in data for a in d.advantages)
        shares.append(tokens / 18 if aggregation == "token_mean" else len(data) / 6)
    assert sum(shares) == pytest.approx(1)
    mean = sum(share * gradient for share, gradient in zip(shares, trainer.gradients, strict=True))
    assert mean == pytest.approx(reference_gradient(groups, aggregation))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.integers(1, 5)), min_size=2, max_size=4),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(AGGREGATIONS),
    st.sampled_from(NORMALISATIONS),
)
async def test_gradient_is_the_definition_for_any_batch(specification, aggregation, normalisation):
    groups = groups_of(*[([r for r, _ in g], [n for _, n in g]) for g in specification])
    trainer = NumpyTrainer(normalisation)
    ppo = PPO(loss_aggregation=aggregation, normalisation=normalisation, max_trajectory_tokens=BUDGET)
    await ppo.update(trainer, groups, step=0)
    expected = reference_gradient(groups, aggregation)
    if trainer.gradients:
        assert trainer.gradients[0] == pytest.approx(expected, abs=1e-12)
    else:
        assert not expected.any()
