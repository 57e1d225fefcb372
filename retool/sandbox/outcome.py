"""From how a program ended to an `ExecutionResult`: `classify_exit`, `make_result`, `infrastructure`."""

import os
import re

from retool.sandbox.base import ExecutionResult, ExecutionStatus
from retool.sandbox.render import render_text

_MEMORY_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*MemoryError(?::.*)?\Z", re.MULTILINE)


def classify_exit(wait_status: int, stderr: str, *, memory_mb: int) -> tuple[ExecutionStatus, int, str]:
    """Status, exit code (minus the signal), and the limit in words, of a program that ended by itself."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code == 0:
        return ExecutionStatus.OK, code, ""
    if code < 0:
        return ExecutionStatus.KILLED, code, ""
    if _MEMORY_ERROR.search(stderr.rstrip("\n").rsplit("\n", 1)[-1]):
        return ExecutionStatus.OUT_OF_MEMORY, code, f"{memory_mb} MB"
    return ExecutionStatus.ERROR, code, ""


def make_result(
    status: ExecutionStatus,
    *,
    stdout: str,
    stderr: str,
    returncode: int | None,
    cpu_seconds: float,
    wall_seconds: float,
    limit: str = "",
) -> ExecutionResult:
    """A result with its text. `limit`: see `render_text`."""
    return ExecutionResult(
        status=status,
        stdout=stdout,
        stderr=stderr,
        returncode=returncode,
        cpu_seconds=cpu_seconds,
        wall_seconds=wall_seconds,
        text=render_text(status, stdout=stdout, stderr=stderr, returncode=returncode, limit=limit),
    )


def infrastructure(problem: str) -> ExecutionResult:
    """The sandbox failed; `problem` says why, in `stderr`."""
    status = ExecutionStatus.INFRASTRUCTURE
    text = render_text(status, stdout="", stderr="")
    return ExecutionResult(
        status=status, stdout="", stderr=problem, returncode=None, cpu_seconds=0.0, wall_seconds=0.0, text=text
    )
