"""What `model.checkpoint` and `model.init_from` may say: a run directory, one of its checkpoints, or an address.

Contents: `CheckpointUse`, `resolve_checkpoint`, `engine_checkpoint`.
"""

import re
from enum import StrEnum
from pathlib import Path

from retool.config.constraints import did_you_mean
from retool.errors import UserError
from retool.runs.checkpoint import Checkpoint, read_checkpoints, read_resume_state
from retool.runs.run_dir import RunDirectory

_ADDRESS = re.compile(r"^trio://([^/]+)/([^/]+)/([^/]+)$")


class CheckpointUse(StrEnum):
    """What a checkpoint is wanted for."""

    SAMPLE = "sample"
    """Its sampler weights."""
    TRAIN = "train"
    """Its training state."""


def resolve_checkpoint(reference: str, *, key: str, use: CheckpointUse, embedded: bool) -> str:
    """The address of what `reference` names, for the embedded engine or for the service.

    `reference`: a `trio://` or `file://` address; a run directory (its newest named checkpoint, else its newest state);
    or `DIRECTORY/NAME` with a name from that run's `checkpoints.jsonl`. Raises `UserError`, which names `key`.
    """
    if reference.startswith(("trio://", "file://")):
        return reference
    path = Path(reference).expanduser().absolute()
    directory, name = (path, None) if path.is_dir() else (path.parent, path.name)
    run = RunDirectory(directory)
    checkpoints = read_checkpoints(run.checkpoints)
    if name is not None:
        chosen = next((checkpoint for checkpoint in checkpoints if checkpoint.name == name), None)
        if chosen is None:
            names = [checkpoint.name for checkpoint in checkpoints]
            known = f"It has: {', '.join(names)}." if names else "It has no named checkpoint."
            raise UserError(
                f"{key}: there is no run directory {path}, and no checkpoint '{name}' in {directory}."
                f"{did_you_mean(name, names)} {known}"
            )
        return _located(_address(chosen, use), run, key, embedded)
    if checkpoints:
        return _located(_address(checkpoints[-1], use), run, key, embedded)
    state = read_resume_state(run.resume)
    if state is None:
        raise UserError(f"{key}: {path} holds no checkpoint of a run.")
    return _located(state.uri, run, key, embedded)


def engine_checkpoint(engine_dir: Path, address: str) -> Path:
    """Where the embedded engine keeps the checkpoint of a `trio://` address."""
    match = _ADDRESS.match(address)
    if match is None:
        raise ValueError(f"'{address}' is not the address of a checkpoint.")
    return engine_dir / "checkpoints" / Path(*match.groups())


def _address(checkpoint: Checkpoint, use: CheckpointUse) -> str:
    return checkpoint.weights if use is CheckpointUse.SAMPLE else checkpoint.state


def _located(address: str, run: RunDirectory, key: str, embedded: bool) -> str:
    """For the embedded engine the file in the run's own directory, which may have been copied here."""
    local = engine_checkpoint(run.engine, address)
    if embedded:
        if not local.is_dir():
            raise UserError(f"{key}: {run.path} names {address}, but its weights are not in {local}.")
        return local.as_uri()
    if local.is_dir():
        raise UserError(
            f"{key}: the weights of {run.path} are those of an embedded engine, which the service of this model lacks."
        )
    return address
