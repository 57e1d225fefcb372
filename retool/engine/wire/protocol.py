"""Request bodies of the PyTRIO SDK 0.2.9, validated, and their conversion to the engine's types.

Control plane: `SessionCreate`, `SessionClose`, `TrainingRunCreate`, `TrainingRunUpdate`, `SamplingRunCreate`.
Actor plane: `EventEnvelope` with its payloads, and `Sample`. Unknown fields are refused rather than ignored.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

from retool.engine.types import AdamParams, BatchTotals, LoraSpec, LossSpec, SampleRequest, TrainingSample
from retool.engine.wire.errors import ApiError

IGNORED_TARGET = -100
CheckpointName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?$", max_length=200)
]


class Body(BaseModel):
    """A request body."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class SessionCreate(Body):
    """POST service-sessions."""

    sdk_version: str
    user_metadata: dict[str, object] | None = None


class SessionClose(Body):
    """POST service-sessions/{id}/close."""

    status: Literal["ENDED", "CANCELLED"]


class TrainingRunCreate(Body):
    """POST service-sessions/{id}/training-runs. A checkpoint brings its own base model and LoRA shape."""

    base_model: str
    lora_rank: int = Field(ge=1)
    train_mlp: bool
    train_attn: bool
    train_unembed: bool
    source_checkpoint_uri: str = ""
    restore_optimizer: bool = False
    seed: int | None = None

    def lora(self) -> LoraSpec:
        """The adapter's shape. Without a seed it is that of seed 0, so that a run can be repeated."""
        return LoraSpec(self.lora_rank, self.train_mlp, self.train_attn, self.train_unembed, self.seed or 0)


class TrainingRunUpdate(Body):
    """PATCH service-sessions/{id}/training-runs/{id}: start from a checkpoint instead."""

    source_checkpoint_uri: str = Field(min_length=1)
    restore_optimizer: bool


class SamplingRunCreate(Body):
    """POST service-sessions/{id}/sampling-runs. Without a checkpoint the base model is sampled."""

    base_model: str
    source_checkpoint_uri: str = ""


class TextChunk(Body):
    """Tokens of a model input."""

    tokens: list[int]
    type: Literal["encoded_text"] = "encoded_text"


class ImageChunk(Body):
    """An image of a model input; the engine serves text models only."""

    data: object
    format: str
    expected_tokens: int | None = None
    type: Literal["image"]


class ModelInput(Body):
    """What a model reads, in pieces."""

    chunks: list[Annotated[TextChunk | ImageChunk, Field(discriminator="type")]] = Field(min_length=1)

    def tokens(self) -> list[int]:
        """All tokens in order. Raises `ApiError` for an image."""
        if len(self.chunks) == 1 and isinstance(self.chunks[0], TextChunk):
            return self.chunks[0].tokens
        tokens: list[int] = []
        for chunk in self.chunks:
            if isinstance(chunk, ImageChunk):
                raise ApiError(422, "images_not_supported", "The embedded engine serves text models; remove the image.")
            tokens += chunk.tokens
        return tokens


class EventType(StrEnum):
    """What an event asks the trainer to do."""

    INIT_RUN = "trainer.init_run"
    """Allocate the run's adapter; sent once, before anything else."""
    FORWARD = "trainer.forward"
    """Loss and logprobs of a batch."""
    FORWARD_BACKWARD = "trainer.forward_backward"
    """The same, and gradients on top of those already there."""
    OPTIMIZE_STEP = "trainer.optimize_step"
    """One AdamW step on the gradients."""
    SAVE_STATE = "trainer.save_state"
    """Write weights and optimizer."""
    SAVE_WEIGHTS = "trainer.save_weights"
    """Write or snapshot weights for sampling."""
    END_RUN = "trainer.end_run"
    """Free the run."""


class EventStatus(StrEnum):
    """Where an event is in its life."""

    ACCEPTED = "accepted"
    """Queued behind earlier events of its run."""
    RUNNING = "running"
    """Handed to the engine."""
    SUCCEEDED = "succeeded"
    """Done; the reply holds its result."""
    FAILED = "failed"
    """Not done; the reply holds a code and a message."""


class EventMetadata(Body):
    """Who sends an event and where it stands in the order of its run (`index` from 1)."""

    index: int = Field(ge=1)
    step: int
    timestamp: int
    sdk: str
    sdk_version: str
    run_id: str


class EventEnvelope(Body):
    """POST v1/events. `event_id` makes a repeated submission harmless."""

    version: Literal[1]
    event_id: str = Field(pattern=r"^event_[0-9a-hjkmnp-tv-z]{12}$")
    type: EventType
    metadata: EventMetadata
    payload: dict[str, object]


