r"""Intervals and inequalities as one thing: `x \ge 3` is `[3, \infty)`, and `x < 1 or x > 2` is a union.

`region_of`: an answer as an interval or a union of intervals, where it is one. `orient`: a relation with its signs
turned one way.
"""

from retool.reward.expression import Symbol
from retool.reward.structure import Answer, Kind, read_answer

_FLIPPED = {">": "<", r"\ge": r"\le"}
_OPENS = {"<": "(", r"\le": "["}
_CLOSES = {"<": ")", r"\le": "]"}
_LEAST, _GREATEST = read_answer(r"-\infty"), read_answer(r"\infty")


def orient(relation: Answer) -> tuple[tuple[Answer, ...], tuple[str, ...]]:
    """Sides and signs with all of `>` and `>=` turned around."""
    if all(sign in _FLIPPED for sign in relation.marks):
        return relation.parts[::-1], tuple(_FLIPPED[sign] for sign in reversed(relation.marks))
    return relation.parts, relation.marks


def region_of(answer: Answer) -> Answer | None:
    """The interval or union of intervals that `answer` describes, named after its variable where it has one."""
    match answer.kind:
        case Kind.UNION:
            return answer
        case Kind.BRACKETED:
            is_interval = len(answer.parts) == 2 and answer.marks[0] in ("(", "[") and answer.marks[1] in (")", "]")
            return answer if is_interval else None
        case Kind.RELATION:
            return _region_of_relation(answer)
        case Kind.COLLECTION if answer.marks == ("or",):
            regions = [_region_of_relation(part) for part in answer.parts if part.kind is Kind.RELATION]
            known = tuple(region for region in regions if region is not None)
            if len(known) < len(answer.parts) or len({region.name for region in known}) > 1:
                return None
            return Answer(Kind.UNION, answer.text, known, name=known[0].name)
        case _:
            return None


def _region_of_relation(relation: Answer) -> Answer | None:
    sides, signs = orient(relation)
    variables = [index for index, side in enumerate(sides) if isinstance(side.expression, Symbol) and not side.unit]
    if len(variables) != 1:
        return None
    variable = variables[0]
    name = sides[variable].text
    if signs == (r"\ne",):
        point = sides[1 - variable]
        halves = (_interval(name, _LEAST, "<", "<", point), _interval(name, point, "<", "<", _GREATEST))
        return Answer(Kind.UNION, relation.text, halves, name=name)
    if any(sign not in _OPENS for sign in signs):
        return None
    if len(sides) == 2 and variable == 0:
        return _interval(name, _LEAST, "<", signs[0], sides[1])
    if len(sides) == 2:
        return _interval(name, sides[0], signs[0], "<", _GREATEST)
    if len(sides) == 3 and variable == 1:
        return _interval(name, sides[0], signs[0], signs[1], sides[2])
    return None


def _interval(name: str, low: Answer, low_sign: str, high_sign: str, high: Answer) -> Answer:
    marks = (_OPENS[low_sign], _CLOSES[high_sign])
    text = f"{marks[0]}{low.text},{high.text}{marks[1]}"
    return Answer(Kind.BRACKETED, text, (low, high), marks, name)
