"""The warm sandbox: two fork servers, a light one and one with the mathematical packages, and a place in the queue.

`WarmSandbox`: the pool.
"""

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from retool.errors import InfrastructureError
from retool.sandbox.base import ExecutionResult, ExecutionStatus
from retool.sandbox.config import SandboxConfig, check_time_limit
from retool.sandbox.local.proctree import count_own_threads
from retool.sandbox.metrics import SandboxMetrics
from retool.sandbox.outcome import classify_exit, infrastructure, make_result
from retool.sandbox.warm import settings
from retool.sandbox.warm.call import Child, Ending, WarmCall
from retool.sandbox.warm.client import ForkServer
from retool.sandbox.warm.settings import Settings

TIERS = {"namespace-root": settings.ROOT, "namespace-user": settings.USER, "landlock": settings.LANDLOCK}
"""The names of the tiers and their kinds of isolation, best first."""

_HEAVY = re.compile(r"\b(?:numpy|sympy|mpmath|scipy|pandas|networkx)\b")
_ATTEMPTS = 4
_BACKSTOP_GRACE_S = 5.0
_SPARE_MEMORY = 512 << 20
_SPARE_PROCESSES = 64


class WarmSandbox:
    """Runs up to `config.concurrency` calls at once, in the order in which they were asked for.

    Use it as an async context manager, on one event loop. Entering raises `InfrastructureError` where the tier does
    not work. No cost of a call is a thread's: one waiting call is one coroutine.
    """

    def __init__(self, config: SandboxConfig, tier: str) -> None:
        self.tier = tier
        self._config = config
        self._slots = asyncio.Semaphore(config.concurrency)
        self._metrics = SandboxMetrics(tier)
        self._directory = Path()
        self._servers: dict[bool, ForkServer] = {}
        self._restarting = asyncio.Lock()
        self._closed = False
        self.process_limit = config.processes
        """How many processes and threads a call may have. Without namespaces, all that the user has count."""
        if TIERS[tier] == settings.LANDLOCK:
            self.process_limit += count_own_threads() + _SPARE_PROCESSES

    async def __aenter__(self) -> Self:
        if TIERS[self.tier] == settings.LANDLOCK:
            self._directory = Path(tempfile.mkdtemp(prefix="retool-sandbox-"))
        self._servers = {heavy: self._server(heavy) for heavy in (False, True)}
        starts = [asyncio.ensure_future(server.start()) for server in self._servers.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            await asyncio.wait(starts)
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all calls and waits until nothing of them is left."""
        self._closed = True
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))
        if self._directory != Path():
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def run(
        self, code: str, cpu_time_s: float | None = None, wall_time_s: float | None = None
    ) -> ExecutionResult:
        """Runs `code` in a fresh child. Time in the queue counts towards no limit. See `Sandbox.run`."""
        cpu = check_time_limit("cpu_time_s", cpu_time_s, self._config.cpu_time_s)
        wall = check_time_limit("wall_time_s", wall_time_s, self._config.wall_time_s)
        source = code.encode("utf-8", "surrogatepass")
        asked = time.monotonic()
        async with self._slots:
            begun = time.monotonic()
            result = await self._run_with_retries(source, _HEAVY.search(code) is not None, cpu, wall)
            self._metrics.add(result.status, latency_s=time.monotonic() - begun, queued_s=begun - asked)
            return result

    def metrics(self) -> Mapping[str, float]:
        """See `Sandbox.metrics`."""
        return self._metrics.take()

    async def _run_with_retries(self, source: bytes, heavy: bool, cpu: float, wall: float) -> ExecutionResult:
        """Starts the call again as long as its code cannot have begun to run; past that nothing is run twice."""
        problem = ""
        for _ in range(_ATTEMPTS):
            if self._closed:
                return infrastructure("the sandbox is closed")
            try:
                server = await self._living_server(heavy)
                child = await server.take()
            except InfrastructureError as error:
                problem = str(error)
                await asyncio.sleep(0.05)
                continue
            result, problem = await self._run_once(server, child, source, cpu, wall)
            if result is not None:
                return result
        return infrastructure(problem)

    async def _run_once(
        self, server: ForkServer, child: Child, source: bytes, cpu: float, wall: float
    ) -> tuple[ExecutionResult | None, str]:
        """The result, or why there is none though the code has not run."""
        call = WarmCall(
            child,
            output_chars=self._config.output_chars,
            output_hard_bytes=self._config.output_hard_bytes,
            stop=lambda: server.tell(f"kill {child.number}"),
        )
        server.begin(call, child, cpu, wall)
        try:
            await call.send(source, auto_print=self._config.auto_print, cpu_time_s=cpu)
            async with asyncio.timeout(wall + _BACKSTOP_GRACE_S):
                ending = await asyncio.shield(call.ended)
            if child.number in server.busy:
                server.tell(f"done {child.number}")
        except TimeoutError:
            ending = await self._stop(server, child, call)
            ending = Ending("wall", 0, ending.cpu_seconds, wall)
        except asyncio.CancelledError:
            await self._stop(server, child, call)
            call.finish()
            raise
        stdout, stderr = call.finish()
        if ending.failure or (ending.kind == "lost" and not call.ready):
            return None, ending.failure or "the fork server has ended"
        return self._result(ending, call, stdout, stderr, cpu, wall), ""

    async def _stop(self, server: ForkServer, child: Child, call: WarmCall) -> Ending:
        """Ends the call now and waits until its processes are gone."""
        server.tell(f"kill {child.number}")
        try:
            async with asyncio.timeout(_BACKSTOP_GRACE_S):
                return await asyncio.shield(call.ended)
        except TimeoutError:
            # The fork server itself is stuck. Whatever it runs ends with it.
            await server.aclose()
            return Ending("lost", 0, 0.0, 0.0)

    def _result(
        self, ending: Ending, call: WarmCall, stdout: str, stderr: str, cpu: float, wall: float
    ) -> ExecutionResult:
        config = self._config
        status, returncode, limit = ExecutionStatus.OK, None, ""
        if call.overflowed:
            status, limit = ExecutionStatus.OUTPUT_LIMIT, f"{config.output_hard_bytes} bytes"
        elif ending.kind == "cpu":
            status, limit = ExecutionStatus.TIMEOUT, f"{cpu:g} s of CPU time"
        elif ending.kind == "wall":
            status, limit = ExecutionStatus.TIMEOUT, f"{wall:g} s"
        elif ending.kind == "memory":
            status, limit = ExecutionStatus.OUT_OF_MEMORY, f"{config.memory_mb} MB"
        elif ending.kind != "exit":
            return infrastructure("the sandbox was closed or lost during the call")
        else:
            status, returncode, limit = classify_exit(ending.status, stderr, memory_mb=config.memory_mb)
        return make_result(
            status,
            stdout=stdout,
            stderr=stderr,
            returncode=returncode,
            cpu_seconds=ending.cpu_seconds,
            wall_seconds=ending.wall_seconds,
            limit=limit,
        )

    async def _living_server(self, heavy: bool) -> ForkServer:
        server = self._servers[heavy]
        if server.alive:
            return server
        async with self._restarting:
            server = self._servers[heavy]
            if not server.alive and not self._closed:
                await server.aclose()
                server = self._servers[heavy] = self._server(heavy)
                await server.start()
        return server

    def _server(self, heavy: bool) -> ForkServer:
        config, isolation = self._config, TIERS[self.tier]
        memory = config.memory_mb << 20
        directory = ""
        if isolation == settings.LANDLOCK:
            directory = str(self._directory / ("heavy" if heavy else "light"))
            Path(directory).mkdir(mode=0o700, exist_ok=True)
        given = Settings(
            isolation=isolation,
            control=-1,
            owner=os.getpid(),
            memory=memory,
            total_memory=config.concurrency * memory + _SPARE_MEMORY,
            scratch=config.scratch_mb << 20,
            scratch_inodes=config.scratch_inodes,
            processes=self.process_limit,
            open_files=config.open_files,
            idle=config.idle_children,
            auto_print=config.auto_print,
            preload=("numpy", "mpmath", "sympy") if heavy else (),
            warm_up=True,
            directory=directory,
        )
        return ForkServer(config.interpreter, given)
