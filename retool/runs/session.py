"""The frame around every run: check, directory, lock, resume, status, tracker, and what happens when it ends.

Contents: `open_run` and the `RunSession` that it yields. What a run does inside:

    with open_run(cfg) as session:
        if session.finished is not None:
            return session.finished                  # the directory holds a finished run: its result
        ...                                          # session.resume: what to continue from, or None
        session.completed(step)                      # after each step
        session.tracker.log(step, metrics)
        session.record(result)                       # result.json
        session.finish()                             # status done

Errors end as a status and a message: `UserError` and `InfrastructureError` without a traceback, anything else with one.
A signal to leave ends as `requeued`, and is handed on to submitit or the operating system once all is closed.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool.config import check, schema, typed
from retool.errors import InfrastructureError, UserError
from retool.runs.checkpoint import ResumeState, changed_keys, identity, read_resume_state
from retool.runs.files import JsonObject, read_json, replace_file, write_json
from retool.runs.meta import code_difference, provenance
from retool.runs.preemption import Preempted, Preemption
from retool.runs.run_dir import RunDirectory
from retool.runs.status import RunState, RunStatus, read_status, write_status
from retool.tracking.base import FinishState, Tracker
from retool.tracking.jsonl import cut_jsonl
from retool.tracking.open import RunTracker, open_tracker

logger = logging.getLogger("retool.runs")


@dataclass
class RunSession:
    """One process's hold on a run directory. `finished`: the result of a run that was already complete."""

    cfg: DictConfig
    directory: RunDirectory
    preemption: Preemption
    resume: ResumeState | None = None
    finished: JsonObject | None = None
    step: int = 0
    _tracker: Tracker | None = None

    @property
    def tracker(self) -> Tracker:
        """Where metrics go. Not there for a finished run."""
        if self._tracker is None:
            raise RuntimeError("A finished run has no tracker.")
        return self._tracker

    @property
    def tracker_id(self) -> str | None:
        """What names the run to the mirror of its metrics, so that a continued run continues there."""
        return self._tracker.mirror_id if isinstance(self._tracker, RunTracker) else None

    def completed(self, step: int) -> None:
        """Records in the status that `step` steps are complete."""
        self.step = step
        write_status(self.directory.status, RunStatus(RunState.RUNNING, step))

    def record(self, result: Mapping[str, object]) -> None:
        """Writes `result.json`."""
        write_json(self.directory.result, result)

    def finish(self) -> None:
        """Writes the status `done`. Nothing of the run may be left to do."""
        if self._tracker is not None:
            self._tracker.finish(FinishState.DONE)
        write_status(self.directory.status, RunStatus(RunState.DONE, self.step))


@contextmanager
def open_run(cfg: DictConfig) -> Iterator[RunSession]:
    """Opens the run directory that Hydra chose, or the one that `resume` names.

    Raises `UserError` for a configuration or directory that cannot be used, and in place of every
    `InfrastructureError`, so that Hydra prints the message alone and exits with code 1.
    """
    check(cfg)
    directory = RunDirectory(_run_path(cfg))
    if cfg.resume == "never" and directory.is_used():
        raise UserError(
            f"{directory.path} holds files of another run, and resume=never. Choose another hydra.run.dir, or "
            "resume=auto."
        )
    directory.acquire()
    preemption = Preemption()
    try:
        with preemption:
            session = RunSession(cfg, directory, preemption)
            _inspect(session)
            if session.finished is not None:
                logger.info("%s is finished; its result stands.", directory.path)
                yield session
            else:
                with _ending(session):
                    _begin(session)
                    yield session
    except Preempted:
        logger.warning("Left at a signal with the state saved. To continue: the same command with %s", _hint(directory))
    finally:
        directory.release()
    preemption.hand_over()


def _hint(directory: RunDirectory) -> str:
    return f"hydra.run.dir={directory.path}"


def _run_path(cfg: DictConfig) -> Path:
    from hydra.core.hydra_config import HydraConfig

    if cfg.resume not in ("auto", "never"):
        return Path(cfg.resume)
    if HydraConfig.initialized():
        return Path(HydraConfig.get().runtime.output_dir)
    raise UserError("There is no run directory: start the run with python -m, or set resume=DIRECTORY.")


