"""`Backend`: how a model is computed, by the engine's own forward passes or through the modules of `transformers`.

The engine's own passes are several times faster and can promise the same bits twice; `open_backend` takes them wherever
they cover the architecture.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from retool.engine.losses import Normalisation
from retool.engine.model.base import TokenSampler, TrainingModel
from retool.engine.model.cached_forward import CachedModel, KeyValueCache
from retool.engine.model.config import ModelConfig
from retool.engine.model.lora import Adapter
from retool.engine.model.training_forward import FusedModel
from retool.engine.model.weights import load_base_weights
from retool.engine.prefix_cache import PrefixCache
from retool.engine.sampler import BatchSampler

_MERGED_MODELS = 2
_PREFIX_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """Where and how to compute; the keys of `model.engine`."""

    device: str
    dtype: torch.dtype
    sampling_dtype: torch.dtype
    normalisation: Normalisation
    max_batch_rows: int
    max_seq_len: int
    gather_window_s: float
    micro_batch_tokens: int


@dataclass(frozen=True)
class Backend:
    """A model for training, a sampler with the same weights, and what frees all that is kept of an adapter."""

    model: TrainingModel
    sampler: TokenSampler
    forget: Callable[[str], None]


def open_backend(
    directory: Path,
    config: ModelConfig | None,
    tokenizer: Tokenizer,
    settings: ComputeSettings,
    adapters: Mapping[str, Adapter],
) -> Backend:
    """Loads a model. `config` is `None` for one that the engine's own passes do not cover; `adapters` may change."""
    device = torch.device(settings.device)
    if config is None:
        return _plain(directory, device, tokenizer, settings, adapters)
    weights = load_base_weights(directory, config, device=device, dtype=settings.dtype)
    merged = MergedModels(FusedModel(weights, settings.max_seq_len), settings, adapters)
    cache = KeyValueCache(
        config, settings.max_batch_rows, settings.max_seq_len, device=device, dtype=settings.sampling_dtype
    )
    sampler = BatchSampler(
        cache, merged.prefixes, tokenizer, merged.model_for, gather_window_s=settings.gather_window_s
    )
    return Backend(merged.base, sampler, merged.forget)


def _plain(
    directory: Path,
    device: torch.device,
    tokenizer: Tokenizer,
    settings: ComputeSettings,
    adapters: Mapping[str, Adapter],
) -> Backend:
    from retool.engine.model.plain import PlainModel
    from retool.engine.plain_sampler import PlainSampler

    model = PlainModel(directory, device=device, dtype=settings.dtype)
    sampler = PlainSampler(
        model,
        tokenizer,
        lambda name: None if name is None else adapters[name],
        rows=settings.max_batch_rows,
        gather_window_s=settings.gather_window_s,
    )
    return Backend(model, sampler, lambda _: None)


class MergedModels:
    """Adapters merged into the base model for sampling; the two most recently used are kept."""

    def __init__(self, base: FusedModel, settings: ComputeSettings, adapters: Mapping[str, Adapter]) -> None:
        self.base = base
        self.prefixes = PrefixCache(_PREFIX_BYTES)
        self._settings = settings
        self._adapters = adapters
        self._merged: OrderedDict[str | None, CachedModel] = OrderedDict()

    def model_for(self, adapter: str | None) -> CachedModel:
        """The merged model of an adapter, made if need be."""
        if adapter not in self._merged:
            while len(self._merged) >= _MERGED_MODELS:
                self._merged.popitem(last=False)
            self._merged[adapter] = CachedModel(
                self.base.weights,
                self._adapters[adapter] if adapter is not None else None,
                dtype=self._settings.sampling_dtype,
                max_length=self._settings.max_seq_len,
            )
        self._merged.move_to_end(adapter)
        return self._merged[adapter]

    def forget(self, adapter: str) -> None:
        """Frees what was computed with an adapter."""
        self._merged.pop(adapter, None)
        self.prefixes.drop(adapter)
