"""Every file under conf/ composes and passes the check, and says what it should."""

import inspect
from pathlib import Path

import pytest
import yaml
from hydra.utils import get_object
from omegaconf import OmegaConf

from retool.config import check, conf_dir, schema
from retool.config.preflight import command_problems

GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name not in ("hydra", "templates"))
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]
NEEDED = {("model", "hf"): ["model.base_model=some/model"], ("data", "jsonl"): [f"data.path={__file__}"]}
LAUNCHER_PLUGIN = {("cluster", "joblib"): "hydra_plugins.hydra_joblib_launcher"}
ENTRY_OF_GROUP = {"sft": "sft"}


def overrides_for(group: str, option: str) -> list[str]:
    choice = f"{group}={option}"
    return [choice, *NEEDED.get((group, option), [])]


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=[f"{group}-{option}" for group, option in OPTIONS])
def test_every_option_composes_and_passes(loader, group, option):
    if (group, option) in LAUNCHER_PLUGIN:
        pytest.importorskip(LAUNCHER_PLUGIN[group, option])
    entry = ENTRY_OF_GROUP.get(group, "train")
    if not (conf_dir() / f"{entry}.yaml").exists():
        pytest.skip(f"{entry}.yaml is absent")
    assert command_problems(loader, entry, overrides_for(group, option)) == []


@pytest.mark.parametrize("entry", sorted(set(schema.ENTRIES) & {path.stem for path in conf_dir().glob("*.yaml")}))
def test_every_entry_passes(compose_entry, entry):
    composition = compose_entry(entry)
    assert composition.problems == ()
    check(composition.cfg)


def test_every_option_starts_with_its_schema():
    for group, option in OPTIONS:
        if group in ("cluster", "experiment", "sweep"):
            continue
        defaults = yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text())["defaults"]
        assert defaults[0].startswith(f"/schema/{group}/"), (group, option)
        assert defaults[-1] == "_self_", (group, option)


# What the caller sets itself, and keys that never reach the target.
SUPPLIED = {"retool.ppo.update.PPO": {"normalisation", "seed"}}
WITHHELD = {"retool.ppo.update.PPO": {"thresholds"}, "retool.rollout.groups.Rollout": {"force_sampling"}}


@pytest.mark.parametrize(
    "node",
    [node for components in schema.COMPONENTS.values() for node in components.values() if hasattr(node, "_target_")],
    ids=lambda node: node.__name__,
)
def test_schema_and_target_agree(node):
    target = node._target_
    arguments = set(inspect.signature(get_object(target)).parameters)
    keys = set(node.__dataclass_fields__) - {"_target_"}
    assert keys - WITHHELD.get(target, set()) == arguments - SUPPLIED.get(target, set())


def test_published_recipe(compose_entry):
    cfg = compose_entry("train", "model=qwen3_5_4b", "data=dapo_math_17k").cfg
    found = {
        key: OmegaConf.select(cfg, key)
        for key in (
            "model.base_model",
            "model.lora.rank",
            "model.engine",
            "rollout.max_code_calls",
            "rollout.max_assistant_turns",
            "rollout.max_trajectory_tokens",
            "rollout.max_turn_tokens",
            "rollout.max_observation_tokens",
            "rollout.temperature",
            "rollout.top_p",
            "rollout.top_k",
            "ppo.group_size",
            "ppo.questions_per_batch",
            "ppo.clip_low",
            "ppo.clip_high",
            "ppo.learning_rate",
            "ppo.beta1",
            "ppo.beta2",
            "ppo.eps",
            "ppo.weight_decay",
            "ppo.grad_clip_norm",
            "ppo.updates_per_batch",
            "checkpoint.every",
            "checkpoint.resume_every",
            "checkpoint.keep",
            "eval.samples",
            "eval.k",
            "eval.temperature",
            "eval.top_p",
            "reward.right",
            "reward.wrong",
            "reward.answer_window_chars",
            "max_infrastructure_rate",
            "seed",
        )
    }
    assert found == {
        "model.base_model": "Qwen/Qwen3.5-4B",
        "model.lora.rank": 32,
        "model.engine": None,
        "rollout.max_code_calls": 4,
        "rollout.max_assistant_turns": 6,
        "rollout.max_trajectory_tokens": 8192,
        "rollout.max_turn_tokens": None,
        "rollout.max_observation_tokens": 512,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "rollout.top_k": -1,
        "ppo.group_size": 8,
        "ppo.questions_per_batch": 8,
        "ppo.clip_low": 0.8,
        "ppo.clip_high": 1.28,
        "ppo.learning_rate": 4e-5,
        "ppo.beta1": 0.9,
        "ppo.beta2": 0.95,
        "ppo.eps": 1e-12,
        "ppo.weight_decay": 0.0,
        "ppo.grad_clip_norm": 0.0,
        "ppo.updates_per_batch": 1,
        "checkpoint.every": 25,
        "checkpoint.resume_every": 5,
        "checkpoint.keep": 3,
        "eval.samples": 12,
        "eval.k": [1, 2, 4, 8],
        "eval.temperature": 1.0,
        "eval.top_p": 0.7,
        "reward.right": 1.0,
        "reward.wrong": -1.0,
        "reward.answer_window_chars": 300,
        "max_infrastructure_rate": 0.2,
        "seed": 42,
    }


def test_a_model_brings_its_own_values(compose_entry):
    tiny = compose_entry("train").cfg
    small = compose_entry("train", "model=smollm2_135m").cfg
    assert (tiny.ppo.learning_rate, tiny.rollout.max_trajectory_tokens, tiny.model.lora.rank) == (3e-3, 256, 32)
    assert (small.ppo.learning_rate, small.rollout.max_trajectory_tokens, small.model.lora.rank) == (1.5e-4, 384, 16)
    assert (tiny.ppo.ignore_unsampled_targets, small.ppo.ignore_unsampled_targets) == (False, True)


def test_the_command_line_wins_over_the_model(compose_entry):
    cfg = compose_entry("train", "model=qwen3_5_4b", "ppo.learning_rate=1e-3", "model.recipe.group_size=4").cfg
    assert (cfg.ppo.learning_rate, cfg.ppo.group_size, cfg.ppo.questions_per_batch) == (1e-3, 4, 8)


def test_clipping_follows_the_loss(compose_entry):
    cispo = compose_entry("train", "ppo.loss=cispo").cfg.ppo
    own = compose_entry("train", "ppo.loss=cispo", "ppo.clip_high=5").cfg.ppo
    assert (cispo.clip_low, cispo.clip_high, own.clip_high) == (0.0, 4.0, 5.0)


def test_conf_is_found_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert (conf_dir() / "train.yaml").is_file() and conf_dir() != Path(tmp_path)
