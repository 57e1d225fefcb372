"""Trajectories as training sequences: one `TokenDatum` each, in which only sampled tokens carry a loss.

With t the trajectory's tokens up to the last sampled one, the inputs are `t[:-1]` and the targets `t[1:]`. Where the
target was not sampled (prompt, observation, template glue) the logprob and the advantage are zero, which makes every
policy loss but `dro` zero there; with `ignore_unsampled_targets` the target is -100 as well, and the token is left out
of the service's counts.

Contents: `sampled_token_count`, `trajectory_datum`, `scaled`.
"""

from collections.abc import Sequence
from dataclasses import replace

from retool.policy.types import TokenDatum
from retool.ppo.aggregation import IGNORED_TARGET
from retool.rollout.trajectory import Trajectory


def sampled_token_count(trajectory: Trajectory) -> int:
    """How many tokens of the trajectory the policy sampled (o_i)."""
    return sum(len(turn.completion_tokens) for turn in trajectory.turns)


def trajectory_datum(
    trajectory: Trajectory,
    *,
    advantage: float,
    offsets: Sequence[float] | None = None,
    ignore_unsampled_targets: bool = False,
) -> TokenDatum:
    """The training sequence of a trajectory, with `advantage` on each of its sampled targets.

    `offsets` are added to it, one a sampled token in their order.
    Tokens after the last sampled one are dropped: nothing is learned from predicting them, and nothing follows.
    Raises `ValueError` where no token was sampled, or where a turn does not continue the one before it.
    """
    _check_continuity(trajectory)
    mask = trajectory.sampled_mask
    if True not in mask:
        raise ValueError(f"Trajectory {_name(trajectory)} has no sampled token.")
    end = len(mask) - mask[::-1].index(True)
    tokens = trajectory.tokens[:end]
    sampled = mask[1:end]
    targets = tokens[1:]
    if ignore_unsampled_targets:
        targets = tuple(t if s else IGNORED_TARGET for t, s in zip(targets, sampled, strict=True))
    remaining = iter([0.0] * sum(sampled) if offsets is None else offsets)
    return TokenDatum(
        tokens=tokens[:-1],
        target_tokens=targets,
        logprobs=trajectory.sampled_logprobs[1:end],
        advantages=tuple(advantage + next(remaining) if s else 0.0 for s in sampled),
    )


def scaled(datum: TokenDatum, factor: float) -> TokenDatum:
    """The datum with all advantages multiplied by `factor`."""
    return replace(datum, advantages=tuple(factor * a for a in datum.advantages or ()))


def _check_continuity(trajectory: Trajectory) -> None:
    for index, (turn, following) in enumerate(zip(trajectory.turns, trajectory.turns[1:], strict=False)):
        if following.prompt_tokens != turn.prompt_tokens + turn.completion_tokens + turn.observation_tokens:
            raise ValueError(
                f"Turn {index + 1} of trajectory {_name(trajectory)} does not continue the tokens of turn {index}."
            )
    for index, turn in enumerate(trajectory.turns):
        if not turn.prompt_tokens or len(turn.logprobs) != len(turn.completion_tokens):
            raise ValueError(
                f"Turn {index} of trajectory {_name(trajectory)} has {len(turn.prompt_tokens)} prompt tokens, "
                f"{len(turn.completion_tokens)} sampled tokens and {len(turn.logprobs)} logprobs."
            )


def _name(trajectory: Trajectory) -> str:
    return f"{trajectory.problem.id}[{trajectory.sample_index}]"
