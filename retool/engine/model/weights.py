"""Base weights: read once from safetensors, shared by training and sampling, never changed.

`LINEAR_SHAPES` names the matrices that adapters can attach to, by their place in the Hugging Face layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from retool.engine.model.config import ModelConfig
from retool.engine.types import EngineError

ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_LINEARS = ("gate_proj", "up_proj", "down_proj")
UNEMBED = "lm_head"


def linear_name(layer: int, linear: str) -> str:
    """The full name of a layer's matrix, e.g. `model.layers.3.self_attn.q_proj`."""
    block = "self_attn" if linear in ATTENTION_LINEARS else "mlp"
    return f"model.layers.{layer}.{block}.{linear}"


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer: matrices of shape (out, in) by linear name, biases where the model has them."""

    linears: dict[str, Tensor]
    biases: dict[str, Tensor]
    input_norm: Tensor
    post_attention_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


@dataclass(frozen=True)
class BaseWeights:
    """All frozen tensors of a model. `unembed` is the embedding itself where the model ties them."""

    config: ModelConfig
    embedding: Tensor
    layers: list[LayerWeights] = field(default_factory=list)
    final_norm: Tensor = field(default_factory=lambda: torch.empty(0))
    unembed: Tensor = field(default_factory=lambda: torch.empty(0))

    def named_linears(self) -> Iterator[tuple[str, Tensor]]:
        """Every matrix an adapter can attach to, with its full name, in a fixed order."""
        for index, layer in enumerate(self.layers):
            for linear, weight in layer.linears.items():
                yield linear_name(index, linear), weight
        yield UNEMBED, self.unembed


def load_base_weights(directory: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> BaseWeights:
    """Reads every shard under `directory`. Raises `EngineError` where tensors are missing."""
    tensors = _read_tensors(directory, device, dtype)

    def take(name: str) -> Tensor:
        if name not in tensors:
            raise EngineError("model_not_found", f"{directory} holds no tensor '{name}'.")
        return tensors[name]

    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        names = {linear: linear_name(index, linear) for linear in (*ATTENTION_LINEARS, *MLP_LINEARS)}
        layers.append(
            LayerWeights(
                linears={linear: take(f"{name}.weight") for linear, name in names.items()},
                biases={linear: tensors[f"{name}.bias"] for linear, name in names.items() if f"{name}.bias" in tensors},
                input_norm=take(f"{prefix}input_layernorm.weight"),
                post_attention_norm=take(f"{prefix}post_attention_layernorm.weight"),
                q_norm=take(f"{prefix}self_attn.q_norm.weight") if config.qk_norm else None,
                k_norm=take(f"{prefix}self_attn.k_norm.weight") if config.qk_norm else None,
            )
        )
    embedding = take("model.embed_tokens.weight")
    unembed = embedding if config.tie_word_embeddings else take("lm_head.weight")
    return BaseWeights(config, embedding, layers, take("model.norm.weight"), unembed)


def _read_tensors(directory: Path, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise EngineError("model_not_found", f"{directory} holds no *.safetensors file.")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        with safe_open(str(shard), framework="pt", device=str(device)) as file:
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                tensors[name] = file.get_tensor(name).to(dtype)
    return tensors
