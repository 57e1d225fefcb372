"""The schema of the `model` group: the policy, where it is served, and all values that depend on it.

Contents: `Engine`, `Lora`, `Price`, `SftRecipe`, `Recipe`, `Model`. `retool.config.schema` offers them with the rest.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from retool.config.constraints import option


@dataclass
class Engine:
    """The embedded engine (`retool.engine`). `null` in its place means the cloud service."""

    device: str = "cpu"
    dtype: str = option("float32", choices=("float32", "bfloat16"))
    sampling_dtype: str | None = option(None, choices=("float32", "bfloat16"))
    deterministic: bool = True
    normalisation: str = option("total_samples", choices=("total_samples", "active_tokens", "none"))
    threads: int | None = option(None, low=1)
    max_batch_rows: int = option(64, low=1)
    max_seq_len: int | None = option(None, low=1)
    gather_window_s: float = option(0.01, low=0)
    micro_batch_tokens: int = option(4096, low=1)
    memory_limit_gb: float | None = option(None, above=0)


@dataclass
class Lora:
    """The trained adapter. The service accepts ranks from 4 to 64."""

    rank: int = option(low=4, high=64)
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


@dataclass
class Price:
    """What the service charges per million tokens. `source` says where the figures are from, and of which date."""

    prefill: float = option(low=0)
    sample: float = option(low=0)
    train: float = option(low=0)
    currency: str = option(filled=True)
    source: str = option(filled=True)


@dataclass
class SftRecipe:
    """What suits the model in supervised fine-tuning; `conf/sft` refers to it."""

    epochs: int = option(low=1)
    learning_rate: float = option(above=0)
    batch_size: int = option(low=1)


@dataclass
class Recipe:
    """All values that depend on the model. The other groups refer to them, so choosing a model chooses them all."""

    learning_rate: float = option(above=0)
    group_size: int = option(low=1)
    questions_per_batch: int = option(low=1)
    max_steps: int = option(low=0)
    max_code_calls: int = option(low=0)
    max_assistant_turns: int = option(low=1)
    max_trajectory_tokens: int = option(low=2)
    max_turn_tokens: int | None = option(None, low=1)
    max_observation_tokens: int = option(low=1)
    ignore_unsampled_targets: bool = False
    resume_every: int = option(low=1)
    eval_samples: int = option(low=1)
    eval_k: list[int] = MISSING
    sft: SftRecipe = field(default_factory=SftRecipe)


@dataclass
class Model:
    """The policy: which weights, where they are served, and how it is spoken to."""

    base_model: str = option(filled=True)
    init_from: str | None = None
    checkpoint: str | None = None
    base_url: str | None = None
    engine: Engine | None = None
    lora: Lora = field(default_factory=Lora)
    tool_format: str = option("auto", choices=("auto", "qwen_xml", "hermes_json", "fenced_python"))
    thinking: str = option("disabled", choices=("disabled", "keep", "strip"))
    system_prompt: str | None = None
    chat_template: str | None = None
    price: Any = option(None, schema=Price)  # noqa: RUF009  makes a field, as dataclasses.field does
    recipe: Recipe = field(default_factory=Recipe)

    @property
    def pricing(self) -> Price | None:
        """`price` as an object."""
        return None if self.price is None else Price(**self.price)
