"""Labelled texts: the project's own, and those of a file that `RETOOL_REWARD_CASES` names."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VARIABLE = "RETOOL_REWARD_CASES"


@dataclass(frozen=True)
class Case:
    kind: str
    gold: str
    text: str
    correct: bool
    valid_format: bool


def own_cases() -> list[Case]:
    """`answers.jsonl` holds what stands in the box, `adversarial.jsonl` whole texts."""
    boxed = [
        Case(row["kind"], row["gold"], f"The answer is \\boxed{{{row['answer']}}}", row["correct"], True)
        for row in rows(HERE / "answers.jsonl")
        if len(row["answer"]) < 280  # a longer box would start before the window
    ]
    texts = [
        Case(row["kind"], row["gold"], row["text"], row["correct"], row["format"])
        for row in rows(HERE / "adversarial.jsonl")
    ]
    return boxed + texts


def given_cases() -> list[Case]:
    """The cases of the named file; none where the variable is not set."""
    if VARIABLE not in os.environ:
        return []
    return [
        Case(row["category"], row["gold"], row["prediction_text"], row["expected_correct"], row["expected_format"])
        for row in rows(Path(os.environ[VARIABLE]))
    ]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def misjudged(cases, verdicts) -> list[tuple]:
    """Cases whose verdict differs from their label."""
    return [
        (case, verdict.reason)
        for case, verdict in zip(cases, verdicts, strict=True)
        if (verdict.correct, verdict.valid_format) != (case.correct, case.valid_format)
    ]
