"""Limits and seeds as pure functions."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from retool.rollout.limits import RolloutLimits
from retool.rollout.seeds import request_seed


def test_request_tokens_are_the_smaller_of_turn_and_trajectory():
    limits = RolloutLimits(max_trajectory_tokens=100, max_turn_tokens=30)
    assert [limits.request_tokens(context) for context in (0, 70, 71, 99, 100, 101)] == [30, 30, 29, 1, 0, 0]
    assert RolloutLimits(max_trajectory_tokens=100).request_tokens(40) == 60


def test_seed_is_the_documented_function():
    # printf '[42, 3, "gsm8k/7", 1, 2]' | b2sum -l 32   gives   8c560f22
    assert request_seed(42, step=3, problem_id="gsm8k/7", sample=1, request=2) == 0x8C560F22 >> 1


def test_seed_is_the_same_in_another_process():
    code = (
        "from retool.rollout.seeds import request_seed;"
        "print(request_seed(1, step=2, problem_id='é', sample=3, request=4))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == request_seed(1, step=2, problem_id="é", sample=3, request=4)


@given(st.integers(), st.integers(0), st.text(), st.integers(0), st.integers(0))
def test_seed_fits_every_service(seed, step, problem_id, sample, request):
    assert 0 <= request_seed(seed, step=step, problem_id=problem_id, sample=sample, request=request) < 2**31


def test_no_two_requests_of_a_run_collide_in_practice():
    seeds = {
        request_seed(42, step=step, problem_id=f"p{problem}", sample=sample, request=request)
        for step in range(5)
        for problem in range(8)
        for sample in range(8)
        for request in range(5)
    }
    assert len(seeds) == 5 * 8 * 8 * 5
