"""Sessions, training runs and sampling runs of a server's life: `Session`, `TrainingRun`, `SamplingRun`, `RunStore`."""

import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from retool.engine.types import LoraSpec
from retool.engine.wire.adapters import SavedWeights
from retool.engine.wire.errors import ApiError
from retool.engine.wire.events import RunQueue


class Status(StrEnum):
    """The state of a session or run."""

    CREATED = "CREATED"
    """Registered; the engine holds nothing for it yet."""
    RUNNING = "RUNNING"
    """In use."""
    ENDED = "ENDED"
    """Closed by its client, or silent for too long."""
    CANCELLED = "CANCELLED"
    """Closed after an interruption."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(eq=False, slots=True)
class Session:
    """One client process. `seen` is when it was last heard of (monotonic seconds)."""

    id: str
    sdk_version: str
    status: Status = Status.RUNNING
    created_at: datetime = field(default_factory=_now)
    updated_at: datetime = field(default_factory=_now)
    seen: float = field(default_factory=time.monotonic)
    training_runs: list[str] = field(default_factory=list)
    sampling_runs: list[str] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether new runs may be created in it."""
        return self.status is Status.RUNNING


@dataclass(eq=False, slots=True)
class TrainingRun:
    """One adapter in training.

    `fault` says why the next optimizer step will not be made, if so: a batch before it failed, so that what has been
    accumulated is not what its client wants to step on.
    """

    id: str
    session_id: str
    index: int
    lora: LoraSpec
    seed: int | None
    source_uri: str
    restore_optimizer: bool
    queue: RunQueue
    status: Status = Status.CREATED
    fault: str | None = None
    created_at: datetime = field(default_factory=_now)
    updated_at: datetime = field(default_factory=_now)
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(eq=False, slots=True)
class SamplingRun:
    """One set of fixed weights to sample from: the base model, temporary weights by address, or saved ones."""

    id: str
    session_id: str
    index: int
    source_uri: str
    weights: str | SavedWeights | None
    created_at: datetime = field(default_factory=_now)


class RunStore:
    """Everything by identifier. Identifiers differ between server starts, so that saved runs never collide."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.training_runs: dict[str, TrainingRun] = {}
        self.sampling_runs: dict[str, SamplingRun] = {}

    def session(self, session_id: str) -> Session:
        """The session. Raises `ApiError` 404."""
        if session_id not in self.sessions:
            raise ApiError(
                404, "service_session_not_found", f"There is no session {session_id}; was the server restarted?"
            )
        return self.sessions[session_id]

    def open_session(self, session_id: str) -> Session:
        """The session, if it is not closed. Raises `ApiError`."""
        session = self.session(session_id)
        if not session.open:
            raise ApiError(409, "service_session_closed", f"Session {session_id} is closed.")
        return session

    def training_run(self, run_id: str) -> TrainingRun:
        """The run. Raises `ApiError` 404."""
        if run_id not in self.training_runs:
            raise ApiError(
                404,
                "training_run_not_found",
                f"There is no training run {run_id}. If the server was restarted, create one from the last checkpoint.",
            )
        return self.training_runs[run_id]

    def sampling_run(self, run_id: str) -> SamplingRun:
        """The run. Raises `ApiError` 404."""
        if run_id not in self.sampling_runs:
            raise ApiError(
                404, "sampling_run_not_found", f"There is no sampling run {run_id}; its session may have been closed."
            )
        return self.sampling_runs[run_id]

    def touch(self, run_id: str) -> None:
        """Notes that the client of a run is alive."""
        run = self.training_runs.get(run_id) or self.sampling_runs.get(run_id)
        if run is not None:
            self.sessions[run.session_id].seen = time.monotonic()

    def forget(self, session_id: str) -> None:
        """Drops a session and its runs."""
        session = self.sessions.pop(session_id)
        for run_id in session.training_runs:
            self.training_runs.pop(run_id, None)
        for run_id in session.sampling_runs:
            self.sampling_runs.pop(run_id, None)


def new_id(kind: str) -> str:
    """An identifier such as `train-20260102-030405-1a2b3c4d`: readable, ordered in time, not repeated."""
    return f"{kind}-{_now():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
