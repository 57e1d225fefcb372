"""`FileSource`: problems from publishers' files or the Hugging Face hub, with stable ids and a held-out part.

`SourceRow` is a problem beside the publisher's own row, from which worked traces are written.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from retool.data.fields import FieldMapping, MissingFieldError, missing_field_message
from retool.data.files import Row, read_hub, read_rows
from retool.data.problem import Problem, ProblemSplit
from retool.data.splits import comparable, content_id, holdout_order
from retool.errors import UserError

logger = logging.getLogger(__name__)

CheckGold = Callable[[str], str | None]
"""Says why a gold answer cannot be scored, or `None`."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A problem and the row that it was read from."""

    problem: Problem
    row: Row


@dataclass(frozen=True, slots=True)
class SourceSplit:
    """As `ProblemSplit`, with the publisher's rows. `holdout` is in seeded order: any prefix is a random sample."""

    train: tuple[SourceRow, ...]
    holdout: tuple[SourceRow, ...]


class FileSource:
    """A set of problems in a file or on the hub.

    Args:
        name: The set's name; it becomes the problems' `data_source` and the first part of their ids.
        path: A file (.jsonl, .json, .parquet) or a folder that holds one named after the set. `None`: the hub.
        hub: `owner/name` or `owner/name:configuration`.
        revision: The hub's commit, tag or branch.
        split: The hub's split, or the part of a file name in a folder; `None` is "train" on the hub.
        limit: At most so many training problems, chosen by seed.
        holdout: So many problems are kept for evaluation, chosen by the hash of seed and id.
        seed: Seed of both choices.
        fields: Our names (question, answer, id, data_source) to the file's. Without: ours.

    Ids are `name/<the publisher's id>` where that is unique, else `name/<hash of the question>`. Of several rows with
    the same question one is kept; where their answers differ, none.
    """

    def __init__(
        self,
        *,
        name: str,
        path: str | None = None,
        hub: str | None = None,
        revision: str | None = None,
        split: str | None = None,
        limit: int | None = None,
        holdout: int = 0,
        seed: int = 42,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        if path is None and hub is None:
            raise UserError(f"The data set '{name}' has no home on the hub: pass data.path=<file or folder>.")
        self._name = name
        self._path = None if path is None else Path(path)
        self._hub = hub
        self._revision = revision
        self._split = split
        self._limit = limit
        self._holdout = holdout
        self._seed = seed
        self._fields = FieldMapping.parse(fields or {})

    def load(self, check_gold: CheckGold | None = None) -> ProblemSplit:
        """Reads, checks and splits all problems. Raises `UserError`, see `load_rows`."""
        split = self.load_rows(check_gold)
        return ProblemSplit(
            train=[source.problem for source in split.train], holdout=[source.problem for source in split.holdout]
        )

    def load_rows(self, check_gold: CheckGold | None = None) -> SourceSplit:
        """As `load`, with the publisher's rows.

        Raises `UserError` for a missing file, wrong fields, an empty set, a gold that `check_gold` refuses, and a
        held-out part that would leave nothing to train on.
        """
        sources = self._unique(list(self._read()))
        if not sources:
            raise UserError(f"{self._place()} holds no problems.")
        if check_gold is not None:
            self._check_golds(sources, check_gold)
        return self._divide(sources)

    def _place(self) -> str:
        return str(self._path) if self._path is not None else f"hub:{self._hub}"

    def _rows(self) -> Iterator[Row]:
        if self._path is not None:
            return read_rows(self._path, name=self._name, split=self._split)
        assert self._hub is not None
        return read_hub(self._hub, revision=self._revision, split=self._split)

    def _read(self) -> Iterator[SourceRow]:
        """One problem a row, its id the publisher's or "" for now. Repetitions to the letter are skipped."""
        seen: set[tuple[str, str]] = set()
        for number, row in enumerate(self._rows(), start=1):
            place = f"{self._place()}, row {number}"
            try:
                question, answer = self._fields.question_of(row), self._fields.answer_of(row)
                identifier, source = self._fields.id_of(row), self._fields.data_source_of(row)
            except MissingFieldError as missing:
                raise UserError(missing_field_message(missing.field, row, place)) from None
            if not question:
                raise UserError(f"{place}: the question ({' + '.join(self._fields.question)}) is empty.")
            if not answer:
                raise UserError(f"{place}: the answer ({self._fields.answer[0]}) is empty or not a number or text.")
            if (question, answer) not in seen:
                seen.add((question, answer))
                yield SourceRow(Problem(identifier or "", question, answer, source or self._name), row)

    def _unique(self, sources: list[SourceRow]) -> list[SourceRow]:
        """Drops repeated questions and gives every problem its final id."""
        answers: dict[str, set[str]] = {}
        kept: dict[str, SourceRow] = {}
        for source in sources:
            key = comparable(source.problem.question)
            answers.setdefault(key, set()).add(source.problem.answer)
            kept.setdefault(key, source)
        unique = [source for key, source in kept.items() if len(answers[key]) == 1]
        if len(unique) < len(sources):
            logger.info(
                "%s: %d of %d rows left out because their question was there already, or has two different answers",
                self._place(),
                len(sources) - len(unique),
                len(sources),
            )
        counts = Counter(source.problem.id for source in unique)
        published = bool(counts) and "" not in counts and max(counts.values()) == 1
        return [self._identified(source, published) for source in unique]

    def _identified(self, source: SourceRow, published: bool) -> SourceRow:
        problem = source.problem
        own = problem.id if published else content_id(problem.question)
        prefix = f"{problem.data_source}/"
        identifier = own if own.startswith(prefix) else prefix + own
        return SourceRow(Problem(identifier, problem.question, problem.answer, problem.data_source), source.row)

    def _check_golds(self, sources: list[SourceRow], check_gold: CheckGold) -> None:
        bad = [(source.problem, reason) for source in sources if (reason := check_gold(source.problem.answer))]
        if bad:
            shown = "\n".join(f"  {problem.id}: {problem.answer!r}: {reason}" for problem, reason in bad[:_SHOWN])
            raise UserError(
                f"{self._place()}: {len(bad)} of {len(sources)} gold answers cannot be scored, so a right answer would "
                f"never be rewarded:\n{shown}\nCorrect or remove these rows (or set data.fields.answer)."
            )

    def _divide(self, sources: list[SourceRow]) -> SourceSplit:
        if self._holdout and self._holdout >= len(sources):
            raise UserError(
                f"data.holdout={self._holdout} leaves no problem to train on: {self._place()} holds {len(sources)}."
            )
        by_id = {source.problem.id: source for source in sources}
        order = holdout_order(by_id, self._seed)
        held, rest = order[: self._holdout], order[self._holdout :]
        chosen = set(rest if self._limit is None else rest[: self._limit])
        return SourceSplit(
            train=tuple(source for source in sources if source.problem.id in chosen),
            holdout=tuple(by_id[identifier] for identifier in held),
        )
