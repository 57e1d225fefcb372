"""Code written from equations, annotations and gold answers: literal cases, and that it computes the answer."""

import ast
import random

import pytest

from retool.data.arithmetic import ArithmeticSource
from retool.data.problem import Problem
from retool.data.traces import solution_code, write_traces


def problem(question: str, answer: str = "0") -> Problem:
    return Problem("set/1", question, answer, "set")


def printed(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(ast.parse(code), "trace", "exec"), {})
    return capsys.readouterr().out.strip()


def test_an_equation_becomes_named_variables_in_the_question_s_order() -> None:
    question = "There are 87 oranges and 290 bananas. The bananas are organized into 2 groups. How big is a group?"
    code = solution_code(problem(question), {"Equation": "( 290.0 / 2.0 )"})
    assert code == "bananas = 290\ngroups = 2\nprint(bananas / groups)"


def test_two_numbers_with_one_noun_get_two_names() -> None:
    code = solution_code(problem("He had 9 marbles and won 4 marbles."), {"Equation": "( 9.0 + 4.0 )"})
    assert code == "marbles = 9\nwon_marbles = 4\nprint(marbles + won_marbles)"


def test_annotations_are_chained_through_variables(capsys: pytest.CaptureFixture[str]) -> None:
    solution = "She sold 48/2 = <<48/2=24>>24 in May. In all 48+24 = <<48+24=72>>72.\n#### 72"
    code = solution_code(problem("How many?", "72"), {"answer": solution})
    assert code == "step1 = 48/2\nstep2 = 48+step1\nprint(step2)"
    assert float(printed(code, capsys)) == 72


def test_the_only_operation_that_gives_the_gold_is_taken() -> None:
    assert (
        solution_code(problem("Joan found 70 shells, 27 are left.", "43"), {})
        == "shells = 70\nleft = 27\nprint(shells - left)"
    )
    # 2 + 2 and 2 * 2 cannot be told apart, and of 5 nothing is made of 70 and 27.
    assert solution_code(problem("4 and 2", "8"), {}) == "print(4 * 2)"
    assert solution_code(problem("Joan found 70 shells, 27 are left.", "5"), {}) is None


@pytest.mark.parametrize("equation", ["__import__('os')", "( 3 + ", "x + 1", ""])
def test_what_is_not_plain_arithmetic_is_left_out(equation: str) -> None:
    assert solution_code(problem("3 and 4"), {"Equation": equation}) is None


def test_every_arithmetic_problem_has_a_trace_that_computes_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    problems = ArithmeticSource(operations=["multiply", "add", "subtract"], train_size=60, holdout=0).load().train
    traces = write_traces([(item, {}) for item in problems], tool_share=1.0, seed=1)
    assert len(traces) == 60
    for trace in traces:
        assert trace.code is not None
        assert printed(trace.code, capsys) == trace.problem.answer


def test_which_traces_call_the_tool_depends_on_seed_and_id_alone() -> None:
    problems = ArithmeticSource(train_size=400, holdout=0).load().train
    rows = [(item, {}) for item in problems]
    called = {trace.problem.id for trace in write_traces(rows, tool_share=0.6, seed=1) if trace.code is not None}
    random.Random(0).shuffle(rows)
    again = {trace.problem.id for trace in write_traces(rows, tool_share=0.6, seed=1) if trace.code is not None}
    other = {trace.problem.id for trace in write_traces(rows, tool_share=0.6, seed=2) if trace.code is not None}
    assert called == again != other
    assert 0.5 < len(called) / 400 < 0.7
