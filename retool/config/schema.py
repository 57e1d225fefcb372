"""What a configuration may say: one dataclass a component, registered in Hydra's ConfigStore.

The schema holds names, types and limits; the values are in `conf/`. Each YAML of a group starts with
`defaults: [/schema/<group>/<component>@_here_, _self_]`, so that Hydra itself refuses wrong types. The keys of a
component with a `_target_` are the keyword arguments of that target. `register()` makes the schema known; entry points
call it before Hydra composes anything.

Top level: `Train`, `Evaluate`, `Sft`, all based on `Run`, and `Serve`. Groups: `Model` (with `Engine`, `Lora`,
`Price`, `Recipe`), `ArithmeticData`, `FileData`, `Rollout`, `Sandbox`, `Reward`, `Ppo`, `Evaluation`, `Tuning`,
`JsonlTracker`, `SwanlabTracker`, `Checkpoint`. Models of which nothing else is known can be described by
`conf/model/hf.yaml`.
"""

from dataclasses import dataclass, field
from typing import Any, get_origin

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from retool.config.constraints import option

ADVANTAGES = ("mean", "grpo", "rloo", "dr_grpo")
LOSSES = ("ppo", "importance_sampling", "cispo", "dro")
AGGREGATIONS = ("sample_sum", "sample_mean", "token_mean", "fixed_length")
MODES = ("retool", "text_only")


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


@dataclass
class ArithmeticData:
    """Generated integer arithmetic."""

    _target_: str = "retool.data.arithmetic.ArithmeticSource"
    operations: list[str] = MISSING
    digits: list[int] = MISSING
    train_size: int = option(low=1)
    holdout: int = option(low=0)
    seed: int = MISSING


@dataclass
class FileData:
    """Problems in a publisher's file or hub data set. `fields` maps ours to theirs."""

    _target_: str = "retool.data.sources.FileSource"
    name: str = option(filled=True)
    path: str | None = option(None, file=True)
    hub: str | None = None
    revision: str | None = None
    split: str | None = None
    limit: int | None = option(None, low=1)
    holdout: int = option(0, low=0)
    seed: int = MISSING
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Rollout:
    """Budgets and sampling of the multi-turn loop."""

    _target_: str = "retool.rollout.groups.Rollout"
    max_code_calls: int = option(low=0)
    max_assistant_turns: int = option(low=1)
    max_trajectory_tokens: int = option(low=2)
    max_turn_tokens: int | None = option(None, low=1)
    max_observation_tokens: int = option(low=1)
    temperature: float = option(low=0)
    top_p: float = option(above=0, high=1)
    top_k: int = option(low=-1)
    on_parse_error: str = option(choices=("reply", "end"))
    max_concurrency: int = option(low=1)
    force_sampling: bool = False


@dataclass
class Sandbox:
    """The local sandbox."""

    _target_: str = "retool.sandbox.open_sandbox"
    backend: str = option(choices=("auto", "process"))
    workers: int | None = option(None, low=1)
    cpu_time_s: float = option(above=0)
    wall_time_s: float = option(above=0)
    memory_mb: int = option(low=64)
    output_chars: int = option(low=1)
    output_hard_bytes: int = option(low=1)
    scratch_mb: int = option(low=1)
    auto_print: bool = True
    allow_unsafe: bool = False
    python: str | None = option(None, file=True)


@dataclass
class Reward:
    """The scorer of final answers."""

    _target_: str = "retool.reward.Scorer"
    right: float = option()
    wrong: float = option()
    answer_window_chars: int = option(low=1)
    workers: int = option(low=1)
    time_limit_s: float = option(above=0)
    memory_mb: int = option(low=64)


@dataclass
class Ppo:
    """Advantages, loss and optimizer."""

    _target_: str = "retool.ppo.update.PPO"
    group_size: int = option(low=1)
    questions_per_batch: int = option(low=1)
    advantage: str = option(choices=ADVANTAGES)
    loss: str = option(choices=LOSSES)
    clip_low: float | None = option(low=0)
    clip_high: float | None = option(low=0)
    thresholds: dict[str, Any] = field(default_factory=dict)
    dro_beta: float = option(low=0)
    loss_aggregation: str = option(choices=AGGREGATIONS)
    max_trajectory_tokens: int = option(low=2)
    updates_per_batch: int = option(low=1)
    learning_rate: float = option(above=0)
    beta1: float = option(low=0, high=1)
    beta2: float = option(low=0, high=1)
    eps: float = option(above=0)
    weight_decay: float = option(low=0)
    grad_clip_norm: float = option(low=0)
    mask_truncated: bool = False
    mask_void_turns: bool = False
    ignore_unsampled_targets: bool = False


