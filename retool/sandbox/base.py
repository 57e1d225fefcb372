"""What a sandbox is: it runs a piece of model-written code and says what happened, in words for the model too."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ExecutionStatus(StrEnum):
    """How one execution ended. All but `infrastructure` are the code's own doing."""

    OK = "ok"
    """The program ended with exit code 0."""
    ERROR = "error"
    """An uncaught exception or a non-zero exit code."""
    TIMEOUT = "timeout"
    """The CPU or wall time limit was reached; partial output is kept."""
    OUT_OF_MEMORY = "out_of_memory"
    """The memory limit was reached."""
    OUTPUT_LIMIT = "output_limit"
    """The program wrote more than the hard output limit and was stopped."""
    KILLED = "killed"
    """The program was ended by a signal, such as a segmentation fault."""
    INFRASTRUCTURE = "infrastructure"
    """The sandbox itself failed. Never shown to the model as its own mistake; the trajectory is masked."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The outcome of one execution. `text` is exactly what the model is shown."""

    status: ExecutionStatus
    stdout: str
    stderr: str
    returncode: int | None
    cpu_seconds: float
    wall_seconds: float
    text: str

    @property
    def ok(self) -> bool:
        return self.status is ExecutionStatus.OK


class Sandbox(Protocol):
    """An executor of untrusted code, opened with `retool.sandbox.open_sandbox`."""

    async def run(
        self, code: str, cpu_time_s: float | None = None, wall_time_s: float | None = None
    ) -> ExecutionResult:
        """Runs `code` in a fresh state. `None` limits mean the pool's own. Raises nothing for what the code does."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Counts by outcome since the last call, and latencies in seconds under `time/`."""
        ...
