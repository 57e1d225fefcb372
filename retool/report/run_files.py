"""What a report reads of a run directory, whole or not: `RunFiles`, `read_run`.

A run in progress has missing and half-written files; whatever can be read is returned, the rest is left out.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """`trajectories` are a bounded selection, in the order of steps, at most `per_step` a step."""

    path: Path
    config: str
    meta: JsonObject
    status: JsonObject
    result: JsonObject
    metrics: list[JsonObject]
    trajectories: list[JsonObject]


def read_run(path: Path, *, max_steps: int, per_step: int) -> RunFiles:
    """Reads a run directory; trajectories of `max_steps` steps spread over the run."""
    config = path / "config.yaml"
    files = sorted((path / "trajectories").glob("step-*.jsonl.gz")) or sorted((path / "trajectories").glob("*.gz"))
    if len(files) > max_steps:
        files = [files[round(i * (len(files) - 1) / (max_steps - 1))] for i in range(max_steps)]
    return RunFiles(
        path=path,
        config=config.read_text("utf-8", errors="replace") if config.is_file() else "",
        meta=_object(path / "meta.json"),
        status=_object(path / "status.json"),
        result=_object(path / "result.json"),
        metrics=list(_rows(path / "metrics.jsonl")),
        trajectories=[row for file in files for row in _selection(file, per_step)],
    )


def _object(path: Path) -> JsonObject:
    try:
        loaded = json.loads(path.read_text("utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _rows(path: Path) -> Iterator[JsonObject]:
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        row = _parsed(line)
        if row is not None:
            yield row


def _parsed(line: str) -> JsonObject | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _selection(path: Path, count: int) -> list[JsonObject]:
    """Up to `count` trajectories of one file: wrong and right ones in turn, each in the file's order."""
    rows: list[JsonObject] = []
    with (
        suppress(OSError, EOFError, zlib.error),  # a file that is still being written ends early
        gzip.open(path, "rt", encoding="utf-8", errors="replace") as file,
    ):
        rows += (row for line in file if (row := _parsed(line)) is not None)
    right = [row for row in rows if _is_correct(row)]
    wrong = [row for row in rows if not _is_correct(row)]
    mixed = [row for pair in zip(wrong, right, strict=False) for row in pair]
    rest = wrong[len(right) :] + right[len(wrong) :]
    return (mixed + rest)[:count]


def _is_correct(row: JsonObject) -> bool:
    verdict = row.get("verdict")
    return isinstance(verdict, dict) and verdict.get("correct") is True
