r"""Exact arithmetic on expressions: rational numbers in, rational numbers out, within fixed bounds.

`exact_value`: the rational value of an expression, where it has one that this module can find. `rounds_to`: whether a
value rounds to a decimal literal. `decimals_of`: the decimals of a rounded gold answer.
"""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce

from retool.reward.expression import Node, Number, Operation, Symbol, TooComplexError, UnreadableError

MAX_BITS = 1 << 15
MAX_FACTORIAL = 2000
_MAX_ROOT_BITS = 512
_MIN_ROUNDED_DECIMALS = 6
_DECIMAL = re.compile(r"[-+]?(\d*)\.(\d+)")


def exact_value(node: Node) -> Fraction | None:
    """The value of `node`, or None if it has variables, irrational parts or functions that are not arithmetic.

    Raises `TooComplexError` past the bounds, and `UnreadableError` for an undefined value such as 1/0.
    """
    match node:
        case Number(value):
            return _bounded(value)
        case Symbol():
            return None
        case Operation(name, arguments):
            values = [exact_value(argument) for argument in arguments]
            known = [value for value in values if value is not None]
            operation = _OPERATIONS.get(name)
            if operation is None or len(known) < len(values):
                return None
            result = operation(known)
            return None if result is None else _bounded(result)


def decimals_of(literal: str) -> int | None:
    """The number of decimals of a gold answer that is a rounded value: a decimal literal with six or more.

    It must also have six significant digits; a short one such as 0.0000003 is exact. None for all others.
    """
    match = _DECIMAL.fullmatch(literal.strip())
    if match is None or len(match[2]) < _MIN_ROUNDED_DECIMALS:
        return None
    significant = (match[1] + match[2]).lstrip("0")
    return len(match[2]) if len(significant) >= _MIN_ROUNDED_DECIMALS else None


def rounds_to(value: Fraction, gold: Fraction, decimals: int) -> bool:
    """Whether `value` is within half a unit of the last of `decimals` decimals of `gold`."""
    return abs(value - gold) <= Fraction(1, 2 * 10**decimals)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise TooComplexError("a number with too many digits")
    return value


def _divide(values: Sequence[Fraction]) -> Fraction:
    if values[1] == 0:
        raise UnreadableError("division by zero")
    return values[0] / values[1]


def _power(values: Sequence[Fraction]) -> Fraction | None:
    base, exponent = values
    if exponent.denominator != 1:
        if base < 0 or exponent.denominator > MAX_BITS:
            return None
        base_root = _nth_root(base, exponent.denominator)
        return None if base_root is None else _power((base_root, Fraction(exponent.numerator)))
    if base == 0 and exponent <= 0:
        raise UnreadableError("zero to a power that is not positive")
    if base in (0, 1):
        return base
    if base == -1:
        return Fraction(1 if exponent.numerator % 2 == 0 else -1)
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent.numerator) * size > MAX_BITS:
        raise TooComplexError("a power with too many digits")
    return base**exponent.numerator


def _root(values: Sequence[Fraction]) -> Fraction | None:
    radicand, index = values
    if index.denominator != 1 or not 1 <= index.numerator <= MAX_BITS:
        return None
    if radicand < 0:
        positive = _nth_root(-radicand, index.numerator) if index.numerator % 2 else None
        return None if positive is None else -positive
    return _nth_root(radicand, index.numerator)


def _nth_root(value: Fraction, n: int) -> Fraction | None:
    """The exact non-negative root of a non-negative value, if it is rational."""
    top, bottom = _integer_root(value.numerator, n), _integer_root(value.denominator, n)
    return None if top is None or bottom is None else Fraction(top, bottom)


def _integer_root(value: int, n: int) -> int | None:
    if value < 2 or n == 1:
        return value
    if value.bit_length() > _MAX_ROOT_BITS:
        return None
    low, high = 1, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**n <= value else (low, middle - 1)
    return low if low**n == value else None


def _integer(value: Fraction, limit: int) -> int | None:
    if value.denominator != 1 or value < 0:
        return None
    if value > limit:
        raise TooComplexError("a factorial of a large number")
    return value.numerator


def _factorial(values: Sequence[Fraction]) -> Fraction | None:
    n = _integer(values[0], MAX_FACTORIAL)
    return None if n is None else Fraction(math.factorial(n))


def _binomial(values: Sequence[Fraction]) -> Fraction | None:
    n, k = _integer(values[0], MAX_BITS), _integer(values[1], MAX_BITS)
    return None if n is None or k is None else Fraction(math.comb(n, k))


def _integers(function: Callable[..., int]) -> Callable[[Sequence[Fraction]], Fraction | None]:
    def apply(values: Sequence[Fraction]) -> Fraction | None:
        if any(value.denominator != 1 for value in values):
            return None
        return Fraction(function(*(value.numerator for value in values)))

    return apply


_OPERATIONS: dict[str, Callable[[Sequence[Fraction]], Fraction | None]] = {
    "add": lambda values: reduce(lambda left, right: _bounded(left + right), values),
    "mul": lambda values: reduce(lambda left, right: _bounded(left * right), values),
    "div": _divide,
    "neg": lambda values: -values[0],
    "pow": _power,
    "root": _root,
    "abs": lambda values: abs(values[0]),
    "floor": lambda values: Fraction(math.floor(values[0])),
    "ceil": lambda values: Fraction(math.ceil(values[0])),
    "fact": _factorial,
    "binom": _binomial,
    "max": max,
    "min": min,
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
}
