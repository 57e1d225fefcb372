"""Equality of expressions by evaluation to many digits.

`equal`: of two expressions, for all values of their variables. `same_relation`: of two relations. Constants are
compared at two precisions: a difference that is zero shrinks when digits are added, one that is not stays. Expressions
with variables are compared at fixed points, as real functions where both are real there.
"""

import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Protocol

from mpmath import MPContext  # type: ignore[import-untyped,unused-ignore]

from retool.reward.exact import exact_value
from retool.reward.expression import Node, Number, Operation, Symbol, TooComplexError, UnreadableError
from retool.reward.vocabulary import FUNCTIONS


class Value(Protocol):
    """A number of mpmath, real or complex. It has as many digits as the context that made it."""

    @property
    def real(self) -> "Value": ...
    @property
    def imag(self) -> "Value": ...
    def __add__(self, other: "Value | int", /) -> "Value": ...
    def __radd__(self, other: int, /) -> "Value": ...
    def __sub__(self, other: "Value | int", /) -> "Value": ...
    def __mul__(self, other: "Value | int", /) -> "Value": ...
    def __truediv__(self, other: "Value | int", /) -> "Value": ...
    def __rtruediv__(self, other: int, /) -> "Value": ...
    def __pow__(self, other: "Value | int", /) -> "Value": ...
    def __mod__(self, other: int, /) -> "Value": ...
    def __neg__(self) -> "Value": ...
    def __pos__(self) -> "Value": ...
    def __abs__(self) -> "Value": ...
    def __eq__(self, other: object, /) -> bool: ...
    def __lt__(self, other: "Value | int", /) -> bool: ...
    def __le__(self, other: "Value | int", /) -> bool: ...
    def __gt__(self, other: "Value | int", /) -> bool: ...


class Context(Protocol):
    """What is used of an mpmath context."""

    dps: int
    pi: Value
    e: Value

    def mpf(self, value: int, /) -> Value: ...
    def mpc(self, real: int, imag: int, /) -> Value: ...
    def isfinite(self, value: Value, /) -> bool: ...
    def nint(self, value: Value, /) -> Value: ...
    def floor(self, value: Value, /) -> Value: ...
    def sqrt(self, value: Value, /) -> Value: ...
    def ln(self, value: Value, /) -> Value: ...
    def factorial(self, value: Value, /) -> Value: ...
    def binomial(self, top: Value, bottom: Value, /) -> Value: ...


_OTHER_NAMES = MappingProxyType({"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot"})
_DIGITS = 150
_EXPONENT_LIMIT = 10**18
_ARGUMENT_LIMIT = 10**30
_FACTORIAL_LIMIT = 10**6
_POINTS = 12
_NEEDED_POINTS = 4
_STABLE = 20
_UNDEFINED = (ZeroDivisionError, ValueError, OverflowError, ArithmeticError, TypeError)


def equal(first: Node, second: Node, decimals: int | None = None) -> bool:
    """Whether the two are equal. With `decimals`, a constant `second` may also round to the constant `first`.

    Raises `TooComplexError` past the bounds and `UnreadableError` where there is no value to compare.
    """
    difference = Operation("add", (first, Operation("neg", (second,))))
    names = sorted(symbols(first) | symbols(second))
    if not names:
        if decimals is not None and _rounds(difference, decimals):
            return True
        return _vanishes(difference, {}, _size(first, {}))
    real, unreal = 0, 0
    for values in _points(names):
        try:
            parts = [_evaluate(node, values, _DIGITS) for node in (first, second)]
            vanishes = _vanishes(difference, values, abs(parts[0]))
        except UnreadableError:
            continue
        are_real = [_is_real(part) for part in parts]
        if all(are_real):
            if not vanishes:
                return False
            real += 1
        elif not any(are_real):
            unreal += vanishes
    if real < _NEEDED_POINTS and unreal < _NEEDED_POINTS:
        raise UnreadableError("undefined at too many points")
    return real >= _NEEDED_POINTS or unreal >= _NEEDED_POINTS


