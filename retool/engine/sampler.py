"""Continuous batching: sequences join the batch when rows are free and leave when they end.

Rows of the key-value cache are dense: the batch is always rows 0..n-1, and the last sequence moves into a hole, so
that no step ever copies the cache. Sequences of one prompt are prefilled once. Everything runs in the compute thread.
"""

import time
from collections import deque
from collections.abc import Callable

import torch
from tokenizers import Tokenizer

from retool.engine.model.cached_forward import CachedModel, KeyValueCache
from retool.engine.prefix_cache import PrefixCache
from retool.engine.sampling import draw
from retool.engine.sequences import Sequence, fail_requests
from retool.engine.types import EngineError, SampledSequence

_PREFILL_TOKENS = 4096
_LOGIT_ROWS = 256


class BatchSampler:
    """Samples queued sequences with the weights that `model_for` returns for their adapter."""

    def __init__(
        self,
        cache: KeyValueCache,
        prefixes: PrefixCache,
        tokenizer: Tokenizer,
        model_for: Callable[[str | None], CachedModel],
        *,
        gather_window_s: float,
    ) -> None:
        self._cache = cache
        self._prefixes = prefixes
        self._tokenizer = tokenizer
        self._model_for = model_for
        self._gather_window_s = gather_window_s
        self._waiting: deque[Sequence] = deque()
        self._batch: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._batch

    def enqueue(self, sequences: list[Sequence]) -> None:
        """Queues the sequences of one request."""
        self._waiting.extend(sequences)

    def seconds_until_work(self) -> float | None:
        """0 if there is something to do now, the rest of the gather window, or `None` when idle."""
        if self._batch:
            return 0.0
        if not self._waiting:
            return None
        if len(self._waiting) >= self._cache.rows:
            return 0.0
        return max(0.0, self._waiting[0].pending.arrival + self._gather_window_s - time.monotonic())

    def step(self) -> None:
        """Admits what fits, then samples one token for every sequence of the batch."""
        self._drop_cancelled()
        admitted = self._admit()
        decoding = self._batch[: len(self._batch) - len(admitted)]
        try:
            if admitted:
                self._prefill(admitted, first_row=len(decoding))
            if decoding:
                self._decode(decoding)
        except (EngineError, RuntimeError, MemoryError) as error:
            self._fail(self._batch, error)
            return
        self._retire()

    def fail_all(self, error: Exception) -> None:
        """Fails every queued and running request."""
        self._fail([*self._batch, *self._waiting], error)
        self._waiting.clear()

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        failed = fail_requests(sequences, error)
        self._batch = [sequence for sequence in self._batch if sequence.pending not in failed]
        self._waiting = deque(sequence for sequence in self._waiting if sequence.pending not in failed)

    def _drop_cancelled(self) -> None:
        if any(sequence.pending.future.cancelled() for sequence in self._waiting):
            self._waiting = deque(s for s in self._waiting if not s.pending.future.cancelled())
        for row in reversed(range(len(self._batch))):
            if self._batch[row].pending.future.cancelled():
                self._remove_row(row)

    def _admit(self) -> list[Sequence]:
        """Moves waiting sequences of the batch's adapter into free rows, oldest first.

        One batch has one adapter: sequences of another one wait until the batch is empty, and nothing overtakes them.
        """
        admitted: list[Sequence] = []
        if self._batch and self._waiting:
            newest = self._waiting[-1].pending.arrival
            full = len(self._batch) + len(self._waiting) >= self._cache.rows
            if not full and time.monotonic() - newest < self._gather_window_s / 5:
                return admitted
        while self._waiting and len(self._batch) < self._cache.rows:
            adapter = self._waiting[0].pending.request.adapter
            if self._batch and self._batch[0].pending.request.adapter != adapter:
                break
            sequence = self._waiting.popleft()
            self._batch.append(sequence)
            admitted.append(sequence)
        return admitted

    def _prefill(self, admitted: list[Sequence], first_row: int) -> None:
        """Fills the rows of new sequences: each prompt is computed once, the others of it copy its row.

        The first of each prompt take the first rows, so that many prompts are computed in one pass.
        """
        by_prompt: dict[tuple[int, ...], list[Sequence]] = {}
        for sequence in admitted:
            by_prompt.setdefault(tuple(sequence.pending.request.prompt), []).append(sequence)
        followers = [sequence for same in by_prompt.values() for sequence in same[1:]]
        self._batch[first_row:] = [same[0] for same in by_prompt.values()] + followers
        adapter = admitted[0].pending.request.adapter
        model = self._model_for(adapter)
        rows = {prompt: row for row, prompt in enumerate(by_prompt, first_row)}
        last_hidden: dict[tuple[int, ...], torch.Tensor] = {}
        for chunk in _chunks(list(by_prompt)):
            last_hidden |= self._prefill_chunk(model, adapter, chunk, rows[chunk[0]])
        for row, sequence in enumerate(self._batch[first_row:], first_row):
            prompt = tuple(sequence.pending.request.prompt)
            if rows[prompt] != row:
                self._cache.copy_row(rows[prompt], row, len(prompt))
            sequence.fed = len(prompt)
        started = self._batch[first_row:]
        hidden = torch.stack([last_hidden[tuple(sequence.pending.request.prompt)] for sequence in started])
        self._draw(model, started, hidden)

    def _prefill_chunk(
        self, model: CachedModel, adapter: str | None, prompts: list[tuple[int, ...]], first_row: int
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """Computes the new tokens of prompts in consecutive rows; returns the hidden state of each last token."""
        starts = []
        for row, prompt in enumerate(prompts, first_row):
            known, stored = self._prefixes.longest(adapter or "", prompt)
            if stored is not None:
                self._cache.insert(row, stored)
            starts.append(known)
        counts = [len(prompt) - start for prompt, start in zip(prompts, starts, strict=True)]
        device = self._cache.keys.device
        tokens = torch.zeros((len(prompts), max(counts)), dtype=torch.long, device=device)
        for index, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            tokens[index, : counts[index]] = torch.tensor(prompt[start:])
        hidden = model.hidden(self._cache, first_row, tokens, torch.tensor(starts, device=device), counts)
        return {prompt: hidden[index, counts[index] - 1] for index, prompt in enumerate(prompts)}

    def _decode(self, decoding: list[Sequence]) -> None:
        model = self._model_for(decoding[0].pending.request.adapter)
        device = self._cache.keys.device
        tokens = torch.tensor([[sequence.tokens[-1]] for sequence in decoding], device=device)
        starts = torch.tensor([sequence.fed for sequence in decoding], device=device)
        hidden = model.hidden(self._cache, 0, tokens, starts, [1] * len(decoding))[:, 0]
        for sequence in decoding:
            sequence.fed += 1
        self._draw(model, decoding, hidden)

    def _draw(self, model: CachedModel, sequences: list[Sequence], hidden: torch.Tensor) -> None:
        settings = [sequence.settings for sequence in sequences]
        uniforms = [sequence.uniforms.next() for sequence in sequences]
        tokens, logprobs = draw(model.logits(hidden), settings, uniforms)
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)

    def _retire(self) -> None:
        """Resolves ended sequences, keeps their keys and values, and closes the holes."""
        for row in reversed(range(len(self._batch))):
            sequence = self._batch[row]
            reason = sequence.stop_reason(self._tokenizer)
            if reason is None:
                continue
            stored = self._cache.extract(row, sequence.fed)
            adapter = sequence.pending.request.adapter or ""
            self._prefixes.put(adapter, sequence.context[: sequence.fed], stored)
            result = SampledSequence(sequence.tokens, sequence.logprobs, reason)
            sequence.pending.finish(sequence.sample_index, result)
            self._remove_row(row)

    def _remove_row(self, row: int) -> None:
        last = len(self._batch) - 1
        if row != last:
            self._cache.copy_row(last, row, self._batch[last].fed)
            self._batch[row] = self._batch[last]
        self._batch.pop()

    def score_prompt(self, sequences: list[Sequence], topk: int) -> None:
        """Computes the prompt logprobs of a request that asks for them, in the row behind the batch."""
        pending = sequences[0].pending
        prompt = list(pending.request.prompt)
        model = self._model_for(pending.request.adapter)
        device = self._cache.keys.device
        hidden = model.hidden(
            self._cache,
            len(self._batch),
            torch.tensor([prompt], device=device),
            torch.zeros(1, dtype=torch.long),
            [len(prompt)],
        )[0, :-1]
        pending.score_prompt(lambda rows: model.logits(hidden[rows]), topk)


def _chunks(prompts: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """The prompts in their order, cut so that a padded chunk has about `_PREFILL_TOKENS` tokens."""
    chunks: list[list[tuple[int, ...]]] = []
    width = 0
    for prompt in prompts:
        width = max(width, len(prompt))
        if not chunks or width * (len(chunks[-1]) + 1) > _PREFILL_TOKENS:
            chunks.append([])
            width = len(prompt)
        chunks[-1].append(prompt)
    return chunks
