"""What a rollout needs from a policy: prompts in, sampled tokens with their logprobs out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class SamplerStop(StrEnum):
    """Why the sampler ended a completion."""

    STOP = "stop"
    """A stop token was sampled; it is the last of the tokens."""
    LENGTH = "length"
    """The token limit was reached in the middle of a turn."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens, a stop token included, with one logprob each (natural log, under the sampling policy)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: SamplerStop


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Temperature and truncation of the sampling distribution; `top_k=-1` means no limit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


class Sampler(Protocol):
    """Samples from fixed weights."""

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
        ...


@dataclass(frozen=True, slots=True)
class TokenDatum:
    """One training sequence. `tokens[i]` predicts `target_tokens[i]`; all fields have the same length.

    `weights` serve cross entropy; `logprobs` (of the sampling policy) and `advantages` serve the policy losses.
    Both are zero where the policy did not sample the target.
    """

    tokens: Sequence[int]
    target_tokens: Sequence[int]
    weights: Sequence[float] | None = None
    logprobs: Sequence[float] | None = None
    advantages: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """`logprobs[i]`: those of datum i's targets before the update. `metrics`: as the service names them."""

    logprobs: list[list[float]]
    metrics: dict[str, float]
