"""Book-keeping of one sampling request: its sequences, and the future that all of them together resolve."""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from retool.engine.sampling import DrawSettings, UniformStream
from retool.engine.types import SampledSequence, SampleRequest, SampleResult


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
