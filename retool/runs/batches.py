"""The trajectories of one step: groups of the next questions, and further questions in place of those without a signal.

Dynamic sampling (DAPO, Yu et al. 2025, arXiv 2503.14476): a group whose rewards are all equal teaches nothing, so it
is left out of the update and another question is sampled, for at most so many rounds. What was left out still counts
in every rate, or these would be those of a choice made by the outcome. Which questions come next depends on the cursor
and on the weights alone, so that an interrupted run takes the same ones again.

Contents: `SampledBatch`, `sample_batch`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retool.data.problem import Problem
from retool.ppo.advantages import is_degenerate
from retool.rollout.trajectory import TrajectoryGroup
from retool.runs.order import ProblemOrder


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """`trained` go into the update, `replaced` do not. `cursor`: the place in the order after all of them."""

    trained: tuple[TrajectoryGroup, ...]
    replaced: tuple[TrajectoryGroup, ...]
    cursor: int
    rounds: int

    @property
    def groups(self) -> tuple[TrajectoryGroup, ...]:
        """Everything that was sampled."""
        return self.trained + self.replaced

    def metrics(self) -> dict[str, float]:
        """How much was sampled for one update."""
        return {
            "rollout/sampling_rounds": float(self.rounds),
            "rollout/groups_replaced": float(len(self.replaced)),
        }


async def sample_batch(
    order: ProblemOrder,
    sample: Callable[[Sequence[Problem]], Awaitable[Sequence[TrajectoryGroup]]],
    *,
    cursor: int,
    questions: int,
    max_rounds: int,
) -> SampledBatch:
    """Samples `questions` groups; with `max_rounds` above 1, in up to so many rounds, only groups with a signal."""
    trained: list[TrajectoryGroup] = []
    replaced: list[TrajectoryGroup] = []
    rounds = 0
    while len(trained) < questions and rounds < max_rounds:
        seen = {group.problem.id for group in (*trained, *replaced)}
        problems, cursor = order.take(cursor, questions - len(trained), besides=seen)
        if not problems:
            break
        rounds += 1
        for group in await sample(problems):
            (replaced if max_rounds > 1 and not _has_signal(group) else trained).append(group)
    return SampledBatch(tuple(trained), tuple(replaced), cursor, rounds)


def _has_signal(group: TrajectoryGroup) -> bool:
    rewards = [t.verdict.reward for t in group.scored if t.verdict is not None]
    return not is_degenerate(np.asarray(rewards, dtype=np.float64))
