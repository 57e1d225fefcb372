"""`EngineProcess`: the embedded engine as a child process, from start to certain end.

The child is configured through its standard input and lives as long as that pipe is open, so that it also ends when
this process is killed. It runs in a session of its own: an interrupt from the terminal, or a signal to the whole job,
reaches this process alone, which may still want to save.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import retool
from retool.errors import InfrastructureError, UserError

T = TypeVar("T")

LOG_NAME = "engine.log"
_LAST_LINES = 12
_LAST_BYTES = 16_384
_STOP_GRACE_S = 6.0
_NOTICE_DEATH_S = 1.0


class EngineProcess:
    """One engine. Belongs to the event loop in which it was started; `stop` may be called more than once."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, log_offset: int) -> None:
        self._process = process
        self._log = log
        self._log_offset = log_offset
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._stopping = False
        self.ready: Mapping[str, object] = {}
        threading.Thread(target=self._watch, name="retool-engine-watch", daemon=True).start()

    @classmethod
    async def start(cls, *, engine: Mapping[str, object], engine_dir: Path, names: Sequence[str]) -> "EngineProcess":
        """Starts an engine and waits until it serves.

        `engine` holds the arguments of `EngineLoop`. Raises `UserError` for what the engine refuses (an unknown model,
        say) and `InfrastructureError` with its last words if it dies.
        """
        self = cls(*_launch(engine_dir))
        config = {
            "engine": dict(engine),
            "engine_dir": str(engine_dir),
            "names": list(names),
            "parent_pid": os.getpid(),
        }
        try:
            answer = json.loads(await self._converse(json.dumps(config).encode() + b"\n") or b"{}")
        except BaseException:
            await self.stop()
            raise
        if not answer.get("ready"):
            await asyncio.shield(self._ended)
            if "message" in answer:
                raise UserError(str(answer["message"]))
            raise InfrastructureError(self.describe_end())
        self.ready = answer
        return self

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended.done()

    async def guard(self, call: Coroutine[object, object, T]) -> T:
        """Awaits a call to the engine. Raises `InfrastructureError` as soon as the process is gone instead."""
        task = asyncio.ensure_future(call)
        try:
            watched: set[asyncio.Future[T] | asyncio.Future[int]] = {task, self._ended}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise InfrastructureError(self.describe_end())
            return task.result()
        finally:
            task.cancel()

    async def notice_end(self) -> bool:
        """Whether the process is gone, allowing a moment for that to become known."""
        await asyncio.wait({self._ended}, timeout=_NOTICE_DEATH_S)
        return self.ended

    def describe_end(self) -> str:
        """How the process ended, and the last lines it wrote."""
        code = self._ended.result() if self._ended.done() else None
        if code is None:
            how = "is still running"
        elif code < 0:
            name = signal.Signals(-code).name
            how = f"was killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
        else:
            how = f"ended with exit code {code}"
        last = self._last_lines()
        words = "Its last lines:\n" + "\n".join(f"  {line}" for line in last) if last else "It wrote nothing."
        return f"The embedded engine (process {self.pid}) {how}. {words}\nFull log: {self._log}"

    async def stop(self) -> None:
        """Asks the engine to end, and kills it if it does not."""
        with contextlib.suppress(OSError):  # the pipe of a dead process cannot be flushed
            if self._process.stdin is not None:
                self._process.stdin.close()
        await asyncio.wait({self._ended}, timeout=_STOP_GRACE_S)
        if not self.ended:
            self._process.kill()
            await asyncio.shield(self._ended)
        if self._process.stdout is not None:
            self._process.stdout.close()

    async def _converse(self, line: bytes) -> bytes:
        """Sends the configuration and returns the answer, which is empty if the engine died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(line)
            stdin.flush()
        return await asyncio.to_thread(stdout.readline)

    def _watch(self) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._note_end, code)

    def _note_end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _last_lines(self) -> list[str]:
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_offset, size - _LAST_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-_LAST_LINES:]


def _launch(engine_dir: Path) -> "tuple[subprocess.Popen[bytes], Path, int]":
    """The process, its log, and where in the log its lines begin."""
    engine_dir.mkdir(parents=True, exist_ok=True)
    log = engine_dir / LOG_NAME
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "retool.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            env=_environment(),
        )
        return process, log, output.tell()


def _environment() -> dict[str, str]:
    """That of this process without the SDK's keys; a checkout that is not installed is found from any directory."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTRIO_")}
    home = Path(retool.__file__).resolve().parent.parent
    if home.name not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
    return environment
