"""Supervised fine-tuning on worked traces, so that a policy knows the tool before reinforcement learning: `run`.

Traces come from the training problems of `data` alone; the rows that `data` holds out are evaluated at the end.
"""

import logging
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from retool.config import schema, typed
from retool.errors import InfrastructureError
from retool.policy.types import ForwardOutput, TokenDatum
from retool.runs import summary
from retool.runs.cost import Tokens, rollout_tokens
from retool.runs.datasets import load_eval_sets, verify_golds
from retool.runs.evaluation import Evaluator, build_evaluator
from retool.runs.frame import begin_training, complete, initial_weights
from retool.runs.infrastructure import check_infrastructure
from retool.runs.policy import open_policy, open_protocol, require_credentials, weights_note
from retool.runs.progress import Progress
from retool.runs.saving import StateKeeper
from retool.runs.session import RunSession
from retool.runs.tools import Tools, open_tools
from retool.runs.tuning_data import TuningData, load_rows, prepare_tuning_data

if TYPE_CHECKING:
    from retool.policy.client import PolicyClient

logger = logging.getLogger("retool.runs")

ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}


def run(cfg: DictConfig) -> None:
    """Fine-tunes as configured, or continues, or shows the result of a run that is finished."""
    complete(cfg, _tune)


async def _tune(session: RunSession) -> dict[str, object]:
    """Opens the components, makes the remaining steps and evaluates."""
    cfg, began = session.cfg, time.perf_counter()
    model = typed(cfg.model, schema.Model)
    require_credentials(model)
    initial = initial_weights(model)
    split, rows = load_rows(cfg)
    async with open_tools(cfg) as tools:
        checked = verify_golds(split, tools.scorer)
        usable = {problem.id for problem in checked.train}
        eval_sets = load_eval_sets(cfg, checked)
        async with open_policy(model, session.directory) as client:
            protocol = open_protocol(client.tokenizer(), model, code_budget=cfg.rollout.max_code_calls)
            rows = [(problem, row) for problem, row in rows if problem.id in usable]
            data = await prepare_tuning_data(cfg, rows, protocol, tools)
            await begin_training(session, client, model, initial)
            loop = TuningLoop(session, client, data, typed(cfg.sft, schema.Tuning))
            await loop.run()
            evaluator = build_evaluator(cfg, eval_sets, client.tokenizer(), tools, session.directory)
            metrics, sampled = await _evaluate(session, client, evaluator, tools)
            session.tracker.log(loop.steps, {**metrics, "sft/validation_loss": await loop.validation_loss()})
            weights = weights_note(client.model_id, model)
    ending = summary.Ending(replace(sampled, trained=loop.trained), weights)
    seconds = time.perf_counter() - began
    result = summary.evaluation_result(session, metrics, ending, checkpoint=None, seconds=seconds)
    return {**result, "kind": "sft", "steps": loop.steps, "traces": len(data.train), "dropped": dict(data.dropped)}


async def _evaluate(
    session: RunSession, client: "PolicyClient", evaluator: Evaluator, tools: Tools
) -> tuple[dict[str, float], Tokens]:
    """Held-out accuracy of the tuned policy; nothing where nothing is held out."""
    if not evaluator.sets:
        return {}, Tokens()
    with Progress(steps=0) as progress:
        work = evaluator.run(await client.sampler(), label="tuned", progress=progress)
        result = await session.preemption.unless_leaving(work)
    check_infrastructure(result.groups, session.cfg.max_infrastructure_rate, "the evaluation")
    logger.info("Held out, after tuning: %s", result.sentence)
    return result.metrics, rollout_tokens(result.groups)


class TuningLoop:
    """Cross entropy on the traces, in an order that follows from seed and epoch alone."""

    def __init__(self, session: RunSession, client: "PolicyClient", data: TuningData, settings: schema.Tuning) -> None:
        self._session = session
        self._client = client
        self._data = data
        self._settings = settings
        self._keeper = StateKeeper(session, client, typed(session.cfg.checkpoint, schema.Checkpoint))
        self._per_epoch = math.ceil(len(data.train) / settings.batch_size)
        self.steps = self._per_epoch * settings.epochs
        state = session.resume
        self._step = state.next_step if state is not None else 0
        self.trained = Tokens(**state.spent).trained if state is not None else 0

    async def run(self) -> None:
        """Makes the remaining steps. Raises `Preempted` when saved to leave."""
        with Progress(steps=self.steps, completed=self._step) as progress:
            while self._step < self.steps:
                await self._train_step()
                progress.step()
                self._session.completed(self._step)
                leaving = self._session.preemption.requested
                if leaving or self._keeper.due(self._step, self.steps):
                    await self._save()
                if leaving:
                    self._session.preemption.checkpointed()

    async def validation_loss(self) -> float:
        """Mean cross entropy per written token of the traces kept for validation."""
        batch = _averaged(self._data.validation)
        return _loss(batch, await self._client.forward(batch, loss="cross_entropy", config={}))

    async def _train_step(self) -> None:
        began = time.perf_counter()
        batch = _averaged(self._batch())
        rate = learning_rate(self._step, self.steps, self._settings.warmup_steps, self._settings.learning_rate)
        adam = {"learning_rate": rate, **ADAM}
        output, update = await self._client.train_step(batch, loss="cross_entropy", config={}, adam=adam)
        tokens = sum(len(datum.tokens) for datum in batch)
        self.trained += tokens
        metrics = {
            "sft/loss": _loss(batch, output),
            "sft/learning_rate": rate,
            "sft/epoch": self._step / self._per_epoch,
            "train/datums": float(len(batch)),
            "train/tokens": float(tokens),
            **{f"train/{name}": value for name, value in update.items() if name == "grad_norm"},
            "time/step_s": time.perf_counter() - began,
        }
        if not math.isfinite(metrics["sft/loss"]):
            raise InfrastructureError(f"the loss of step {self._step} is not finite")
        self._session.tracker.log(self._step, metrics)
        self._step += 1
        logger.info(
            "Step %d/%d: loss %.3f, seconds %.1f", self._step, self.steps, metrics["sft/loss"], metrics["time/step_s"]
        )

    def _batch(self) -> list[TokenDatum]:
        epoch, index = divmod(self._step, self._per_epoch)
        order = list(range(len(self._data.train)))
        random.Random(f"{self._session.cfg.seed}/{epoch}").shuffle(order)
        size = self._settings.batch_size
        return [self._data.train[i] for i in order[index * size : (index + 1) * size]]

    async def _save(self) -> None:
        named = self._keeper.named(self._step, self.steps)
        await self._keeper.save(
            next_step=self._step, cursor=self._step, spent=Tokens(trained=self.trained), named=named
        )


def learning_rate(step: int, steps: int, warmup_steps: int, highest: float) -> float:
    """Linear warm-up to `highest`, then linear decay that would reach zero after the last step."""
    if step < warmup_steps:
        return highest * (step + 1) / warmup_steps
    return highest * (steps - step) / max(1, steps - warmup_steps)


def _averaged(batch: Sequence[TokenDatum]) -> list[TokenDatum]:
    """Weights that add up to one over the batch, so that the summed loss is the mean per written token."""
    total = sum(sum(datum.weights or ()) for datum in batch)
    return [replace(datum, weights=[weight / total for weight in datum.weights or ()]) for datum in batch]


def _loss(batch: Sequence[TokenDatum], output: ForwardOutput) -> float:
    return -math.fsum(
        weight * logprob
        for datum, logprobs in zip(batch, output.logprobs, strict=True)
        for weight, logprob in zip(datum.weights or (), logprobs, strict=True)
    )
