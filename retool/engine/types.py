"""Plain data that the wire layer and the compute loop of the embedded engine exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Which matrices get an adapter, and its rank. `seed` initialises A (B starts at zero)."""

    rank: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One datum: `tokens` are the inputs, `target_ids` the tokens they should predict (same length).

    A target of -100 is ignored by every loss. The other fields have the length of `tokens`, or are `None`.
    """

    tokens: Sequence[int]
    target_ids: Sequence[int]
    weights: Sequence[float] | None = None
    logprobs: Sequence[float] | None = None
    advantages: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss by its protocol name (cross_entropy, importance_sampling, ppo, cispo, dro) and its settings."""

    type: str
    config: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Sizes of the whole logical batch, of which one request may be a part (gradient accumulation)."""

    total_samples: int
    total_active_tokens: int
    total_advantage_tokens: int


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """`logprobs`: one float32 array a sample, of the length of its tokens. `loss_sum` is not normalised."""

    logprobs: list[FloatArray]
    loss_sum: float
    token_count: int


@dataclass(frozen=True, slots=True)
class AdamParams:
    """Settings of one AdamW step; `grad_clip_norm=0` means no clipping."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sampling request. `adapter` names loaded weights, `None` the base model.

    `seed=None` draws one. Sample i of a request depends on `seed`, i and the prompt alone, never on what else
    is being sampled. `stop_strings` end a completion when its decoded text holds one.
    """

    prompt: Sequence[int]
    adapter: str | None
    max_tokens: int
    num_samples: int = 1
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: Sequence[int] = ()
    stop_strings: Sequence[str] = ()
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class SampledSequence:
    """`stop_reason` is "stop" or "length". A sampled stop token is the last of `tokens`."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str


@dataclass(frozen=True, slots=True)
class SampleResult:
    """`prompt_logprobs[0]` is None; entries of `topk_prompt_logprobs` are (token id, logprob) pairs or None."""

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: list[list[tuple[int, float]] | None] | None = None


class EngineError(RuntimeError):
    """A request that cannot be served; `code` goes to the client in the failed event or the 4xx reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
