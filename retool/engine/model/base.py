"""`TrainingModel` and `TokenSampler`: what training and sampling need of a model, whichever way it is computed."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from retool.engine.model.lora import Adapter
from retool.engine.sequences import Sequence
from retool.engine.types import LoraSpec


class TrainingModel(Protocol):
    """A frozen model with autograd through an adapter."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int: ...

    def target_shapes(self, spec: LoraSpec) -> Mapping[str, tuple[int, int]]:
        """(out, in) of every matrix that `spec` trains, by full name, in a fixed order."""
        ...

    def hidden(self, adapter: Adapter, tokens: Tensor) -> Tensor:
        """(batch, length) right-padded tokens -> (batch, length, width), from which `logits` follow."""
        ...

    def logits(self, adapter: Adapter, hidden: Tensor) -> Tensor:
        """(n, width) -> (n, vocab)."""
        ...


class TokenSampler(Protocol):
    """Samples queued sequences, a token a step."""

    def enqueue(self, sequences: list[Sequence]) -> None:
        """Queues the sequences of one request."""
        ...

    def score_prompt(self, sequences: list[Sequence], topk: int) -> None:
        """Computes the prompt logprobs of a request that asks for them."""
        ...

    def seconds_until_work(self) -> float | None:
        """0 if there is something to do now, how long until then, or `None` when idle."""
        ...

    def step(self) -> None:
        """Samples a token for every sequence of a batch."""
        ...

    def fail_all(self, error: Exception) -> None:
        """Fails every queued and running request."""
        ...
