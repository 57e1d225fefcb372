"""The update of a step: what is sent, in which order, and what is reported."""

import math

import numpy as np
import pytest
from ppo_samples import NumpyTrainer, group, trajectory, turn

from retool.errors import InfrastructureError, UserError
from retool.policy.types import ForwardOutput, SamplerStop
from retool.ppo import PPO
from retool.rollout.trajectory import StopReason, TrajectoryGroup


def batch():
    return [
        group([1.0, -1.0, -1.0, None], name="b"),
        group([1.0, 1.0, 1.0, 1.0], name="a"),
        group([-1.0, 1.0, 1.0, -1.0], name="c"),
    ]


async def test_one_step_call_with_all_kept_datums():
    trainer = NumpyTrainer()
    result = await PPO(learning_rate=1e-3, grad_clip_norm=2.0).update(trainer, batch(), step=3)
    ((data, loss, config, adam),) = trainer.calls
    assert len(data) == 7
    assert loss == "ppo"
    assert config == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
    assert adam == {
        "learning_rate": 1e-3,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 2.0,
    }
    metrics = result.metrics
    assert metrics["train/datums"] == 7
    assert metrics["train/trajectories"] == 11
    assert metrics["train/tokens"] == 7 * 8
    assert metrics["train/sampled_tokens"] == 7 * 5
    assert metrics["train/masked_infrastructure"] == 1
    assert metrics["train/minibatches"] == 1
    assert metrics["ppo/ratio_mean"] == 1.0
    assert metrics["ppo/clip_fraction_high"] == 0.0
    assert metrics["ppo/grad_norm"] == pytest.approx(np.linalg.norm(trainer.gradients[0]))


async def test_advantages_are_filled_in_over_the_whole_group():
    result = await PPO().update(NumpyTrainer(), batch(), step=0)
    assert [[t.advantage for t in g.trajectories] for g in result.groups] == [
        pytest.approx([4 / 3, -2 / 3, -2 / 3, None]),
        [0.0, 0.0, 0.0, 0.0],
        [-1.0, 1.0, 1.0, -1.0],
    ]


async def test_reported_loss_is_the_one_that_is_differentiated():
    trainer = NumpyTrainer()
    metrics = (await PPO().update(trainer, batch(), step=0)).metrics
    # On policy a token's loss is minus its advantage. Sums over groups vanish at equal lengths.
    assert metrics["ppo/loss"] == pytest.approx(0.0, abs=1e-12)
    uneven = [group([1.0, -1.0], name="a", lengths=[3, 1]), group([1.0, 1.0], name="b")]
    metrics = (await PPO().update(trainer, uneven, step=0)).metrics
    # 1/4 (3 · -1 + 1 · 1) over trajectories; the service counts 3 + 2 and 1 + 2 targets of two datums scaled by 2/4.
    assert metrics["ppo/loss"] == pytest.approx(-0.5)
    assert metrics["ppo/loss_per_token"] == pytest.approx(-2 * 0.5 / 8)


async def test_order_of_arrival_does_not_matter():
    forward, backward = NumpyTrainer(), NumpyTrainer()
    shuffled = [TrajectoryGroup(g.problem, g.trajectories[::-1]) for g in batch()[::-1]]
    ppo = PPO(updates_per_batch=2)
    await ppo.update(forward, batch(), step=5)
    await ppo.update(backward, shuffled, step=5)
    assert forward.calls == backward.calls


