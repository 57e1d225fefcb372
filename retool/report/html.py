"""`write_report`: one self-contained page that shows a run: outcome, curves, figures, and what the model did.

The page needs no server and no network. Model text is data: the template escapes everything that it inserts, and
nothing of a trajectory is ever read as markup or script.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from retool.report.curves import Series, line_chart
from retool.report.run_files import JsonObject, RunFiles, read_run

MAX_STEPS = 8
PER_STEP = 6
MAX_TEXT = 20_000
LARGEST = 1e300
_CHARTS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Reward", (("reward/mean", "mean reward"),)),
    ("Sampled for training", (("reward/correct", "correct"), ("reward/format", "boxed answer"))),
    (
        "Tool use",
        (("rollout/tool_call_rate", "trajectories with a call"), ("rollout/code_calls", "calls a trajectory")),
    ),
    ("Length", (("rollout/trajectory_tokens", "tokens a trajectory"),)),
    ("Groups", (("rollout/degenerate_group_rate", "all alike"),)),
    ("Clipping", (("ppo/clip_fraction_low", "clipped low"), ("ppo/clip_fraction_high", "clipped high"))),
    ("Probability ratio", (("ppo/ratio_mean", "mean"), ("ppo/ratio_max", "largest"))),
    ("Approximate KL divergence", (("ppo/kl_k3", "k3"),)),
    ("Gradient norm", (("ppo/grad_norm", "policy"), ("train/grad_norm", "gradient"))),
    ("Loss", (("sft/loss", "cross entropy"),)),
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a trajectory: `kind` is prompt, sampled or observation."""

    kind: str
    text: str
    tokens: int


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into a run directory, from its files alone, and returns its path.

    Missing or half-written files leave out what they would show. Raises `OSError` if the page cannot be written.
    """
    run = read_run(run_dir, max_steps=MAX_STEPS, per_step=PER_STEP)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("page.html.j2").render(
        title=_text(run.result.get("name") or run_dir.name),
        status=run.status,
        headline=_headline(run),
        model=_mapping(run.result.get("model")),
        charts=[Markup(chart) for chart in _charts(run.metrics)],
        table=_table(run.metrics),
        trajectories=[_trajectory(row) for row in run.trajectories],
        config=run.config,
        meta=[(name, _text(value)) for name, value in run.meta.items()],
    )
    path = run_dir / "report.html"
    partial = run_dir / f".report.html.{os.getpid()}"
    partial.write_bytes(page.encode("utf-8", errors="replace"))
    partial.replace(path)
    return path


def _headline(run: RunFiles) -> list[tuple[str, str]]:
    """The figures to see first: name and value."""
    facts: list[tuple[str, str]] = []
    evaluation = _mapping(run.result.get("eval"))
    if run.result.get("kind") == "train":
        before, after = _mapping(evaluation.get("before")), _mapping(evaluation.get("after"))
        facts += _accuracy("Held-out accuracy before", before) + _accuracy("Held-out accuracy after", after)
        rates = [_rate(figures) for figures in (before, after)]
        facts += [("Tool-call rate, before → after", " → ".join(rates))] if all(rates) else []
    else:
        facts += _accuracy("Accuracy", evaluation)
        facts += [("Tool-call rate", _rate(evaluation))] if _rate(evaluation) else []
    steps = run.result.get("steps", run.status.get("step"))
    facts += [("Steps", _text(steps))] if steps is not None else []
    seconds = run.result.get("seconds")
    facts += [("Time", f"{seconds:.0f} s")] if isinstance(seconds, int | float) else []
    return facts


def _accuracy(name: str, figures: Mapping[str, object]) -> list[tuple[str, str]]:
    keys = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high", "eval/count")
    values = [figures.get(key) for key in keys]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(keys):
        return []
    value, low, high, count = numbers
    return [(name, f"{value:.3f} (95 % interval {low:.3f} to {high:.3f}; {count:.0f} problems)")]


def _rate(figures: Mapping[str, object]) -> str:
    rate = figures.get("eval/tool_call_rate")
    return f"{rate:.2f}" if isinstance(rate, int | float) else ""


def _charts(metrics: Sequence[JsonObject]) -> list[str]:
    accuracy = _points(metrics, "eval/accuracy")
    bounds = zip(_points(metrics, "eval/accuracy_low"), _points(metrics, "eval/accuracy_high"), strict=False)
    intervals = [(step, low, high) for (step, low), (_, high) in bounds]
    drawn = [line_chart("Held-out accuracy, with 95 % intervals", [Series("accuracy", accuracy, intervals)])]
    for title, lines in _CHARTS:
        drawn.append(line_chart(title, [Series(label, _points(metrics, key)) for key, label in lines]))
    return [chart for chart in drawn if chart]


def _points(metrics: Sequence[JsonObject], key: str) -> list[tuple[float, float]]:
    return [
        (float(step), float(value))
        for row in metrics
        if isinstance(value := row.get(key), int | float) and isinstance(step := row.get("step"), int)
        if abs(value) < LARGEST and abs(step) < LARGEST
    ]


def _table(metrics: Sequence[JsonObject]) -> list[tuple[str, str, str]]:
    """Every figure's first and last value."""
    names = sorted({name for row in metrics for name in row} - {"step"})
    rows = []
    for name in names:
        values = [value for _, value in _points(metrics, name)]
        if values:
            rows.append((name, f"{values[0]:.5g}", f"{values[-1]:.5g}"))
    return rows


def _trajectory(row: JsonObject) -> dict[str, object]:
    verdict, problem = _mapping(row.get("verdict")), _mapping(row.get("problem"))
    turns = row.get("turns")
    turns = turns if isinstance(turns, list) else []
    segments = [segment for turn in turns if isinstance(turn, dict) for segment in _segments(turn)]
    advantage = row.get("advantage")
    return {
        "step": _text(row.get("step")),
        "outcome": _outcome(verdict),
        "question": _text(problem.get("question")),
        "gold": _text(problem.get("answer")),
        "extracted": _text(verdict.get("extracted")),
        "reason": _text(verdict.get("reason")),
        "reward": _text(verdict.get("reward")),
        "advantage": f"{advantage:.3f}" if isinstance(advantage, int | float) else "not trained on",
        "stop": _text(row.get("stop_reason")),
        "error": _text(row.get("error") or ""),
        "segments": segments,
    }


def _outcome(verdict: Mapping[str, object]) -> str:
    if not verdict:
        return "failed"
    return "right" if verdict.get("correct") is True else "wrong"


def _segments(turn: Mapping[str, object]) -> list[Segment]:
    """The turn's texts by origin. The sampled text lacks its end token, which counts among the tokens."""
    result = _mapping(turn.get("result"))
    parts = (
        ("prompt", turn.get("prompt_text"), turn.get("prompt_tokens")),
        ("sampled", turn.get("text"), turn.get("completion_tokens")),
        ("observation", turn.get("observation_text") or result.get("text"), turn.get("observation_tokens")),
    )
    return [
        Segment(kind, _text(text), len(tokens) if isinstance(tokens, list) else 0)
        for kind, text, tokens in parts
        if text
    ]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
