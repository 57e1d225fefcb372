"""Processes that decide symbolic questions and can be killed: the scorer's side.

`WorkerPool`: keeps workers, each started from a thread of its own, and lends them to tasks from any thread.
A question's clock starts when a worker takes it up, never while it waits. A worker that is late, or out of memory, is
killed and replaced. What an answer does to a worker is an outcome; a worker that cannot be started is an
`InfrastructureError`.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TypeVar

import retool
from retool.errors import InfrastructureError
from retool.reward.questions import LOADED, READY, Question, QuestionKind, question_to_line
from retool.reward.verdict import VerdictReason

Result = TypeVar("Result")
Ask = Callable[[Question], str]

_BOOTSTRAP = """\
import sys
from types import ModuleType
root, memory, cpu, owner = sys.argv[1:]
for name in ("retool", "retool.reward"):
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [root + name.removeprefix("retool").replace(".", "/")]
from retool.reward.symbolic import main
main(int(memory), float(cpu), int(owner))
"""
_STARTUP_LIMIT_S = 60.0
_START_ATTEMPTS = 3
_RECYCLE_AFTER = 5000
_BUSY_MACHINE_FACTOR = 5
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR", "SYSTEMROOT")


class WorkerPool:
    """`count` workers of at most `memory_mb` MiB each, that get `time_limit_s` for a question.

    Safe to use from any thread. A forked child that uses it gets workers of its own.
    """

    def __init__(self, count: int, *, time_limit_s: float, memory_mb: int) -> None:
        self._settings = (count, time_limit_s, memory_mb)
        self._reset()

    def _reset(self) -> None:
        count, time_limit_s, memory_mb = self._settings
        self._pid = os.getpid()
        self._closed = False
        self._workers = [_Worker(time_limit_s, memory_mb) for _ in range(count)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        # The threads outlive their tasks, and with that the workers: a worker ends when its starting thread does.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="retool-scorer")
        self._finalizer = weakref.finalize(self, _end_workers, self._workers, self._pid)

    def run(self, task: Callable[[Ask], Result]) -> Future[Result]:
        """Calls `task` in a thread, with a function that puts a question to a worker. Tasks run in order."""
        if os.getpid() != self._pid:
            self._finalizer.detach()
            self._reset()
        if self._closed:
            raise InfrastructureError("The scorer is closed.")
        return self._threads.submit(self._lend, task)

    def close(self) -> None:
        """Ends the workers. Tasks that are running or waiting fail."""
        if os.getpid() == self._pid and not self._closed:
            self._closed = True
            for worker in self._workers:
                worker.retire()
            self._threads.shutdown(cancel_futures=True)
            self._finalizer()

    def _lend(self, task: Callable[[Ask], Result]) -> Result:
        worker = self._free.get()
        try:
            return task(worker.ask)
        finally:
            self._free.put(worker)


def _end_workers(workers: list["_Worker"], pid: int) -> None:
    if os.getpid() == pid:
        for worker in workers:
            worker.kill()


class _WorkerGoneError(Exception):
    """The worker ended for reasons that have nothing to do with a question."""


class _Worker:
    """One process, used by one thread at a time."""

    def __init__(self, time_limit_s: float, memory_mb: int) -> None:
        self._time_limit_s = time_limit_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._ready = False
        self._loaded = False
        self._answered = 0
        self._pending = b""
        self._retired = False

    def ask(self, question: Question) -> str:
        """The outcome of a question. Raises `InfrastructureError` if no worker can be started."""
        for _ in range(_START_ATTEMPTS):
            self._make_ready()
            try:
                outcome = self._put(question)
            except _WorkerGoneError:
                self.kill()
                continue
            self._answered += 1
            if self._retired:
                raise InfrastructureError("The scorer was closed before the answer was decided.")
            if outcome in _FATAL or self._answered >= _RECYCLE_AFTER:
                self.kill()
                # The next question waits for this one to be ready; if it cannot start, that question says so.
                with contextlib.suppress(InfrastructureError):
                    self._start()
            return outcome
        raise InfrastructureError("The symbolic worker keeps disappearing before it has answered.")

    def retire(self) -> None:
        """Ends the process for good. From any thread: the one that uses the worker cleans up after it."""
        self._retired = True
        process = self._process
        if process is not None:
            process.kill()

    def kill(self) -> None:
        """Ends the process, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _start(self) -> None:
        """Starts a process, without waiting for it."""
        if self._retired:
            raise InfrastructureError("The scorer is closed.")
        self._ready, self._loaded, self._answered, self._pending = False, False, 0, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in kill)
        arguments = [
            str(Path(retool.__file__).parent),
            str(self._memory_mb << 20),
            str(self._time_limit_s * _BUSY_MACHINE_FACTOR),
            str(os.getpid()),
        ]
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-c", _BOOTSTRAP, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment | {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(f"The symbolic worker cannot be started: {error}") from error

    def _make_ready(self) -> None:
        """Waits until a process is ready for questions; starts one if there is none or it has ended."""
        problem = ""
        for _ in range(_START_ATTEMPTS):
            if self._process is not None and self._process.poll() is not None:
                self.kill()
            if self._process is None:
                self._start()
            if self._ready or self._read_line(time.monotonic() + _STARTUP_LIMIT_S) == READY:
                self._ready = True
                return
            problem = self._last_words()
            self.kill()
        raise InfrastructureError(f"The symbolic worker does not start with {sys.executable}: {problem}")

    def _put(self, question: Question) -> str:
        process = self._process
        if process is None or process.stdin is None:
            raise _WorkerGoneError
        cpu_before = self._cpu_seconds()
        begun = time.monotonic()
        try:
            process.stdin.write(question_to_line(question).encode())
            process.stdin.flush()
        except OSError:
            raise _WorkerGoneError from None
        if question.kind is QuestionKind.LIBRARY and not self._loaded:
            if self._read_line(begun + _STARTUP_LIMIT_S) != LOADED:
                raise _WorkerGoneError
            self._loaded = True
            cpu_before, begun = self._cpu_seconds(), time.monotonic()
        return self._wait_for_outcome(process, cpu_before, begun)

    def _wait_for_outcome(self, process: subprocess.Popen[bytes], cpu_before: float, begun: float) -> str:
        deadline = begun + self._time_limit_s
        while True:
            outcome = self._read_line(deadline)
            if outcome is not None:
                return outcome
            code = process.poll()
            if code is not None:
                return self._explain(code)
            # On a busy machine the worker may not have had its time yet; the answer must not pay for that.
            missing = self._time_limit_s - (self._cpu_seconds() - cpu_before)
            now = time.monotonic()
            if missing < 0.01 or now >= begun + _BUSY_MACHINE_FACTOR * self._time_limit_s:
                return VerdictReason.TIMEOUT
            deadline = min(now + missing, begun + _BUSY_MACHINE_FACTOR * self._time_limit_s)

    def _explain(self, code: int) -> str:
        if code == -signal.SIGHUP:
            raise _WorkerGoneError
        return VerdictReason.TIMEOUT if code == -signal.SIGXCPU else VerdictReason.WORKER_DIED

    def _read_line(self, deadline: float) -> str | None:
        """The next line of the process; None at the deadline or at its end."""
        process = self._process
        if process is None or process.stdout is None:
            return None
        descriptor = process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._pending:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                return None
            data = os.read(descriptor, 4096)
            if not data:
                process.wait()
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def _cpu_seconds(self) -> float:
        assert self._process is not None
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:
            return float("inf")
        fields = stat[stat.rindex(b")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace").strip() or "it ended without a word"


_FATAL = frozenset((VerdictReason.TIMEOUT, VerdictReason.OUT_OF_MEMORY, VerdictReason.WORKER_DIED))