async def test_minibatches_hold_whole_groups_in_a_seeded_order():
    groups = [group([1.0, -1.0], name=f"p{i}", lengths=[i + 1, i + 1]) for i in range(6)]

    async def sizes(seed, step):
        trainer = NumpyTrainer()
        await PPO(updates_per_batch=3, seed=seed).update(trainer, groups, step=step)
        return [[len(d.tokens) for d in data] for data, *_ in trainer.calls]

    first = await sizes(1, 0)
    assert [len(call) for call in first] == [4, 4, 4]
    assert sorted(n for call in first for n in call) == [3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    assert all(call[0] == call[1] and call[2] == call[3] for call in first)
    assert await sizes(1, 0) == first
    assert len({str(await sizes(seed, step)) for seed in (1, 2) for step in (0, 1, 2)}) > 1


async def test_fewer_groups_with_a_signal_than_minibatches():
    trainer = NumpyTrainer()
    result = await PPO(updates_per_batch=8).update(trainer, batch(), step=0)
    assert len(trainer.calls) == result.metrics["train/minibatches"] == 2


async def test_drift_within_the_batch_shows():
    trainer = NumpyTrainer(rate=0.5)
    groups = [group([1.0, -1.0], name=name, lengths=[3, 1]) for name in "ab"]
    metrics = (await PPO(updates_per_batch=2).update(trainer, groups, step=0)).metrics
    assert metrics["ppo/ratio_max"] > 1.0
    assert metrics["ppo/kl_k3"] > 0.0
    assert metrics["ppo/effective_sample_size"] < 1.0


@pytest.mark.parametrize(
    "groups",
    [[], [group([1.0, 1.0]), group([-1.0, -1.0])], [group([None, None])], [group([1.0, None])]],
)
async def test_nothing_to_train_makes_no_call(groups):
    trainer = NumpyTrainer()
    metrics = (await PPO().update(trainer, groups, step=0)).metrics
    assert trainer.calls == []
    assert metrics["train/minibatches"] == metrics["train/datums"] == metrics["train/kept_fraction"] == 0
    assert not [name for name in metrics if name.startswith("ppo/")]


async def test_masked_trajectories_stay_in_the_baseline_and_in_the_denominator():
    cut = (turn((1, 2), (10, 11), sampler_stop=SamplerStop.LENGTH),)
    members = (
        trajectory(1.0, index=0),
        trajectory(-1.0, index=1),
        trajectory(-1.0, index=2, turns=cut, stop=StopReason.TOKEN_LIMIT),
    )
    trainer = NumpyTrainer()
    result = await PPO(mask_truncated=True).update(trainer, [TrajectoryGroup(members[0].problem, members)], step=0)
    # Mean of 1, -1, -1 is -1/3: advantages 4/3 and -2/3, two of three trajectories kept.
    (data, *_), *_ = trainer.calls
    assert [max(d.advantages, key=abs) for d in data] == pytest.approx([4 / 3 * 2 / 3, -2 / 3 * 2 / 3])
    assert [t.advantage for t in result.groups[0].trajectories] == pytest.approx([4 / 3, -2 / 3, 0.0])
    assert result.metrics["train/masked_truncated"] == 1


async def test_a_trajectory_without_a_sampled_token_is_counted_but_not_sent():
    members = (trajectory(1.0, index=0), trajectory(-1.0, index=1, turns=(), stop=StopReason.TOKEN_LIMIT))
    trainer = NumpyTrainer()
    result = await PPO().update(trainer, [TrajectoryGroup(members[0].problem, members)], step=0)
    assert len(trainer.calls[0][0]) == 1
    assert result.metrics["train/kept_fraction"] == 0.5


class BrokenTrainer(NumpyTrainer):
    """Returns figures as told."""

    def __init__(self, *, grad_norm: float = 1.0, logprob: float = -1.0) -> None:
        super().__init__()
        self.grad_norm, self.logprob = grad_norm, logprob

    async def train_step(self, data, *, loss, config, adam):
        logprobs = [[self.logprob] * len(d.tokens) for d in data]
        return ForwardOutput(logprobs, {}), {"grad_norm": self.grad_norm}


@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        (BrokenTrainer(grad_norm=math.nan), "ppo/grad_norm"),
        (BrokenTrainer(logprob=math.nan), "ppo/ratio_mean"),
        (BrokenTrainer(logprob=1e6), "ppo/ratio_max"),
    ],
)
async def test_figures_that_are_not_finite_stop_the_run(trainer, name):
    with pytest.raises(InfrastructureError, match=f"step 7.*{name}.*learning_rate"):
        await PPO().update(trainer, batch(), step=7)


async def test_a_broken_sampler_logprob_stops_before_the_update():
    members = tuple(
        trajectory(reward, index=i, turns=(turn((1, 2), (10,), logprob=-math.inf),)) for i, reward in enumerate((1, -1))
    )
    trainer = NumpyTrainer()
    with pytest.raises(InfrastructureError, match="No update was made"):
        await PPO().update(trainer, [TrajectoryGroup(members[0].problem, members)], step=0)
    assert trainer.calls == []


async def test_figures_that_the_service_does_not_return_have_no_key():
    metrics = (await PPO().update(BrokenTrainer(), batch(), step=0)).metrics
    assert "ppo/loss" not in metrics
    assert "ppo/loss_per_token" not in metrics


async def test_dro_gradient_under_a_moved_policy():
    """The penalty keeps its ratio to the advantage when degenerate groups are dropped."""
    groups = [group([1.0, -1.0], name="a", lengths=[1, 1]), group([1.0, 1.0], name="b", lengths=[1, 1])]
    trainer = NumpyTrainer()
    trainer.theta[10] = 0.5
    ppo = PPO(loss="dro", dro_beta=0.4, ignore_unsampled_targets=True)
    await ppo.update(trainer, groups, step=0)
    # 1/N Σ (-A + β log r) over the two sampled tokens that are kept, N = 4.
    assert trainer.gradients[0][10] == pytest.approx(1 / 4 * ((-1 + 0.2) + (1 + 0.2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"advantage": "gae"}, "ppo.advantage=gae is not one of mean, grpo, rloo, dr_grpo"),
        ({"loss": "grpo"}, "ppo.loss=grpo is not one of"),
        ({"loss_aggregation": "token_sum"}, "ppo.loss_aggregation"),
        ({"normalisation": "mean"}, "ppo.normalisation"),
        ({"group_size": 1}, "ppo.group_size=1 must be at least 2"),
        ({"updates_per_batch": 0}, "ppo.updates_per_batch"),
        ({"learning_rate": -1e-5}, "ppo.learning_rate"),
        ({"eps": math.nan}, "ppo.eps"),
        ({"beta2": 1.0}, "ppo.beta2=1 must be below 1"),
        ({"loss": "dro"}, "ignore_unsampled_targets=true"),
        ({"loss": "dro", "ignore_unsampled_targets": True, "loss_aggregation": "sample_mean"}, "sample_mean"),
    ],
)
def test_refuses_values_that_make_no_sense(arguments, message):
    with pytest.raises(UserError, match=message):
        PPO(**arguments)
