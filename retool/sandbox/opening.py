"""`open_sandbox`: from configuration keys to a sandbox that is ready."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from retool.errors import UserError
from retool.sandbox.base import Sandbox
from retool.sandbox.config import Backend, SandboxConfig
from retool.sandbox.local.process import EXPOSES, ProcessSandbox
from retool.sandbox.tiers import Trial, probe, refusal, tiers_of

logger = logging.getLogger("retool.sandbox")


class OpenSandbox(Sandbox, Protocol):
    """A sandbox that is ready to run code, and says how it isolates it."""

    @property
    def tier(self) -> str:
        """The kind of isolation that is in use."""
        ...


@asynccontextmanager
async def open_sandbox(
    *,
    backend: str = "auto",
    workers: int | None = None,
    cpu_time_s: float = 10.0,
    wall_time_s: float = 30.0,
    memory_mb: int = 1024,
    output_chars: int = 4096,
    output_hard_bytes: int = 16 * 1024 * 1024,
    scratch_mb: int = 64,
    auto_print: bool = True,
    allow_unsafe: bool = False,
    python: str | None = None,
) -> AsyncIterator[OpenSandbox]:
    """Opens a sandbox for the duration of an `async with`; the keys are those of `SandboxConfig`.

    The best tier that holds against the canaries is used. Where none does, `allow_unsafe` alone leads to the process
    tier, which isolates nothing. Raises `UserError` for a key that cannot work and where no tier holds, and
    `InfrastructureError` if a trial program does not run.
    """
    config = SandboxConfig(
        backend=backend,
        workers=workers,
        cpu_time_s=cpu_time_s,
        wall_time_s=wall_time_s,
        memory_mb=memory_mb,
        output_chars=output_chars,
        output_hard_bytes=output_hard_bytes,
        scratch_mb=scratch_mb,
        auto_print=auto_print,
        allow_unsafe=allow_unsafe,
        python=python,
    )
    async with AsyncExitStack() as stack:
        yield await _choose(config, stack)


async def _choose(config: SandboxConfig, stack: AsyncExitStack) -> OpenSandbox:
    trials: list[Trial] = []
    if config.backend != Backend.PROCESS:
        for tier in tiers_of(config.backend):
            attempt = AsyncExitStack()
            trial, sandbox = await attempt.enter_async_context(probe(config, tier))
            if sandbox is not None:
                stack.push_async_callback(attempt.aclose)
                logger.info("Sandbox: tier %s; all %d canaries held.", trial.tier, len(trial.canaries))
                return sandbox
            await attempt.aclose()
            logger.info("Sandbox: not tier %s: %s", trial.tier, trial.problem)
            trials.append(trial)
    if not config.allow_unsafe:
        if config.backend == Backend.PROCESS:
            raise UserError("sandbox.backend=process isolates nothing; it needs sandbox.allow_unsafe=true as well.")
        raise UserError(refusal(trials))
    logger.warning(
        "The process sandbox limits resources but isolates nothing. It leaves within reach of model code: %s.",
        "; ".join(EXPOSES),
    )
    return await stack.enter_async_context(ProcessSandbox(config))
