"""The penalties: on the divergence from a reference, and on trajectories that use up their budget."""

import numpy as np
import pytest
from ppo_samples import NumpyTrainer, group, trajectory

from retool.errors import UserError
from retool.ppo import PPO
from retool.ppo.overlong import overlong_penalty
from retool.ppo.reference import key, kl_offsets, reference_logprobs


class Reference:
    """Every token has the logprob -token / 10."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    async def logprobs(self, tokens):
        self.asked.append(tuple(tokens))
        return [0.0, *(-token / 10 for token in tokens[1:])]


async def test_the_reference_is_asked_up_to_the_last_sampled_token():
    reference, groups = Reference(), [group([1.0, None])]
    found = await reference_logprobs(reference, groups)
    # prompt 1 2, sampled 10 11, observation 20 21, sampled 12 13 14
    assert reference.asked == [(1, 2, 10, 11, 20, 21, 12, 13, 14)]
    assert found == {("p0", 0): (-1.0, -1.1, -1.2, -1.3, -1.4)}


def test_offsets_have_mean_zero_and_push_back_what_the_policy_prefers():
    first, second = trajectory(1.0, sampled=2), trajectory(1.0, index=1, sampled=1)
    # the policy's logprobs are -0.5 -0.625 and -0.5
    reference = {key(first): (-1.5, -0.625), key(second): (-0.5,)}
    offsets, divergence = kl_offsets([first, second], reference, 0.3)
    assert divergence == pytest.approx(1 / 3)  # d = 1, 0, 0
    assert offsets[key(first)] == pytest.approx((0.3 * (1 / 3 - 1), 0.1))
    assert offsets[key(second)] == pytest.approx((0.1,))
    assert kl_offsets([first], {}, 0.3) == ({}, 0.0)


async def test_the_penalty_enters_every_token_of_every_group_and_masked_trajectories_stay_out():
    groups = [group([1.0, 1.0], lengths=[1, 2]), group([1.0, -1.0, None], name="p1", lengths=[1, 1, 1])]
    reference = {key(t): tuple(-1.0 for _ in t.turns[0].logprobs) for g in groups for t in g.scored}
    trainer = NumpyTrainer()
    result = await PPO(kl_coef=0.5).update(trainer, groups, step=0, reference=reference)
    ((data, *_),) = trainer.calls
    d = np.array([0.5, 0.5, 0.375, 0.5, 0.5])
    offsets = 0.5 * (d.mean() - d)
    # p0 has equal rewards and moves by the penalty alone; prompts 1 2 3 have no advantage
    expected = [
        [0, 0, offsets[0]],
        [0, 0, offsets[1], offsets[2]],
        [0, 0, 1 + offsets[3]],
        [0, 0, -1 + offsets[4]],
    ]
    for datum, advantages in zip(data, expected, strict=True):
        assert datum.advantages == pytest.approx(advantages)
    assert result.metrics["ppo/kl_reference"] == pytest.approx(d.mean())


async def test_without_a_reference_nothing_changes():
    plain, penalised = NumpyTrainer(), NumpyTrainer()
    await PPO().update(plain, [group([1.0, -1.0])], step=0)
    result = await PPO(kl_coef=0.0).update(penalised, [group([1.0, -1.0])], step=0)
    assert plain.calls == penalised.calls
    assert "ppo/kl_reference" not in result.metrics


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0.0), (80, 0.0), (85, -0.5), (90, -1.0), (100, -2.0), (120, -2.0)]
)
def test_the_penalty_grows_over_the_buffer(tokens, expected):
    assert overlong_penalty(tokens, budget=100, buffer=20, penalty=2.0) == expected


def test_no_buffer_no_penalty():
    assert overlong_penalty(1000, budget=100, buffer=0, penalty=1.0) == 0.0


async def test_an_overlong_trajectory_gets_less_advantage_and_keeps_its_reward():
    # 3 prompt tokens: trajectories of 8 and 12 tokens against a budget of 12 with a buffer of 8 lose 0.5 and 1
    ppo = PPO(max_trajectory_tokens=12, overlong_buffer_tokens=8)
    result = await ppo.update(NumpyTrainer(), [group([1.0, 1.0], lengths=[5, 9])], step=0)
    assert [t.advantage for t in result.groups[0].trajectories] == [0.25, -0.25]
    assert [t.verdict.reward for t in result.groups[0].trajectories] == [1.0, 1.0]
    assert result.metrics["reward/overlong_penalty"] == -0.75


@pytest.mark.parametrize("setting", [{"kl_coef": -0.1}, {"overlong_penalty": float("nan")}])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(UserError, match="must be a finite number"):
        PPO(**setting)
