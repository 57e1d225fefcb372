"""What a sandbox may be told. `SandboxConfig`: the keys of the `sandbox` group, checked."""

import math
import os
import shutil
import sys
from dataclasses import dataclass, fields
from enum import StrEnum

from retool.errors import UserError


class Backend(StrEnum):
    """Where model code runs."""

    AUTO = "auto"
    """The best isolation that this machine offers."""
    NAMESPACE = "namespace"
    """Warm interpreters in namespaces of their own, made by root or within a user namespace."""
    LANDLOCK = "landlock"
    """Warm interpreters behind Landlock and seccomp, without namespaces."""
    PROCESS = "process"
    """A fresh interpreter a call with resource limits and an empty environment. Not an isolation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxConfig:
    """Keys of a sandbox. Raises `UserError` for a value that cannot work.

    Times are in seconds, `memory_mb` and `scratch_mb` in MiB. `workers`: calls that run at once, None means one a
    CPU. `memory_mb`: per process, above what the interpreter itself uses. `scratch_mb`: the largest file.
    `output_chars`: of each stream, what is kept (beginning and end). `output_hard_bytes`: output of both streams
    after which the program is stopped. `auto_print`: show the value of a last expression. `allow_unsafe`: do not
    warn that the backend is no isolation. `python`: the interpreter for model code, None means this one.
    """

    backend: str = Backend.AUTO
    workers: int | None = None
    cpu_time_s: float = 10.0
    wall_time_s: float = 30.0
    memory_mb: int = 1024
    output_chars: int = 4096
    output_hard_bytes: int = 16 * 1024 * 1024
    scratch_mb: int = 64
    auto_print: bool = True
    allow_unsafe: bool = False
    python: str | None = None
    scratch_inodes: int = 4096
    processes: int = 32
    open_files: int = 128
    idle_children: int = 6

    def __post_init__(self) -> None:
        if self.backend not in list(Backend):
            raise UserError(f"sandbox.backend={self.backend!r} does not exist; choose one of {', '.join(Backend)}.")
        if self.python is not None and shutil.which(self.python) is None:
            raise UserError(
                f"sandbox.python={self.python!r} is no program that can be run; give an interpreter's path."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not math.isfinite(value) or value <= 0:
                raise UserError(f"sandbox.{field.name}={value!r} must be a number greater than 0.")

    @property
    def concurrency(self) -> int:
        """The number of calls that run at once."""
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def interpreter(self) -> str:
        """The path of the interpreter for model code."""
        return self.python or sys.executable


def check_time_limit(name: str, value: float | None, default: float) -> float:
    """The limit of one call: `value`, or `default` if None. Raises `UserError` unless it is a number above 0."""
    if value is None:
        return default
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"{name}={value!r} must be a number of seconds greater than 0.")
    return value