def same_relation(first: Sequence[Node], second: Sequence[Node], sign: str) -> bool:
    """Whether `left sign right` is the same relation twice: the differences of their sides are proportional.

    The factor of an equation is anything but zero; that of an inequality is positive.
    """
    left, right = (Operation("add", (sides[1], Operation("neg", (sides[0],)))) for sides in (first, second))
    names = sorted(symbols(left) | symbols(right))
    ratios: list[Node] = []
    for values in _points(names) if names else ():
        ratio = Operation("div", (_substitute(right, values), _substitute(left, values)))
        try:
            if _vanishes(ratio, {}, 1):
                return False
        except UnreadableError:
            continue
        ratios.append(ratio)
    if len(ratios) < _NEEDED_POINTS:
        return False
    factor = _evaluate(ratios[0], {}, _DIGITS)
    if sign != "=" and not (_is_real(factor) and factor.real > 0):
        return False
    return all(_vanishes(Operation("add", (ratio, Operation("neg", (ratios[0],)))), {}, 1) for ratio in ratios[1:])


def symbols(node: Node) -> set[str]:
    """The names of the variables in `node`."""
    match node:
        case Symbol(name):
            return {name}
        case Operation(_, arguments):
            return set().union(*(symbols(argument) for argument in arguments))
        case _:
            return set()


def _substitute(node: Node, values: Mapping[str, Fraction]) -> Node:
    match node:
        case Symbol(name):
            return Number(values[name])
        case Operation(name, arguments):
            return Operation(name, tuple(_substitute(argument, values) for argument in arguments))
        case _:
            return node


