"""Deciding whether an answer equals the gold, part by part.

`judge`: two trees to a reason. What plain arithmetic cannot decide becomes a `Question` to the `Oracle`, the symbolic
worker; without one, `judge` returns None where it would have to ask.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction

from retool.reward.exact import decimals_of, exact_value, rounds_to
from retool.reward.expression import Symbol, TooComplexError, UnreadableError
from retool.reward.questions import Question, QuestionKind
from retool.reward.regions import orient, region_of
from retool.reward.structure import Answer, Kind, text_key
from retool.reward.units import units_agree
from retool.reward.verdict import VerdictReason as Reason

CORRECT = frozenset((Reason.CORRECT_TEXT, Reason.CORRECT_NUMBER, Reason.CORRECT_SYMBOLIC))
_FAILURES = frozenset((Reason.TIMEOUT, Reason.OUT_OF_MEMORY, Reason.WORKER_DIED))
_SYMMETRIC = frozenset(("=", r"\ne"))
_RATIO_SIGNS = frozenset(("=", "<", r"\le"))


Oracle = Callable[[Question], Reason]


def judge(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    """Whether `answer` equals `gold` in the gold's kind, and why. None: undecided without an oracle."""
    if gold.text == answer.text and gold.kind == answer.kind:
        return Reason.CORRECT_TEXT
    if Kind.TEXT in (gold.kind, answer.kind):
        if text_key(gold.text) == text_key(answer.text):
            return Reason.CORRECT_TEXT
        return Reason.WRONG_TEXT if gold.kind is Kind.TEXT else Reason.WRONG_KIND
    if any(leaf.too_complex for leaf in (*gold.leaves(), *answer.leaves())):
        return Reason.TOO_COMPLEX
    if gold.kind is not answer.kind:
        wanted, given = region_of(gold), region_of(answer)
        if wanted is not None and given is not None and (wanted, given) != (gold, answer):
            return _judge_regions(wanted, given, oracle)
    if gold.kind is Kind.VALUE and answer.kind is Kind.RELATION:
        return _judge_chain(gold, answer, oracle)
    if gold.kind is Kind.RELATION and gold.marks == ("=",) and answer.kind is Kind.VALUE and answer.name:
        sides = tuple(part.latex for part in gold.parts)
        return _ask(oracle, Question(QuestionKind.RELATION, sides, (answer.name, answer.latex), sign="="))
    if gold.kind is not answer.kind or gold.kind is Kind.OTHER:
        return Reason.WRONG_KIND
    match gold.kind:
        case Kind.NAMED:
            return Reason.WRONG_SYMBOLIC
        case Kind.VALUE:
            return _judge_values(gold, answer, oracle)
        case Kind.COLLECTION | Kind.UNION:
            return _judge_unordered(gold.parts, answer.parts, oracle)
        case Kind.RELATION:
            return _judge_relations(gold, answer, oracle)
        case _:
            return _judge_ordered(gold, answer, oracle)


