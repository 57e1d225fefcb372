#!/usr/bin/env python3
"""How close a rollout comes to its limit, the slowest trajectory, and how far a schedule in rounds stays behind.

    python scripts/bench_rollout.py [--sizes 64 1024] [--group-size 8] [--seed 0] [--scale 1.0] [--json FILE]

Drives the product's own rollout code with the shipped model's protocol, against a sampler, a sandbox and a scorer that
only wait: sampling a turn takes a lognormal time (median 1.5 s), a tool call 0.05 s or, one time in ten, a Pareto time
from 1 s up to 30 s. All waits are drawn from the seeds of the requests, so that every schedule meets the same ones.

- `limit`: the time that the slowest trajectory takes on its own.
- `retool`: measured. The first request of a group is shared, and answers when its slowest sample is done.
- `rounds`: computed from the same waits, at no cost of its own: all trajectories sample, then all tool calls run, then
  the next round, as published single-file scripts do it.

`cpu` is this process's CPU time a trajectory, protocol and bookkeeping included; `memory` the growth of its resident
memory a trajectory, the finished trajectories included.
"""

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.table import Table

from retool.data.problem import Problem
from retool.policy.tokenizers import load_tokenizer
from retool.policy.types import Completion, SamplerStop, SamplingSettings
from retool.protocol.chat import ChatProtocol
from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.groups import Rollout
from retool.rollout.trajectory import Trajectory
from retool.sandbox.base import ExecutionResult, ExecutionStatus

MAX_CALLS = 4
ANSWERS = 0.35
REASONING = "The total is found by adding the parts one after another and then taking away what was spent. " * 2


@dataclass
class Waits:
    """Seconds by the mark that a turn or a call carries in its text."""

    scale: float
    sampling: dict[str, float] = field(default_factory=dict)
    tool: dict[str, float] = field(default_factory=dict)

    def own_time(self, trajectory: Trajectory) -> float:
        """What the trajectory takes if it waits for nothing else."""
        return sum(sum(pair) for pair in self.of(trajectory))

    def of(self, trajectory: Trajectory) -> list[tuple[float, float]]:
        """Sampling and tool time of each turn."""
        marks = [_mark(turn.text) for turn in trajectory.turns]
        return [(self.sampling[mark], self.tool.get(mark, 0.0)) for mark in marks]


@dataclass
class WaitingSampler:
    """Answers with a call or an answer after the time that the request's seed draws."""

    protocol: ChatProtocol
    waits: Waits

    async def sample(
        self,
        prompt: Sequence[int],
        *,
        num_samples: int,
        max_tokens: int,
        seed: int,
        stop_token_ids: Sequence[int],
        settings: SamplingSettings,
    ) -> list[Completion]:
        draws = [random.Random(f"{seed}/{index}") for index in range(num_samples)]
        completions, seconds = zip(
            *(self._one(f"{seed}{index:03d}", draw) for index, draw in enumerate(draws)), strict=True
        )
        await asyncio.sleep(max(seconds))
        return list(completions)

    def _one(self, mark: str, draw: random.Random) -> tuple[Completion, float]:
        seconds = self.waits.scale * draw.lognormvariate(0.4, 0.6)
        self.waits.sampling[mark] = seconds
        answers = draw.random() < ANSWERS
        end = r"\boxed{4}" if answers else self.protocol.render_call(f"print({mark})")
        tokens = self.protocol.encode_turn(f"{REASONING}<{mark}>\n{end}")
        return Completion(tokens, (-0.5,) * len(tokens), SamplerStop.STOP), seconds


