"""Files that are whole or absent: `replace_file`, `write_json`, `read_json`, `write_jsonl_gz`, `read_jsonl_gz`."""

import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

JsonObject = dict[str, object]


def replace_file(path: Path, content: bytes) -> None:
    """Writes beside `path`, syncs, and renames over it: readers and a crash see the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """One indented JSON object. Raises `ValueError` for figures that JSON does not have (NaN, infinity)."""
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> JsonObject | None:
    """The object in `path`, or `None` if there is no such file. Raises `ValueError` if it is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object.")
    return value


def write_jsonl_gz(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """All rows in one atomic replacement. The bytes depend on the rows alone: no time stamp goes in."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, buffer.getvalue())


def read_jsonl_gz(path: Path) -> Iterator[JsonObject]:
    """The rows that `write_jsonl_gz` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
