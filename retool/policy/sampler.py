"""`ServiceSampler`: fixed weights behind an SDK sampling client, as a `Sampler`."""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from retool.errors import InfrastructureError
from retool.policy.types import Completion, SamplerStop, SamplingSettings

if TYPE_CHECKING:
    from pytrio import SamplingClient  # type: ignore[import-untyped]
    from pytrio.types.sample.sample_sequence import SampleSequence  # type: ignore[import-untyped]

T = TypeVar("T")


class Guard(Protocol):
    """Awaits a call of the SDK and turns its failures into ours; `what` begins their message."""

    async def __call__(self, what: str, call: Coroutine[object, object, T]) -> T: ...


class ServiceSampler:
    """Samples from the weights that an SDK client stands for, and says how likely they find a text."""

    def __init__(self, client: "SamplingClient", guard: Guard) -> None:
        self._client = client
        self._guard = guard

    async def sample(
        self,
        prompt: Sequence[int],
        *,
        num_samples: int,
        max_tokens: int,
        seed: int,
        stop_token_ids: Sequence[int],
        settings: SamplingSettings,
    ) -> list[Completion]:
        """Returns `num_samples` completions of `prompt`. Raises `InfrastructureError` when the service fails."""
        from pytrio import ModelInput, SamplingParams

        params = SamplingParams(
            max_tokens=max_tokens,
            seed=seed,
            stop=list(stop_token_ids) or None,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
        )
        call = self._client.sample_async(
            ModelInput.from_ints(list(prompt)), num_samples=num_samples, sampling_params=params, return_text=False
        )
        response = await self._guard("Sampling", call)
        sequences = response.sequences
        if len(sequences) != num_samples:
            raise InfrastructureError(f"{num_samples} samples were asked for; the service returned {len(sequences)}.")
        return [_completion(sequence, max_tokens, stop_token_ids) for sequence in sequences]

    async def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """One logprob a token, given those before it; 0 for the first. Raises `InfrastructureError`."""
        from pytrio import ModelInput, SamplingParams

        call = self._client.sample_async(
            ModelInput.from_ints(list(tokens)),
            sampling_params=SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
            return_text=False,
        )
        logprobs = (await self._guard("Scoring a text", call)).prompt_logprobs or []
        if len(logprobs) != len(tokens) or any(logprob is None for logprob in logprobs[1:]):
            raise InfrastructureError(f"The service returned {len(logprobs)} logprobs for {len(tokens)} tokens.")
        return [0.0, *logprobs[1:]]


def _completion(sequence: "SampleSequence", max_tokens: int, stop_token_ids: Sequence[int]) -> Completion:
    tokens, logprobs = tuple(sequence.tokens), tuple(sequence.logprobs)
    if len(tokens) != len(logprobs):
        raise InfrastructureError(f"The service returned {len(tokens)} tokens with {len(logprobs)} logprobs.")
    return Completion(tokens, logprobs, _stop(sequence.stop_reason, tokens, max_tokens, stop_token_ids))


def _stop(reason: str, tokens: tuple[int, ...], max_tokens: int, stop_token_ids: Sequence[int]) -> SamplerStop:
    """The service's reasons; one that is not known is told from the tokens."""
    if reason in {stop.value for stop in SamplerStop}:
        return SamplerStop(reason)
    if tokens and tokens[-1] in stop_token_ids:
        return SamplerStop.STOP
    return SamplerStop.LENGTH if len(tokens) >= max_tokens else SamplerStop.STOP
