"""Trajectories as training sequences, with literal tokens."""

import pytest
from ppo_samples import tool_turns, trajectory, turn

from retool.policy.types import SamplerStop
from retool.ppo.datums import sampled_token_count, scaled, trajectory_datum
from retool.rollout.trajectory import StopReason


def test_two_turns_with_a_tool_call():
    datum = trajectory_datum(trajectory(1.0), advantage=0.75)
    # tokens       1  2 10 11 20 21 12 13 14
    # sampled      .  .  x  x  .  .  x  x  x
    # logprob      .  . -.5 -.625 . . -.5 -.625 -.75
    assert datum.tokens == (1, 2, 10, 11, 20, 21, 12, 13)
    assert datum.target_tokens == (2, 10, 11, 20, 21, 12, 13, 14)
    assert datum.logprobs == (0.0, -0.5, -0.625, 0.0, 0.0, -0.5, -0.625, -0.75)
    assert datum.advantages == (0.0, 0.75, 0.75, 0.0, 0.0, 0.75, 0.75, 0.75)
    assert datum.weights is None


def test_ignored_targets():
    datum = trajectory_datum(trajectory(1.0), advantage=-1.0, ignore_unsampled_targets=True)
    # target       2   10  11   20   21  12  13  14
    # sampled      .    x   x    .    .   x   x   x
    assert datum.tokens == (1, 2, 10, 11, 20, 21, 12, 13)
    assert datum.target_tokens == (-100, 10, 11, -100, -100, 12, 13, 14)
    assert datum.logprobs == (0.0, -0.5, -0.625, 0.0, 0.0, -0.5, -0.625, -0.75)
    assert datum.advantages == (0.0, -1.0, -1.0, 0.0, 0.0, -1.0, -1.0, -1.0)


def test_a_trailing_observation_is_dropped():
    turns = (turn((1, 2), (10, 11), (20, 21, 22)),)
    datum = trajectory_datum(trajectory(-1.0, turns=turns, stop=StopReason.TOKEN_LIMIT), advantage=1.0)
    # tokens       1  2 10 11 [20 21 22]
    # sampled      .  .  x  x  dropped
    assert datum.tokens == (1, 2, 10)
    assert datum.target_tokens == (2, 10, 11)
    assert datum.advantages == (0.0, 1.0, 1.0)


def test_an_empty_last_turn_leaves_what_was_sampled_before():
    turns = (turn((1, 2), (10,), (20,)), turn((1, 2, 10, 20), ()))
    datum = trajectory_datum(trajectory(-1.0, turns=turns), advantage=1.0)
    assert (datum.tokens, datum.target_tokens) == ((1, 2), (2, 10))


def test_a_cut_turn_that_is_continued():
    turns = (
        turn((1, 2), (10, 11), sampler_stop=SamplerStop.LENGTH),
        turn((1, 2, 10, 11), (12,)),
    )
    datum = trajectory_datum(trajectory(1.0, turns=turns), advantage=2.0)
    # tokens       1  2 10 11 12
    # sampled      .  .  x  x  x
    assert datum.tokens == (1, 2, 10, 11)
    assert datum.target_tokens == (2, 10, 11, 12)
    assert datum.logprobs == (0.0, -0.5, -0.625, -0.5)
    assert datum.advantages == (0.0, 2.0, 2.0, 2.0)


def test_scaled_changes_advantages_alone():
    datum = trajectory_datum(trajectory(1.0), advantage=1.0)
    assert scaled(datum, 0.5).advantages == (0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5, 0.5)
    assert scaled(datum, 0.5).logprobs == datum.logprobs


def test_sampled_token_count():
    assert sampled_token_count(trajectory(1.0)) == 5


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ((), "no sampled token"),
        ((turn((1, 2), ()),), "no sampled token"),
        ((tool_turns()[0], turn((1, 2, 10, 99, 20, 21), (12,))), "does not continue"),
        ((turn((), (10,)),), "0 prompt tokens"),
    ],
)
def test_refuses_what_cannot_be_trained(turns, message):
    with pytest.raises(ValueError, match=message):
        trajectory_datum(trajectory(1.0, turns=turns), advantage=1.0)
