"""`status.json`: what a run is doing, for people, scripts and the next process in the same directory.

Contents: `RunState`, `RunStatus`, `write_status`, `read_status`. A process that was killed leaves `running` behind;
whether one is alive is told by the directory's lock (`RunDirectory.is_live`).
"""

import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from retool.runs.files import read_json, write_json


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    """A process works on it, or was killed while it did."""
    DONE = "done"
    """Complete; `result.json` holds the outcome, and starting it again returns that."""
    FAILED = "failed"
    """An error ended it; it can be continued from its last saved state."""
    REQUEUED = "requeued"
    """It saved its state and left at a signal, to be continued."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """`step`: completed steps. `error`: the message that ended a failed run."""

    state: RunState
    step: int
    error: str | None = None


def write_status(path: Path, status: RunStatus) -> None:
    """Replaces the file, with the time, host and process beside the status."""
    write_json(
        path,
        {
            **asdict(status),
            "updated_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        },
    )


def read_status(path: Path) -> RunStatus | None:
    """The status in `path`; `None` where no run has begun. Raises `ValueError` for a file that is something else."""
    content = read_json(path)
    if content is None:
        return None
    step, error = content.get("step"), content.get("error")
    if not isinstance(step, int) or not (error is None or isinstance(error, str)):
        raise ValueError(f"{path} is not the status of a run.")
    return RunStatus(RunState(str(content.get("state"))), step, error)
