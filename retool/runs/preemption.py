"""Signals that ask a run to leave (Slurm's warnings, a plain kill), put off until a step is complete and saved.

Contents: `Preemption`, `Preempted`. Inside submitit a handler for `SIGUSR2` exists that requeues the job: it is called
once the state is saved and everything is closed. submitit ignores `SIGTERM`, so there the state is saved and the run
goes on until it is killed. Elsewhere the signal's default action, the end of the process, follows.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TypeVar

T = TypeVar("T")

_LOOK_S = 0.2
_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], object] | int | None


class Preempted(BaseException):
    """Unwinds a run whose state is saved. Not an `Exception`, so that no error handling takes it for a failure."""


@dataclass(frozen=True, slots=True)
class _Pending:
    signum: int
    frame: FrameType | None


class Preemption:
    """Collects the signals while it is entered. Only the main thread can; elsewhere nothing is ever requested."""

    def __init__(self) -> None:
        self._previous: dict[int, Handler] = {}
        self._pending: _Pending | None = None

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)

    @property
    def requested(self) -> bool:
        """A signal waits: save the state at the next step boundary, then call `checkpointed`."""
        return self._pending is not None

    @property
    def must_leave(self) -> bool:
        """The waiting signal ends the run, so that nothing long should be begun."""
        return self._pending is not None and not self._is_ignored(self._pending.signum)

    def checkpointed(self) -> None:
        """The state is saved. Raises `Preempted` if the run has to leave; otherwise the request is settled."""
        if self.must_leave:
            raise Preempted
        if self._pending is not None:
            self._call_previous(self._pending)
            self._pending = None

    async def unless_leaving(self, work: Coroutine[object, object, T]) -> T:
        """Awaits `work`, but cancels it and raises `Preempted` as soon as the run has to leave."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_LOOK_S)
                if self.must_leave and not task.done():
                    raise Preempted
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def hand_over(self) -> None:
        """Lets the waiting signal do what it would have done, once everything is closed. It may end the process."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        if not self._call_previous(pending):
            signal.signal(pending.signum, signal.SIG_DFL)
            os.kill(os.getpid(), pending.signum)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._pending is None or self._is_ignored(self._pending.signum):
            self._pending = _Pending(signum, frame)

    def _is_ignored(self, signum: int) -> bool:
        """submitit's own handler for SIGTERM does nothing."""
        return signum == signal.SIGTERM and callable(self._previous.get(signum))

    def _call_previous(self, pending: _Pending) -> bool:
        handler = self._previous.get(pending.signum)
        if not callable(handler):
            return False
        handler(pending.signum, pending.frame)
        return True
