"""Equality by evaluation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool.reward.expression import TooComplexError, UnreadableError, read_expression
from retool.reward.numeric import equal, same_relation
from retool.reward.questions import Question, QuestionKind, question_from_line, question_to_line
from retool.reward.symbolic import answer_question
from retool.reward.verdict import VerdictReason


def same(first: str, second: str, decimals: int | None = None) -> bool:
    return equal(read_expression(first), read_expression(second), decimals)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        (r"\sqrt{2}\sqrt{2}", "2"),
        ("0", r"\sqrt{2}\sqrt{2}-2"),
        (r"e^{i\pi}+1", "0"),
        (r"\lfloor\sqrt{2}\sqrt{2}\rfloor", "2"),
        (r"(x+1)^{10}", r"(x+1)^9(x+1)"),
        (r"\sqrt{x^2}", "|x|"),
        (r"\ln x^2", r"2\ln x"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        ("e^{-1000}", r"\frac{1}{e^{1000}}"),
        (r"\sqrt[3]{-8x^3}", "-2x"),
    ],
)
def test_equal(first, second):
    assert same(first, second) and same(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"\pi", r"\pi+10^{-100}"),
        ("e^{-1000}", "e^{-1001}"),
        (r"10^{-60}x", r"2\cdot10^{-60}x"),
        (r"10^{200}+\pi-10^{200}", "3"),
        ("x", "|x|"),
        (r"\sqrt{x^2}", "x"),
        ("x", "y"),
        (r"\frac{\pi}{4}", "0.785398163397448"),
    ],
)
def test_different(first, second):
    assert not same(first, second) and not same(second, first)


def test_rounded_constants():
    assert same("1.4142135624", r"\sqrt{2}", decimals=10)
    assert not same("1.4142135623", r"\sqrt{2}", decimals=10)


@pytest.mark.parametrize("text", ["x^{10^{19}}", r"\sin 10^{40}", r"(10^7+\pi)!"])
def test_bounds(text):
    with pytest.raises((TooComplexError, UnreadableError)):
        same(text, "1")


def test_relations():
    def relation(first: tuple[str, str], second: tuple[str, str], sign: str) -> bool:
        sides = [[read_expression(side) for side in pair] for pair in (first, second)]
        return same_relation(sides[0], sides[1], sign)

    assert relation(("y", "2x+3"), ("2x-y+3", "0"), "=")
    assert relation(("x^2+y^2", "1"), ("3", "3x^2+3y^2"), "=")
    assert not relation(("y", "2x+3"), ("y", "2x-3"), "=")
    assert relation(("4", "x"), ("8", "2x"), "<")
    assert relation(("4", "x"), ("-x", "-4"), "<")
    assert not relation(("4", "x"), ("x", "4"), "<")
    assert not relation(("4", "4"), ("5", "5"), "=")


def test_questions_travel_unchanged():
    question = Question(QuestionKind.RELATION, ("y", "2x"), ("0", 'é"\n'), 6, "=")
    assert question_from_line(question_to_line(question)) == question


def test_outcomes():
    def outcome(gold: str, answer: str) -> str:
        return answer_question(Question(QuestionKind.EQUAL, (gold,), (answer,)))

    assert outcome(r"\sqrt{8}", r"2\sqrt{2}") == VerdictReason.CORRECT_SYMBOLIC
    assert outcome(r"\sqrt{8}", r"3\sqrt{2}") == VerdictReason.WRONG_SYMBOLIC
    assert outcome(r"\sqrt{8}", r"\sqrt{") == VerdictReason.UNPARSEABLE
    assert outcome(r"\sqrt{8}", r"\ln 0") == VerdictReason.UNPARSEABLE
    assert outcome(r"\sqrt{8}", "x^{10^{19}}") == VerdictReason.TOO_COMPLEX


COEFFICIENTS = st.lists(st.integers(-9, 9), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(COEFFICIENTS, COEFFICIENTS, st.integers(1, 9))
def test_products_of_polynomials_expand(first, second, difference):
    def polynomial(coefficients):
        return "+".join(f"({value})x^{{{power}}}" for power, value in enumerate(coefficients))

    product = [0] * (len(first) + len(second) - 1)
    for i, left in enumerate(first):
        for j, right in enumerate(second):
            product[i + j] += left * right
    factored = f"({polynomial(first)})({polynomial(second)})"
    assert same(factored, polynomial(product))
    product[-1] += difference
    assert not same(factored, polynomial(product))
