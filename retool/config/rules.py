"""Rules that span several keys of a configuration, and files that must exist.

A rule is a function from `Values` to problem lines. A rule that needs a key which the configuration lacks, or whose
value the schema already refuses, is skipped: that problem is reported by `retool.config.check`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retool.config.paths import chat_template_path
from retool.errors import UserError

T = TypeVar("T")
Number = int | float


class _UnavailableError(Exception):
    """A rule needs a key that is absent or of the wrong type."""


class Values:
    """Typed access to a composed configuration by dotted name."""

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def get(self, name: str, kind: type[T]) -> T:
        """The value of a key, or an exception that skips the rule."""
        value = self._select(name)
        if isinstance(value, ListConfig):
            value = list(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind):
            raise _UnavailableError(name)
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """As `get`, for a key that may be null."""
        return None if self._select(name) is None else self.get(name, kind)

    def _select(self, name: str) -> object:
        try:
            return OmegaConf.select(self._cfg, name, throw_on_missing=True)
        except OmegaConfBaseException as error:
            raise _UnavailableError(name) from error

    def has(self, group: str) -> bool:
        return group in self._cfg


Rule = Callable[[Values], Iterator[str]]


def violations(cfg: DictConfig) -> Iterator[str]:
    """All problems that the rules find."""
    values = Values(cfg)
    for rule in (_sampling, _groups, _budgets, _clipping, _evaluation, _steps, _files, _weights, _resume, _service):
        try:
            yield from rule(values)
        except _UnavailableError:
            continue


def _sampling(values: Values) -> Iterator[str]:
    if not values.has("ppo") or values.get("rollout.force_sampling", bool):
        return
    wanted: tuple[tuple[str, Number], ...] = (("temperature", 1.0), ("top_p", 1.0), ("top_k", -1))
    for key, value in wanted:
        actual = values.get(f"rollout.{key}", type(value))
        if actual != value:
            yield (
                f"rollout.{key}: training must sample with {key}={value:g}, not {actual:g}: otherwise the returned "
                "logprobs are not the policy's and the update is wrong. rollout.force_sampling=true allows it."
            )


def _groups(values: Values) -> Iterator[str]:
    size = values.get("ppo.group_size", int)
    if size < 2:
        yield (
            f"ppo.group_size: {size} sample a question has no group to compare with, so every advantage is zero. "
            "Use at least 2."
        )


def _budgets(values: Values) -> Iterator[str]:
    calls, turns = values.get("rollout.max_code_calls", int), values.get("rollout.max_assistant_turns", int)
    if turns <= calls and values.optional("eval.mode", str) != "text_only":
        yield (
            f"rollout.max_assistant_turns: {turns} turns leave none for the answer after {calls} code calls. "
            f"Use at least {calls + 1}, or fewer rollout.max_code_calls."
        )
    total = values.get("rollout.max_trajectory_tokens", int)
    for key in ("max_turn_tokens", "max_observation_tokens"):
        part = values.optional(f"rollout.{key}", int)
        if part is not None and part >= total:
            yield f"rollout.{key}: {part} does not fit into rollout.max_trajectory_tokens={total}."
    longest = values.optional("model.engine.max_seq_len", int)
    penalised = values.has("ppo") and values.get("ppo.kl_coef", float) > 0
    if longest is not None and longest < total + penalised:
        more = " by one token, with which ppo.kl_coef asks the reference" if longest == total else ""
        yield f"model.engine.max_seq_len: {longest} is below rollout.max_trajectory_tokens={total}{more}."
    if values.has("ppo") and values.get("ppo.overlong_buffer_tokens", int) >= total:
        buffer = values.get("ppo.overlong_buffer_tokens", int)
        yield f"ppo.overlong_buffer_tokens: {buffer} leaves nothing of rollout.max_trajectory_tokens={total}."


def _clipping(values: Values) -> Iterator[str]:
    loss = values.get("ppo.loss", str)
    low, high = values.get("ppo.clip_low", float), values.get("ppo.clip_high", float)
    if loss == "ppo" and not low < 1.0 < high:
        yield f"ppo.clip_low, ppo.clip_high: {low:g} and {high:g} do not enclose 1. They are ratios, such as 0.8, 1.28."
    if loss == "cispo" and not low < high:
        yield f"ppo.clip_low, ppo.clip_high: {low:g} must be below {high:g}. cispo's own defaults are 0.0 and 4.0."


def _evaluation(values: Values) -> Iterator[str]:
    samples = values.get("eval.samples", int)
    for k in values.get("eval.k", list):
        if not isinstance(k, int) or not 1 <= k <= samples:
            yield f"eval.k: {k} is not between 1 and eval.samples={samples}. Set eval.k=[1,{samples}] or more samples."
    sets = values.get("eval.sets", list)
    paths = values.get("eval.paths", DictConfig)
    for name, path in ((str(key), value) for key, value in paths.items()):
        if name not in sets:
            yield f"eval.paths.{name}: '{name}' is not among eval.sets={sets}."
        if not Path(str(path)).expanduser().is_file():
            yield f"eval.paths.{name}: there is no file at '{path}' (looked from {Path.cwd()})."


def _steps(values: Values) -> Iterator[str]:
    turns = values.get("ppo.updates_per_batch", int)
    trajectories = values.get("ppo.group_size", int) * values.get("ppo.questions_per_batch", int)
    if turns > trajectories:
        yield f"ppo.updates_per_batch: {turns} updates need as many trajectories, but a batch has {trajectories}."


def _files(values: Values) -> Iterator[str]:
    template = values.optional("model.chat_template", str)
    if template is not None:
        try:
            chat_template_path(template)
        except UserError as error:
            yield str(error)


def _weights(values: Values) -> Iterator[str]:
    if (values.has("ppo") or values.has("sft")) and values.optional("model.checkpoint", str) is not None:
        yield "model.checkpoint: names what retool.eval evaluates. Training starts from model.init_from."
    base_model = values.get("model.base_model", str)
    if base_model.startswith(("/", "./", "../", "~")) and not Path(base_model).expanduser().is_dir():
        yield f"model.base_model: there is no folder '{base_model}' (looked from {Path.cwd()})."


def _resume(values: Values) -> Iterator[str]:
    resume = values.get("resume", str)
    if resume not in ("auto", "never") and not Path(resume).expanduser().is_dir():
        yield f"resume: '{resume}' is neither auto nor never nor a run directory (looked from {Path.cwd()})."
    root = Path(values.get("output_root", str)).expanduser()
    existing = next((path for path in (root, *root.parents) if path.exists()), None)
    if existing is not None and not existing.is_dir():
        yield f"output_root: '{existing}' is a file, so nothing can be written below it."


def _service(values: Values) -> Iterator[str]:
    if values.optional("model.base_url", str) is not None and values.optional("model.engine", DictConfig) is not None:
        yield "model.base_url: the embedded engine is set too. Use model.engine=null with a server of your own."
    if values.optional("max_cost", float) is not None and values.optional("model.price", DictConfig) is None:
        yield "max_cost: a limit needs model.price={prefill,sample,train,currency,source}, and it is null."
