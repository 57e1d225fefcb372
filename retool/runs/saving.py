"""Saving a training run so that it can be continued, and named checkpoints that can be used elsewhere.

Contents: `CheckpointClient` (what it needs of a policy client), `StateKeeper`.
"""

import logging
import shutil
from typing import Protocol

from retool.config import schema
from retool.runs.checkpoint import (
    Checkpoint,
    ResumeState,
    append_checkpoint,
    identity,
    identity_hash,
    read_checkpoints,
    write_resume_state,
)
from retool.runs.cost import Tokens
from retool.runs.references import engine_checkpoint
from retool.runs.session import RunSession

logger = logging.getLogger("retool.runs")


class CheckpointClient(Protocol):
    """The part of a policy client that saves."""

    async def save_state(self, name: str) -> str:
        """Saves weights and optimizer; returns the address."""
        ...

    async def save_weights(self, name: str) -> str:
        """Saves weights for sampling; returns the address."""
        ...


class StateKeeper:
    """Saves at step boundaries, in an order that a crash anywhere survives: weights first, then the file that names
    them, and only then is an older state deleted. States to continue from take turns in one more name than are kept,
    so that a service which offers no deletion holds no more of them either.
    """

    def __init__(self, session: RunSession, client: CheckpointClient, settings: schema.Checkpoint) -> None:
        self._session = session
        self._client = client
        self._settings = settings
        self._config = identity(session.cfg)
        self._retained = list(session.resume.retained) if session.resume is not None else []
        self._saves = 0
        self._saved_step = session.resume.next_step if session.resume is not None else 0

    def due(self, next_step: int, last_step: int) -> bool:
        """Whether a state is to be saved before step `next_step`."""
        return self.named(next_step, last_step) or next_step % self._settings.resume_every == 0

    def named(self, next_step: int, last_step: int) -> bool:
        """Whether a named checkpoint is to be saved before step `next_step`; the end of the run always is."""
        return next_step > 0 and (next_step == last_step or next_step % self._settings.every == 0)

    async def save(self, *, next_step: int, cursor: int, spent: Tokens, named: bool) -> None:
        """Saves what step `next_step` continues from, unless that is saved already."""
        directory = self._session.directory
        if next_step == self._saved_step and not (named and self._lacks(next_step)):
            return
        name = f"step-{next_step:04d}" if named else f"resume-{self._saves % (self._settings.keep + 1)}"
        state = await self._client.save_state(name)
        self._saves += 1
        if named:
            weights = await self._client.save_weights(name)
            append_checkpoint(directory.checkpoints, Checkpoint(name, next_step, state, weights))
        retained, dropped = self._retain(state)
        write_resume_state(
            directory.resume,
            ResumeState(
                uri=state,
                next_step=next_step,
                cursor=cursor,
                config_hash=identity_hash(self._config),
                config=self._config,
                tracker_id=self._session.tracker_id,
                spent=spent.counts(),
                retained=tuple(retained),
            ),
        )
        self._retained, self._saved_step = retained, next_step
        for uri in dropped:
            self._delete(uri)

    def _lacks(self, step: int) -> bool:
        return all(checkpoint.step != step for checkpoint in read_checkpoints(self._session.directory.checkpoints))

    def _retain(self, newest: str) -> tuple[list[str], list[str]]:
        """The states to keep and those to delete; the state of a named checkpoint is never deleted."""
        states = [uri for uri in self._retained if uri != newest] + [newest]
        keep = states[-self._settings.keep :]
        protected = {checkpoint.state for checkpoint in read_checkpoints(self._session.directory.checkpoints)}
        return keep, [uri for uri in states[: -self._settings.keep] if uri not in protected]

    def _delete(self, uri: str) -> None:
        """Removes a state of the embedded engine. Those of the service expire by its own rules."""
        directory = engine_checkpoint(self._session.directory.engine, uri)
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("An old training state could not be deleted: %s", error)
