"""A training step in rounds, as published single-file scripts make it, over the components of retool.

All trajectories sample, then all tool calls run, each in a fresh interpreter, then the next round begins; answers are
scored in the main thread; each micro-batch is a forward_backward call of its own, one after the other.

Contents: `Bench` (what both loops work with), `Rounds`, `fresh_interpreter`.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from bench_clock import StepTime, Stopwatch

from retool.data.problem import Problem
from retool.policy.client import PolicyClient
from retool.policy.types import Completion, Sampler, SamplerStop, TokenDatum
from retool.ppo.datums import trajectory_datum
from retool.ppo.update import PPO
from retool.protocol.chat import ChatProtocol
from retool.protocol.types import TurnKind
from retool.rollout.groups import Rollout
from retool.rollout.seeds import request_seed
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, Turn
from retool.runs.order import ProblemOrder
from retool.runs.tools import Tools

TOOL_TIMEOUT_S = 30.0


@dataclass
class Bench:
    """What both loops work with."""

    client: PolicyClient
    protocol: ChatProtocol
    tools: Tools
    rollout: Rollout
    ppo: PPO
    order: ProblemOrder
    seed: int
    micro_batch: int

    def problems(self, step: int) -> list[Problem]:
        return self.order.take(step * self.ppo.questions_per_batch, self.ppo.questions_per_batch)[0]


@dataclass
class Sample:
    """A trajectory of the round-by-round loop. `group` is the index of its question in the batch."""

    problem: Problem
    group: int
    index: int
    context: tuple[int, ...]
    turns: list[Turn] = field(default_factory=list)
    code: str | None = None
    answer: str = ""
    reward: float = -1.0

    def trajectory(self) -> Trajectory:
        return Trajectory(self.problem, self.index, tuple(self.turns), StopReason.ANSWERED)


class Rounds:
    """One step in rounds: nothing goes on before the slowest of a round is done."""

    def __init__(self, bench: Bench, sampler: Sampler, step: int, executor: Executor) -> None:
        self._bench, self._sampler, self._step, self._executor = bench, sampler, step, executor
        self._watch = Stopwatch(bench.client.engine_pid or 0)

    async def run(self) -> tuple[StepTime, Sampler]:
        samples = await self._roll_out()
        self._score(samples)
        self._watch.mark()
        trained = await self._update(samples)
        self._watch.mark()
        sampler = await self._bench.client.sampler()
        self._watch.mark()
        correct = sum(sample.reward > 0 for sample in samples)
        trajectories = [sample.trajectory() for sample in samples]
        return self._watch.result(trajectories, trained_tokens=trained, correct=correct), sampler

    async def _roll_out(self) -> list[Sample]:
        protocol, size = self._bench.protocol, self._bench.ppo.group_size
        samples = [
            Sample(problem, group, index, protocol.initial_prompt(problem.question))
            for group, problem in enumerate(self._bench.problems(self._step))
            for index in range(size)
        ]
        with self._watch.clock.span("sampling"):
            first = await asyncio.gather(*(self._request(sample, size) for sample in samples[::size]))
        active = self._read(samples, [completion for group in first for completion in group])
        while active:
            await self._run_tools(active)
            active = [s for s in active if self._bench.rollout.limits.request_tokens(len(s.context))]
            with self._watch.clock.span("sampling"):
                answers = await asyncio.gather(*(self._request(sample, 1) for sample in active))
            active = self._read(active, [answer[0] for answer in answers])
        return samples

    async def _request(self, sample: Sample, count: int) -> list[Completion]:
        seed = request_seed(
            self._bench.seed,
            step=self._step,
            problem_id=sample.problem.id,
            sample=sample.index,
            request=len(sample.turns),
        )
        return await self._sampler.sample(
            sample.context,
            num_samples=count,
            max_tokens=self._bench.rollout.limits.request_tokens(len(sample.context)),
            seed=seed,
            stop_token_ids=self._bench.protocol.stop_token_ids,
            settings=self._bench.rollout.settings,
        )

    def _read(self, samples: Sequence[Sample], completions: Sequence[Completion]) -> list[Sample]:
        """Takes one completion for each; returns those that asked for a tool within their budgets."""
        limits, protocol = self._bench.rollout.limits, self._bench.protocol
        active = []
        for sample, completion in zip(samples, completions, strict=True):
            text = protocol.decode(completion.tokens)
            parsed = protocol.parse(text)
            calls = parsed.kind is TurnKind.CALL and completion.stop is SamplerStop.STOP
            sample.code = parsed.code if calls else None
            sample.turns.append(
                Turn(sample.context, completion.tokens, completion.logprobs, text, completion.stop, code=sample.code)
            )
            if parsed.kind is TurnKind.ANSWER:
                sample.answer = protocol.scored_text(text)
            used = len(sample.turns)
            if sample.code is not None and used <= limits.max_code_calls and used < limits.max_assistant_turns:
                active.append(sample)
        return active

    async def _run_tools(self, samples: Sequence[Sample]) -> None:
        loop = asyncio.get_running_loop()
        with self._watch.clock.span("sandbox"):
            outputs = await asyncio.gather(
                *(loop.run_in_executor(self._executor, fresh_interpreter, sample.code or "") for sample in samples)
            )
        protocol, limit = self._bench.protocol, self._bench.rollout.limits.max_observation_tokens
        for sample, output in zip(samples, outputs, strict=True):
            turn = sample.turns[-1]
            observation = protocol.continuation(turn.completion_tokens, protocol.truncate(output, limit))
            sample.turns[-1] = replace(turn, call=CallOutcome.EXECUTED, observation_tokens=observation)
            sample.context = turn.prompt_tokens + turn.completion_tokens + observation

    def _score(self, samples: Sequence[Sample]) -> None:
        from math_verify import parse, verify

        with self._watch.clock.span("scoring"):
            for sample in samples:
                if "\\boxed" in sample.answer and verify(parse(sample.problem.answer), parse(sample.answer)):
                    sample.reward = 1.0

    async def _update(self, samples: Sequence[Sample]) -> int:
        """One forward_backward a micro-batch, weighted for a service that divides each call by its datums."""
        size = self._bench.ppo.group_size
        weighted: list[tuple[Sample, float]] = []
        for begin in range(0, len(samples), size):
            group = samples[begin : begin + size]
            mean = statistics.fmean(sample.reward for sample in group)
            weighted += [(sample, sample.reward - mean) for sample in group if sample.reward != mean]
        if not weighted:
            return 0
        loss, config = self._bench.ppo.loss.loss.value, self._bench.ppo.loss.service_config()
        parts = [weighted[i : i + self._bench.micro_batch] for i in range(0, len(weighted), self._bench.micro_batch)]
        trained = 0
        for number, part in enumerate(parts):
            data = [
                trajectory_datum(sample.trajectory(), advantage=advantage * len(part) / len(samples))
                for sample, advantage in part
            ]
            trained += sum(len(datum.tokens) for datum in data)
            await self._submit(data, loss, config, last=number == len(parts) - 1)
        return trained

    async def _submit(self, data: list[TokenDatum], loss: str, config: Mapping[str, float], *, last: bool) -> None:
        client = self._bench.client
        if last:
            await client.train_step(data, loss=loss, config=config, adam=self._bench.ppo.adam)
        else:
            await client.forward_backward(data, loss=loss, config=config)


def fresh_interpreter(code: str) -> str:
    """What a new Python process prints for `code`, errors included. There is no isolation: only for the tiny model."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TOOL_TIMEOUT_S,
            cwd=tempfile.gettempdir(),
            env={"PATH": os.environ.get("PATH", "")},
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return done.stdout.rstrip()
