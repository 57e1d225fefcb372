"""Results of runs: `result.json` and the few lines that a run ends with.

Contents: `Ending`, `training_result`, `evaluation_result`, `show`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from rich.console import Console
from rich.markup import escape

from retool.config import schema, typed
from retool.runs.checkpoint import read_checkpoints
from retool.runs.cost import Tokens
from retool.runs.evaluation import describe
from retool.runs.files import JsonObject
from retool.runs.health import symptoms
from retool.runs.run_dir import RunDirectory
from retool.runs.session import RunSession
from retool.tracking.jsonl import read_jsonl


@dataclass(frozen=True, slots=True)
class Ending:
    """What only the running process knows: all tokens of the run, and which base weights it used."""

    spent: Tokens
    weights: Mapping[str, str]


def training_result(session: RunSession, ending: Ending, *, seconds: float) -> JsonObject:
    """The result of a training run, from its metrics. `seconds`: the time of this process alone."""
    cfg = session.cfg
    rows = read_jsonl(session.directory.metrics)
    steps = [row for row in rows if "reward/mean" in row]
    price = typed(cfg.model, schema.Model).pricing
    return {
        "kind": "train",
        "name": cfg.name,
        "steps": session.step,
        "seed": cfg.seed,
        "overrides": _overrides(),
        "model": dict(ending.weights),
        "eval": {"before": _evaluation(rows[:1]), "after": _evaluation(rows[-1:])},
        "warnings": [symptom.message for symptom in symptoms(rows)],
        "last_step": _untimed(steps[-1]) if steps else {},
        "tokens": ending.spent.counts(),
        "cost": _cost(ending.spent, price),
        "checkpoint": next((item.name for item in reversed(read_checkpoints(session.directory.checkpoints))), None),
        "seconds": round(seconds, 1),
    }


def evaluation_result(
    session: RunSession, metrics: Mapping[str, float], ending: Ending, *, checkpoint: str | None, seconds: float
) -> JsonObject:
    """The result of an evaluation. `checkpoint`: the address that was evaluated, `None` for the base model."""
    cfg = session.cfg
    return {
        "kind": "eval",
        "name": cfg.name,
        "seed": cfg.seed,
        "overrides": _overrides(),
        "model": dict(ending.weights),
        "checkpoint": checkpoint,
        "mode": cfg.eval.mode,
        "samples": cfg.eval.samples,
        "eval": dict(metrics),
        "tokens": ending.spent.counts(),
        "cost": _cost(ending.spent, typed(cfg.model, schema.Model).pricing),
        "seconds": round(seconds, 1),
    }


def show(result: Mapping[str, object], directory: RunDirectory) -> None:
    """Prints the outcome to standard output in a few lines."""
    console = Console(highlight=False, soft_wrap=True)
    for line in _lines(result):
        console.print(escape(line))
    if directory.report.exists():
        console.print(escape(f"Report: {directory.report}"))
    console.print(escape(f"Run directory: {directory.path}"))


def _lines(result: Mapping[str, object]) -> Iterator[str]:
    evaluation = _mapping(result.get("eval"))
    if result.get("kind") == "train":
        before, after = _mapping(evaluation.get("before")), _mapping(evaluation.get("after"))
        if before and after:
            yield f"Held-out accuracy before: {describe(before)}"
            yield f"Held-out accuracy after:  {describe(after)}"
            yield f"Tool-call rate: {_rate(before)} before, {_rate(after)} after"
        warnings = result.get("warnings")
        yield from (f"Warning: {message}" for message in (warnings if isinstance(warnings, list) else []))
        yield f"{result.get('steps')} steps, {result.get('seconds')} s in this process"
    else:
        yield f"Accuracy: {describe(evaluation)}"
        yield f"Tool-call rate: {_rate(evaluation)}; {result.get('seconds')} s in this process"
    cost, tokens = _mapping(result.get("cost")), _mapping(result.get("tokens"))
    counted = ", ".join(f"{tokens[name]:,} {name}" for name in tokens)
    yield f"Tokens: {counted}" + (f"; cost {cost['total']:.2f} {cost['currency']}" if cost else "")


def _rate(metrics: Mapping[str, Any]) -> str:
    rate = metrics.get("eval/tool_call_rate")
    return "unknown" if rate is None else f"{rate:.2f}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _evaluation(rows: Sequence[JsonObject]) -> JsonObject:
    return {name: value for row in rows for name, value in row.items() if name.startswith("eval/")}


def _untimed(row: JsonObject) -> JsonObject:
    return {name: value for name, value in row.items() if not name.startswith(("time/", "eval/"))}


def _cost(spent: Tokens, price: schema.Price | None) -> JsonObject | None:
    return None if price is None else {"total": spent.cost(price), "currency": price.currency}


def _overrides() -> list[str]:
    return [str(line) for line in HydraConfig.get().overrides.task] if HydraConfig.initialized() else []
