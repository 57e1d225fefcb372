"""`Service`: one engine with its sessions, runs, events, checkpoints and sampling weights; `ServiceSettings`.

The two planes of HTTP handlers (`control`, `actor`) translate requests into its methods. Everything here runs on the
server's event loop; only the engine computes elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retool.engine.types import LoraSpec
from retool.engine.wire.adapters import AdapterPool, SavedWeights
from retool.engine.wire.archive import ArchiveStore
from retool.engine.wire.checkpoints import Checkpoint, CheckpointKind, CheckpointRegistry
from retool.engine.wire.engine import Engine
from retool.engine.wire.errors import ApiError
from retool.engine.wire.events import EventLedger, RunQueue
from retool.engine.wire.protocol import SamplingRunCreate, TrainingRunCreate
from retool.engine.wire.runs import RunStore, SamplingRun, Session, Status, TrainingRun, new_id
from retool.engine.wire.security import Keyring
from retool.engine.wire.trainer import EventExecutor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What an operator decides about a server.

    `names`: under which the base model is served, besides those the engine knows. `poll_wait_s`: how long a question
    about an unfinished event is held. `idle_session_s`: silence after which a session's runs are freed.
    """

    api_key: str
    engine_dir: Path
    names: Sequence[str] = ()
    allow_file_uris: bool = False
    max_body_bytes: int = 256 * 2**20
    max_tokens_per_request: int = 262_144
    poll_wait_s: float = 50.0
    idle_session_s: float = 6 * 3600.0
    ended_session_s: float = 3600.0
    sweep_every_s: float = 15.0
    temporary_per_run: int = 4