class LoraConfig(Body):
    """Adapter shape inside `InitRun`."""

    rank: int
    seed: int | None = None
    train_mlp: bool
    train_attn: bool
    train_unembed: bool


class InitRun(Body):
    """Payload of `trainer.init_run`; what counts was fixed when the run was created."""

    base_model: str
    lora_config: LoraConfig
    checkpoint_uri: str | None = None
    load_optimizer: bool = False
    user_metadata: dict[str, object] | None = None


class ForwardDatum(Body):
    """One training sequence."""

    model_input: ModelInput
    target_ids: list[int] = Field(min_length=1)
    weights: list[FiniteFloat] | None = None
    logprobs: list[FiniteFloat] | None = None
    advantages: list[FiniteFloat] | None = None

    def sample(self, *, auto_shift: bool) -> TrainingSample:
        """As the engine takes it. With `auto_shift`, label i + 1 is the target of token i and label 0 of none."""
        tokens = self.model_input.tokens()
        if not auto_shift:
            return TrainingSample(tokens, self.target_ids, self.weights, self.logprobs, self.advantages)
        return TrainingSample(
            tokens,
            [*self.target_ids[1:], IGNORED_TARGET],
            _shifted(self.weights),
            _shifted(self.logprobs),
            _shifted(self.advantages),
        )


class Loss(Body):
    """Name and settings of a loss; `None` among the settings means the default."""

    type: Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]
    config: dict[str, FiniteFloat | None] = Field(default_factory=dict)


class GradientAccumulation(Body):
    """Sizes of the whole batch of which an event may be a part."""

    total_samples: int = Field(gt=0)
    total_active_tokens: int = Field(ge=0)
    total_advantage_tokens: int = Field(ge=0)


class Forward(Body):
    """Payload of `trainer.forward` and `trainer.forward_backward`."""

    data: list[ForwardDatum] = Field(min_length=1)
    auto_shift: bool = False
    loss: Loss
    gradient_accumulation: GradientAccumulation

    def samples(self) -> list[TrainingSample]:
        """The batch as the engine takes it."""
        return [datum.sample(auto_shift=self.auto_shift) for datum in self.data]

    def loss_spec(self) -> LossSpec:
        """The loss as the engine takes it."""
        return LossSpec(self.loss.type, {key: value for key, value in self.loss.config.items() if value is not None})

    def totals(self) -> BatchTotals:
        """Denominators of the whole batch."""
        sizes = self.gradient_accumulation
        return BatchTotals(sizes.total_samples, sizes.total_active_tokens, sizes.total_advantage_tokens)


class Adam(Body):
    """Settings of one AdamW step."""

    learning_rate: float = Field(ge=0, allow_inf_nan=False)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(ge=0, allow_inf_nan=False)
    weight_decay: float = Field(ge=0, allow_inf_nan=False)
    grad_clip_norm: float = Field(ge=0, allow_inf_nan=False)


class OptimizeStep(Body):
    """Payload of `trainer.optimize_step`."""

    adam_params: Adam

    def adam(self) -> AdamParams:
        """The settings as the engine takes them."""
        return AdamParams(**self.adam_params.model_dump())


class Save(Body):
    """Payload of `trainer.save_state` and `trainer.save_weights`."""

    name: CheckpointName
    ttl_seconds: int | None = Field(default=None, gt=0)
    overwrite: bool = False
    visibility: Literal["WORKSPACE", "TEMPORARY"] = "WORKSPACE"
    metadata: dict[str, object] | None = None


class SamplingParams(Body):
    """How to draw tokens; `top_k=-1` means no limit."""

    max_tokens: int = Field(gt=0)
    seed: int | None = None
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_k: int = -1
    top_p: float = Field(default=1.0, gt=0, le=1)


class Sample(Body):
    """POST v1/sampling-runs/{id}/sample."""

    request_id: str = Field(min_length=1)
    prompt: ModelInput
    sampling_params: SamplingParams
    num_samples: int = Field(default=1, ge=1, le=4096)
    return_text: bool = True
    return_token_logprobs: bool = True
    return_prompt_logprobs: bool = False
    topk_prompt_logprobs: int = Field(default=0, ge=0)

    def request(self, adapter: str | None) -> SampleRequest:
        """The request as the engine takes it."""
        params = self.sampling_params
        return SampleRequest(
            prompt=self.prompt.tokens(),
            adapter=adapter,
            max_tokens=params.max_tokens,
            num_samples=self.num_samples,
            seed=params.seed,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            stop_token_ids=params.stop_token_ids,
            stop_strings=[string for string in params.stop if string],
            prompt_logprobs=self.return_prompt_logprobs,
            topk_prompt_logprobs=self.topk_prompt_logprobs,
        )


def _shifted(values: list[float] | None) -> list[float] | None:
    return None if values is None else [*values[1:], 0.0]
