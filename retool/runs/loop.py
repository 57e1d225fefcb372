"""The training loop: sample, score, update, record, save, step by step.

Contents: `TrainingLoop`. Every step is a function of the seed, the step's number and the weights before it, in a fixed
order: nothing depends on which trajectory came back first, so an interrupted run makes the metrics of a straight one.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retool.config import schema
from retool.data.problem import Problem
from retool.errors import UserError
from retool.ppo.reference import TokenScorer, reference_logprobs
from retool.ppo.update import PPO, UpdateResult
from retool.protocol.chat import ChatProtocol
from retool.rollout.groups import Rollout
from retool.rollout.metrics import rollout_metrics
from retool.rollout.serialise import trajectory_to_json
from retool.rollout.trajectory import TrajectoryGroup
from retool.runs.batches import SampledBatch, sample_batch
from retool.runs.cost import Tokens, reference_tokens, rollout_tokens
from retool.runs.evaluation import Evaluator
from retool.runs.files import write_jsonl_gz
from retool.runs.health import HealthCheck
from retool.runs.infrastructure import check_infrastructure
from retool.runs.order import ProblemOrder
from retool.runs.preemption import Preempted
from retool.runs.progress import Progress
from retool.runs.saving import StateKeeper
from retool.runs.session import RunSession
from retool.runs.tools import Tools
from retool.tracking.jsonl import read_jsonl

if TYPE_CHECKING:
    from retool.policy.client import PolicyClient
    from retool.policy.types import Sampler

logger = logging.getLogger("retool.runs")


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The keys of the top level that the loop needs."""

    seed: int
    max_steps: int
    eval_every: int | None
    max_infrastructure_rate: float
    max_cost: float | None
    price: schema.Price | None


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The components of a training run, ready for use. `reference`: what a penalty on divergence is measured from."""

    client: "PolicyClient"
    protocol: ChatProtocol
    tools: Tools
    rollout: Rollout
    ppo: PPO
    order: ProblemOrder
    evaluator: Evaluator
    keeper: StateKeeper
    reference: TokenScorer | None = None


class TrainingLoop:
    """Makes the remaining steps of one run. `spent` counts the tokens of all of its processes."""

    def __init__(self, session: RunSession, parts: LoopParts, settings: LoopSettings, progress: Progress) -> None:
        self._session = session
        self._parts = parts
        self._settings = settings
        self._progress = progress
        state = session.resume
        self._step = state.next_step if state is not None else 0
        self._cursor = state.cursor if state is not None else 0
        self.spent = Tokens(**state.spent) if state is not None else Tokens()
        self._step_tokens = Tokens()
        self._health = HealthCheck()
        for row in read_jsonl(session.directory.metrics):
            self._warn(row)

    async def run(self) -> None:
        """Trains to the last step; evaluates before, after and where asked. Raises `Preempted` when saved to leave."""
        sampler = await self._parts.client.sampler()
        while self._step < self._settings.max_steps:
            evaluation = await self._evaluate_if_due(sampler)
            await self._train_step(sampler, evaluation)
            await self._boundary()
            sampler = await self._parts.client.sampler()
        self._session.tracker.log(self._step, await self._evaluate(sampler))

    async def _evaluate_if_due(self, sampler: "Sampler") -> dict[str, float]:
        every = self._settings.eval_every
        due = self._step == 0 or (every is not None and self._step % every == 0)
        return await self._evaluate(sampler) if due else {}

    async def _evaluate(self, sampler: "Sampler") -> dict[str, float]:
        evaluator = self._parts.evaluator
        if not evaluator.sets:
            return {}
        began = time.perf_counter()
        work = evaluator.run(sampler, label=f"step-{self._step:04d}", progress=self._progress)
        try:
            result = await self._session.preemption.unless_leaving(work)
        except Preempted:
            if self._step > 0:
                await self._save()
            raise
        self._parts.tools.sandbox.metrics()  # what the evaluation executed is not the step's
        self._check_infrastructure(result.groups, "the evaluation before step")
        self.spent += rollout_tokens(result.groups)
        logger.info("Evaluation after %d steps: %s", self._step, result.sentence)
        return {**result.metrics, "time/eval_s": time.perf_counter() - began}

    async def _train_step(self, sampler: "Sampler", evaluation: dict[str, float]) -> None:
        began = time.perf_counter()
        batch = await self._sample(sampler)
        sampled = time.perf_counter()
        self._check_infrastructure(batch.groups, "step")
        update = await self._update(batch)
        ended = time.perf_counter()
        write_jsonl_gz(
            self._session.directory.step_trajectories(self._step),
            (
                trajectory_to_json(t, step=self._step)
                for group in (*update.groups, *batch.replaced)
                for t in group.trajectories
            ),
        )
        self._step_tokens += rollout_tokens(batch.groups) + Tokens(trained=int(update.metrics.get("train/tokens", 0)))
        self.spent += self._step_tokens
        metrics = {
            **evaluation,
            **rollout_metrics(batch.groups),
            **batch.metrics(),
            **self._parts.tools.sandbox.metrics(),
            **update.metrics,
            **self._step_tokens.metrics(self._settings.price),
            "train/epoch": self._parts.order.epoch(self._cursor),
            "time/rollout_s": sampled - began,
            "time/update_s": ended - sampled,
            "time/step_s": ended - began,
        }
        self._session.tracker.log(self._step, metrics)
        self._log_step(metrics)
        self._warn({"step": self._step, **metrics})
        self._cursor = batch.cursor
        self._step += 1

    async def _sample(self, sampler: "Sampler") -> SampledBatch:
        ppo = self._parts.ppo

        async def sample(problems: Sequence[Problem]) -> list[TrajectoryGroup]:
            self._progress.begin(f"step {self._step}", len(problems) * ppo.group_size)
            return await self._parts.rollout.run(
                problems,
                group_size=ppo.group_size,
                seed=self._settings.seed,
                step=self._step,
                sampler=sampler,
                protocol=self._parts.protocol,
                sandbox=self._parts.tools.sandbox,
                scorer=self._parts.tools.scorer,
                on_trajectory=self._progress.trajectory,
            )

        return await sample_batch(
            self._parts.order,
            sample,
            cursor=self._cursor,
            questions=ppo.questions_per_batch,
            max_rounds=ppo.sampling_rounds,
        )

    async def _update(self, batch: SampledBatch) -> UpdateResult:
        self._step_tokens, reference = Tokens(), None
        if self._parts.reference is not None:
            reference = await reference_logprobs(self._parts.reference, batch.trained)
            self._step_tokens = reference_tokens(batch.trained)
        return await self._parts.ppo.update(self._parts.client, batch.trained, step=self._step, reference=reference)

    def _warn(self, row: Mapping[str, object]) -> None:
        """Says once what the curves show to be going wrong."""
        for symptom in self._health.observe(row):
            logger.warning("Step %d: %s", symptom.step + 1, symptom.message)

    async def _boundary(self) -> None:
        """Between two steps: status, saving, leaving when asked, and the cost limit."""
        self._session.completed(self._step)
        self._progress.step()
        keeper, last = self._parts.keeper, self._settings.max_steps
        leaving = self._session.preemption.requested
        over = self._is_too_expensive()
        if leaving or over or keeper.due(self._step, last):
            await self._save()
        if over and self._step < last:
            raise UserError(
                f"max_cost={self._settings.max_cost:g} would be exceeded by step {self._step}, with "
                f"{self.spent.cost(self._settings.price):.2f} spent. The state is saved; raise max_cost to go on."
            )
        if leaving:
            self._session.preemption.checkpointed()

    async def _save(self) -> None:
        keeper = self._parts.keeper
        named = keeper.named(self._step, self._settings.max_steps)
        await keeper.save(next_step=self._step, cursor=self._cursor, spent=self.spent, named=named)

    def _check_infrastructure(self, groups: Sequence[TrajectoryGroup], what: str) -> None:
        check_infrastructure(groups, self._settings.max_infrastructure_rate, f"{what} {self._step}")

    def _is_too_expensive(self) -> bool:
        spent, last = self.spent.cost(self._settings.price), self._step_tokens.cost(self._settings.price)
        if spent is None or last is None or self._settings.max_cost is None:
            return False
        return spent + last > self._settings.max_cost

    def _log_step(self, metrics: dict[str, float]) -> None:
        shown = {
            "reward": metrics.get("reward/mean"),
            "correct": metrics.get("reward/correct"),
            "tool calls": metrics.get("rollout/code_calls"),
            "tokens": metrics.get("rollout/trajectory_tokens"),
            "seconds": metrics["time/step_s"],
        }
        figures = ", ".join(f"{name} {value:.3g}" for name, value in shown.items() if value is not None)
        logger.info("Step %d/%d: %s", self._step + 1, self._settings.max_steps, figures)
