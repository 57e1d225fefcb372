"""Adapters and optimizer states on disk, in the layout of PEFT, so that `peft` loads what the engine saved.

A directory holds `adapter_config.json`, `adapter_model.safetensors` and, for a resumable state,
`optimizer.safetensors`. It appears whole or not at all: everything is written beside it and renamed.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from retool.engine.model.base import TrainingModel
from retool.engine.model.lora import LORA_ALPHA, Adapter, LoraPair, target_linears
from retool.engine.model.weights import ATTENTION_LINEARS, MLP_LINEARS, UNEMBED
from retool.engine.types import EngineError, LoraSpec

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
OPTIMIZER_STATE = "optimizer.safetensors"
_PEFT_PREFIX = "base_model.model."
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(
    adapter: Adapter, optimizer: torch.optim.Optimizer | None, directory: Path, *, base_model: str
) -> int:
    """Writes the adapter, and the optimizer where given, to `directory`, replacing it. Returns the size in bytes."""
    partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {}
    for name, pair in adapter.pairs.items():
        tensors[f"{_PEFT_PREFIX}{name}.lora_A.weight"] = pair.a.detach().cpu().contiguous()
        tensors[f"{_PEFT_PREFIX}{name}.lora_B.weight"] = pair.b.detach().cpu().contiguous()
    save_file(tensors, partial / ADAPTER_WEIGHTS, metadata={"format": "pt", **_spec_metadata(adapter.spec)})
    if optimizer is not None:
        save_file(_optimizer_tensors(adapter, optimizer), partial / OPTIMIZER_STATE)
    (partial / ADAPTER_CONFIG).write_text(json.dumps(_peft_config(adapter, base_model), indent=2), "utf-8")
    for file in partial.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    return sum(file.stat().st_size for file in directory.iterdir())


def read_spec(directory: Path) -> LoraSpec:
    """The adapter's shape from its configuration. Raises `EngineError` if there is none."""
    try:
        config = json.loads((directory / ADAPTER_CONFIG).read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        raise EngineError("checkpoint_not_found", f"{directory} holds no readable checkpoint.") from None
    with safe_open(str(directory / ADAPTER_WEIGHTS), framework="pt") as file:
        metadata = file.metadata() or {}
    targets = set(config["target_modules"])
    guesses = {
        "train_attn": "q_proj" in targets,
        "train_mlp": "gate_proj" in targets,
        "train_unembed": UNEMBED in targets,
    }
    flags = {name: metadata.get(name, str(guess)) == "True" for name, guess in guesses.items()}
    return LoraSpec(rank=int(config["r"]), **flags, seed=int(metadata.get("seed", 0)))


def load_adapter(directory: Path, model: TrainingModel) -> Adapter:
    """Reads an adapter for `model`. Raises `EngineError` where names or shapes do not fit the model."""
    spec = read_spec(directory)
    tensors = load_file(directory / ADAPTER_WEIGHTS, device=str(model.device))
    pairs = {}
    for name, shape in model.target_shapes(spec).items():
        a = tensors.get(f"{_PEFT_PREFIX}{name}.lora_A.weight")
        b = tensors.get(f"{_PEFT_PREFIX}{name}.lora_B.weight")
        if a is None or b is None or (b.shape[0], a.shape[1]) != shape:
            raise EngineError("checkpoint_mismatch", f"{directory} does not fit this model at '{name}'.")
        pairs[name] = LoraPair(a.float().requires_grad_(), b.float().requires_grad_())
    return Adapter(spec, pairs)


def load_optimizer(directory: Path, adapter: Adapter, optimizer: torch.optim.Optimizer) -> None:
    """Restores the moments of every parameter. Raises `EngineError` if the checkpoint has none."""
    path = directory / OPTIMIZER_STATE
    if not path.is_file():
        raise EngineError("checkpoint_without_optimizer", f"{directory} holds weights only, no optimizer state.")
    tensors = load_file(path, device=str(adapter.parameters()[0].device))
    for name, parameter in _named_parameters(adapter):
        state = {moment: tensors[f"{name}.{moment}"] for moment in _MOMENTS if f"{name}.{moment}" in tensors}
        if state:
            state["step"] = state["step"].cpu()
            optimizer.state[parameter] = state


def _named_parameters(adapter: Adapter) -> list[tuple[str, Tensor]]:
    return [
        item
        for name, pair in adapter.pairs.items()
        for item in ((f"{name}.lora_A", pair.a), (f"{name}.lora_B", pair.b))
    ]


def _optimizer_tensors(adapter: Adapter, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}.{moment}": optimizer.state[parameter][moment].detach().cpu().contiguous()
        for name, parameter in _named_parameters(adapter)
        for moment in _MOMENTS
        if moment in optimizer.state.get(parameter, {})
    }


def _spec_metadata(spec: LoraSpec) -> dict[str, str]:
    return {name: str(getattr(spec, name)) for name in ("seed", "train_attn", "train_mlp", "train_unembed")}


def _peft_config(adapter: Adapter, base_model: str) -> dict[str, object]:
    known = {*ATTENTION_LINEARS, *MLP_LINEARS, UNEMBED}
    short = all(name.rsplit(".", 1)[-1] in known for name in adapter.pairs)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.spec.rank,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(target_linears(adapter.spec)) if short else list(adapter.pairs),
        "inference_mode": True,
    }
