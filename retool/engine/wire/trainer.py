"""`EventExecutor`: carries out the events of training runs on the engine."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import numpy as np

from retool.engine.types import EngineError, ForwardResult
from retool.engine.wire.adapters import AdapterPool
from retool.engine.wire.checkpoints import CheckpointKind, CheckpointRegistry
from retool.engine.wire.engine import Engine
from retool.engine.wire.errors import ApiError, as_api_error
from retool.engine.wire.events import Outcome
from retool.engine.wire.futures import settle
from retool.engine.wire.protocol import EventEnvelope, EventType, Forward, InitRun, OptimizeStep, Save
from retool.engine.wire.runs import RunStore, Status, TrainingRun

_TEMPORARY = "temporary"

_Handler = Callable[[TrainingRun, EventEnvelope], Awaitable[Outcome]]


class EventExecutor:
    """Called by the queue of each run with one event at a time. Failures are exceptions of any kind."""

    def __init__(
        self,
        engine: Engine,
        checkpoints: CheckpointRegistry,
        adapters: AdapterPool,
        store: RunStore,
        base_model: str,
    ) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._adapters = adapters
        self._store = store
        self._base_model = base_model
        self._handlers: dict[EventType, _Handler] = {
            EventType.INIT_RUN: self._init_run,
            EventType.FORWARD: self._forward,
            EventType.FORWARD_BACKWARD: self._forward_backward,
            EventType.OPTIMIZE_STEP: self._optimize_step,
            EventType.SAVE_STATE: self._save,
            EventType.SAVE_WEIGHTS: self._save,
            EventType.END_RUN: self._end_run,
        }

    @staticmethod
    def is_temporary(uri: str) -> bool:
        """Whether an address names weights that exist in the engine's memory only."""
        return uri.startswith("trio://") and f"/{_TEMPORARY}/" in uri

    async def execute(self, envelope: EventEnvelope) -> Outcome:
        """Carries out one event."""
        run = self._store.training_run(envelope.metadata.run_id)
        if run.status is Status.CREATED and envelope.type is not EventType.INIT_RUN:
            raise ApiError(409, "run_not_initialised", "The first event of a run must be trainer.init_run.")
        outcome = await self._handlers[envelope.type](run, envelope)
        run.updated_at = datetime.now(UTC)
        return outcome

    async def _init_run(self, run: TrainingRun, envelope: EventEnvelope) -> Outcome:
        payload = InitRun.model_validate(envelope.payload)
        if run.status is not Status.CREATED:
            raise ApiError(409, "run_initialised", "The run was initialised before.")
        if (payload.checkpoint_uri or "") != run.source_uri or payload.lora_config.rank != run.lora.rank:
            raise ApiError(409, "run_mismatch", "trainer.init_run contradicts what the run was created with.")
        directory = self._checkpoints.resolve(run.source_uri).directory if run.source_uri else None
        await settle(self._engine.create_run(run.id, run.lora, directory, run.restore_optimizer))
        run.status = Status.RUNNING
        run.started_at = datetime.now(UTC)
        return Outcome({})

    async def _forward(self, run: TrainingRun, envelope: EventEnvelope) -> Outcome:
        return await self._compute(run, envelope, backward=False)

    async def _forward_backward(self, run: TrainingRun, envelope: EventEnvelope) -> Outcome:
        try:
            return await self._compute(run, envelope, backward=True)
        except Exception as error:
            run.fault = as_api_error(error).message
            raise

    async def _compute(self, run: TrainingRun, envelope: EventEnvelope, *, backward: bool) -> Outcome:
        payload = Forward.model_validate(envelope.payload)
        envelope.payload.clear()
        samples = payload.samples()
        tokens = sum(len(sample.tokens) for sample in samples)
        result = await settle(
            self._engine.forward(run.id, samples, payload.loss_spec(), payload.totals(), backward=backward)
        )
        return Outcome(_forward_result(result, auto_shift=payload.auto_shift), tokens, tokens if backward else 0)

    async def _optimize_step(self, run: TrainingRun, envelope: EventEnvelope) -> Outcome:
        payload = OptimizeStep.model_validate(envelope.payload)
        if run.fault is not None:
            fault, run.fault = run.fault, None
            await settle(self._engine.drop_gradients(run.id))
            raise ApiError(
                409,
                "gradients_incomplete",
                "No step was made and its gradients were dropped, since a forward_backward before it failed: "
                f"{fault} The weights are those of the step before.",
            )
        metrics = await settle(self._engine.optim_step(run.id, payload.adam()))
        return Outcome({"metrics": metrics})

    async def _save(self, run: TrainingRun, envelope: EventEnvelope) -> Outcome:
        payload = Save.model_validate(envelope.payload)
        state = envelope.type is EventType.SAVE_STATE
        if payload.visibility == "TEMPORARY" and not state:
            uri = f"trio://{run.id}/{_TEMPORARY}/{payload.name}"
            await self._adapters.add_temporary(uri, run.id, payload.ttl_seconds)
            return self._checkpoint_outcome(uri, 0)
        kind = CheckpointKind.STATE if state else CheckpointKind.SAMPLER
        draft = self._checkpoints.draft(run.id, kind, payload.name, overwrite=payload.overwrite)
        try:
            size_bytes = await settle(self._engine.save(run.id, draft.staging, optimizer=state))
            checkpoint = await asyncio.to_thread(
                self._checkpoints.publish,
                draft,
                base_model=self._base_model,
                lora=run.lora,
                size_bytes=size_bytes,
                ttl_seconds=payload.ttl_seconds,
            )
        except (ApiError, EngineError, OSError, RuntimeError):
            self._checkpoints.discard(draft)
            raise
        return self._checkpoint_outcome(checkpoint.uri, size_bytes)

    async def _end_run(self, run: TrainingRun, envelope: EventEnvelope) -> Outcome:
        self._engine.drop_run(run.id)
        self._adapters.drop_run(run.id)
        run.status, run.ended_at = Status.ENDED, datetime.now(UTC)
        run.queue.close()
        return Outcome({})

    def _checkpoint_outcome(self, uri: str, size_bytes: int) -> Outcome:
        return Outcome({"checkpoint": {"uri": uri, "model_id": self._engine.model_id, "size_bytes": size_bytes}})


def _forward_result(result: ForwardResult, *, auto_shift: bool) -> dict[str, object]:
    outputs = []
    for logprobs in result.logprobs:
        # Entry i belongs to label i; under auto_shift the engine computed it one position earlier.
        values = np.concatenate([np.zeros(1, np.float32), logprobs[:-1]]) if auto_shift else logprobs
        data = np.ascontiguousarray(values, dtype="<f4")
        tensor = {"dtype": "<f4", "shape": [len(data)], "encoding": "raw_le", "data": data.tobytes()}
        outputs.append({"logprobs": tensor})
    count = result.token_count
    metrics = {
        "loss_sum": result.loss_sum,
        "loss_mean": result.loss_sum / count if count else 0.0,
        "token_count": count,
    }
    return {"loss_fn_outputs": outputs, "metrics": metrics}