def _points(names: Sequence[str]) -> Iterator[dict[str, Fraction]]:
    """Fixed points without special values: small and larger ones, the first half positive, then of either sign."""
    generator = random.Random(0)
    for index in range(_POINTS):
        low, high = ((100, 900), (1100, 4000))[index % 2]
        yield {
            name: Fraction(generator.randint(low, high), 997)
            * (1 if index < _POINTS // 2 else generator.choice((1, -1)))
            for name in names
        }


def _size(node: Node, values: Mapping[str, Fraction]) -> Value:
    return abs(_evaluate(node, values, _DIGITS))


def _vanishes(node: Node, values: Mapping[str, Fraction], scale: Value | int) -> bool:
    """Whether the value of `node` is zero, where terms of size `scale` cancel in it."""
    coarse, fine = (_evaluate(node, values, digits) for digits in (_DIGITS, 2 * _DIGITS))
    if coarse == 0 and fine == 0:
        return True
    if coarse != 0 and fine != 0 and abs(coarse - fine) <= abs(fine) / 10**_STABLE:
        return False
    return abs(fine) * int(10**_DIGITS) <= 1 + scale


def _rounds(difference: Node, decimals: int) -> bool:
    value = _evaluate(difference, {}, _DIGITS)
    return _is_real(value) and abs(value.real) * (2 * 10**decimals) <= 1


def _is_real(value: Value) -> bool:
    return abs(value.imag) * int(10 ** (_DIGITS // 2)) <= 1 + abs(value.real)


def _evaluate(node: Node, values: Mapping[str, Fraction], digits: int) -> Value:
    """The value at `digits` digits. Raises `UnreadableError` for one that is undefined or infinite."""
    context = _context(digits)
    try:
        value = _Evaluator(context, values).evaluate(node)
    except _UNDEFINED as error:
        if isinstance(error, UnreadableError | TooComplexError):
            raise
        raise UnreadableError("undefined") from error
    if not context.isfinite(value):
        raise UnreadableError("infinite")
    return value


@lru_cache(maxsize=4)
def _context(digits: int) -> Context:
    context: Context = MPContext()
    context.dps = digits
    return context


class _Evaluator:
    """Evaluation in one context. Values are of the context's `mpf` and `mpc`."""

    def __init__(self, context: Context, values: Mapping[str, Fraction]) -> None:
        self._context = context
        self._values = values
        self._functions = self._table()

    def evaluate(self, node: Node) -> Value:
        match node:
            case Number(value):
                return self._number(value)
            case Symbol(name):
                return self._number(self._values[name])
            case Operation(name, arguments):
                known = exact_value(node) if name in ("floor", "ceil", "fact", "binom") else None
                if known is not None:
                    return self._number(known)
                return self._functions[name](*(self.evaluate(argument) for argument in arguments))

    def _number(self, value: Fraction) -> Value:
        return self._context.mpf(value.numerator) / value.denominator

    def _table(self) -> dict[str, Callable[..., Value]]:
        context = self._context
        named = {name: getattr(context, _OTHER_NAMES.get(name, name)) for name in FUNCTIONS - {"log", "lg", "ln"}}
        table: dict[str, Callable[..., Value]] = {name: self._moderate(function) for name, function in named.items()}
        return table | {
            "pi": lambda: +context.pi,
            "e": lambda: +context.e,
            "i": lambda: context.mpc(0, 1),
            "add": lambda *terms: reduce(operator.add, terms),
            "mul": lambda *factors: reduce(operator.mul, factors),
            "div": operator.truediv,
            "neg": operator.neg,
            "abs": abs,
            "pow": self._power,
            "root": self._root,
            "fact": self._factorial,
            "binom": self._binomial,
            "floor": self._floor,
            "ceil": lambda value: -self._floor(-value),
            "max": lambda *values: max(self._real(value) for value in values),
            "min": lambda *values: min(self._real(value) for value in values),
            "gcd": self._undefined,
            "lcm": self._undefined,
            "ln": context.ln,
            "log": lambda value, base: context.ln(value) / context.ln(base),
            "degrees": lambda value: value * context.pi / 180,
        }

    def _moderate(self, function: Callable[[Value], Value]) -> Callable[..., Value]:
        """`function` for arguments whose reduction does not take millions of digits."""

        def apply(argument: Value) -> Value:
            if abs(argument) > _ARGUMENT_LIMIT:
                raise TooComplexError("the argument of a function is too large")
            return function(argument)

        return apply

    def _power(self, base: Value, exponent: Value) -> Value:
        if abs(exponent) > _EXPONENT_LIMIT:
            raise TooComplexError("an exponent is too large")
        if base == 0 and exponent.real <= 0:
            raise UnreadableError("zero to a power that is not positive")
        return base**exponent

    def _root(self, radicand: Value, index: Value) -> Value:
        """The real root where there is one, also of a negative number for an odd index."""
        odd = index.imag == 0 and index.real == self._context.nint(index.real) and index.real % 2 == 1
        if odd and radicand.imag == 0 and radicand.real < 0:
            return -self._power(-radicand.real, 1 / index)
        return self._context.sqrt(radicand) if index == 2 else self._power(radicand, 1 / index)

    def _factorial(self, value: Value) -> Value:
        if abs(value) > _FACTORIAL_LIMIT:
            raise TooComplexError("a factorial of a large number")
        return self._context.factorial(value)

    def _binomial(self, top: Value, bottom: Value) -> Value:
        if max(abs(top), abs(bottom)) > _FACTORIAL_LIMIT:
            raise TooComplexError("a binomial coefficient of large numbers")
        return self._context.binomial(top, bottom)

    def _floor(self, value: Value) -> Value:
        number = self._real(value)
        nearest = self._context.nint(number)
        near = abs(number - nearest) <= self._context.mpf(10) ** (-self._context.dps // 2)
        return nearest if near else self._context.floor(number)

    def _real(self, value: Value) -> Value:
        if not _is_real(value):
            raise UnreadableError("not a real number")
        return value.real

    def _undefined(self, *values: Value) -> Value:
        raise UnreadableError("defined for whole numbers alone")
