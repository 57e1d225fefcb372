"""Scoring the text of a final turn against a gold answer.

`Scorer`: the component, configured by the `reward` group. `score`: a default one, made when first used.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from types import TracebackType
from typing import Self

from retool.errors import InfrastructureError, UserError
from retool.reward.compare import CORRECT, Oracle, judge
from retool.reward.exact import exact_value
from retool.reward.expression import TooComplexError, UnreadableError
from retool.reward.extract import extract_answer
from retool.reward.guard import MAX_LENGTH
from retool.reward.normalise import normalise
from retool.reward.questions import GOLD_UNREADABLE, Question, QuestionKind
from retool.reward.structure import Answer, Kind, read_answer
from retool.reward.verdict import Verdict, VerdictReason
from retool.reward.workers import Ask, WorkerPool

_CACHE_SIZE = 65_536
_TOTAL_TIME_FACTOR = 5
_CANARY = ((r"2\sqrt{2}", VerdictReason.CORRECT_SYMBOLIC), (r"3\sqrt{2}", VerdictReason.WRONG_SYMBOLIC))


class Scorer:
    r"""Rewards a text whose last `\boxed{...}` equals the gold answer.

    `right`, `wrong`: the two rewards. `answer_window_chars`: a box counts within so many last characters. `workers`:
    processes for symbolic answers, each with at most `memory_mb` MiB and `time_limit_s` seconds an answer.

    Plain numbers and equal texts are decided in the calling thread in microseconds, everything else in a worker.
    Use it from any thread, event loop or forked child; verdicts are the same everywhere. Nothing an answer does makes
    it raise: `InfrastructureError` says that the scorer itself cannot run, `UserError` that the gold is unusable.
    """

    def __init__(
        self,
        *,
        right: float = 1.0,
        wrong: float = -1.0,
        answer_window_chars: int = 300,
        workers: int = 1,
        time_limit_s: float = 2.0,
        memory_mb: int = 1024,
    ) -> None:
        for name, value in (
            ("answer_window_chars", answer_window_chars),
            ("workers", workers),
            ("time_limit_s", time_limit_s),
            ("memory_mb", memory_mb),
        ):
            if not value > 0:
                raise UserError(f"reward.{name}={value!r} must be greater than 0.")
        if not right > wrong:
            raise UserError(f"reward.right={right!r} must be greater than reward.wrong={wrong!r}.")
        self._right = right
        self._wrong = wrong
        self._window = answer_window_chars
        self._time_limit_s = time_limit_s
        self._pool = WorkerPool(workers, time_limit_s=time_limit_s, memory_mb=memory_mb)
        self._workers = workers
        self._cache = _Cache(_CACHE_SIZE)

    def start(self) -> Self:
        """Starts the workers and lets each decide two trial questions. Raises `InfrastructureError`."""
        trials = [self._pool.run(_run_canary) for _ in range(self._workers)]
        for trial in trials:
            trial.result()
        return self

    def close(self) -> None:
        """Ends the workers. What they do not decide can still be scored."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, text: str, gold: str) -> Verdict:
        """The verdict on `text`. Blocks the calling thread while a worker decides."""
        case = _Case.read(text, gold, self._window)
        reason = self._decide_at_once(case)
        if reason is None:
            reason = self._pool.run(lambda ask: self._decide(case, ask)).result()
        return self._verdict(case, reason)

    async def ascore(self, text: str, gold: str) -> Verdict:
        """As `score`, without ever blocking the event loop."""
        case = _Case.read(text, gold, self._window)
        reason = self._decide_at_once(case)
        if reason is None:
            reason = await asyncio.wrap_future(self._pool.run(lambda ask: self._decide(case, ask)))
        return self._verdict(case, reason)

    def check_gold(self, gold: str) -> str | None:
        """None if `gold` can be compared with answers, else why not. May ask a worker."""
        try:
            answer = _read_gold(_normalise_gold(gold))
        except UserError as error:
            return str(error)
        for leaf in answer.leaves():
            problem = self._check_leaf(leaf)
            if problem is not None:
                return f"The gold answer {gold!r} {problem}; only the very same text would be accepted."
        return None

    def _check_leaf(self, leaf: Answer) -> str | None:
        if leaf.too_complex:
            return "is too complex to be computed"
        if leaf.kind is Kind.OTHER:
            return f"holds {leaf.text!r}, which is neither an expression nor plain words"
        if leaf.kind is not Kind.VALUE:
            return None
        if leaf.expression is None:
            question = Question(QuestionKind.LIBRARY, (leaf.latex,), (leaf.latex,))
            outcome = self._pool.run(lambda ask: ask(question)).result()
            return None if outcome in CORRECT else f"holds {leaf.latex!r}, which cannot be read as an expression"
        try:
            exact_value(leaf.expression)
        except TooComplexError:
            return "is too complex to be computed"
        except UnreadableError as error:
            return f"has no value ({error})"
        return None

    def _decide_at_once(self, case: "_Case") -> VerdictReason | None:
        """The verdict's reason, if it takes no worker."""
        if case.refusal is not None:
            return case.refusal
        reason = self._cache.get(case.key)
        if reason is None:
            reason = case.judge(None)
            if reason is not None:
                self._cache.put(case.key, reason)
        return reason

    def _decide(self, case: "_Case", ask: Ask) -> VerdictReason:
        """The verdict's reason with a worker's help."""
        deadline = time.monotonic() + _TOTAL_TIME_FACTOR * self._time_limit_s

        def oracle(question: Question) -> VerdictReason:
            if time.monotonic() > deadline:
                return VerdictReason.TIMEOUT
            outcome = ask(question)
            if outcome == GOLD_UNREADABLE:
                raise UserError(
                    f"The gold answer {case.gold!r} cannot be read as an expression, a set or plain words. "
                    "Check golds with Scorer.check_gold when the data are loaded."
                )
            return VerdictReason(outcome)

        reason = case.judge(oracle)
        assert reason is not None
        self._cache.put(case.key, reason)
        return reason

    def _verdict(self, case: "_Case", reason: VerdictReason) -> Verdict:
        correct = reason in CORRECT
        return Verdict(
            reward=self._right if correct else self._wrong,
            correct=correct,
            valid_format=case.refusal is None,
            reason=reason,
            extracted=case.extracted,
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """A text and a gold: both normalised, and `refusal`: why there is no answer, if there is none."""

    gold: str
    normalised_gold: str
    extracted: str | None
    answer: str
    refusal: VerdictReason | None

    @classmethod
    def read(cls, text: str, gold: str, window: int) -> "_Case":
        normalised_gold = _normalise_gold(gold)
        extraction = extract_answer(text, window)
        answer = extraction.answer or ""
        if len(answer) <= MAX_LENGTH:
            answer = normalise(answer)
        refusal = extraction.reason
        if refusal is None and not answer:
            refusal = VerdictReason.EMPTY_BOX
        return cls(gold, normalised_gold, extraction.answer if refusal is None else None, answer, refusal)

    @property
    def key(self) -> tuple[str, str]:
        return self.normalised_gold, self.answer

    def judge(self, oracle: Oracle | None) -> VerdictReason | None:
        return judge(_read_gold(self.normalised_gold), read_answer(self.answer), oracle)


@lru_cache(maxsize=4096)
def _normalise_gold(gold: str) -> str:
    normalised = normalise(gold)
    if not normalised:
        raise UserError(f"The gold answer {gold!r} is blank.")
    return normalised


_read_gold = lru_cache(maxsize=4096)(read_answer)


def _run_canary(ask: Ask) -> None:
    for latex, expected in _CANARY:
        outcome = ask(Question(QuestionKind.EQUAL, (r"\sqrt{8}",), (latex,)))
        if outcome != expected:
            raise InfrastructureError(
                f"The scorer does not work: comparing {latex} with the square root of 8 gave {outcome}, not {expected}."
            )


class _Cache:
    """The most recently used reasons, for any thread. Outcomes of a worker that failed are kept too: same run, same
    verdict."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = Lock()
        self._entries: OrderedDict[tuple[str, str], VerdictReason] = OrderedDict()

    def get(self, key: tuple[str, str]) -> VerdictReason | None:
        with self._lock:
            reason = self._entries.get(key)
            if reason is not None:
                self._entries.move_to_end(key)
            return reason

    def put(self, key: tuple[str, str], reason: VerdictReason) -> None:
        with self._lock:
            self._entries[key] = reason
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)


@lru_cache(maxsize=1)
def _default_scorer() -> Scorer:
    return Scorer()


def score(text: str, gold: str) -> Verdict:
    """The verdict of a default `Scorer`, which is made at the first call and kept for the life of the process."""
    return _default_scorer().score(text, gold)
