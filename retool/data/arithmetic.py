"""Integer arithmetic with exact answers: the problems of `model=tiny`, generated and never downloaded.

`Operation`: what a question asks for. `arithmetic_problem`: the one problem of two operands. `is_held_out`: which side
of the fixed split a problem is on. `ArithmeticSource`: a training and a held-out set drawn from the two sides.
"""

import hashlib
import random
from collections.abc import Sequence
from enum import StrEnum

from retool.data.problem import Problem, ProblemSplit
from retool.errors import UserError

DATA_SOURCE = "arithmetic"
MAX_DIGITS = 9
_HELD_OUT_PART = 8


class Operation(StrEnum):
    """What a question asks for, of two positive integers a and b."""

    ADD = "add"
    """a + b"""
    SUBTRACT = "subtract"
    """a - b, which can be negative"""
    MULTIPLY = "multiply"
    """a * b"""

    @property
    def commutes(self) -> bool:
        return self is not Operation.SUBTRACT

    @property
    def phrasings(self) -> tuple[str, ...]:
        """Question templates with the fields `a` and `b`. Their order is part of every problem's identity."""
        match self:
            case Operation.ADD:
                return (
                    "What is {a} + {b}?",
                    "Compute {a} plus {b}.",
                    "Add {b} to {a}.",
                    "Find the sum of {a} and {b}.",
                )
            case Operation.SUBTRACT:
                return (
                    "What is {a} - {b}?",
                    "Compute {a} minus {b}.",
                    "Subtract {b} from {a}.",
                    "Find the difference {a} minus {b}.",
                )
            case Operation.MULTIPLY:
                return (
                    "What is {a} * {b}?",
                    "Compute {a} times {b}.",
                    "Multiply {a} by {b}.",
                    "Find the product of {a} and {b}.",
                )

    def apply(self, a: int, b: int) -> int:
        """The exact result."""
        match self:
            case Operation.ADD:
                return a + b
            case Operation.SUBTRACT:
                return a - b
            case Operation.MULTIPLY:
                return a * b


def arithmetic_problem(operation: Operation, a: int, b: int) -> Problem:
    """The problem of `operation` on `a` and `b`.

    The wording, the order of the operands of a commutative operation and the id are functions of the operation and the
    operands alone, so that one content has one id and one text, whatever drew it.
    """
    if operation.commutes:
        a, b = min(a, b), max(a, b)
    digest = hashlib.blake2b(f"{operation}:{a}:{b}".encode(), digest_size=10).digest()
    phrasing = operation.phrasings[digest[8] % len(operation.phrasings)]
    first, second = (b, a) if operation.commutes and digest[9] % 2 else (a, b)
    return Problem(
        id=f"{DATA_SOURCE}-{digest[:8].hex()}",
        question=phrasing.format(a=first, b=second),
        answer=str(operation.apply(a, b)),
        data_source=DATA_SOURCE,
    )


def is_held_out(problem_id: str) -> bool:
    """Whether a problem may only be evaluated on: one in eight, by its id, for every seed and every setting."""
    return int(problem_id.removeprefix(f"{DATA_SOURCE}-"), 16) % _HELD_OUT_PART == 0


def draw_operands(rng: random.Random, digits: tuple[int, int]) -> tuple[int, int]:
    """Two operands, each with a number of digits uniform between the two bounds, and uniform among those numbers.

    Only `rng.random()` is used: its sequence for a seed is the same in every Python version.
    """
    low, high = digits
    lengths = [low + int(rng.random() * (high - low + 1)) for _ in range(2)]
    a, b = (10 ** (n - 1) + int(rng.random() * 9 * 10 ** (n - 1)) for n in lengths)
    return a, b


class ArithmeticSource:
    """Distinct arithmetic problems, the same ones for the same arguments in every process.

    The two sets are drawn from the two sides of `is_held_out`, each from a stream of its own: they share no content,
    a smaller set is the beginning of a larger one, and no seed trains on a problem that another holds out.
    """

    def __init__(
        self,
        *,
        operations: Sequence[str] = ("multiply",),
        digits: Sequence[int] = (2, 4),
        train_size: int = 2048,
        holdout: int = 256,
        seed: int = 42,
    ) -> None:
        """`digits`: least and greatest number of decimal digits of an operand.

        Raises `UserError` for arguments that describe no set of problems.
        """
        self._operations = _check_operations(operations)
        self._digits = _check_digits(digits)
        self._train_size = _check_count("train_size", train_size, least=1)
        self._holdout = _check_count("holdout", holdout, least=0)
        self._seed = _check_count("seed", seed, least=0)

    def load(self) -> ProblemSplit:
        """Generates all problems. Raises `UserError` when there are too few distinct ones."""
        return ProblemSplit(
            train=self._draw("train_size", self._train_size, held_out=False),
            holdout=self._draw("holdout", self._holdout, held_out=True),
        )

    def _draw(self, key: str, size: int, *, held_out: bool) -> tuple[Problem, ...]:
        rng = random.Random(f"{self._seed}/{'holdout' if held_out else 'train'}")
        found: dict[str, Problem] = {}
        attempts = 1000 + 200 * size
        while len(found) < size:
            if attempts == 0:
                operations = ", ".join(self._operations)
                raise UserError(
                    f"data=arithmetic: {key}={size} asks for more problems than there are: only {len(found)} distinct "
                    f"ones were found with operations {operations} and {list(self._digits)} digits. Lower data.{key} "
                    "or allow more digits."
                )
            attempts -= 1
            operation = self._operations[int(rng.random() * len(self._operations))]
            problem = arithmetic_problem(operation, *draw_operands(rng, self._digits))
            if is_held_out(problem.id) == held_out:
                found.setdefault(problem.id, problem)
        return tuple(found.values())


def _check_operations(operations: Sequence[str]) -> tuple[Operation, ...]:
    known = ", ".join(Operation)
    if isinstance(operations, str) or not operations:
        raise UserError(f"data.operations must be a list of one or more of {known}; got {operations!r}.")
    unknown = [name for name in operations if name not in tuple(Operation)]
    if unknown:
        raise UserError(f"data.operations: {unknown[0]!r} is not an operation; use one or more of {known}.")
    if len(set(operations)) < len(operations):
        raise UserError(f"data.operations names an operation twice: {list(operations)}.")
    return tuple(Operation(name) for name in operations)


def _check_digits(digits: Sequence[int]) -> tuple[int, int]:
    values = tuple(digits) if isinstance(digits, Sequence) and not isinstance(digits, str) else ()
    if len(values) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise UserError(
            f"data.digits must be two integers, the least and the greatest number of digits; got {digits!r}."
        )
    low, high = values
    if not 1 <= low <= high <= MAX_DIGITS:
        raise UserError(f"data.digits must satisfy 1 <= least <= greatest <= {MAX_DIGITS}; got {list(values)}.")
    return low, high


def _check_count(key: str, value: int, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"data.{key} must be an integer of at least {least}; got {value!r}.")
    return value
