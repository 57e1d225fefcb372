"""Rollouts of whole batches: every trajectory a coroutine of its own, grouped by problem.

Contents: `Rollout`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from retool.data.problem import Problem
from retool.errors import InfrastructureError, UserError
from retool.policy.types import Sampler, SamplingSettings
from retool.protocol.chat import ChatProtocol
from retool.reward.verdict import AsyncScorer
from retool.rollout.episode import Environment, Episode
from retool.rollout.limits import OnParseError, RolloutLimits
from retool.rollout.seeds import request_seed
from retool.rollout.trajectory import StopReason, Trajectory, TrajectoryGroup
from retool.rollout.watchdog import Watchdog
from retool.sandbox.base import Sandbox

OnTrajectory = Callable[[Trajectory], None]


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the groups of one call of `Rollout.run` share."""

    environment: Environment
    group_size: int
    seed: int
    step: int
    slots: AbstractAsyncContextManager[object]
    on_trajectory: OnTrajectory | None


class Rollout:
    """Samples groups of trajectories. Holds settings only, so that one object serves any number of runs at once."""

    def __init__(
        self,
        *,
        max_code_calls: int = 4,
        max_assistant_turns: int = 6,
        max_trajectory_tokens: int = 8192,
        max_turn_tokens: int | None = None,
        max_observation_tokens: int = 512,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        on_parse_error: str = "reply",
        max_concurrency: int | None = None,
    ) -> None:
        """Budgets as in `RolloutLimits`, sampling as in `SamplingSettings`, `on_parse_error` as in `OnParseError`.

        `max_concurrency` is the number of trajectories at work at once, `None` for no limit; the first request, which
        a group shares, counts as one. Raises `UserError` for values out of range.
        """
        self.limits = RolloutLimits(
            max_code_calls=max_code_calls,
            max_assistant_turns=max_assistant_turns,
            max_trajectory_tokens=max_trajectory_tokens,
            max_turn_tokens=max_turn_tokens,
            max_observation_tokens=max_observation_tokens,
        )
        if temperature < 0:
            raise UserError(f"rollout.temperature: {temperature} is negative.")
        if not 0 < top_p <= 1:
            raise UserError(f"rollout.top_p: {top_p} is not in (0, 1].")
        if top_k != -1 and top_k < 1:
            raise UserError(f"rollout.top_k: {top_k} is neither -1 (no limit) nor positive.")
        if max_concurrency is not None and max_concurrency < 1:
            raise UserError(f"rollout.max_concurrency: {max_concurrency} is not positive; null means no limit.")
        if on_parse_error not in tuple(OnParseError):
            raise UserError(f"rollout.on_parse_error: {on_parse_error!r} is none of {', '.join(OnParseError)}.")
        self.settings = SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k)
        self.on_parse_error = OnParseError(on_parse_error)
        self.max_concurrency = max_concurrency

    async def run(
        self,
        problems: Sequence[Problem],
        *,
        group_size: int,
        seed: int,
        step: int,
        sampler: Sampler,
        protocol: ChatProtocol,
        sandbox: Sandbox,
        scorer: AsyncScorer,
        on_trajectory: OnTrajectory | None = None,
    ) -> list[TrajectoryGroup]:
        """One group of `group_size` trajectories a problem, in the order of `problems`.

        `on_trajectory` is called in the event loop as each one finishes. Seeds follow from `seed`, `step`, the
        problem's id and the sample's number alone (`request_seed`); a problem that comes again in `problems` gets
        samples numbered on. Failures of services end in trajectories with `StopReason.INFRASTRUCTURE`; any other error
        ends the run, and so does cancellation, with no request left behind.
        """
        if group_size < 1:
            raise UserError(f"group_size: {group_size} is not positive.")
        watchdog = Watchdog()
        environment = Environment(
            sampler, protocol, sandbox, scorer, self.limits, self.settings, self.on_parse_error, watchdog
        )
        slots: AbstractAsyncContextManager[object] = (
            nullcontext() if self.max_concurrency is None else asyncio.Semaphore(self.max_concurrency)
        )
        batch = _Batch(environment, group_size, seed, step, slots, on_trajectory)
        try:
            async with asyncio.TaskGroup() as background:
                watch = background.create_task(watchdog.run())
                groups = await _run_groups(batch, problems)
                watch.cancel()
        except BaseExceptionGroup as errors:
            raise _main_error(errors) from None
        return groups


async def _run_groups(batch: _Batch, problems: Sequence[Problem]) -> list[TrajectoryGroup]:
    seen: Counter[str] = Counter()
    tasks: list[asyncio.Task[TrajectoryGroup]] = []
    async with asyncio.TaskGroup() as running:
        for problem in problems:
            group = _Group(batch, problem, first_sample=batch.group_size * seen[problem.id])
            seen[problem.id] += 1
            tasks.append(running.create_task(group.run()))
    return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class _Group:
    """The trajectories of one problem. `first_sample` numbers them for their seeds."""

    batch: _Batch
    problem: Problem
    first_sample: int

    async def run(self) -> TrajectoryGroup:
        """All trajectories, started by one shared request."""
        environment = self.batch.environment
        prompt = environment.protocol.initial_prompt(self.problem.question)
        if not environment.limits.request_tokens(len(prompt)):
            return await self._finish(prompt, lambda episode, _: episode.ended(StopReason.TOKEN_LIMIT))
        try:
            async with self.batch.slots:
                completions = await environment.sample(
                    prompt,
                    num_samples=self.batch.group_size,
                    seed=self._seed(0, 0),
                    name=f"{self.problem.id} request 0",
                )
        except InfrastructureError as error:
            failure = error
            return await self._finish(prompt, lambda episode, _: _failed(episode, failure))
        return await self._finish(prompt, lambda episode, index: episode.run(completions[index]))

    async def _finish(
        self, prompt: tuple[int, ...], run: Callable[[Episode, int], Coroutine[None, None, Trajectory]]
    ) -> TrajectoryGroup:
        """Runs every trajectory with `run(episode, index)`."""
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(self._finish_one(prompt, i, run)) for i in range(self.batch.group_size)]
        return TrajectoryGroup(self.problem, tuple(task.result() for task in tasks))

    async def _finish_one(
        self, prompt: tuple[int, ...], index: int, run: Callable[[Episode, int], Coroutine[None, None, Trajectory]]
    ) -> Trajectory:
        episode = Episode(self.batch.environment, self.problem, index, prompt, partial(self._seed, index))
        async with self.batch.slots:
            trajectory = await run(episode, index)
        if self.batch.on_trajectory is not None:
            self.batch.on_trajectory(trajectory)
        return trajectory

    def _seed(self, index: int, request: int) -> int:
        return request_seed(
            self.batch.seed,
            step=self.batch.step,
            problem_id=self.problem.id,
            sample=self.first_sample + index,
            request=request,
        )


async def _failed(episode: Episode, error: InfrastructureError) -> Trajectory:
    return episode.failed(error)


def _main_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What to raise for the errors of concurrent tasks: a user error if there is one, or the only error there is."""
    leaves = list(_leaves(errors))
    users = [error for error in leaves if isinstance(error, UserError)]
    if users:
        return users[0]
    return leaves[0] if len(leaves) == 1 else errors


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
