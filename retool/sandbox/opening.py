"""`open_sandbox`: from configuration keys to a sandbox that is ready."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from retool.errors import UserError
from retool.sandbox.base import Sandbox
from retool.sandbox.config import Backend, SandboxConfig
from retool.sandbox.local.process import EXPOSES, ProcessSandbox

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
    backend: str = "process",
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

    Raises `UserError` for a key that cannot work, and `InfrastructureError` if a trial program does not run.
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
    if config.backend not in (Backend.AUTO, Backend.PROCESS):
        raise UserError(
            f"sandbox.backend={backend!r} cannot be opened; choose one of {Backend.AUTO}, {Backend.PROCESS}."
        )
    if not config.allow_unsafe:
        logger.warning(
            "The process sandbox limits resources but isolates nothing. It leaves within reach of model code: %s. "
            "Set sandbox.allow_unsafe=true to accept that.",
            "; ".join(EXPOSES),
        )
    async with ProcessSandbox(config) as sandbox:
        yield sandbox