@dataclass
class Evaluation:
    """What is evaluated and how. Without `sets`: the rows that `data` keeps for evaluation."""

    sets: list[str] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    samples: int = option(low=1)
    k: list[int] = MISSING
    temperature: float = option(low=0)
    top_p: float = option(above=0, high=1)
    top_k: int = option(low=-1)
    mode: str = option(choices=MODES)
    every: int | None = option(None, low=1)
    limit: int | None = option(None, low=1)


@dataclass
class Tuning:
    """Supervised fine-tuning on written traces."""

    epochs: int = option(low=1)
    learning_rate: float = option(above=0)
    batch_size: int = option(low=1)
    max_tokens: int = option(low=2)
    warmup_steps: int = option(low=0)
    tool_share: float = option(low=0, high=1)
    limit: int | None = option(None, low=2)


@dataclass
class SwanLab:
    """Where SwanLab puts a run, and whether it gets one."""

    mode: str = option("disabled", choices=("disabled", "offline", "local", "online"))
    project: str = option("retool", filled=True)
    workspace: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Tracker:
    """What mirrors the metrics. `metrics.jsonl` is always written."""

    swanlab: SwanLab = field(default_factory=SwanLab)


@dataclass
class Checkpoint:
    """When the training state is saved. `every`: named, with sampler weights; `resume_every`: to continue from."""

    every: int = option(low=1)
    resume_every: int = option(low=1)
    keep: int = option(low=1)


@dataclass
class Run:
    """Keys of every entry point."""

    name: str = option(filled=True)
    seed: int = option(low=0)
    output_root: str = option(filled=True)
    resume: str = option(filled=True)
    dry_run: bool = False
    max_infrastructure_rate: float = option(low=0, high=1)
    allow_targets: list[str] = field(default_factory=list)
    model: Model = MISSING
    tracker: Tracker = MISSING


@dataclass
class Train(Run):
    """`retool.train`."""

    max_steps: int = option(low=0)
    max_cost: float | None = option(None, above=0)
    checkpoint: Checkpoint = MISSING
    data: Any = MISSING
    rollout: Any = MISSING
    sandbox: Any = MISSING
    reward: Any = MISSING
    ppo: Any = MISSING
    eval: Evaluation = MISSING


@dataclass
class Evaluate(Run):
    """`retool.eval`."""

    max_cost: float | None = option(None, above=0)
    data: Any = MISSING
    rollout: Any = MISSING
    sandbox: Any = MISSING
    reward: Any = MISSING
    eval: Evaluation = MISSING


@dataclass
class Sft(Run):
    """`retool.sft`."""

    checkpoint: Checkpoint = MISSING
    data: Any = MISSING
    rollout: Any = MISSING
    sandbox: Any = MISSING
    reward: Any = MISSING
    sft: Tuning = MISSING
    eval: Evaluation = MISSING


@dataclass
class Serve:
    """`retool.serve`."""

    host: str = option(filled=True)
    port: int = option(low=0, high=65535)
    key: str | None = None
    engine_dir: str | None = None
    allow_targets: list[str] = field(default_factory=list)
    model: Model = MISSING


COMPONENTS: dict[str, dict[str, type]] = {
    "model": {"policy": Model},
    "data": {"arithmetic": ArithmeticData, "file": FileData},
    "rollout": {"default": Rollout},
    "sandbox": {"isolated": Sandbox},
    "reward": {"math": Reward},
    "ppo": {"default": Ppo},
    "eval": {"default": Evaluation},
    "sft": {"default": Tuning},
    "tracker": {"default": Tracker},
    "checkpoint": {"default": Checkpoint},
}
"""Schema of each group's components: `/schema/<group>/<component>` in a defaults list."""

ENTRIES: dict[str, type] = {"train": Train, "eval": Evaluate, "sft": Sft, "serve": Serve}
"""Schema of each entry point's top level: `/schema/<entry>` in a defaults list."""


def register() -> None:
    """Makes the schema known to Hydra. May be called any number of times."""
    store = ConfigStore.instance()
    for entry, node in ENTRIES.items():
        store.store(group="schema", name=entry, node=node, package="_global_", provider="retool")
    for group, components in COMPONENTS.items():
        for component, node in components.items():
            store.store(group=f"schema/{group}", name=component, node=_with_open_mappings(node), provider="retool")


def _with_open_mappings(node: type) -> DictConfig:
    """The schema as a node in which mappings such as `eval.paths` take new keys without a `+`."""
    config: DictConfig = OmegaConf.structured(node)
    for key in config:
        child = None if OmegaConf.is_missing(config, str(key)) else config._get_node(str(key))
        if isinstance(child, DictConfig) and get_origin(child._metadata.ref_type) is dict:
            OmegaConf.set_struct(child, False)
    return config


def schema_of_target(target: str) -> type | None:
    """The schema whose `_target_` is `target`, for options that were written without a schema in their defaults."""
    for components in COMPONENTS.values():
        for node in components.values():
            if getattr(node, "_target_", None) == target:
                return node
    return None
