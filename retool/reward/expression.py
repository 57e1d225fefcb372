r"""Reading one mathematical expression in LaTeX, strictly: everything is understood, or nothing is.

`Number`, `Symbol`, `Operation`: what an expression is made of. `read_expression`: text to tree. `UnreadableError` and
`TooComplexError`: why there is no tree. The time is linear in the length, the nesting is bounded, nothing is evaluated.

Conventions: `e` and `i` are the constants; `2\frac{1}{3}` is a mixed number where the fraction is proper; `/` and
implicit products associate from left to right; `43_7` is a number in base 7; `\log` without base has base 10; other
letters are variables, with case.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from retool.reward.vocabulary import FUNCTIONS, INVERSES, LETTERS, LISTS

MAX_LENGTH = 2000
MAX_DEPTH = 40
MAX_DIGITS = 400


class UnreadableError(ValueError):
    """The text is no expression of the grammar."""


class TooComplexError(ValueError):
    """The expression is beyond what is worth computing."""


@dataclass(frozen=True, slots=True)
class Number:
    """An exact rational constant."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A constant, operator or function applied to arguments.

    Names: pi e i; add and mul, of two or more; max min gcd lcm, of one or more; div pow root(x, n) binom log(x, base);
    neg fact abs floor ceil degrees; and the other functions of `retool.reward.vocabulary`.
    """

    name: str
    arguments: tuple["Node", ...] = ()


Node = Number | Symbol | Operation

_ONE = Number(Fraction(1))

_PRODUCTS = frozenset((r"\cdot", r"\times"))
_QUOTIENTS = frozenset(("/", r"\div"))
_CLOSERS = {"(": ")", "[": "]", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_PERIODS = frozenset((r"\overline", r"\bar", r"\dot"))
_ROUNDING = {r"\lfloor": "floor", r"\lceil": "ceil"}
_TOKEN = re.compile(r"\d+(?:\.\d*)?|\.\d+|\\[A-Za-z]+|\\.|\S")
_E_NOTATION = re.compile(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)e([+-]\d{2,3})(?!\d)")


def read_expression(text: str) -> Node:
    """The tree of `text`. Raises `UnreadableError` or `TooComplexError`."""
    if len(text) > MAX_LENGTH:
        raise TooComplexError("too long")
    text = _E_NOTATION.sub(r"\1 \\times 10^{\2}", text)
    reader = _Reader(_TOKEN.findall(text))
    node = reader.sum()
    reader.expect_end()
    return node


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._bars = 0

    def expect_end(self) -> None:
        if self._peek():
            raise UnreadableError(f"{self._peek()!r} is not expected here")

    def sum(self) -> Node:
        terms = [self._product()]
        while self._peek() in ("+", "-"):
            negative = self._next() == "-"
            term = self._product()
            terms.append(Operation("neg", (term,)) if negative else term)
        return terms[0] if len(terms) == 1 else Operation("add", tuple(terms))

    def _product(self) -> Node:
        factors = [self._signed()]
        while token := self._peek():
            if token in _PRODUCTS:
                self._next()
                factors.append(self._signed())
            elif token in _QUOTIENTS:
                self._next()
                factors.append(Operation("div", (_ONE, self._signed())))
            elif self._starts_factor(token):
                factors.append(self._power())
            else:
                break
        return factors[0] if len(factors) == 1 else Operation("mul", tuple(factors))

    def _signed(self) -> Node:
        negative = False
        for _ in range(MAX_DEPTH):
            if self._peek() not in ("+", "-"):
                break
            negative ^= self._next() == "-"
        node = self._power()
        return Operation("neg", (node,)) if negative else node

    def _starts_factor(self, token: str) -> bool:
        """Whether an implicit product goes on. A number literal never continues one: `3 4` is no product."""
        if token == "|":
            return self._bars == 0
        return token in _CLOSERS or token.isalpha() or (token[0] == "\\" and self._is_operand(token))

    @staticmethod
    def _is_operand(token: str) -> bool:
        name = token[1:]
        return (
            name in ("frac", "sqrt", "binom", "pi")
            or name in FUNCTIONS
            or name in LISTS
            or token in LETTERS
            or token in _ROUNDING
        )

    def _power(self) -> Node:
        """A factor with its exponent; exponents without brackets associate to the right."""
        node = self._postfix(self._atom())
        while self._peek() == "^":
            self._next()
            if self._peek_many(3) == ["{", r"\circ", "}"]:
                self._position += 3
                node = Operation("degrees", (node,))
            else:
                node = self._postfix(Operation("pow", (node, self._script())))
        return node

    def _postfix(self, node: Node) -> Node:
        if self._peek() == "!":
            self._next()
            if self._peek() == "!":
                raise UnreadableError("double factorial")
            return Operation("fact", (node,))
        return node

    def _script(self) -> Node:
        """What stands after `^`: a group, a signed number or a single operand; `2^3^2` is `2^{3^2}`."""
        negative = self._peek() in ("+", "-") and self._next() == "-"
        token = self._peek()
        if token[:1].isdigit() or (token[:1] == "." and len(token) > 1):
            node: Node = Number(_to_fraction(self._next()))
        else:
            node = self._atom()
        if self._peek() == "^" and self._peek_many(2)[1:] != ["{"]:
            self._next()
            node = self._nested(lambda: Operation("pow", (node, self._script())))
        return Operation("neg", (node,)) if negative else node

    def _nested(self, read: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooComplexError("nested too deeply")
        node = read()
        self._depth -= 1
        return node

    def _atom(self) -> Node:
        return self._nested(self._operand)

    def _operand(self) -> Node:
        token = self._peek()
        if not token:
            raise UnreadableError("something is missing at the end")
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return self._number()
        if token == "|":
            self._bars += 1
            inner = self._group()
            self._bars -= 1
            return Operation("abs", (inner,))
        if token in _ROUNDING:
            return Operation(_ROUNDING[token], (self._group(),))
        if token in _CLOSERS:
            return self._group()
        if token.isalpha() and token.isascii():
            self._next()
            return Operation(token) if token in ("e", "i") else self._symbol(token)
        return self._command(self._next())

    def _group(self) -> Node:
        """A bracketed expression; which brackets is up to the caller."""
        closer = _CLOSERS[self._next()]
        bars, self._bars = self._bars, self._bars if closer == "|" else 0
        node = self.sum()
        self._bars = bars
        self._take(closer)
        return node

    def _command(self, token: str) -> Node:
        name = token[1:]
        if token == r"\pi":
            return Operation("pi")
        if token in LETTERS:
            return self._symbol(token)
        if name == "frac":
            return Operation("div", (self._argument(), self._argument()))
        if name == "binom":
            return Operation("binom", (self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        if name in LISTS:
            return Operation(name, self._list())
        if name in FUNCTIONS:
            return self._function(name)
        raise UnreadableError(f"{token!r} is not expected here")

    def _argument(self) -> Node:
        """One argument of a command: a group, or a single token, of which a number gives one digit."""
        token = self._peek()
        if token == "{":
            return self._group()
        if token[:1].isdigit() and len(token) > 1:
            self._tokens[self._position] = token[1:]
            return Number(Fraction(int(token[0])))
        if token[:1].isdigit():
            return Number(Fraction(int(self._next())))
        return self._atom()

    def _root(self) -> Node:
        index: Node = Number(Fraction(2))
        if self._peek() == "[":
            index = self._group()
        token = self._peek()
        radicand = Number(_to_fraction(self._next())) if token[:1].isdigit() else self._argument()
        return Operation("root", (radicand, index))

    def _list(self) -> tuple[Node, ...]:
        self._take("(")
        arguments = [self.sum()]
        while self._peek() == ",":
            self._next()
            arguments.append(self.sum())
        self._take(")")
        return tuple(arguments)

    def _function(self, name: str) -> Node:
        base: Node | None = None
        exponent: Node | None = None
        while self._peek() in ("_", "^"):
            if self._next() == "^":
                exponent = self._script()
            elif name == "log":
                base = self._argument()
            else:
                raise UnreadableError(f"{name} has no subscript")
        if exponent == Operation("neg", (_ONE,)) and name in INVERSES:
            name, exponent = INVERSES[name], None
        argument = self._group() if self._peek() in ("(", "[", "{") else self._open_argument()
        if name in ("log", "lg"):
            node = Operation("log", (argument, base or Number(Fraction(10))))
        else:
            node = Operation(name, (argument,))
        return node if exponent is None else Operation("pow", (node, exponent))

    def _open_argument(self) -> Node:
        """A function's argument without brackets: a product up to an operator or the next function."""
        factors = [self._signed()]
        while (token := self._peek()) and self._starts_factor(token) and token[1:] not in FUNCTIONS:
            factors.append(self._power())
        return factors[0] if len(factors) == 1 else Operation("mul", tuple(factors))

    def _number(self) -> Node:
        literal = self._next()
        if self._peek() == "_":
            self._next()
            return Number(_in_base(literal, self._subscript()))
        if self._peek() in _PERIODS and "." in literal:
            self._next()
            return Number(_repeating(literal, self._subscript()))
        value = _to_fraction(literal)
        if literal.isdigit():
            proper = self._proper_fraction()
            if proper is not None:
                return Number(value + proper)
        return Number(value)

    def _proper_fraction(self) -> Fraction | None:
        """The fraction part of a mixed number, if one follows."""
        start = self._position
        if self._peek() == r"\frac":
            saved = list(self._tokens)
            self._next()
            parts = (self._argument(), self._argument())
            if isinstance(parts[0], Number) and isinstance(parts[1], Number):
                top, bottom = parts[0].value, parts[1].value
                if 0 < top < bottom and top.denominator == bottom.denominator == 1:
                    return top / bottom
            self._position, self._tokens = start, saved
            return None
        following = self._peek_many(3)
        if len(following) == 3 and following[1] == "/" and following[0].isdigit() and following[2].isdigit():
            top, bottom = _to_fraction(following[0]), _to_fraction(following[2])
            if 0 < top < bottom:
                self._position += 3
                return top / bottom
        return None

    def _symbol(self, name: str) -> Node:
        if self._peek() == "_":
            self._next()
            name += "_" + self._subscript()
        while self._peek() == "'":
            name += self._next()
        return Symbol(name)

    def _subscript(self) -> str:
        """The text of a subscript or a braced literal."""
        token = self._next()
        if token != "{":
            return token
        parts = []
        while (token := self._next()) != "}":
            if token == "{":
                raise UnreadableError("a nested subscript")
            parts.append(token)
        return "".join(parts)

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _peek_many(self, count: int) -> list[str]:
        return self._tokens[self._position : self._position + count]

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise UnreadableError("something is missing at the end")
        self._position += 1
        return token

    def _take(self, wanted: str) -> None:
        if self._next() != wanted:
            raise UnreadableError(f"{wanted!r} is missing")


def _to_fraction(literal: str) -> Fraction:
    if len(literal) > MAX_DIGITS:
        raise TooComplexError("a number with too many digits")
    return Fraction(literal.removesuffix(".") if literal != "." else "0")


def _in_base(literal: str, base: str) -> Fraction:
    if not literal.isdigit() or not base.isdigit() or not 2 <= int(base[:3]) <= 36 or len(literal) > MAX_DIGITS:
        raise UnreadableError("no number in a base")
    try:
        return Fraction(int(literal, int(base)))
    except ValueError:
        raise UnreadableError(f"{literal} has no meaning in base {base}") from None


def _repeating(literal: str, period: str) -> Fraction:
    """`0.1` with the period `6` is 1/6."""
    if not period.isdigit() or len(literal) + len(period) > MAX_DIGITS:
        raise UnreadableError("no period of a repeating decimal")
    decimals = len(literal) - literal.index(".") - 1
    return _to_fraction(literal) + Fraction(int(period), 10**decimals * (10 ** len(period) - 1))
