"""A run's directory: every file name in it, and the lock that keeps a second process out.

Contents: `RunDirectory`. Layout: `config.yaml` (resolved), `meta.json`, `code.diff`, `metrics.jsonl`,
`trajectories/step-NNNN.jsonl.gz`, `checkpoints.jsonl`, `resume.json`, `engine/` (the embedded engine's weights),
`status.json`, `result.json`, `report.html`; for evaluations also `records-<label>.jsonl` and `summary.json`.
"""

import fcntl
import os
import re
import socket
from pathlib import Path

from retool.errors import UserError

_STEP_FILE = re.compile(r"^(?:step|eval-step)-(\d+)(?:-.*)?\.jsonl\.gz$")
_NOT_OURS = re.compile(r"^(?:\.hydra|\.lock|.*\.log)$")


class RunDirectory:
    """Names of a run's files, and its lock. Reading needs no lock; `acquire` before writing."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.config = self.path / "config.yaml"
        self.meta = self.path / "meta.json"
        self.code_diff = self.path / "code.diff"
        self.metrics = self.path / "metrics.jsonl"
        self.trajectories = self.path / "trajectories"
        self.checkpoints = self.path / "checkpoints.jsonl"
        self.resume = self.path / "resume.json"
        self.engine = self.path / "engine"
        self.status = self.path / "status.json"
        self.result = self.path / "result.json"
        self.summary = self.path / "summary.json"
        self.report = self.path / "report.html"
        self.lock = self.path / ".lock"
        self._lock_file: int | None = None

    def step_trajectories(self, step: int) -> Path:
        """The trajectories that step `step` trained on."""
        return self.trajectories / f"step-{step:04d}.jsonl.gz"

    def eval_trajectories(self, label: str) -> Path:
        """The trajectories of an evaluation, such as `step-0000-aime25`."""
        return self.trajectories / f"eval-{label}.jsonl.gz"

    def eval_records(self, label: str) -> Path:
        """One line a problem, of an evaluation by `retool.eval`."""
        return self.path / f"records-{label}.jsonl"

    def acquire(self) -> None:
        """Makes the directory and takes its lock until `release` or the end of the process.

        Raises `UserError` if it cannot be written, or if a living process holds it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(
                f"The run directory {self.path} cannot be written: {error.strerror}. "
                "Set output_root (or RETOOL_OUTPUT), or hydra.run.dir, to one that can."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise UserError(
                f"{self.path} is in use by {holder}. Wait for it to end, or choose another hydra.run.dir."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._lock_file = descriptor

    def release(self) -> None:
        """Gives the lock back. Does nothing without it."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def is_live(self) -> bool:
        """True while some process holds the lock."""
        if self._lock_file is not None:
            return True
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def is_used(self) -> bool:
        """True if it holds anything but what Hydra puts there before a run begins."""
        return self.path.is_dir() and any(not _NOT_OURS.match(entry.name) for entry in self.path.iterdir())

    def cut_trajectories(self, step: int) -> None:
        """Removes the trajectory files of step `step` and later."""
        if not self.trajectories.is_dir():
            return
        for file in self.trajectories.iterdir():
            match = _STEP_FILE.match(file.name)
            if match and int(match.group(1)) >= step:
                file.unlink()
