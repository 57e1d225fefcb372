"""Rates with their counts and 95 % intervals.

`proportion`: successes of independent trials (Clopper & Pearson 1934; exact at any count).
`average_at_k`, `pass_at_k`, `majority_at_k`: figures over problems with several samples each. Their intervals are
percentiles of a bootstrap that draws problems, and samples within each drawn problem, with replacement; the draws are
seeded, so that the same data give the same interval. Where a bootstrap says nothing, because every problem has one
sample or all are alike, the interval is the exact one of `proportion` over problems.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
_RESAMPLES = 1000
_SEED = 0
_BISECTIONS = 60

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure between 0 and 1, its interval, and how many problems or trials it rests on."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}], n={self.count}"


def proportion(successes: int, count: int) -> Estimate:
    """The share of successes with its exact (Clopper-Pearson) interval.

    Raises `ValueError` for no trial or more successes than trials.
    """
    if not 0 <= successes <= count or count == 0:
        raise ValueError(f"{successes} successes of {count} trials")
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if successes == 0 else _solve(lambda p: 1 - _binomial_cdf(successes - 1, count, p), tail)
    high = 1.0 if successes == count else _solve(lambda p: 1 - _binomial_cdf(successes, count, p), 1 - tail)
    return Estimate(successes / count, low, high, count)


def average_at_k(correct: Sequence[Sequence[bool]]) -> Estimate:
    """The mean over problems of the share of right samples; `correct[i]` holds problem i's samples."""
    return _bootstrapped(correct, lambda samples: sum(samples) / len(samples))


def pass_at_k(correct: Sequence[Sequence[bool]], k: int) -> Estimate:
    """The unbiased chance that at least one of k samples is right (Chen et al. 2021, arXiv 2107.03374).

    For a problem with c of n samples right: 1 - C(n - c, k) / C(n, k). Raises `ValueError` where a problem has fewer
    than k samples.
    """
    _check_size(correct, k)

    def one(samples: Sequence[bool]) -> float:
        n = len(samples)
        return 1 - math.comb(n - sum(samples), k) / math.comb(n, k)

    return _bootstrapped(correct, one)


def majority_at_k(answers: Sequence[Sequence[Hashable]], correct: Sequence[Sequence[bool]], k: int) -> Estimate:
    """The share of problems whose most frequent answer among the first k samples is right.

    `None` is no answer and never wins. Ties are shared: each tied answer counts by its share. An answer is right where
    any sample that gave it is.
    """
    _check_size(correct, k)
    pairs = [list(zip(row, right, strict=True))[:k] for row, right in zip(answers, correct, strict=True)]
    return _bootstrapped(pairs, _majority)


def _majority(samples: Sequence[tuple[Hashable, bool]]) -> float:
    votes = Counter(answer for answer, _ in samples if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    right = {answer for answer, correct in samples if correct}
    return sum(answer in right for answer in winners) / len(winners)


def _bootstrapped(problems: Sequence[Sequence[T]], figure: Callable[[Sequence[T]], float]) -> Estimate:
    if not problems or any(not samples for samples in problems):
        raise ValueError("every problem needs at least one sample")
    figures = [figure(samples) for samples in problems]
    value = float(np.mean(figures))
    binary = set(figures) <= {0.0, 1.0}
    if binary and (len(set(figures)) == 1 or all(len(samples) == 1 for samples in problems)):
        return proportion(round(sum(figures)), len(figures))
    rng = np.random.default_rng(_SEED)
    resampled = np.empty((_RESAMPLES, len(problems)))
    for column, samples in enumerate(problems):
        drawn = rng.integers(len(samples), size=(_RESAMPLES, len(samples)))
        resampled[:, column] = _each([[samples[i] for i in row] for row in drawn.tolist()], figure)
    picks = rng.integers(len(problems), size=(_RESAMPLES, len(problems)))
    means = np.take_along_axis(resampled, picks, axis=1).mean(axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Estimate(value, float(min(low, value)), float(max(high, value)), len(problems))


def _each(rows: list[list[T]], figure: Callable[[Sequence[T]], float]) -> npt.NDArray[np.float64]:
    return np.array([figure(row) for row in rows])


def _check_size(correct: Sequence[Sequence[bool]], k: int) -> None:
    fewest = min((len(samples) for samples in correct), default=0)
    if not 1 <= k <= fewest:
        raise ValueError(f"k={k}, but a problem has {fewest} samples")


def _binomial_cdf(successes: int, count: int, p: float) -> float:
    """P(X <= successes) by summing log terms, stable at any count."""
    if p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 1.0 if successes >= count else 0.0
    terms = [
        math.lgamma(count + 1)
        - math.lgamma(i + 1)
        - math.lgamma(count - i + 1)
        + i * math.log(p)
        + (count - i) * math.log1p(-p)
        for i in range(successes + 1)
    ]
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _solve(increasing: Callable[[float], float], target: float) -> float:
    """Where an increasing function on [0, 1] reaches `target`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < target else (low, middle)
    return (low + high) / 2
