"""What a benchmark step is measured with.

Contents: `Clock` (spans of requests), `TimedSampler`, `TimedSandbox`, `TimedScorer`, `StepTime` (the figures of a
step), `Stopwatch`, `cpu_seconds`.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from retool.policy.types import Completion, Sampler, SamplingSettings
from retool.reward.verdict import AsyncScorer, Verdict
from retool.rollout.trajectory import Trajectory
from retool.sandbox.base import ExecutionResult, Sandbox

WAITING = ("sampling", "sandbox", "scoring")
PHASES = (*WAITING, "own work", "update", "new sampler")


class Clock:
    """Spans of the requests under way, by phase."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float, float]] = []

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append((phase, began, time.perf_counter()))

    def shares(self, began: float, ended: float) -> dict[str, float]:
        """Seconds between `began` and `ended` by phase, each moment counted once, the first of `WAITING` first."""
        edges = sorted({began, ended, *(edge for _, *span in self._spans for edge in span if began < edge < ended)})
        seconds = dict.fromkeys((*WAITING, "own work"), 0.0)
        for left, right in pairwise(edges):
            under_way = {phase for phase, start, end in self._spans if start <= left and end >= right}
            phase = next((name for name in WAITING if name in under_way), "own work")
            seconds[phase] += right - left
        return seconds


@dataclass(frozen=True, slots=True)
class TimedSampler:
    """A sampler whose requests are on the clock."""

    inner: Sampler
    clock: Clock

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
        with self.clock.span("sampling"):
            return await self.inner.sample(
                prompt,
                num_samples=num_samples,
                max_tokens=max_tokens,
                seed=seed,
                stop_token_ids=stop_token_ids,
                settings=settings,
            )


@dataclass(frozen=True, slots=True)
class TimedSandbox:
    """A sandbox whose executions are on the clock."""

    inner: Sandbox
    clock: Clock

    async def run(
        self, code: str, cpu_time_s: float | None = None, wall_time_s: float | None = None
    ) -> ExecutionResult:
        with self.clock.span("sandbox"):
            return await self.inner.run(code, cpu_time_s, wall_time_s)

    def metrics(self) -> Mapping[str, float]:
        return self.inner.metrics()


@dataclass(frozen=True, slots=True)
class TimedScorer:
    """A scorer whose verdicts are on the clock."""

    inner: AsyncScorer
    clock: Clock

    async def ascore(self, text: str, gold: str) -> Verdict:
        with self.clock.span("scoring"):
            return await self.inner.ascore(text, gold)


@dataclass
class StepTime:
    """One step: seconds by phase, the engine's CPU seconds, and how much work it was."""

    phases: dict[str, float]
    total: float
    engine_rollout: float
    engine_update: float
    client: float
    sampled_tokens: int
    trained_tokens: int
    tool_calls: int
    correct: int

    @property
    def beyond_engine(self) -> float:
        """What sampling, update and new sampler take beyond the engine's CPU time."""
        waited = self.phases["sampling"] + self.phases["update"] + self.phases["new sampler"]
        return max(0.0, waited - self.engine_rollout - self.engine_update)


class Stopwatch:
    """Phases of one step: the rollout is split by the clock, the rest is as long as it lasts."""

    def __init__(self, pid: int) -> None:
        self.clock = Clock()
        self._pid = pid
        self._client = time.process_time()
        self._marks = [(time.perf_counter(), cpu_seconds(pid))]

    def mark(self) -> None:
        self._marks.append((time.perf_counter(), cpu_seconds(self._pid)))

    def result(self, trajectories: Sequence[Trajectory], *, trained_tokens: int, correct: int) -> StepTime:
        """After four marks: the beginning, and the ends of rollout, update and new sampler."""
        client = time.process_time() - self._client
        (began, cpu_began), (sampled, cpu_sampled), (updated, _), (ended, cpu_ended) = self._marks
        phases = self.clock.shares(began, sampled)
        phases |= {"update": updated - sampled, "new sampler": ended - updated}
        return StepTime(
            phases=phases,
            total=ended - began,
            engine_rollout=cpu_sampled - cpu_began,
            engine_update=cpu_ended - cpu_sampled,
            client=client,
            sampled_tokens=sum(len(turn.completion_tokens) for t in trajectories for turn in t.turns),
            trained_tokens=trained_tokens,
            tool_calls=sum(t.code_calls for t in trajectories),
            correct=correct,
        )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; 0 where the system does not say."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
