r"""`python -m retool.reward --text '... \boxed{5}' --gold 5`: the verdict on a text, and how it came about."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from retool.errors import InfrastructureError, UserError
from retool.reward.normalise import normalise
from retool.reward.scorer import Scorer
from retool.reward.structure import Answer, read_answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints an explained verdict; returns 0 if the answer is right, 1 if it is wrong, 2 if it cannot be scored."""
    parser = argparse.ArgumentParser(prog="python -m retool.reward", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="the text of the final turn")
    source.add_argument("--file", type=Path, help="a file that holds it")
    parser.add_argument("--gold", required=True, help="the gold answer")
    parser.add_argument(
        "--answer-window-chars", type=int, default=300, help="a box counts within so many last characters"
    )
    given = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    try:
        text = given.text if given.text is not None else given.file.read_text()
        with Scorer(answer_window_chars=given.answer_window_chars) as scorer:
            problem = scorer.check_gold(given.gold)
            verdict = scorer.score(text, given.gold)
    except (InfrastructureError, UserError, OSError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    rows = [
        ("reward", f"{verdict.reward:+g}"),
        ("correct", str(verdict.correct)),
        ("valid format", str(verdict.valid_format)),
        ("reason", verdict.reason.value),
        ("answer", "none" if verdict.extracted is None else verdict.extracted),
    ]
    if verdict.extracted is not None:
        rows.append(("read as", _describe(verdict.extracted)))
    rows += [("gold", given.gold), ("read as", _describe(given.gold))]
    if problem is not None:
        rows.append(("problem", problem))
    for name, value in rows:
        console.print(f"{name:>12}: {value}", markup=False)
    return 0 if verdict.correct else 1


def _describe(text: str) -> str:
    answer = read_answer(normalise(text))
    return f"{answer.text}   ({_shape(answer)})"


def _shape(answer: Answer) -> str:
    notes = [answer.kind.value]
    if answer.parts:
        notes.append("of " + ", ".join(part.text for part in answer.parts))
    if answer.name:
        notes.append(f"named {answer.name}")
    if answer.unit:
        notes.append(f"with the unit {answer.unit}")
    if answer.percent:
        notes.append("in percent")
    return " ".join(notes)


if __name__ == "__main__":
    sys.exit(main())
