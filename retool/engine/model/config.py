"""`ModelConfig`: what the forward passes need to know about a checkpoint in the Hugging Face layout.

Covered are decoders of the Llama kind: RMSNorm before attention and MLP, rotary positions, grouped keys and values,
SwiGLU. Qwen2 adds biases on q, k and v; Qwen3 normalises q and k per head.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool.engine.types import EngineError

logger = logging.getLogger(__name__)

SUPPORTED_MODEL_TYPES = ("llama", "qwen2", "qwen3")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_UNKNOWN_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What is known of a model of any architecture without loading it."""

    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelSizes":
        """Reads `config.json`. Raises `EngineError` where it is missing or does not describe a language model."""
        raw = _read_json(directory / "config.json")
        text = {**raw, **(raw.get("text_config") or {})}
        if not isinstance(text.get("vocab_size"), int):
            raise EngineError("unsupported_model", f"{directory}/config.json names no vocab_size: no language model.")
        lengths = (text.get(name) for name in _LENGTH_KEYS)
        longest = next((length for length in lengths if isinstance(length, int) and length > 0), _UNKNOWN_LENGTH)
        return cls(text["vocab_size"], longest, _eos_token_ids(directory, text))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one decoder."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelConfig":
        """Reads `config.json` and `generation_config.json`. Raises `EngineError` for an architecture not covered."""
        raw = _read_json(directory / "config.json")
        model_type = str(raw.get("model_type"))
        if model_type not in SUPPORTED_MODEL_TYPES:
            raise EngineError(
                "unsupported_model",
                f"The model in {directory} is of type '{model_type}'. "
                f"The engine's own forward passes cover {', '.join(SUPPORTED_MODEL_TYPES)}.",
            )
        _refuse_variants(raw, directory)
        if raw.get("hidden_act", "silu") != "silu":
            raise EngineError("unsupported_model", f"{directory}: activation {raw['hidden_act']!r}, expected 'silu'.")
        heads = int(raw["num_attention_heads"])
        return cls(
            model_type=model_type,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            intermediate_size=int(raw["intermediate_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
            rms_norm_eps=float(raw["rms_norm_eps"]),
            rope_theta=_rope_theta(raw, directory),
            max_position_embeddings=int(raw["max_position_embeddings"]),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=_eos_token_ids(directory, raw),
        )


def own_config(directory: Path) -> ModelConfig | None:
    """The configuration for the engine's own forward passes; `None` for a model that they do not cover."""
    try:
        return ModelConfig.from_directory(directory)
    except EngineError as error:
        if error.code != "unsupported_model":
            raise
        logger.warning("%s Sampling and training go through transformers: right, and slower.", error)
        return None


def _refuse_variants(raw: dict[str, Any], directory: Path) -> None:
    """Refuses what a model of a covered type may have and the forward passes do not know."""
    layers = set(raw.get("layer_types") or ()) - {"full_attention"}
    variants = [name for name in ("use_sliding_window", "mlp_bias", "quantization_config") if raw.get(name)]
    if raw.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        variants.append("partial_rotary_factor")
    variants += sorted(layers)
    if variants:
        raise EngineError("unsupported_model", f"{directory}: {', '.join(variants)} is not covered.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError("model_not_found", f"{path} does not exist; a model directory needs it.") from None
    except json.JSONDecodeError as error:
        raise EngineError("model_not_found", f"{path} is not valid JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise EngineError("model_not_found", f"{path} holds no JSON object.")
    return loaded


def _rope_theta(raw: dict[str, Any], directory: Path) -> float:
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise EngineError("unsupported_model", f"{directory}: rotary scaling '{kind}' is not covered.")
    return float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)


def _eos_token_ids(directory: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    path = directory / "generation_config.json"
    eos = _read_json(path).get("eos_token_id") if path.is_file() else None
    if eos is None:
        eos = raw.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(int(token) for token in (eos if isinstance(eos, list) else [eos]))