def _judge_regions(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    if gold.name and answer.name and gold.name != answer.name:
        return Reason.WRONG_SYMBOLIC
    return judge(gold, answer, oracle)


def _judge_values(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    if gold.name and answer.name and gold.name != answer.name:
        return Reason.WRONG_SYMBOLIC
    if not units_agree(gold.unit, answer.unit):
        return Reason.WRONG_KIND
    if gold.expression is None:
        return _ask(oracle, Question(QuestionKind.LIBRARY, (gold.latex,), (answer.latex,)))
    if answer.expression is None:
        return Reason.UNPARSEABLE
    if isinstance(gold.expression, Symbol) and isinstance(answer.expression, Symbol):
        return Reason.CORRECT_TEXT if gold.expression == answer.expression else Reason.WRONG_SYMBOLIC
    try:
        gold_value, answer_value = exact_value(gold.expression), exact_value(answer.expression)
    except TooComplexError:
        return Reason.TOO_COMPLEX
    except UnreadableError:
        return Reason.UNPARSEABLE
    if gold_value is not None and answer_value is not None:
        return _judge_numbers(gold, gold_value, answer, answer_value)
    return _judge_symbolically(gold, answer, oracle)


def _judge_numbers(gold: Answer, gold_value: Fraction, answer: Answer, answer_value: Fraction) -> Reason:
    """A percent sign divides by 100; where the gold alone carries one, the number alone is right too."""
    accepted = [gold_value / 100 if gold.percent else gold_value]
    if gold.percent and not answer.percent:
        accepted.append(gold_value)
    given = answer_value / 100 if answer.percent else answer_value
    decimals = None if gold.percent else decimals_of(gold.latex)
    rounded = decimals is not None and rounds_to(given, gold_value, decimals)
    return Reason.CORRECT_NUMBER if given in accepted or rounded else Reason.WRONG_NUMBER


def _judge_symbolically(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    scaled = rf"\frac{{{gold.latex}}}{{100}}"
    accepted = [scaled if gold.percent else gold.latex]
    if gold.percent and not answer.percent:
        accepted.append(gold.latex)
    given = rf"\frac{{{answer.latex}}}{{100}}" if answer.percent else answer.latex
    decimals = None if gold.percent else decimals_of(gold.latex)
    reason: Reason | None = None
    for latex in accepted:
        reason = _ask(oracle, Question(QuestionKind.EQUAL, (latex,), (given,), decimals))
        if reason is None or reason in CORRECT or reason in _FAILURES:
            break
    return reason


def _judge_chain(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    """`m + n = 5` and `x = 10/2 = 5` answer 5: past the first side, every side must equal the gold.

    The first may be anything with a variable. A gold with a name (`y = 2x`) is compared as an equation too.
    """
    if any(sign != "=" for sign in answer.marks) or any(part.kind is not Kind.VALUE for part in answer.parts):
        return Reason.WRONG_KIND
    if gold.name and len(answer.parts) == 2:
        sides = tuple(part.latex for part in answer.parts)
        return _ask(oracle, Question(QuestionKind.RELATION, (gold.name, gold.latex), sides, sign="="))
    first = answer.parts[0]
    unknown = first.expression is None or exact_value_or_none(first) is None
    rest = answer.parts[1:] if unknown else answer.parts
    reason = _all_of(judge(gold, part, oracle) for part in rest)
    return reason if reason is None or reason in CORRECT or reason in _FAILURES else Reason.WRONG_KIND


def exact_value_or_none(answer: Answer) -> Fraction | None:
    """The rational value of a `VALUE`, None where there is none to be had."""
    if answer.expression is None:
        return None
    try:
        return exact_value(answer.expression)
    except (TooComplexError, UnreadableError):
        return None


def _judge_ordered(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    if gold.marks != answer.marks or len(gold.parts) != len(answer.parts):
        return Reason.WRONG_KIND
    return _all_of(judge(*pair, oracle) for pair in zip(gold.parts, answer.parts, strict=True))


def _judge_unordered(gold: tuple[Answer, ...], answer: tuple[Answer, ...], oracle: Oracle | None) -> Reason | None:
    """Equal as sets: every value of either side has an equal one on the other."""
    found = {(i, j): judge(first, second, oracle) for i, first in enumerate(gold) for j, second in enumerate(answer)}
    failures = [reason for reason in found.values() if reason in _FAILURES]
    if failures:
        return failures[0]
    rows = [[found[i, j] for j in range(len(answer))] for i in range(len(gold))]
    columns = [[found[i, j] for i in range(len(gold))] for j in range(len(answer))]
    return _all_of(_any_of(row) for row in (*rows, *columns))


def _judge_relations(gold: Answer, answer: Answer, oracle: Oracle | None) -> Reason | None:
    gold_sides, gold_signs = orient(gold)
    sides, signs = orient(answer)
    if gold_signs != signs:
        return Reason.WRONG_KIND
    reason = _all_of(judge(*pair, oracle) for pair in zip(gold_sides, sides, strict=True))
    if reason in CORRECT or len(signs) > 1:
        return reason
    if signs[0] in _SYMMETRIC:
        swapped = _all_of(judge(*pair, oracle) for pair in zip(gold_sides, reversed(sides), strict=True))
        if swapped in CORRECT:
            return swapped
    if signs[0] not in _RATIO_SIGNS or any(part.expression is None for part in (*gold_sides, *sides)):
        return reason
    gold_latex, latex = (tuple(part.latex for part in parts) for parts in (gold_sides, sides))
    return _ask(oracle, Question(QuestionKind.RELATION, gold_latex, latex, sign=signs[0]))


def _all_of(reasons: Iterable[Reason | None]) -> Reason | None:
    """The first that is wrong; else None if one is undecided; else the weakest of the correct ones."""
    undecided = False
    weakest = Reason.CORRECT_TEXT
    order = (Reason.CORRECT_TEXT, Reason.CORRECT_NUMBER, Reason.CORRECT_SYMBOLIC)
    for reason in reasons:
        if reason is None:
            undecided = True
        elif reason not in CORRECT:
            return reason
        else:
            weakest = max(weakest, reason, key=order.index)
    return None if undecided else weakest


def _any_of(reasons: Iterable[Reason | None]) -> Reason | None:
    """One that is correct; else None if one is undecided; else a wrong one."""
    known = list(reasons)
    correct = [reason for reason in known if reason in CORRECT]
    if correct:
        return correct[0]
    return None if None in known else known[0]


def _ask(oracle: Oracle | None, question: Question) -> Reason | None:
    return None if oracle is None else oracle(question)
