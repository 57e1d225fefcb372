"""One call of the process tier, seen from the trainer: a supervisor process, three pipes, and its end.

`CallRecord`: what came of it. `ProcessCall`: starts the supervisor, drains its pipes on the event loop (no thread, no
polling) and leaves no process and no descriptor behind, whether the call ends, is stopped or is cancelled.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from retool.sandbox.capture import StreamCapture
from retool.sandbox.local import proctree

STARTUP_LIMIT_S = 60.0
"""How long an interpreter may take to start, on a loaded machine with a cold disk."""
BACKSTOP_GRACE_S = 2.5
"""How long after the wall limit the supervisor itself is taken to be stuck."""
_ABANDON_AFTER_S = 10.0
_READ_SIZE = 65536


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The end of a call. `kind` and the figures come from the supervisor's report and are None where it gave none.

    `started`: the code began to run. `overflowed`: it wrote more than the hard limit. `stuck`: the supervisor did not
    end by itself. `supervisor_code`: its exit code.
    """

    started: bool
    overflowed: bool
    stuck: bool
    supervisor_code: int | None
    kind: str | None
    wait_status: int | None
    cpu_seconds: float
    wall_seconds: float
    stdout: str
    stderr: str


class ProcessCall:
    """A single execution. `start`, then `wait`; both on the event loop's thread."""

    def __init__(self, *, wall_time_s: float, output_chars: int, output_hard_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._wall_time_s = wall_time_s
        self._hard_bytes = output_hard_bytes
        self._output_bytes = 0
        self._captures = (StreamCapture(output_chars), StreamCapture(output_chars))
        self._report = b""
        self._pipes: dict[int, Callable[[bytes], None]] = {}
        self._report_fd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun = time.monotonic()
        self._overflowed = False
        self._stuck = False
        self._abandoned = False

    def start(
        self, command: Sequence[str], source: bytes, *, environment: Mapping[str, str], directory: Path, job_dir: Path
    ) -> None:
        """Starts the supervisor. `{report}` in `command` is replaced by its report descriptor. Raises `OSError`."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            job = theirs.enter_context(tempfile.TemporaryFile(dir=job_dir))
            job.write(source)
            job.seek(0)
            reads, writes = [], []
            for _ in range(3):
                read_end, write_end = os.pipe()
                ours.callback(os.close, read_end)
                theirs.callback(os.close, write_end)
                reads.append(read_end)
                writes.append(write_end)
            self._process = subprocess.Popen(
                [part.replace("{report}", str(writes[2])) for part in command],
                stdin=job,
                stdout=writes[0],
                stderr=writes[1],
                pass_fds=(writes[2],),
                cwd=directory,
                env=dict(environment),
                start_new_session=True,
            )
            ours.pop_all()
        self._report_fd = reads[2]
        handlers = (self._captures[0].feed, self._captures[1].feed, self._take_report)
        for descriptor, handler in zip(reads, handlers, strict=True):
            os.set_blocking(descriptor, False)
            self._pipes[descriptor] = handler
            self._loop.add_reader(descriptor, self._read, descriptor)
        self._timer = self._loop.call_later(STARTUP_LIMIT_S, self._give_up_waiting)

    async def wait(self) -> CallRecord:
        """Waits for the end. A cancelled wait ends the program first, and raises `CancelledError` then."""
        cancelled = False
        while not self._done.done():
            try:
                await asyncio.shield(self._done)
            except asyncio.CancelledError:
                if cancelled:
                    self._kill_everything()
                else:
                    self.stop()
                cancelled = True
        record = self._finish()
        if cancelled:
            raise asyncio.CancelledError
        return record

    def stop(self) -> None:
        """Asks the supervisor to end the program now; `wait` returns soon after."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._set_timer(BACKSTOP_GRACE_S)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(descriptor)
            if descriptor == self._report_fd and not self._done.done():
                self._done.set_result(None)
            return
        self._pipes[descriptor](data)
        if descriptor != self._report_fd:
            self._count_output(descriptor, len(data))

    def _count_output(self, descriptor: int, size: int) -> None:
        self._output_bytes += size
        if self._output_bytes > self._hard_bytes and not self._overflowed:
            self._overflowed = True
            for pipe in self._pipes:
                if pipe != self._report_fd:
                    self._loop.remove_reader(pipe)
            self.stop()

    def _take_report(self, data: bytes) -> None:
        first = not self._report
        self._report += data
        if first:
            self._set_timer(self._wall_time_s + BACKSTOP_GRACE_S)

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        """The supervisor neither reports nor ends: it was stopped by the code, or the machine is in trouble."""
        if self._stuck:
            self._abandoned = True
            if not self._done.done():
                self._done.set_result(None)
            return
        self._stuck = True
        self._kill_everything()
        self._timer = self._loop.call_later(_ABANDON_AFTER_S, self._give_up_waiting)

    def _kill_everything(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        for _ in range(20):
            if not proctree.kill_descendants(self._process.pid):
                break
        self._process.kill()

    def _finish(self) -> CallRecord:
        """Takes what is left in the pipes, closes them and reaps the supervisor."""
        if self._timer is not None:
            self._timer.cancel()
        for descriptor in self._pipes:
            self._loop.remove_reader(descriptor)
        if not self._overflowed:
            for descriptor in self._pipes:
                if descriptor != self._report_fd:
                    self._drain(descriptor)
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes.clear()
        for capture in self._captures:
            capture.feed(b"", final=True)
        return self._record()

    def _drain(self, descriptor: int) -> None:
        while self._output_bytes <= self._hard_bytes:
            try:
                data = os.read(descriptor, _READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                return
            self._output_bytes += len(data)
            self._pipes[descriptor](data)
        self._overflowed = True

    def _record(self) -> CallRecord:
        assert self._process is not None
        # A supervisor that has closed its report is at its end; one that resists even SIGKILL is left to the kernel.
        code = self._process.poll() if self._abandoned else self._process.wait()
        started, report = _parse_report(self._report)
        if report is None or code != 0:
            report = _Report(None, None, 0.0, time.monotonic() - self._begun)
        return CallRecord(
            started=started,
            overflowed=self._overflowed,
            stuck=self._stuck,
            supervisor_code=code,
            kind=report.kind,
            wait_status=report.wait_status,
            cpu_seconds=report.cpu_seconds,
            wall_seconds=report.wall_seconds,
            stdout=self._captures[0].text,
            stderr=self._captures[1].text,
        )


class _Report(NamedTuple):
    kind: str | None
    wait_status: int | None
    cpu_seconds: float
    wall_seconds: float


def _parse_report(data: bytes) -> tuple[bool, _Report | None]:
    """Whether the code was started, and the supervisor's last line; None if that is absent or not well formed."""
    lines = data.decode("ascii", "replace").split("\n")
    started = lines[0] == "started"
    fields = lines[1].split() if len(lines) > 1 else []
    if len(fields) != 5 or fields[0] != "ended":
        return started, None
    try:
        return started, _Report(fields[1], int(fields[2]), float(fields[3]), float(fields[4]))
    except ValueError:
        return started, None
