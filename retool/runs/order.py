"""Which problems a step trains on: a seeded shuffle each epoch, addressed by a cursor that a resume state can hold.

Contents: `ProblemOrder`.
"""

import random
from collections.abc import Collection, Sequence

from retool.data.problem import Problem
from retool.errors import UserError


class ProblemOrder:
    """Distinct problems in an order that depends on the seed and the epoch alone, so that any place in it can be named
    by its cursor, the number of problems passed before it. What does not fill a batch of `batch` at the end of an epoch
    is left out, so that no batch holds a problem twice.
    """

    def __init__(self, problems: Sequence[Problem], *, batch: int, seed: int) -> None:
        """Raises `UserError` when there are fewer problems than one batch needs."""
        if len(problems) < batch:
            raise UserError(
                f"ppo.questions_per_batch={batch}, but data has {len(problems)} training problems. "
                "Lower it, or raise data.limit or lower data.holdout."
            )
        self._problems = sorted(problems, key=lambda problem: problem.id)
        self._seed = seed
        self._epoch_size = len(problems) // batch * batch

    def take(self, cursor: int, count: int, *, besides: Collection[str] = ()) -> tuple[list[Problem], int]:
        """The next `count` problems from the cursor on whose ids are not in `besides`, and the cursor after them.

        Fewer where two epochs do not hold so many.
        """
        taken: list[Problem] = []
        passed = set(besides)
        last = cursor + 2 * self._epoch_size
        while len(taken) < count and cursor < last:
            epoch, start = divmod(cursor, self._epoch_size)
            order = self._order(epoch)
            for place in range(start, self._epoch_size):
                if len(taken) == count:
                    break
                problem, cursor = self._problems[order[place]], cursor + 1
                if problem.id not in passed:
                    passed.add(problem.id)
                    taken.append(problem)
        return taken, cursor

    def epoch(self, cursor: int) -> float:
        """How many times the problems were gone through after `cursor` problems."""
        return cursor / self._epoch_size

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
