"""Reading expressions and exact arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool.reward.exact import decimals_of, exact_value, rounds_to
from retool.reward.expression import (
    Node,
    Number,
    Operation,
    Symbol,
    TooComplexError,
    UnreadableError,
    read_expression,
)


def value(text: str) -> Fraction | None:
    return exact_value(read_expression(text))


def show(node: Node) -> str:
    match node:
        case Number(number):
            return str(number)
        case Symbol(name):
            return name
        case Operation(name, arguments):
            return f"{name}({','.join(map(show, arguments))})" if arguments else name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("042", 42),
        ("57.", 57),
        (".25", Fraction(1, 4)),
        (r"\frac{-2}{9}", Fraction(-2, 9)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac1{72}", Fraction(1, 72)),
        ("3/7", Fraction(3, 7)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        (r"-3\frac12", Fraction(-7, 2)),
        ("3 1/2", Fraction(7, 2)),
        (r"2\frac{3}{2}", 3),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"7\times10^{6}", 7_000_000),
        ("1e-05", Fraction(1, 100_000)),
        ("43_7", 31),
        ("43_{7}", 31),
        ("-2^2", -4),
        ("2^{3^2}", 512),
        ("2^3^2", 512),
        ("2^10", 1024),
        ("2^{-1}", Fraction(1, 2)),
        ("4^{1/2}", 2),
        (r"\sqrt{16}", 4),
        (r"\sqrt[3]{-8}", -2),
        (r"\sqrt{\frac{1}{4}}", Fraction(1, 2)),
        ("5!", 120),
        (r"\binom{5}{2}", 10),
        ("|-5|", 5),
        (r"\lfloor 2.5 \rfloor", 2),
        (r"\lceil 2.5 \rceil", 3),
        (r"\gcd(4,6)", 2),
        (r"\max(1,2)", 2),
        (r"2(3+4)", 14),
        ("6/2/3", 1),
        (r"3\cdot-2", -6),
        ("4^{500}", 2**1000),
    ],
)
def test_exact_values(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize("text", ["x", r"\pi", r"\sqrt{2}", "e", "i", r"\sqrt{-1}", r"(-8)^{1/3}", r"\sin 0", "(1/2)!"])
def test_no_rational_value(text):
    assert value(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3 4",
        "5 +",
        "1.5.2",
        "x=5",
        "1,2",
        "(1",
        "1)",
        "5!!",
        r"\foo",
        r"\frac{1}",
        "{",
        "^2",
        "x2",
        r"\text{a}",
        "1//2",
        "9_8",
        r"\sqrt",
        "|x",
        "5%",
        "a;b",
        "__import__('os')",
        r"\{1\}",
    ],
)
def test_unreadable(text):
    with pytest.raises(UnreadableError):
        read_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^9}}",
        "100000000!",
        "((10!)!)!",
        "2^{2^{40}}",
        r"\binom{1000000000}{500000000}",
        "9" * 500,
        "(" * 50 + "1" + ")" * 50,
        r"\sqrt{" * 50 + "4" + "}" * 50,
        r"\frac" * 60 + "1" * 61,
        "-" * 50 + "x^" * 60 + "x",
    ],
)
def test_too_complex(text):
    with pytest.raises((TooComplexError, UnreadableError)):
        value(text)


@pytest.mark.parametrize("text", ["1/0", "0^0", "0^{-1}", r"\frac{1}{2-2}"])
def test_undefined(text):
    with pytest.raises(UnreadableError):
        value(text)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (r"\sin 2x", "sin(mul(2,x))"),
        (r"\sin x\cos x", "mul(sin(x),cos(x))"),
        (r"\sin^{-1}(x)", "arcsin(x)"),
        (r"\sin^2 x", "pow(sin(x),2)"),
        (r"\ln(2)^2", "pow(ln(2),2)"),
        (r"\log_{2}(8)", "log(8,2)"),
        (r"\log 8", "log(8,10)"),
        ("1/2x", "mul(1,div(1,2),x)"),
        ("x_1 x_{12}'", "mul(x_1,x_12')"),
        (r"\alpha\beta", r"mul(\alpha,\beta)"),
        ("e^{i\\pi}", "pow(e,mul(i,pi))"),
        ("|x||y|", "mul(abs(x),abs(y))"),
        ("a-b-c", "add(a,neg(b),neg(c))"),
        (r"30^{\circ}", "degrees(30)"),
    ],
)
def test_trees(text, tree):
    assert show(read_expression(text)) == tree


def test_rounded_golds_have_six_decimals_and_digits():
    assert decimals_of("1.3333333333") == 10
    assert decimals_of("-0.666667") == 6
    assert decimals_of("0.33333") is None
    assert decimals_of("0.0000003") is None
    assert decimals_of("1333333") is None
    assert rounds_to(Fraction(4, 3), Fraction("1.3333333333"), 10)
    assert not rounds_to(Fraction("1.33333"), Fraction("1.3333333333"), 10)


@settings(deadline=None, derandomize=True)
@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_spellings_of_a_fraction_have_its_value(top, bottom):
    expected = Fraction(top, bottom)
    assert value(rf"\frac{{{top}}}{{{bottom}}}") == value(f"{top}/{bottom}") == value(f"({top})/({bottom})") == expected
    assert value(rf"{top}\cdot{bottom}^{{-1}}") == expected


@settings(deadline=None, derandomize=True)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_decimals_have_their_value(number):
    assert value(f"{number:f}") == Fraction(number)


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="0123456789.+-*/^_!(){}[]|\\frac sqrtpie,'", max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        value(text)
    except (UnreadableError, TooComplexError):
        return
