"""Book-keeping of one sampling request: its sequences, and the future that all of them together resolve."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from retool.engine.sampling import DrawSettings, UniformStream
from retool.engine.types import SampledSequence, SampleRequest, SampleResult

_LOGIT_ROWS = 256


@dataclass(eq=False)
class PendingRequest:
    """A request and how many of its sequences are still being sampled."""

    request: SampleRequest
    future: "Future[SampleResult]"
    seed: int
    arrival: float
    result: SampleResult
    finished: list[SampledSequence | None] = field(default_factory=list)

    def finish(self, sample_index: int, sequence: SampledSequence) -> None:
        """Records one sequence; resolves the future with the last."""
        self.finished[sample_index] = sequence
        done = [sequence for sequence in self.finished if sequence is not None]
        if len(done) == len(self.finished):
            result = self.result
            with suppress(InvalidStateError):  # cancelled by its client meanwhile
                self.future.set_result(SampleResult(done, result.prompt_logprobs, result.topk_prompt_logprobs))

    def score_prompt(self, logits: Callable[[slice], Tensor], topk: int) -> None:
        """Records the prompt's logprobs, and those of the `topk` likeliest tokens at each position if that is not 0.

        `logits(rows)`: (n, vocab) in fp32, predictions of the token after each of so many positions of the prompt.
        """
        prompt = self.request.prompt
        logprobs: list[float | None] = [None]
        top: list[list[tuple[int, float]] | None] = [None]
        for start in range(0, len(prompt) - 1, _LOGIT_ROWS):
            rows = slice(start, min(start + _LOGIT_ROWS, len(prompt) - 1))
            part = torch.log_softmax(logits(rows), dim=-1)
            targets = torch.tensor(list(prompt[rows.start + 1 : rows.stop + 1]), device=part.device)
            logprobs += part.gather(1, targets[:, None])[:, 0].tolist()
            if topk:
                values, tokens = part.topk(topk, dim=-1)
                pairs = zip(tokens.tolist(), values.tolist(), strict=True)
                top += [list(zip(row, row_values, strict=True)) for row, row_values in pairs]
        self.result = replace(self.result, prompt_logprobs=logprobs, topk_prompt_logprobs=top if topk else None)


@dataclass(eq=False)
class Sequence:
    """One sequence being sampled. `fed` counts the tokens whose keys and values are in its cache row."""

    pending: PendingRequest
    sample_index: int
    uniforms: UniformStream
    settings: DrawSettings
    stop_token_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    fed: int = 0

    @property
    def context(self) -> list[int]:
        """Prompt and sampled tokens."""
        return [*self.pending.request.prompt, *self.tokens]

    def stop_reason(self, tokenizer: Tokenizer) -> str | None:
        """Why the sequence ends after its newest token, or `None` if it goes on."""
        request = self.pending.request
        if self.tokens[-1] in self.stop_token_ids or self._ends_with_stop_string(tokenizer):
            return "stop"
        return "length" if len(self.tokens) >= request.max_tokens else None

    def _ends_with_stop_string(self, tokenizer: Tokenizer) -> bool:
        strings = self.pending.request.stop_strings
        if not strings:
            return False
        # A stop string spans at most as many tokens as it has bytes; a few more cover split characters.
        window = max(len(string.encode()) for string in strings) + 4
        tail = tokenizer.decode(self.tokens[-window:], skip_special_tokens=False)
        return any(string in tail for string in strings)


def open_sequences(
    request: SampleRequest, future: "Future[SampleResult]", *, seed: int, arrival: float, eos: frozenset[int]
) -> list[Sequence]:
    """The sequences of a request, none of them sampled yet. The model's own end tokens always stop them."""
    pending = PendingRequest(request, future, seed, arrival, SampleResult([]), [None] * request.num_samples)
    settings = DrawSettings(request.temperature, request.top_p, request.top_k)
    stops = eos | frozenset(request.stop_token_ids)
    return [
        Sequence(pending, index, UniformStream(seed, index), settings, stops) for index in range(request.num_samples)
    ]


def fail_requests(sequences: Iterable[Sequence], error: Exception) -> set[PendingRequest]:
    """Fails the requests that the sequences belong to, and returns them."""
    failed = {sequence.pending for sequence in sequences}
    for pending in failed:
        if not pending.future.done():
            pending.future.set_exception(error)
    return failed
