"""`Compute`: the model, its runs and its adapters, as the compute thread sees them. Not thread-safe by design."""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer

from retool.engine.backend import ComputeSettings, open_backend
from retool.engine.checkpoints import load_adapter, load_optimizer, save_checkpoint
from retool.engine.model.config import ModelConfig, ModelSizes
from retool.engine.model.lora import Adapter, new_adapter
from retool.engine.sequences import open_sequences
from retool.engine.trainer import Trainer
from retool.engine.types import EngineError, LoraSpec, SampleRequest, SampleResult

T = TypeVar("T")


class Compute:
    """Everything that holds tensors."""

    def __init__(
        self,
        directory: Path,
        config: ModelConfig | None,
        sizes: ModelSizes,
        tokenizer: Tokenizer,
        settings: ComputeSettings,
    ) -> None:
        """`config` is `None` for a model that the engine's own forward passes do not cover."""
        self._settings = settings
        self._sizes = sizes
        self._base_model = str(directory)
        self._runs: dict[str, Trainer] = {}
        self._adapters: dict[str, Adapter] = {}
        self._backend = open_backend(directory, config, tokenizer, settings, self._adapters)
        self.sampler = self._backend.sampler

    def warm_up(self) -> None:
        """Imports what torch loads with the first optimizer (about two seconds), before a client waits for it."""
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)])

    def create_run(self, run_id: str, spec: LoraSpec, checkpoint: Path | None, with_optimizer: bool) -> None:
        """Starts a run, from scratch or from a checkpoint, whose own adapter shape then counts."""
        model = self._backend.model
        if checkpoint:
            adapter = load_adapter(checkpoint, model)
        else:
            adapter = new_adapter(model.target_shapes(spec), spec, model.device)
        if not adapter.pairs:
            raise EngineError("invalid_lora_config", "The adapter trains nothing: mlp, attention and unembed are off.")
        trainer = Trainer(
            model,
            adapter,
            normalisation=self._settings.normalisation,
            micro_batch_tokens=self._settings.micro_batch_tokens,
        )
        if checkpoint and with_optimizer:
            load_optimizer(checkpoint, adapter, trainer.optimizer)
        self._runs[run_id] = trainer

    def run(self, run_id: str) -> Trainer:
        """The trainer of a run. Raises `EngineError` if there is none."""
        if run_id not in self._runs:
            raise EngineError("run_not_found", f"There is no training run '{run_id}' here.")
        return self._runs[run_id]

    def save(self, run_id: str, directory: Path, *, optimizer: bool) -> int:
        """Writes a run's checkpoint; returns its size in bytes."""
        trainer = self.run(run_id)
        return save_checkpoint(
            trainer.adapter, trainer.optimizer if optimizer else None, directory, base_model=self._base_model
        )

    def snapshot(self, run_id: str, adapter: str) -> None:
        """Freezes a run's current weights in memory under the name `adapter`."""
        self._set_adapter(adapter, self.run(run_id).adapter.frozen_copy())

    def load_adapter(self, adapter: str, directory: Path) -> None:
        """Loads a checkpoint's weights for sampling under the name `adapter`."""
        self._set_adapter(adapter, load_adapter(directory, self._backend.model).frozen_copy())

    def drop_adapter(self, adapter: str) -> None:
        """Frees an adapter and what was computed with it."""
        self._adapters.pop(adapter, None)
        self._backend.forget(adapter)

    def drop_run(self, run_id: str) -> None:
        """Frees a run: adapter, gradients and optimizer."""
        trainer = self._runs.pop(run_id, None)
        if trainer is not None:
            trainer.release()

    def enqueue(self, request: SampleRequest, future: "Future[SampleResult]") -> None:
        """Checks a sampling request and queues it. Raises `EngineError` for one that cannot be served."""
        self._check_request(request)
        sequences = open_sequences(
            request,
            future,
            seed=secrets.randbits(63) if request.seed is None else request.seed,
            arrival=time.monotonic(),
            eos=frozenset(self._sizes.eos_token_ids),
        )
        if request.prompt_logprobs or request.topk_prompt_logprobs:
            self.sampler.score_prompt(sequences, request.topk_prompt_logprobs)
        self.sampler.enqueue(sequences)

    def _check_request(self, request: SampleRequest) -> None:
        if request.adapter is not None and request.adapter not in self._adapters:
            raise EngineError("weights_not_found", f"There are no sampler weights '{request.adapter}' here.")
        if not request.prompt or request.max_tokens < 1 or request.num_samples < 1:
            raise EngineError("invalid_request", "A prompt, max_tokens >= 1 and num_samples >= 1 are needed.")
        if request.temperature < 0 or not request.top_p > 0:
            raise EngineError("invalid_request", "temperature must be >= 0 and top_p > 0.")
        outside = next((token for token in request.prompt if not 0 <= token < self._sizes.vocab_size), None)
        if outside is not None:
            raise EngineError("invalid_request", f"Token {outside} is outside the vocabulary.")
        total = len(request.prompt) + request.max_tokens
        if total > self._settings.max_seq_len:
            raise EngineError(
                "sequence_too_long",
                f"{len(request.prompt)} prompt tokens and {request.max_tokens} to sample make {total}; "
                f"this engine holds {self._settings.max_seq_len} (model.engine.max_seq_len).",
            )

    def _set_adapter(self, name: str, adapter: Adapter) -> None:
        self.drop_adapter(name)
        self._adapters[name] = adapter


def guarded(operation: Callable[[], T]) -> T:
    """Runs an operation; what the machine lacks memory for becomes an `EngineError` that says what to lower."""
    try:
        return operation()
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = str(error)
    except RuntimeError as error:
        if isinstance(error, EngineError) or "memory" not in str(error):
            raise
        reason = str(error)
    # Outside of the handlers, so that the frames of the failed operation and their tensors are already free.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise _out_of_memory(reason)


def _out_of_memory(reason: str) -> EngineError:
    return EngineError(
        "out_of_memory",
        f"Out of memory ({(reason or 'no details').splitlines()[0]}). "
        "Lower model.engine.micro_batch_tokens, max_batch_rows or max_seq_len.",
    )