class Service:
    """Owns all state of a server but the weights."""

    def __init__(self, engine: Engine, settings: ServiceSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.keyring = Keyring(settings.api_key)
        self.checkpoints = CheckpointRegistry(settings.engine_dir, allow_file_uris=settings.allow_file_uris)
        self.archives = ArchiveStore(settings.engine_dir)
        self.store = RunStore()
        self.ledger = EventLedger()
        self.adapters = AdapterPool(engine, temporary_per_run=settings.temporary_per_run)
        self.names = tuple(dict.fromkeys((*settings.names, engine.model_alias, engine.model_id)))
        self.started_at = datetime.now(UTC)
        self._executor = EventExecutor(engine, self.checkpoints, self.adapters, self.store, self.base_model)
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def base_model(self) -> str:
        """The name under which checkpoints record the base model."""
        return self.engine.model_alias

    def check_base_model(self, name: str) -> None:
        """Raises `ApiError` 404 for a model that is not served here, naming those that are."""
        if name not in self.names:
            served = ", ".join(self.names)
            raise ApiError(404, "model_not_found", f"This server does not serve '{name}', only: {served}.")

    def checkpoint(self, uri: str, *, with_optimizer: bool = False) -> Checkpoint:
        """The checkpoint, if it belongs to the served base model. Raises `ApiError`."""
        checkpoint = self.checkpoints.resolve(uri)
        if Path(checkpoint.base_model).name not in {Path(name).name for name in self.names}:
            raise ApiError(
                409,
                "checkpoint_mismatch",
                f"{uri} adapts '{checkpoint.base_model}'; this server serves {self.names[0]}.",
            )
        if with_optimizer and checkpoint.kind is not CheckpointKind.STATE:
            raise ApiError(
                409, "checkpoint_without_optimizer", f"{uri} holds weights only; use one that save_state made."
            )
        return checkpoint

    def open_session(self, sdk_version: str) -> Session:
        """Registers a client."""
        session = Session(new_id("session"), sdk_version)
        self.store.sessions[session.id] = session
        return session

    def create_training_run(self, session_id: str, request: TrainingRunCreate) -> TrainingRun:
        """Registers a training run; its first event makes the engine allocate it."""
        session = self.store.open_session(session_id)
        lora, seed = request.lora(), request.seed
        if request.source_checkpoint_uri:
            lora = self.checkpoint(request.source_checkpoint_uri, with_optimizer=request.restore_optimizer).lora
            seed = lora.seed
        else:
            self.check_base_model(request.base_model)
        run = TrainingRun(
            id=new_id("train"),
            session_id=session.id,
            index=len(session.training_runs) + 1,
            lora=lora,
            seed=seed,
            source_uri=request.source_checkpoint_uri,
            restore_optimizer=request.restore_optimizer,
            queue=RunQueue(self._executor.execute),
        )
        session.training_runs.append(run.id)
        self.store.training_runs[run.id] = run
        return run

    def rebind_training_run(self, session_id: str, run_id: str, uri: str, *, restore_optimizer: bool) -> TrainingRun:
        """Makes a run that has not begun start from a checkpoint. Raises `ApiError` if it has, or does not fit."""
        self.store.open_session(session_id)
        run = self.store.training_run(run_id)
        if run.session_id != session_id:
            raise ApiError(404, "training_run_not_found", f"Session {session_id} has no training run {run_id}.")
        if run.status is not Status.CREATED:
            raise ApiError(
                409, "training_run_started", f"Run {run_id} has begun; a checkpoint must be loaded before that."
            )
        lora = self.checkpoint(uri, with_optimizer=restore_optimizer).lora
        if _shape(lora) != _shape(run.lora):
            raise ApiError(409, "checkpoint_mismatch", f"{uri} has an adapter of another shape than run {run_id}.")
        run.lora, run.source_uri, run.restore_optimizer = lora, uri, restore_optimizer
        return run

    def create_sampling_run(self, session_id: str, request: SamplingRunCreate) -> SamplingRun:
        """Registers weights to sample from. They are loaded, if need be, by the first request."""
        session = self.store.open_session(session_id)
        self.check_base_model(request.base_model)
        uri = request.source_checkpoint_uri
        weights: str | SavedWeights | None = None
        if EventExecutor.is_temporary(uri):
            self.adapters.require_temporary(uri)
            weights = uri
        elif uri:
            weights = SavedWeights(self.checkpoint(uri))
        run = SamplingRun(new_id("sample"), session.id, len(session.sampling_runs) + 1, uri, weights)
        session.sampling_runs.append(run.id)
        self.store.sampling_runs[run.id] = run
        return run

    def close_session(self, session: Session, status: Status) -> None:
        """Ends a session and frees what its runs hold in the engine."""
        if not session.open:
            return
        session.status = status
        session.updated_at = datetime.now(UTC)
        for run_id in session.training_runs:
            self.end_training_run(self.store.training_run(run_id), status)

    def end_training_run(self, run: TrainingRun, status: Status) -> None:
        """Ends a run; the engine frees it once its current event is done."""
        if run.ended_at is None:
            run.ended_at = datetime.now(UTC)
            run.queue.close()
            task = asyncio.create_task(self._free(run, status))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _free(self, run: TrainingRun, status: Status) -> None:
        await run.queue.drained()
        if run.status is Status.RUNNING:
            self.engine.drop_run(run.id)
        run.status = status
        self.adapters.drop_run(run.id)

    async def sweep_forever(self) -> None:
        """Frees, every few seconds, what expired or was abandoned."""
        while True:
            await asyncio.sleep(self.settings.sweep_every_s)
            try:
                await self.sweep()
            except OSError:
                logger.exception("Expired checkpoints could not be removed")

    async def sweep(self) -> None:
        """One round of `sweep_forever`."""
        now = time.monotonic()
        for session in list(self.store.sessions.values()):
            if session.open and now - session.seen > self.settings.idle_session_s:
                logger.warning("Session %s was silent for too long; its runs are freed", session.id)
                self.close_session(session, Status.ENDED)
            elif not session.open and now - session.seen > self.settings.ended_session_s:
                for run_id in session.training_runs:
                    self.ledger.forget_run(run_id)
                self.store.forget(session.id)
        self.ledger.sweep()
        self.adapters.sweep()
        await asyncio.to_thread(self.checkpoints.purge_expired)


def _shape(lora: LoraSpec) -> tuple[int, bool, bool, bool]:
    return lora.rank, lora.train_mlp, lora.train_attn, lora.train_unembed
