"""Saved weights on disk and their `trio://` addresses: `Checkpoint`, `CheckpointKind`, `CheckpointRegistry`.

`trio://<run>/<kind>/<name>` is the directory `<engine_dir>/checkpoints/<run>/<kind>/<name>`, so that a copied engine
directory resolves the same addresses. Each directory describes itself in `checkpoint.json`; there is no index that
could disagree. A directory whose name starts with a dot is unfinished or about to go.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from retool.engine.types import LoraSpec
from retool.engine.wire.errors import ApiError

DESCRIPTION = "checkpoint.json"
_URI = re.compile(
    r"^trio://(?P<run>\w[\w-]*)/(?P<kind>weights|sampler_weights)/(?P<name>\w(?:[\w.-]*[\w-])?)$", re.ASCII
)
_STAGING = ".staging-"
_REPLACED = ".replaced-"


class CheckpointKind(StrEnum):
    """What a checkpoint can be used for; the value is part of its address."""

    STATE = "weights"
    """Weights and optimizer: training can continue."""
    SAMPLER = "sampler_weights"
    """Weights only."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One saved adapter. `version` differs between two saves under one name."""

    run_id: str
    kind: CheckpointKind
    name: str
    base_model: str
    lora: LoraSpec
    created_at: datetime
    expires_at: datetime | None
    size_bytes: int
    version: str
    directory: Path

    @property
    def uri(self) -> str:
        """Its address, which does not depend on where the engine directory lies."""
        return f"trio://{self.run_id}/{self.kind}/{self.name}"

    @property
    def id(self) -> str:
        """An identifier fit for a URL path, the same in every server that holds the checkpoint."""
        return "ckpt_" + hashlib.sha256(self.uri.encode()).hexdigest()[:24]

    def expired(self, now: datetime) -> bool:
        """Whether its time to live has passed."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint being written: the engine fills `staging`, then `CheckpointRegistry.publish` names it."""

    run_id: str
    kind: CheckpointKind
    name: str
    staging: Path
    target: Path


