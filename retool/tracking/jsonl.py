"""The record of a run: one JSON object a line, on disk before the next step begins.

Contents: `JsonlTracker` (append), `read_jsonl` (what is whole), `cut_jsonl` (back to a step).

A line is written in one piece and synced, so that a killed process or machine leaves all earlier lines and at most one
torn one at the end. Readers leave that one out, and the next writer removes it.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from retool.tracking.base import FinishState

JsonObject = dict[str, object]


class JsonlTracker:
    """Appends rows `{"step": step, **metrics}` to a file. Texts are not its business: trajectories have files of
    their own."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_torn_line(path)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one row and syncs it. Raises `ValueError` for a figure that is not finite or a tracker finished."""
        if self._file is None:
            raise ValueError(f"Step {step} was logged after the tracker was finished.")
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if broken:
            raise ValueError(f"Step {step} has figures that are not finite: {', '.join(broken)}.")
        row = {"step": step, **{name: _plain(value) for name, value in metrics.items()}}
        _write_all(self._file, json.dumps(row, allow_nan=False).encode() + b"\n")
        os.fsync(self._file)

    def log_text(self, step: int, name: str, text: str) -> None:
        """Does nothing."""

    def finish(self, state: FinishState, error: str | None = None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_jsonl(path: Path) -> list[JsonObject]:
    """All whole rows; a torn last line is left out. Raises `ValueError` for any other line that is not an object."""
    rows: list[JsonObject] = []
    for number, line in enumerate(_whole_lines(path.read_bytes()), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} is not a JSON object.")
        rows.append(row)
    return rows


def cut_jsonl(path: Path, step: int) -> int:
    """Keeps the rows whose `step` is below `step`, in one atomic replacement; returns how many rows were removed.

    A torn last line goes too. A missing file is left missing.
    """
    if not path.exists():
        return 0
    content = path.read_bytes()
    lines = _whole_lines(content)
    kept = [line for line, row in zip(lines, read_jsonl(path), strict=True) if cast(int, row["step"]) < step]
    replacement = b"".join(line + b"\n" for line in kept)
    if replacement != content:
        _replace(path, replacement)
    return len(lines) - len(kept)


def _plain(value: float) -> float:
    return value if isinstance(value, int | float) else float(value)


def _whole_lines(content: bytes) -> list[bytes]:
    return content.split(b"\n")[:-1]


def _remove_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        _replace(path, content[:whole])


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