def _inspect(session: RunSession) -> None:
    """Finds out whether the run is finished, to be continued, or new. Writes nothing: the directory may be refused."""
    directory, cfg = session.directory, session.cfg
    status = read_status(directory.status)
    session.resume = read_resume_state(directory.resume)
    if session.resume is not None:
        _refuse_changes(session.resume.config, cfg, directory)
        session.step = session.resume.next_step
    elif status is not None and "max_steps" not in cfg and directory.config.exists():
        _refuse_changes(_saved_identity(directory), cfg, directory)
    if status is not None and status.state is RunState.DONE and session.step >= cfg.get("max_steps", 0):
        session.finished = read_json(directory.result)


def _begin(session: RunSession) -> None:
    """Writes what a reader needs to know of the run, and removes what it will make again."""
    directory = session.directory
    if session.resume is not None:
        logger.info("Continuing %s at step %d.", directory.path, session.resume.next_step)
    write_status(directory.status, RunStatus(RunState.RUNNING, session.step))
    _write_provenance(directory, session.cfg)
    _cut(directory, session.step)
    session._tracker = _open_tracker(session)


def _saved_identity(directory: RunDirectory) -> JsonObject:
    saved = OmegaConf.load(directory.config)
    return identity(saved) if isinstance(saved, DictConfig) else {}


def _refuse_changes(saved: Mapping[str, object], cfg: DictConfig, directory: RunDirectory) -> None:
    changes = changed_keys(saved, identity(cfg))
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        raise UserError(
            f"{directory.path} was begun with another configuration, so it cannot be continued with this one:\n"
            f"{listed}\nSet these back, or start anew in another hydra.run.dir."
        )


def _write_provenance(directory: RunDirectory, cfg: DictConfig) -> None:
    meta = read_json(directory.meta)
    replace_file(directory.config, OmegaConf.to_yaml(cfg, resolve=True).encode())
    if meta is None:
        write_json(directory.meta, {**provenance(), "continued": []})
        difference = code_difference()
        if difference:
            replace_file(directory.code_diff, difference.encode(errors="replace"))
    else:
        continued = meta.get("continued")
        earlier = continued if isinstance(continued, list) else []
        write_json(directory.meta, {**meta, "continued": [*earlier, provenance()]})


def _cut(directory: RunDirectory, step: int) -> None:
    """Removes what was recorded after the state that the run continues from: it will be made again."""
    cut_jsonl(directory.metrics, step)
    directory.cut_trajectories(step)


def _open_tracker(session: RunSession) -> RunTracker:
    directory, settings = session.directory, typed(session.cfg.tracker, schema.Tracker).swanlab
    config = OmegaConf.to_container(session.cfg, resolve=True)
    assert isinstance(config, dict)
    return open_tracker(
        directory.path,
        **asdict(settings),
        name=f"{session.cfg.name}-{directory.path.name}",
        config={str(key): value for key, value in config.items()},
        mirror_id=None if session.resume is None else session.resume.tracker_id,
    )


@contextmanager
def _ending(session: RunSession) -> Iterator[None]:
    """Turns the way in which the body ends into a status, a finished tracker and a message."""
    try:
        yield
    except Preempted:
        _end(session, RunState.REQUEUED, FinishState.REQUEUED, None)
        raise
    except UserError as error:
        _end(session, RunState.FAILED, FinishState.FAILED, str(error))
        raise
    except InfrastructureError as error:
        _end(session, RunState.FAILED, FinishState.FAILED, str(error))
        raise UserError(
            f"The run stopped after {session.step} steps: {error}\n"
            f"To continue from its last saved state: the same command with {_hint(session.directory)}"
        ) from error
    except BaseException as error:
        message = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        _end(session, RunState.FAILED, FinishState.FAILED, message)
        raise


def _end(session: RunSession, state: RunState, finish: FinishState, error: str | None) -> None:
    """Best effort: the error that ended the run must not be replaced by one about a full disk."""
    try:
        write_status(session.directory.status, RunStatus(state, session.step, error))
        if session._tracker is not None:
            session._tracker.finish(finish, error)
    except OSError as failure:
        logger.error("The status of %s could not be written: %s", session.directory.path, failure)
