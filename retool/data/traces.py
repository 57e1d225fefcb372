r"""Worked traces for supervised fine-tuning: how a problem's solution looks when the interpreter does the computing.

The code of a trace is written from what the publisher gives: an equation (SVAMP), calculator annotations
`<<48/2=24>>` in a worked solution (GSM8K), or the one operation on the question's numbers that yields the gold answer
(arithmetic, MAWPS). Its output is never written down here: the code is executed before a trace is used.

Contents: `Trace`, `write_traces`, `solution_code`.
"""

import ast
import hashlib
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from retool.data.problem import Problem
from retool.data.quantities import names_a_quantity, position, variable_names

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
_ARITHMETIC = re.compile(r"[\d.\s()+\-*/%]+")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@dataclass(frozen=True, slots=True)
class Trace:
    """`code` is what the interpreter runs; `None` is an answer without it."""

    problem: Problem
    code: str | None


def write_traces(rows: Iterable[tuple[Problem, Mapping[str, object]]], *, tool_share: float, seed: int) -> list[Trace]:
    """One trace a problem whose code can be written; the others are left out.

    About `tool_share` of the traces call the interpreter, the rest answer at once; which ones depends on seed and id
    alone. A policy that has seen both can learn in reinforcement learning when a call pays.
    """
    traces = []
    for problem, row in rows:
        code = solution_code(problem, row)
        if code is not None:
            digest = hashlib.sha256(f"{seed}:trace:{problem.id}".encode()).digest()
            calls = int.from_bytes(digest[:8], "big") / 2**64 < tool_share
            traces.append(Trace(problem, code if calls else None))
    return traces


def solution_code(problem: Problem, row: Mapping[str, object]) -> str | None:
    """A program that prints the answer, or `None` where none can be written from what is known."""
    equation, solution = row.get("Equation"), row.get("answer")
    if isinstance(equation, str):
        return _equation_code(problem.question, equation)
    if isinstance(solution, str) and "<<" in solution:
        return _annotated_code(solution)
    return _one_operation_code(problem)


def _equation_code(question: str, equation: str) -> str | None:
    """`( 290.0 / 2.0 )` -> one variable a number, named after what the question counts, and the expression printed."""
    expression = _whole_numbers(equation)
    if expression is None:
        return None
    numbers = list(dict.fromkeys(re.findall(r"\d+(?:\.\d+)?", expression)))
    numbers.sort(key=lambda number: position(question, number))
    names = variable_names(question, numbers)
    lines = [f"{names[number]} = {number}" for number in numbers]
    named = re.sub(r"\d+(?:\.\d+)?", lambda match: names[match[0]], expression)
    return "\n".join([*lines, f"print({_without_outer_parentheses(named)})"])


def _annotated_code(solution: str) -> str | None:
    """One line an annotation; a number that an earlier line computed is written as its variable."""
    steps = _ANNOTATION.findall(solution)
    known: dict[Fraction, str] = {}
    lines = []
    for index, (expression, result) in enumerate(steps):
        if not _ARITHMETIC.fullmatch(expression):
            return None
        code = re.sub(_NUMBER, lambda match: _reference(match[0], known), expression.replace(",", "")).strip()
        if not _is_expression(code):
            return None
        name = f"step{index + 1}"
        lines.append(f"{name} = {code}")
        value = _fraction(result)
        if value is not None:
            known[value] = name
    return "\n".join([*lines, f"print(step{len(steps)})"]) if steps else None


def _one_operation_code(problem: Problem) -> str | None:
    """The only operation on two of the question's numbers, in their order, that gives the gold answer."""
    numbers = list(dict.fromkeys(re.findall(_NUMBER, problem.question)))
    gold = _fraction(problem.answer)
    found = set()
    for left in numbers:
        for right in numbers:
            for sign, apply in _OPERATIONS.items():
                a, b = _fraction(left), _fraction(right)
                if left == right or a is None or b is None or (sign == "/" and b == 0):
                    continue
                if apply(a, b) == gold and (sign in "-/" or numbers.index(left) < numbers.index(right)):
                    found.add(f"{left.replace(',', '')} {sign} {right.replace(',', '')}")
    if len(found) != 1:
        return None
    operation = found.pop()
    counted = any(names_a_quantity(problem.question, number) for number in re.findall(_NUMBER, operation))
    return _equation_code(problem.question, operation) if counted else f"print({operation})"


def _whole_numbers(equation: str) -> str | None:
    """The expression with `290.0` as `290`, or `None` if it is not plain arithmetic."""
    if not _ARITHMETIC.fullmatch(equation):
        return None
    expression = re.sub(r"(\d+)\.0+(?!\d)", r"\1", equation)
    expression = re.sub(r"\(\s+", "(", re.sub(r"\s+\)", ")", expression.strip()))
    return expression if _is_expression(expression) else None


def _without_outer_parentheses(expression: str) -> str:
    if expression.startswith("(") and expression.endswith(")") and _is_expression(expression[1:-1]):
        return expression[1:-1]
    return expression


def _reference(number: str, known: Mapping[Fraction, str]) -> str:
    value = _fraction(number)
    return known.get(value, number) if value is not None else number


def _is_expression(code: str) -> bool:
    try:
        ast.parse(code.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "").strip())
    except (ValueError, ZeroDivisionError):
        return None
