"""Rows of a data set: from a local file (JSON lines, a JSON array, parquet) or from the Hugging Face hub.

`read_rows` reads a file or the one data file that a folder holds for a set; `read_hub` reads a hub data set. Both yield
rows one by one, so that a large parquet never has to fit into memory, and raise `UserError` with file and line.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from retool.errors import UserError

Row = Mapping[str, object]
SUFFIXES = (".jsonl", ".json", ".parquet")
_HUB_TIMEOUT_S = 5.0


def read_rows(path: Path, *, name: str, split: str | None = None) -> Iterator[Row]:
    """The rows of a file, or of the file in a folder that belongs to the set `name` (and `split`).

    Raises `UserError` where there is no such file or a line is not JSON.
    """
    file = data_file(path, name=name, split=split)
    if file.suffix == ".parquet":
        return _parquet_rows(file)
    if file.suffix == ".json":
        return _json_rows(file)
    return _jsonl_rows(file)


def data_file(path: Path, *, name: str, split: str | None = None) -> Path:
    """`path` itself, or the data file in the folder `path` that is named after the set and the split."""
    path = path.expanduser()
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path}: the name of a data file ends in {', '.join(SUFFIXES)}.")
        return path
    if not path.is_dir():
        raise UserError(f"data.path: there is no file or folder at '{path}' (looked from {Path.cwd()}).")
    stems = [name] if split is None else [f"{name}_{split}", f"{name}-{split}", name, split]
    for candidate in (path / f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES):
        if candidate.is_file():
            return candidate
    found = sorted(file.name for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(found) == 1:
        return path / found[0]
    raise UserError(
        f"data.path: the folder '{path}' holds no file named {' or '.join(stems)} ({', '.join(SUFFIXES)}). "
        f"It holds {', '.join(found) or 'no data files'}. Set data.path to one file."
    )


def read_hub(hub: str, *, revision: str | None, split: str | None) -> Iterator[Row]:
    """The rows of a hub data set, `owner/name` or `owner/name:configuration`; `split=None` means "train".

    Raises `UserError` where the hub cannot be reached, or has no such data set, revision or split.
    """
    repository, _, configuration = hub.partition(":")
    try:
        rows = _load_hub(repository, configuration or None, revision=revision, split=split or "train")
    except (
        OSError,
        ValueError,
    ) as error:  # what `datasets` raises for an unreachable hub, and for a wrong name or split
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"The data set '{hub}' could not be read from the Hugging Face hub: {reason}\n"
            "Without access to the hub, pass a local copy: data.path=<file or folder>."
        ) from error
    return iter(rows)


def _load_hub(repository: str, configuration: str | None, *, revision: str | None, split: str) -> Iterator[Row]:
    import datasets
    from huggingface_hub import snapshot_download

    # `datasets` alone would retry an unreachable hub for half a minute.
    snapshot_download(
        repository, repo_type="dataset", revision=revision, allow_patterns=["README.md"], etag_timeout=_HUB_TIMEOUT_S
    )
    loaded: Iterator[Row] = datasets.load_dataset(repository, configuration, revision=revision, split=split)
    return loaded


def _jsonl_rows(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{file}, line {number}: not JSON: {error}") from None
            yield _checked(row, f"{file}, line {number}")


def _json_rows(file: Path) -> Iterator[Row]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}: not JSON: {error}") from None
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a JSON array of objects; one object a line belongs into a .jsonl file.")
    for number, row in enumerate(rows, start=1):
        yield _checked(row, f"{file}, row {number}")


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file}: not a parquet file: {error}") from None
    for batch in table.iter_batches(batch_size=4096):
        yield from batch.to_pylist()


def _checked(row: object, place: str) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{place}: expected a JSON object, found {type(row).__name__}.")
    return row
