"""`meta.json`: where a run comes from. `provenance` collects it; `code_difference` is what git does not know yet."""

import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retool import __version__
from retool.runs.files import JsonObject

_PACKAGES = (
    "pytrio",
    "hydra-core",
    "omegaconf",
    "hydra-submitit-launcher",
    "torch",
    "transformers",
    "numpy",
    "sympy",
    "math-verify",
    "datasets",
    "swanlab",
)
_CHECKOUT = Path(__file__).resolve().parents[2]


def provenance() -> JsonObject:
    """Command line, versions, git commit, host and Slurm identifiers of this process. Imports none of the packages."""
    return {
        "argv": [*sys.argv],
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "working_directory": str(Path.cwd()),
        "host": socket.gethostname(),
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {"retool": __version__} | {name: found for name in _PACKAGES if (found := _version(name))},
        "git": _git_state(),
        "slurm": {name: value for name, value in sorted(os.environ.items()) if name in _SLURM},
    }


def code_difference() -> str:
    """`git diff HEAD` of the checkout that the package runs from; empty outside a checkout."""
    return _git("diff", "HEAD") or ""


_SLURM = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_state() -> JsonObject | None:
    sha = _git("rev-parse", "HEAD")
    return None if sha is None else {"sha": sha.strip(), "dirty": bool(_git("status", "--porcelain"))}


def _git(*arguments: str) -> str | None:
    """The output of a git command, or `None` where the package is not in a checkout or git is missing."""
    if not (_CHECKOUT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(_CHECKOUT), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
