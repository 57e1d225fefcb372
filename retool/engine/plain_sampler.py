"""Sampling with any model of `transformers`: batches that are prefilled together and decoded to their ends.

Sequences that end leave their batch; new ones form the next batch rather than joining. Batches take turns, a token
each. Prompts of different length share a batch where the model proves indifferent to padding (see `PlainModel`).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from retool.engine.model.lora import Adapter
from retool.engine.model.plain import PlainModel
from retool.engine.sampling import draw
from retool.engine.sequences import Sequence, fail_requests
from retool.engine.types import EngineError, SampledSequence

_PREFILL_TOKENS = 4096


@dataclass(eq=False)
class _Batch:
    """Sequences in decoding: what they attend to and the cache of their rows."""

    adapter: Adapter | None
    sequences: list[Sequence]
    mask: Tensor
    cache: Any


class PlainSampler:
    """Does for `PlainModel` what `BatchSampler` does for the engine's own forward pass."""

    def __init__(
        self,
        model: PlainModel,
        tokenizer: Any,  # noqa: ANN401  (its Rust class has no types)
        adapter_for: Callable[[str | None], Adapter | None],
        *,
        rows: int,
        gather_window_s: float,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._adapter_for = adapter_for
        self._rows = rows
        self._gather_window_s = gather_window_s
        self._waiting: deque[Sequence] = deque()
        self._batches: deque[_Batch] = deque()

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._batches

    def enqueue(self, sequences: list[Sequence]) -> None:
        """Queues the sequences of one request."""
        self._waiting.extend(sequences)

    def seconds_until_work(self) -> float | None:
        """0 if there is something to do now, the rest of the gather window, or `None` when idle."""
        if self._batches:
            return 0.0
        if not self._waiting:
            return None
        if len(self._waiting) >= self._rows:
            return 0.0
        return max(0.0, self._waiting[0].pending.arrival + self._gather_window_s - time.monotonic())

    def step(self) -> None:
        """Starts a batch of what waits and fits, or samples a token for every sequence of the next batch."""
        self._waiting = deque(s for s in self._waiting if not s.pending.future.cancelled())
        chosen = self._admit()
        failed: list[Sequence] = chosen
        try:
            if chosen:
                self._start(chosen)
            elif self._batches:
                batch = self._batches.popleft()
                failed = batch.sequences
                self._decode(batch)
        except (EngineError, RuntimeError, MemoryError) as error:
            self._fail(failed, error)

    def fail_all(self, error: Exception) -> None:
        """Fails every queued and running request."""
        self._fail([*self._waiting, *(s for batch in self._batches for s in batch.sequences)], error)
        self._batches.clear()

    def score_prompt(self, sequences: list[Sequence], topk: int) -> None:
        """Computes the prompt logprobs of a request that asks for them."""
        pending = sequences[0].pending
        prompt = torch.tensor([list(pending.request.prompt)], device=self._model.device)
        adapter = self._adapter_for(pending.request.adapter)
        with torch.no_grad():
            logits = self._model.logits(adapter, self._model.hidden(adapter, prompt)[0, :-1])
        pending.score_prompt(lambda rows: logits[rows].float(), topk)

    def _admit(self) -> list[Sequence]:
        """Takes the oldest waiting sequence and those that can share its batch, while there are rows."""
        free = self._rows - sum(len(batch.sequences) for batch in self._batches)
        if not self._waiting or free < 1:
            return []
        first = self._waiting[0].pending.request
        if self._batches and self._waiting[0].pending.arrival + self._gather_window_s > time.monotonic():
            return []
        chosen: list[Sequence] = []
        width = 0
        for sequence in self._waiting:
            request = sequence.pending.request
            same_length = len(request.prompt) == len(first.prompt)
            wider = max(width, len(request.prompt))
            if len(chosen) == free or (chosen and wider * (len(chosen) + 1) > max(_PREFILL_TOKENS, wider * 2)):
                break
            if request.adapter == first.adapter and (same_length or self._model.padding_is_neutral):
                chosen.append(sequence)
                width = wider
        taken = set(map(id, chosen))
        self._waiting = deque(s for s in self._waiting if id(s) not in taken)
        return chosen

    def _start(self, sequences: list[Sequence]) -> None:
        """Prefills each different prompt once and gives each sequence a copy of its rows."""
        prompts = list(dict.fromkeys(tuple(sequence.pending.request.prompt) for sequence in sequences))
        rows = {prompt: row for row, prompt in enumerate(prompts)}
        width = max(map(len, prompts))
        tokens = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        tokens, mask = tokens.to(self._model.device), mask.to(self._model.device)
        adapter = self._adapter_for(sequences[0].pending.request.adapter)
        with self._model.using(adapter):
            logits, cache = self._model.step(tokens, mask, None)
        index = torch.tensor([rows[tuple(s.pending.request.prompt)] for s in sequences], device=self._model.device)
        if len(index) != len(prompts):
            cache.reorder_cache(index)
        batch = _Batch(adapter, sequences, mask[index], cache)
        self._draw(batch, logits[index])

    def _decode(self, batch: _Batch) -> None:
        tokens = torch.tensor([[sequence.tokens[-1]] for sequence in batch.sequences], device=self._model.device)
        batch.mask = torch.cat((batch.mask, torch.ones_like(tokens)), dim=1)
        with self._model.using(batch.adapter):
            logits, batch.cache = self._model.step(tokens, batch.mask, batch.cache)
        self._draw(batch, logits)

    def _draw(self, batch: _Batch, logits: Tensor) -> None:
        settings = [sequence.settings for sequence in batch.sequences]
        uniforms = [sequence.uniforms.next() for sequence in batch.sequences]
        going_on = []
        for row, (sequence, token, logprob) in enumerate(
            zip(batch.sequences, *draw(logits, settings, uniforms), strict=True)
        ):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            reason = sequence.stop_reason(self._tokenizer)
            if reason is not None:
                result = SampledSequence(sequence.tokens, sequence.logprobs, reason)
                sequence.pending.finish(sequence.sample_index, result)
            elif not sequence.pending.future.cancelled():
                going_on.append(row)
        if not going_on:
            return
        if len(going_on) < len(batch.sequences):
            index = torch.tensor(going_on, device=self._model.device)
            batch.cache.reorder_cache(index)
            batch.mask = batch.mask[index]
            batch.sequences = [batch.sequences[row] for row in going_on]
        self._batches.append(batch)

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        failed = fail_requests(sequences, error)
        self._waiting = deque(s for s in self._waiting if s.pending not in failed)
