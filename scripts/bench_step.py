#!/usr/bin/env python3
"""How long a training step takes and where the time goes, beside a plain round-by-round loop over the same work.

    python scripts/bench_step.py [--steps 5] [--micro-batch 16] [--json FILE] [override ...]

Both loops run in this process against the same embedded engine, in turns, with the same questions, sampling seeds and
budgets and a learning rate of practically zero, so that they sample the same policy throughout:

- `retool`: the product's own path, `Rollout.run` and `PPO.update` with the configured sandbox and scorer.
- `rounds`: as published single-file scripts do it. All trajectories sample, then all tool calls run, each in a fresh
  interpreter without isolation, then the next round; answers are scored with math_verify in the main thread; the update
  is one forward_backward a micro-batch, one after the other, and one optimizer step.

Each moment of a rollout is counted once, under the first of: sampling, sandbox, scoring that has a request under way;
what remains is the loop's own work. `engine` is the CPU time of the engine's process, `this process` that of everything
here: SDK, rollout, update. `beyond engine` is what sampling, update and new sampler take beyond the engine's CPU time:
SDK, wire, and waiting for a CPU that tool calls or others hold. Overrides are those of `python -m retool.train`.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from bench_clock import PHASES, StepTime, Stopwatch, TimedSampler, TimedSandbox, TimedScorer
from bench_rounds import Bench, Rounds
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from retool.config import build, schema, typed
from retool.config.compose import compose, config_loader
from retool.errors import UserError
from retool.policy.types import Sampler
from retool.runs.datasets import load_split
from retool.runs.order import ProblemOrder
from retool.runs.policy import open_policy, open_protocol
from retool.runs.run_dir import RunDirectory
from retool.runs.tools import build_rollout, open_tools

OVERRIDES = ("model=tiny", "data=arithmetic", "ppo.group_size=8", "ppo.questions_per_batch=8")
FROZEN = "ppo.learning_rate=1.0e-30"
TOOL_WORKERS = 8


async def retool_step(bench: Bench, sampler: Sampler, step: int) -> tuple[StepTime, Sampler]:
    """One step as `retool.train` makes it."""
    watch = Stopwatch(bench.client.engine_pid or 0)
    groups = await bench.rollout.run(
        bench.problems(step),
        group_size=bench.ppo.group_size,
        seed=bench.seed,
        step=step,
        sampler=TimedSampler(sampler, watch.clock),
        protocol=bench.protocol,
        sandbox=TimedSandbox(bench.tools.sandbox, watch.clock),
        scorer=TimedScorer(bench.tools.scorer, watch.clock),
    )
    watch.mark()
    update = await bench.ppo.update(bench.client, groups, step=step)
    watch.mark()
    sampler = await bench.client.sampler()
    watch.mark()
    trajectories = [t for group in groups for t in group.trajectories]
    correct = sum(t.verdict is not None and t.verdict.correct for t in trajectories)
    return watch.result(trajectories, trained_tokens=int(update.metrics["train/tokens"]), correct=correct), sampler


async def measure(cfg: DictConfig, *, steps: int, micro_batch: int, directory: Path) -> dict[str, list[StepTime]]:
    """Steps of both loops in turns, after one of each that is not counted."""
    model = typed(cfg.model, schema.Model)
    times: dict[str, list[StepTime]] = {"retool": [], "rounds": []}
    async with open_tools(cfg) as tools, open_policy(model, RunDirectory(directory)) as client:
        await client.create_training(lora=asdict(model.lora), seed=cfg.seed)
        ppo = build(cfg.ppo, omit=("thresholds",), seed=cfg.seed, normalisation=cfg.model.engine.normalisation)
        bench = Bench(
            client=client,
            protocol=open_protocol(client.tokenizer(), model, code_budget=cfg.rollout.max_code_calls),
            tools=tools,
            rollout=build_rollout(cfg),
            ppo=ppo,
            order=ProblemOrder(load_split(cfg).train, batch=ppo.questions_per_batch, seed=cfg.seed),
            seed=cfg.seed,
            micro_batch=micro_batch,
        )
        sampler = await client.sampler()
        with ThreadPoolExecutor(TOOL_WORKERS) as executor:
            for step in range(steps + 1):
                product, sampler = await retool_step(bench, sampler, step)
                rounds, sampler = await Rounds(bench, sampler, step, executor).run()
                if step:
                    times["retool"].append(product)
                    times["rounds"].append(rounds)
    return times


def summarise(times: list[StepTime]) -> dict[str, dict[str, float]]:
    """Median, smallest and largest of each figure over the steps."""
    columns: dict[str, list[float]] = {phase: [t.phases[phase] for t in times] for phase in PHASES}
    columns |= {
        "whole step": [t.total for t in times],
        "engine, rollout": [t.engine_rollout for t in times],
        "engine, update": [t.engine_update for t in times],
        "this process": [t.client for t in times],
        "beyond engine": [t.beyond_engine for t in times],
        "sampled tokens": [t.sampled_tokens for t in times],
        "trained tokens": [t.trained_tokens for t in times],
        "tool calls": [t.tool_calls for t in times],
        "correct": [t.correct for t in times],
    }
    return {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in columns.items()
    }


def show(summaries: dict[str, dict[str, dict[str, float]]], *, steps: int) -> None:
    """The table, in seconds; the last column is how many times longer the rounds take."""
    table = Table(title=f"Seconds a step: median (smallest to largest) of {steps} steps")
    for heading in ("", "retool", "rounds", "ratio"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, figures in summaries["retool"].items():
        other = summaries["rounds"][name]
        digits = 0 if name.endswith("tokens") or name in ("tool calls", "correct") else 3
        cells = [
            f"{f['median']:.{digits}f} ({f['low']:.{digits}f} to {f['high']:.{digits}f})" for f in (figures, other)
        ]
        ratio = f"{other['median'] / figures['median']:.2f}" if figures["median"] >= 0.01 else ""
        table.add_row(name, *cells, ratio, end_section=name in ("new sampler", "beyond engine"))
    Console(width=110).print(table)


def configuration(overrides: list[str]) -> DictConfig:
    """The training configuration. Raises `UserError` for overrides that cannot be used."""
    schema.register()
    composed = compose(config_loader(), "train", [*OVERRIDES, *overrides, FROZEN], RunMode.RUN)
    if composed.problems or composed.cfg is None:
        raise UserError("\n".join(composed.problems))
    if composed.cfg.model.engine is None:
        raise UserError("The benchmark needs the embedded engine: model.engine is null.")
    return composed.cfg


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each loop")
    parser.add_argument("--micro-batch", type=int, default=16, help="trajectories a forward_backward call of `rounds`")
    parser.add_argument(
        "--json", type=Path, help="file for the figures; without it they go to stdout, as the last line"
    )
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.micro_batch < 1:
        parser.error("--steps and --micro-batch must be at least 1")
    load = os.getloadavg()[0]
    try:
        cfg = configuration(arguments.overrides)
        with tempfile.TemporaryDirectory(prefix="retool-bench-") as directory:
            work = measure(cfg, steps=arguments.steps, micro_batch=arguments.micro_batch, directory=Path(directory))
            times = asyncio.run(work)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    summaries = {loop: summarise(steps) for loop, steps in times.items()}
    show(summaries, steps=arguments.steps)
    print(f"Load average before: {load:.1f} on {os.cpu_count()} CPUs. Wall times mean little on a busy machine.")
    record = json.dumps(
        {
            "machine": {"python": platform.python_version(), "system": platform.platform(), "load": load},
            "overrides": [*OVERRIDES, *arguments.overrides],
            "summary": summaries,
            "steps": {loop: [asdict(step) for step in steps] for loop, steps in times.items()},
            "ratio": summaries["rounds"]["whole step"]["median"] / summaries["retool"]["whole step"]["median"],
        }
    )
    if arguments.json is None:
        print(record)
    else:
        arguments.json.write_text(record + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
