"""Arithmetic problems: exact answers, stable identity, disjoint sets, refused arguments."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.data.arithmetic import ArithmeticSource, Operation, arithmetic_problem, draw_operands, is_held_out
from retool.data.problem import ProblemSplit
from retool.errors import UserError

POSITIVE = st.integers(1, 10**9 - 1)


def test_default_set_is_pinned():
    split = ArithmeticSource().load()
    assert (len(split.train), len(split.holdout)) == (2048, 256)
    first, held = split.train[0], split.holdout[0]
    assert (first.id, first.question, first.answer) == ("arithmetic-6f294d7bf6bd7212", "Compute 46 times 481.", "22126")
    assert (held.id, held.question, held.answer) == ("arithmetic-af5c0ad1d6d87188", "What is 753 * 68?", "51204")
    assert first.data_source == "arithmetic"


def test_the_same_in_another_process():
    code = (
        "from retool.data.arithmetic import ArithmeticSource\n"
        "print([problem.id for problem in ArithmeticSource(seed=3).load().holdout])"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert other.stdout.strip() == str([problem.id for problem in ArithmeticSource(seed=3).load().holdout])


@pytest.mark.parametrize("operation", Operation)
@given(a=POSITIVE, b=POSITIVE)
def test_question_states_the_operands_and_the_answer_is_exact(operation: Operation, a: int, b: int):
    problem = arithmetic_problem(operation, a, b)
    numbers = [int(n) for n in re.findall(r"\d+", problem.question)]
    assert sorted(numbers) == sorted([a, b])
    expected = {Operation.ADD: a + b, Operation.SUBTRACT: a - b, Operation.MULTIPLY: a * b}[operation]
    assert problem.answer == str(expected)


def test_subtraction_is_worded_in_the_right_order():
    problems = [arithmetic_problem(Operation.SUBTRACT, a, 1000) for a in range(1, 60)]
    for a, problem in enumerate(problems, start=1):
        swapped = problem.question.startswith("Subtract")
        assert re.findall(r"\d+", problem.question) == (["1000", str(a)] if swapped else [str(a), "1000"])
        assert problem.answer == str(a - 1000)


@given(a=POSITIVE, b=POSITIVE)
def test_a_commutative_problem_has_one_identity(a: int, b: int):
    assert arithmetic_problem(Operation.MULTIPLY, a, b) == arithmetic_problem(Operation.MULTIPLY, b, a)
    assert arithmetic_problem(Operation.MULTIPLY, a, b).id != arithmetic_problem(Operation.ADD, a, b).id
    if a != b:
        assert arithmetic_problem(Operation.SUBTRACT, a, b).id != arithmetic_problem(Operation.SUBTRACT, b, a).id


def contents(split: ProblemSplit) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    train, holdout = (
        {tuple(sorted(map(int, re.findall(r"\d+", problem.question)))) for problem in problems}
        for problems in (split.train, split.holdout)
    )
    return train, holdout


def test_sets_hold_distinct_contents_and_share_none_across_seeds():
    train, holdout = contents(ArithmeticSource(seed=1).load())
    other_train, other_holdout = contents(ArithmeticSource(seed=2).load())
    assert (len(train), len(holdout)) == (2048, 256)
    assert not (train | other_train) & (holdout | other_holdout)
    assert train != other_train


def test_sizes_do_not_change_what_comes_first():
    small, large = ArithmeticSource(train_size=10, holdout=5).load(), ArithmeticSource(train_size=40, holdout=20).load()
    assert large.train[:10] == small.train
    assert large.holdout[:5] == small.holdout


def test_all_phrasings_and_digit_counts_occur():
    split = ArithmeticSource(operations=["multiply", "subtract"], digits=[1, 3], train_size=600, holdout=0).load()
    assert split.holdout == ()
    shapes = {re.sub(r"\d+", "N", problem.question) for problem in split.train}
    phrasings = Operation.MULTIPLY.phrasings + Operation.SUBTRACT.phrasings
    assert shapes == {phrasing.format(a="N", b="N") for phrasing in phrasings}
    assert {len(n) for problem in split.train for n in re.findall(r"\d+", problem.question)} == {1, 2, 3}
    assert all(not is_held_out(problem.id) for problem in split.train)


def test_operands_keep_to_their_digits():
    rng = random.Random(0)
    drawn = [draw_operands(rng, (2, 3)) for _ in range(500)]
    assert {len(str(n)) for pair in drawn for n in pair} == {2, 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operations": []}, "data.operations must be a list"),
        ({"operations": "multiply"}, "data.operations must be a list"),
        ({"operations": ["multiply", "*"]}, "'\\*' is not an operation; use one or more of add, subtract, multiply"),
        ({"operations": ["add", "add"]}, "names an operation twice"),
        ({"digits": [2]}, "data.digits must be two integers"),
        ({"digits": "24"}, "data.digits must be two integers"),
        ({"digits": 4}, "data.digits must be two integers"),
        ({"digits": [True, 2]}, "data.digits must be two integers"),
        ({"digits": [0, 2]}, "1 <= least <= greatest"),
        ({"digits": [4, 2]}, "1 <= least <= greatest"),
        ({"digits": [2, 10]}, "1 <= least <= greatest"),
        ({"train_size": 0}, "data.train_size must be an integer of at least 1"),
        ({"holdout": -1}, "data.holdout must be an integer of at least 0"),
        ({"holdout": 1.5}, "data.holdout must be an integer of at least 0"),
        ({"seed": "x"}, "data.seed must be an integer"),
    ],
)
def test_unusable_arguments_are_refused(arguments: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        ArithmeticSource(**arguments)  # type: ignore[arg-type]


def test_a_set_larger_than_the_space_is_refused():
    with pytest.raises(UserError, match=r"holdout=100 asks for more problems than there are: only \d+ distinct"):
        ArithmeticSource(digits=(1, 1), train_size=1, holdout=100).load()