class CheckpointRegistry:
    """The checkpoints of one engine directory, which one process writes at a time."""

    def __init__(self, engine_dir: Path, *, allow_file_uris: bool = False) -> None:
        """`allow_file_uris` also resolves `file:///…/checkpoints/<run>/<kind>/<name>` of other engine directories."""
        self._root = engine_dir.resolve() / "checkpoints"
        self._root.mkdir(parents=True, exist_ok=True)
        self._allow_file_uris = allow_file_uris
        self._recover()

    def draft(self, run_id: str, kind: CheckpointKind, name: str, *, overwrite: bool) -> Draft:
        """Starts a checkpoint. Raises `ApiError` when the name is taken and may not be overwritten."""
        target = self._root / run_id / kind / name
        if target.exists() and not overwrite:
            raise ApiError(
                409,
                "checkpoint_exists",
                f"Run {run_id} already has a checkpoint '{name}'. Choose another name or overwrite.",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        return Draft(run_id, kind, name, target.with_name(_STAGING + secrets.token_hex(8)), target)

    def publish(
        self, draft: Draft, *, base_model: str, lora: LoraSpec, size_bytes: int, ttl_seconds: int | None
    ) -> Checkpoint:
        """Describes what the engine wrote and puts it in place, over an older one of the name."""
        now = datetime.now(UTC)
        checkpoint = Checkpoint(
            run_id=draft.run_id,
            kind=draft.kind,
            name=draft.name,
            base_model=base_model,
            lora=lora,
            created_at=now,
            expires_at=None if ttl_seconds is None else now + timedelta(seconds=ttl_seconds),
            size_bytes=size_bytes,
            version=secrets.token_hex(8),
            directory=draft.target,
        )
        _write_synced(draft.staging / DESCRIPTION, json.dumps(_to_json(checkpoint), indent=2))
        replaced = draft.target.with_name(_REPLACED + draft.name)
        if draft.target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            draft.target.rename(replaced)
        draft.staging.rename(draft.target)
        _sync_directory(draft.target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
        return checkpoint

    def discard(self, draft: Draft) -> None:
        """Removes what an unsuccessful save left."""
        shutil.rmtree(draft.staging, ignore_errors=True)

    def resolve(self, uri: str) -> Checkpoint:
        """The checkpoint of an address. Raises `ApiError` 404 with the address where there is none."""
        directory = self._directory(uri)
        checkpoint = _read(directory)
        if checkpoint is None or checkpoint.expired(datetime.now(UTC)):
            raise ApiError(404, "checkpoint_not_found", f"There is no checkpoint {uri} in {self._root}.")
        return checkpoint

    def all(self, run_id: str | None = None) -> list[Checkpoint]:
        """Every checkpoint, or those of one run, oldest first."""
        runs = [self._root / run_id] if run_id is not None else sorted(self._root.iterdir())
        now = datetime.now(UTC)
        found = [checkpoint for run in runs for checkpoint in _read_run(run) if not checkpoint.expired(now)]
        return sorted(found, key=lambda checkpoint: (checkpoint.created_at, checkpoint.uri))

    def knows_run(self, run_id: str) -> bool:
        """Whether a run, perhaps of an earlier server, has a directory here."""
        return bool(re.fullmatch(r"[\w-]+", run_id)) and (self._root / run_id).is_dir()

    def by_id(self, checkpoint_id: str) -> Checkpoint:
        """The checkpoint of an identifier. Raises `ApiError` 404."""
        for checkpoint in self.all():
            if checkpoint.id == checkpoint_id:
                return checkpoint
        raise ApiError(404, "checkpoint_not_found", f"There is no checkpoint {checkpoint_id}.")

    def delete(self, checkpoint: Checkpoint) -> None:
        """Removes a checkpoint; a crash midway leaves a dotted directory that the next start clears."""
        doomed = checkpoint.directory.with_name(_STAGING + secrets.token_hex(8))
        checkpoint.directory.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def purge_expired(self) -> list[Checkpoint]:
        """Removes checkpoints whose time to live has passed, and returns them."""
        now = datetime.now(UTC)
        expired = [
            checkpoint for run in self._root.iterdir() for checkpoint in _read_run(run) if checkpoint.expired(now)
        ]
        for checkpoint in expired:
            self.delete(checkpoint)
        return expired

    def _directory(self, uri: str) -> Path:
        match = _URI.match(uri)
        if match:
            return self._root / match["run"] / match["kind"] / match["name"]
        parts = urlsplit(uri)
        if parts.scheme == "file" and not parts.netloc:
            if not self._allow_file_uris:
                raise ApiError(400, "invalid_checkpoint_uri", "This server does not read file:// addresses.")
            return Path(unquote(parts.path))
        raise ApiError(
            400,
            "invalid_checkpoint_uri",
            f"'{uri}' is not of the form trio://<run>/weights/<name> or …/sampler_weights/…",
        )

    def _recover(self) -> None:
        """Clears what a crash left: a replaced checkpoint whose successor is missing comes back."""
        for path in self._root.glob("*/*/.*"):
            original = path.with_name(path.name.removeprefix(_REPLACED))
            if path.name.startswith(_REPLACED) and not original.exists():
                path.rename(original)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _read_run(run: Path) -> Iterator[Checkpoint]:
    for kind in CheckpointKind:
        if (run / kind).is_dir():
            for directory in (run / kind).iterdir():
                checkpoint = None if directory.name.startswith(".") else _read(directory)
                if checkpoint is not None:
                    yield checkpoint


def _to_json(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "format": 1,
        "run_id": checkpoint.run_id,
        "kind": checkpoint.kind,
        "name": checkpoint.name,
        "base_model": checkpoint.base_model,
        "lora": asdict(checkpoint.lora),
        "created_at": checkpoint.created_at.isoformat(),
        "expires_at": checkpoint.expires_at and checkpoint.expires_at.isoformat(),
        "size_bytes": checkpoint.size_bytes,
        "version": checkpoint.version,
    }


def _read(directory: Path) -> Checkpoint | None:
    """Describes a directory; `None` if it holds no checkpoint of a format that this version knows."""
    try:
        data = json.loads((directory / DESCRIPTION).read_text("utf-8"))
        expires_at = data["expires_at"]
        return Checkpoint(
            run_id=str(data["run_id"]),
            kind=CheckpointKind(data["kind"]),
            name=str(data["name"]),
            base_model=str(data["base_model"]),
            lora=LoraSpec(**data["lora"]),
            created_at=datetime.fromisoformat(data["created_at"]),
            expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
            size_bytes=int(data["size_bytes"]),
            version=str(data["version"]),
            directory=directory,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
