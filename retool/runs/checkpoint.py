"""What a run needs to go on: the resume state, the named checkpoints, and the test that the configuration fits.

Contents: `ResumeState`, `write_resume_state`, `read_resume_state`; `Checkpoint`, `append_checkpoint`,
`read_checkpoints`; `identity`, `identity_hash`, `changed_keys`. The weights themselves are with the service or the
embedded engine; here are their `trio://` addresses.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from retool.errors import UserError
from retool.runs.files import JsonObject, read_json, replace_file, write_json

_OPERATIONAL = (
    "max_steps",
    "max_cost",
    "max_infrastructure_rate",
    "name",
    "output_root",
    "resume",
    "dry_run",
    "allow_targets",
    "tracker",
    "model.price",
    "model.recipe",
)
"""Keys that alter nothing that was made. The values of `model.recipe` are compared where they take effect."""
_FREE_IN_TRAINING = ("checkpoint", "eval", "model.checkpoint")
"""What else may change between the steps of a training run."""


@dataclass(frozen=True, slots=True)
class ResumeState:
    """Written after step `next_step - 1`. `cursor`: problems trained on so far. `uri`: weights and optimizer.

    `retained`: the addresses of the newest states, oldest first, `uri` included; older ones are deleted.
    """

    uri: str
    next_step: int
    cursor: int
    config_hash: str
    config: JsonObject
    tracker_id: str | None = None
    spent: Mapping[str, int] = field(default_factory=dict)
    retained: tuple[str, ...] = ()


def write_resume_state(path: Path, state: ResumeState) -> None:
    """Replaces the state in one step. The weights at `state.uri` must be complete by then."""
    write_json(path, asdict(state))


def read_resume_state(path: Path) -> ResumeState | None:
    """The newest state, or `None` before the first. Raises `UserError` for a file of another kind or version."""
    try:
        content = read_json(path)
        if content is None:
            return None
        state = ResumeState(**content)  # type: ignore[arg-type]  # checked below
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{path} is not a resume state of this version: {error}. Start anew in another directory."
        ) from error
    if not isinstance(state.uri, str) or not isinstance(state.next_step, int) or not isinstance(state.cursor, int):
        raise UserError(f"{path} is not a resume state of this version. Start anew in another directory.")
    return ResumeState(**{**content, "retained": tuple(state.retained)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A named checkpoint after `step` steps: `state` to train on from, `weights` to sample from."""

    name: str
    step: int
    state: str
    weights: str


def append_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Adds a line, or replaces those of the same step or later (a run that was continued makes them again)."""
    kept = [known for known in read_checkpoints(path) if known.step < checkpoint.step]
    replace_file(path, b"".join(json.dumps(asdict(item)).encode() + b"\n" for item in [*kept, checkpoint]))


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """All named checkpoints of a run, oldest first; empty before the first."""
    if not path.exists():
        return []
    return [Checkpoint(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def identity(cfg: DictConfig) -> JsonObject:
    """The part of a configuration that decides what a run makes, flat: dotted key to value."""
    content = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    free = _OPERATIONAL + (_FREE_IN_TRAINING if "ppo" in content or "sft" in content else ())
    return {key: value for key, value in _flatten(content) if not _is_among(key, free)}


def identity_hash(config: Mapping[str, object]) -> str:
    """SHA-256 of `identity`, as hexadecimal digits."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def changed_keys(saved: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """`key: saved value -> current value` for each difference."""
    absent = "(absent)"
    return [
        f"{key}: {json.dumps(saved.get(key, absent))} -> {json.dumps(current.get(key, absent))}"
        for key in sorted(saved.keys() | current.keys())
        if saved.get(key, absent) != current.get(key, absent)
    ]


def _flatten(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


def _is_among(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
