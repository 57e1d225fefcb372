"""Which problems a step trains on: a seeded shuffle each epoch, addressed by a cursor that a resume state can hold.

Contents: `ProblemOrder`.
"""

import random
from collections.abc import Sequence

from retool.data.problem import Problem
from retool.errors import UserError


class ProblemOrder:
    """Batches of `batch` distinct problems. The order depends on the seed and the epoch alone, so that any batch can be
    named by its cursor, the number of problems trained on before it. What does not fill a batch at the end of an epoch
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
        self._batch = batch
        self._seed = seed
        self._epoch_size = len(problems) // batch * batch

    def take(self, cursor: int) -> list[Problem]:
        """The batch that begins after `cursor` problems."""
        epoch, start = divmod(cursor, self._epoch_size)
        order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return [self._problems[index] for index in order[start : start + self._batch]]

    def epoch(self, cursor: int) -> float:
        """How many times the problems were gone through after `cursor` problems."""
        return cursor / self._epoch_size
