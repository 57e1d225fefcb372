"""Estimates against brute force, closed forms and known intervals."""

from itertools import combinations

import numpy as np
import pytest

from retool.report import average_at_k, majority_at_k, pass_at_k, proportion

CORRECT = [[True, False, False, True], [False] * 4, [True] * 4, [False, False, True, False]]


def test_average_is_the_mean_over_problems() -> None:
    estimate = average_at_k(CORRECT)
    assert estimate.value == pytest.approx((0.5 + 0 + 1 + 0.25) / 4)
    assert estimate.count == 4
    assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_equals_enumeration(k: int) -> None:
    expected = np.mean([np.mean([any(subset) for subset in combinations(row, k)]) for row in CORRECT])
    assert pass_at_k(CORRECT, k).value == pytest.approx(expected)


def test_majority() -> None:
    answers = [["1", "2", "2"], ["5", None, None], ["7", "8", None], [None, None, None]]
    correct = [[False, True, True], [True, False, False], [True, False, False], [False] * 3]
    # right, right (no answer never wins), a tie of which one is right, no answer at all
    assert majority_at_k(answers, correct, 3).value == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    assert majority_at_k(answers, correct, 1).value == pytest.approx((0 + 1 + 1 + 0) / 4)


def test_proportion_against_published_intervals() -> None:
    # Clopper-Pearson: 7 of 20 -> 0.1539 to 0.5922; 0 of 10 -> 0 to 0.3085; 10 of 10 -> 0.6915 to 1.
    estimate = proportion(7, 20)
    assert (estimate.low, estimate.high) == pytest.approx((0.15391, 0.59219), abs=1e-4)
    assert (proportion(0, 10).low, proportion(0, 10).high) == pytest.approx((0, 0.30850), abs=1e-4)
    assert (proportion(10, 10).low, proportion(10, 10).high) == pytest.approx((0.69150, 1), abs=1e-4)


def test_intervals_are_exact_where_a_bootstrap_says_nothing() -> None:
    assert average_at_k([[True, True]] * 10) == proportion(10, 10)
    assert average_at_k([[True]] * 7 + [[False]] * 13) == proportion(7, 20)
    assert pass_at_k([[False, False]] * 10, 2) == proportion(0, 10)


def test_the_same_data_give_the_same_interval() -> None:
    assert average_at_k(CORRECT) == average_at_k(CORRECT)


def test_the_bootstrap_interval_covers() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        rates = rng.beta(2, 2, size=40)
        estimate = average_at_k((rng.random((40, 4)) < rates[:, None]).tolist())
        covered += estimate.low <= 0.5 <= estimate.high
    assert covered >= 52  # of 60 at a nominal 57; fewer has a chance below 2 %


@pytest.mark.parametrize("call", [lambda: average_at_k([]), lambda: pass_at_k(CORRECT, 5), lambda: proportion(3, 2)])
def test_what_cannot_be_estimated_is_refused(call) -> None:
    with pytest.raises(ValueError):
        call()