@dataclass
class WaitingSandbox:
    """Runs nothing; the time of a call is drawn from its mark."""

    waits: Waits

    async def run(
        self, code: str, cpu_time_s: float | None = None, wall_time_s: float | None = None
    ) -> ExecutionResult:
        mark = code.removeprefix("print(").removesuffix(")")
        draw = random.Random(mark)
        seconds = min(30.0, draw.paretovariate(1.1)) if draw.random() < 0.1 else 0.05
        self.waits.tool[mark] = seconds * self.waits.scale
        await asyncio.sleep(self.waits.tool[mark])
        return ExecutionResult(ExecutionStatus.OK, "4\n", "", 0, 0.0, seconds, "4\n")

    def metrics(self) -> Mapping[str, float]:
        return {}


class ConstantScorer:
    """Everything is right."""

    async def ascore(self, text: str, gold: str) -> Verdict:
        return Verdict(1.0, True, True, VerdictReason.CORRECT_TEXT, "4")


@dataclass(frozen=True)
class Figures:
    """Seconds; CPU in milliseconds and memory in KiB a trajectory."""

    trajectories: int
    limit_s: float
    retool_s: float
    rounds_s: float
    cpu_ms: float
    memory_kib: float

    @property
    def to_limit(self) -> float:
        return self.retool_s / self.limit_s

    @property
    def speedup(self) -> float:
        return self.rounds_s / self.retool_s


def rounds_time(waits: Sequence[Sequence[tuple[float, float]]]) -> float:
    """What a schedule in rounds takes: each waits for its slowest sample, then for its slowest call."""
    total = 0.0
    for index in range(max(map(len, waits))):
        under_way = [turns[index] for turns in waits if index < len(turns)]
        total += max(sampling for sampling, _ in under_way) + max(tool for _, tool in under_way)
    return total


async def measure(protocol: ChatProtocol, size: int, *, group_size: int, seed: int, scale: float) -> Figures:
    waits = Waits(scale)
    problems = [Problem(id=str(n), question="What is 2 + 2?", answer="4", data_source="bench") for n in range(size)]
    rollout = Rollout(max_code_calls=MAX_CALLS, max_assistant_turns=MAX_CALLS + 2, max_trajectory_tokens=4096)
    memory, cpu, began = _resident_kib(), time.process_time(), time.perf_counter()
    groups = await rollout.run(
        problems[: size // group_size],
        group_size=group_size,
        seed=seed,
        step=0,
        sampler=WaitingSampler(protocol, waits),
        protocol=protocol,
        sandbox=WaitingSandbox(waits),
        scorer=ConstantScorer(),
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return Figures(
        trajectories=len(trajectories),
        limit_s=max(map(waits.own_time, trajectories)),
        retool_s=seconds,
        rounds_s=rounds_time([waits.of(trajectory) for trajectory in trajectories]),
        cpu_ms=1000 * cpu / len(trajectories),
        memory_kib=(_resident_kib() - memory) / len(trajectories),
    )


def _mark(text: str) -> str:
    found = re.search(r"<(\d+)>", text)
    assert found is not None
    return found[1]


def _resident_kib() -> float:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((float(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024], help="trajectories")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all waits")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(str(files("retool.engine") / "assets" / "tiny"))
    protocol = ChatProtocol(tokenizer, system_prompt="", code_budget=MAX_CALLS)
    table = Table(title="Rollout against its limit and against rounds, seconds")
    for column in ("trajectories", "limit", "retool", "rounds", "retool / limit", "rounds / retool", "cpu", "memory"):
        table.add_column(column, justify="right")
    results = []
    for size in arguments.sizes:
        figures = asyncio.run(
            measure(protocol, size, group_size=arguments.group_size, seed=arguments.seed, scale=arguments.scale)
        )
        results.append(figures)
        table.add_row(
            str(figures.trajectories),
            *(f"{value:.2f}" for value in (figures.limit_s, figures.retool_s, figures.rounds_s)),
            f"{figures.to_limit:.3f}",
            f"{figures.speedup:.2f}",
            f"{figures.cpu_ms:.2f} ms",
            f"{figures.memory_kib:.0f} KiB",
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figures) for figures in results], indent=1))


if __name__ == "__main__":
    main()
