"""The process tier: a fresh interpreter a call, limits, an empty environment. It is no isolation.

`ProcessSandbox`: the pool. `PROTECTS`, `EXPOSES`: what it keeps from model code and what it does not, in words.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Self

import retool
from retool.errors import InfrastructureError
from retool.sandbox.base import ExecutionResult, ExecutionStatus
from retool.sandbox.bootstrap import BOOTSTRAP
from retool.sandbox.config import SandboxConfig, check_time_limit
from retool.sandbox.local.call import CallRecord, ProcessCall
from retool.sandbox.local.proctree import count_own_threads
from retool.sandbox.metrics import SandboxMetrics
from retool.sandbox.outcome import classify_exit, infrastructure, make_result

PROTECTS = (
    "credentials in the environment: model code starts with an empty one",
    "state: each call has a new interpreter and a new scratch directory, removed afterwards",
    "the machine's resources, per process: CPU time, memory, file size, open files; wall time and output per call",
    "leftovers: everything that a call started ends with it, and with the trainer",
)
EXPOSES = (
    "files: model code runs as the user and can read and change whatever the user can",
    "the network",
    "other processes of the user, the trainer included: signals, and as a rule their memory and environment in /proc",
    "totals: several processes of one call can each use the full memory limit, and files fill the disk",
)

_SUPERVISOR = "retool.sandbox.local.supervisor"
_RETRY_DELAYS_S = (0.05, 0.25, 1.0)
_SPARE_PROCESSES = 512


class ProcessSandbox:
    """Runs up to `config.concurrency` calls at once, in the order in which they were asked for.

    Use it as an async context manager, on one event loop. Entering runs a canary and raises `InfrastructureError`
    if that fails; leaving ends the calls that still run.
    """

    tier = "process"
    """The name of this kind of isolation."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._slots = asyncio.Semaphore(config.concurrency)
        self._metrics = SandboxMetrics(self.tier)
        self._calls: set[ProcessCall] = set()
        self._names = count()
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._directory = Path()
        self._process_limit = 0 if os.geteuid() == 0 else count_own_threads() + _SPARE_PROCESSES

    async def __aenter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="retool-sandbox-"))
        try:
            await self._run_canary()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all calls, waits until they are gone, and removes the scratch directories."""
        self._closed = True
        for call in self._calls:
            call.stop()
        await self._idle.wait()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def run(
        self, code: str, cpu_time_s: float | None = None, wall_time_s: float | None = None
    ) -> ExecutionResult:
        """Runs `code` in a fresh interpreter. Time in the queue counts towards no limit. See `Sandbox.run`."""
        cpu = check_time_limit("cpu_time_s", cpu_time_s, self._config.cpu_time_s)
        wall = check_time_limit("wall_time_s", wall_time_s, self._config.wall_time_s)
        asked = time.monotonic()
        async with self._slots:
            begun = time.monotonic()
            result = await self._run_with_retries(code.encode("utf-8", "surrogatepass"), cpu, wall)
            self._metrics.add(result.status, latency_s=time.monotonic() - begun, queued_s=begun - asked)
            return result

    def metrics(self) -> Mapping[str, float]:
        """See `Sandbox.metrics`."""
        return self._metrics.take()

    async def _run_canary(self) -> None:
        """Runs a trial program. It may write bytecode, so that no later call has to compile the supervisor."""
        limits = (self._config.cpu_time_s, self._config.wall_time_s)
        result = await self._run_with_retries(b"print(1 + 1)", *limits, write_bytecode=True)
        if result.status is not ExecutionStatus.OK or result.stdout != "2\n":
            raise InfrastructureError(
                f"The sandbox cannot run print(1 + 1) with {self._config.interpreter} "
                f"(status {result.status}): {(result.stderr or result.stdout or result.text).strip()}"
            )

    async def _run_with_retries(
        self, source: bytes, cpu: float, wall: float, *, write_bytecode: bool = False
    ) -> ExecutionResult:
        """Starts the call again as long as its code has not begun to run; past that nothing is run twice."""
        command = self._command(cpu, wall, write_bytecode=write_bytecode)
        problem = ""
        for delay in (*_RETRY_DELAYS_S, None):
            if self._closed:
                return infrastructure("the sandbox is closed")
            try:
                record = await self._run_once(command, source, wall)
            except OSError as error:
                problem = f"cannot start {self._config.interpreter}: {error}"
            else:
                if record.started:
                    return self._result(record, cpu, wall)
                problem = record.stderr.strip() or f"the interpreter ended with exit code {record.supervisor_code}"
            if delay is not None:
                await asyncio.sleep(delay)
        return infrastructure(problem)

    async def _run_once(self, command: list[str], source: bytes, wall: float) -> CallRecord:
        scratch = self._directory / f"call-{next(self._names)}"
        scratch.mkdir(mode=0o700)
        call = ProcessCall(
            wall_time_s=wall,
            output_chars=self._config.output_chars,
            output_hard_bytes=self._config.output_hard_bytes,
        )
        self._calls.add(call)
        self._idle.clear()
        try:
            call.start(
                command,
                source,
                environment=_environment(scratch),
                directory=scratch,
                job_dir=self._directory,
            )
            return await call.wait()
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()
            if scratch.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True))

    def _command(self, cpu: float, wall: float, *, write_bytecode: bool) -> list[str]:
        config = self._config
        settings = {
            "owner": os.getpid(),
            "cpu": cpu,
            "wall": wall,
            "memory": config.memory_mb << 20,
            "file": config.scratch_mb << 20,
            "processes": self._process_limit,
            "auto_print": int(config.auto_print),
        }
        arguments = [f"{name}={value}" for name, value in settings.items()]
        root = str(Path(retool.__file__).parent)
        flags = ["-s"] if write_bytecode else ["-s", "-B"]
        return [config.interpreter, *flags, "-c", BOOTSTRAP, root, _SUPERVISOR, *arguments, "report={report}"]

    def _result(self, record: CallRecord, cpu: float, wall: float) -> ExecutionResult:
        status, returncode, limit = self._classify(record, cpu, wall)
        if status is ExecutionStatus.INFRASTRUCTURE:
            return infrastructure("the sandbox was closed during the call")
        return make_result(
            status,
            stdout=record.stdout,
            stderr=record.stderr,
            returncode=returncode,
            cpu_seconds=record.cpu_seconds,
            wall_seconds=record.wall_seconds,
            limit=limit,
        )

    def _classify(self, record: CallRecord, cpu: float, wall: float) -> tuple[ExecutionStatus, int | None, str]:
        """Status, exit code (minus the signal; None where the sandbox ended the program), and the limit in words."""
        if record.overflowed:
            return ExecutionStatus.OUTPUT_LIMIT, None, f"{self._config.output_hard_bytes} bytes"
        if record.kind == "cpu":
            return ExecutionStatus.TIMEOUT, None, f"{cpu:g} s of CPU time"
        if record.kind == "wall" or record.stuck:
            return ExecutionStatus.TIMEOUT, None, f"{wall:g} s"
        if self._closed and record.kind != "exit":
            return ExecutionStatus.INFRASTRUCTURE, None, ""
        if record.kind != "exit" or record.wait_status is None:
            # Nothing but the code itself ends or stops its supervisor.
            return ExecutionStatus.KILLED, record.supervisor_code, ""
        return classify_exit(record.wait_status, record.stderr, memory_mb=self._config.memory_mb)


def _environment(scratch: Path) -> dict[str, str]:
    """All that model code finds in its environment. One thread a call in numerical libraries; fixed hash seed."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
