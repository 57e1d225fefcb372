"""What the check refuses, and in which words."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from retool.config import check
from retool.config.check import problems
from retool.config.preflight import command_problems
from retool.errors import UserError


def found(loader, *overrides: str, multirun: bool = False) -> str:
    return "\n".join(command_problems(loader, "train", overrides, multirun=multirun))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("ppo.groupsize=4", "ppo.groupsize: there is no such key. Did you mean 'ppo.group_size'?"),
        ("+ppo.groupsize=4", "ppo.groupsize: there is no such key. Did you mean 'group_size'?"),
        ("++sandbox.tiemout=1", "sandbox.tiemout: there is no such key."),
        ("+model.engine.devise=cuda", "model.engine.devise: there is no such key. Did you mean 'device'?"),
        ("+extra=1", "extra: there is no such key."),
        ("sandbx=isolated", "sandbx: there is no such key. Did you mean 'sandbox'?"),
        ("ppo.group_size=abc", "ppo.group_size: Value 'abc' of type 'str' could not be converted to Integer."),
        ("ppo.learning_rate=", "ppo.learning_rate: Value '' of type 'str' could not be converted to Float."),
        ("model.base_model=???", "model.base_model: a value is needed."),
        ("sandbox=isolted", "sandbox: there is no option 'isolted'. Did you mean 'isolated'?"),
        ("model=tinny", "model: there is no option 'tinny'. Did you mean 'tiny'? Options: hf, qwen3_5_4b"),
        ("ppo.loss=pppo", "ppo.loss: 'pppo' is not one of ppo, importance_sampling, cispo, dro. Did you mean 'ppo'?"),
        ("ppo.learning_rate=0", "ppo.learning_rate: 0.0 must be above 0."),
        ("ppo.learning_rate=nan", "ppo.learning_rate: nan is not a finite number."),
        ("model.lora.rank=128", "model.lora.rank: 128 is above the largest allowed value, 64."),
        ("seed=-1", "seed: -1 is below the smallest allowed value, 0."),
        ("rollout.temperature=0.7", "rollout.temperature: training must sample with temperature=1, not 0.7"),
        ("rollout.top_p=0.9", "rollout.top_p: training must sample with top_p=1, not 0.9"),
        ("rollout.top_k=50", "rollout.top_k: training must sample with top_k=-1, not 50"),
        ("ppo.group_size=1", "ppo.group_size: 1 sample a question has no group to compare with"),
        (
            "rollout.max_code_calls=4",
            "rollout.max_assistant_turns: 4 turns leave none for the answer after 4 code calls",
        ),
        ("rollout.max_turn_tokens=256", "rollout.max_turn_tokens: 256 does not fit into"),
        ("model.engine.max_seq_len=100", "model.engine.max_seq_len: 100 is below rollout.max_trajectory_tokens=256."),
        ("ppo.clip_low=1.1", "ppo.clip_low, ppo.clip_high: 1.1 and 1.28 do not enclose 1."),
        ("eval.k=[1,9]", "eval.k: 9 is not between 1 and eval.samples=1."),
        ("eval.paths={aime25: /nowhere}", "eval.paths.aime25: 'aime25' is not among eval.sets=[]."),
        ("sandbox.python=/nowhere", "sandbox.python: there is no file or directory at '/nowhere'"),
        ("model.chat_template=nowhere", "model.chat_template: 'nowhere' is neither a file nor a shipped template"),
        ("output_root=", "output_root: it is empty."),
        ("output_root=/dev/null/x", "hydra.run.dir: '/dev/null' is a file"),
        ("resume=nowhere", "resume: 'nowhere' is neither auto nor never nor a run directory"),
        ("max_cost=3", "max_cost: a limit needs model.price"),
        ("model.base_url=http://x", "model.base_url: the embedded engine is set too."),
        ("reward._target_=os.system", "reward._target_: 'os.system' is outside retool."),
        ("ppo.group_size=4,8", "Ambiguous value for argument 'ppo.group_size=4,8'"),
        ("nonsense", "'nonsense' is not an override"),
    ],
)
def test_refused(loader, override, expected):
    assert expected in found(loader, override)


def test_all_problems_come_in_one_message(loader):
    message = found(loader, "ppo.groupsize=1", "ppo.group_size=1", "rollout.top_p=0.5", "model.lora.rank=2")
    assert [line.split(":")[0] for line in message.splitlines()] == [
        "ppo.groupsize",
        "model.lora.rank",
        "rollout.top_p",
        "ppo.group_size",
    ]


def test_a_key_below_null_is_explained(loader):
    message = found(loader, "model=qwen3_5_4b", "model.engine.device=cuda", "max_stepss=1")
    assert message.splitlines() == [
        "model.engine.device: 'model.engine' is null here, so it has no keys. Choose another option of 'model'.",
        "max_stepss: there is no such key. Did you mean 'max_steps'?",
    ]


def test_a_price_is_a_mapping_of_known_keys(loader):
    price = "{prefill: 1, sample: 2, train: 3, currency: CNY, source: their page}"
    assert found(loader, "model=qwen3_5_4b", f"model.price={price}", "max_cost=2") == ""
    assert "model.price.sampel: there is no such key. Did you mean 'sample'?" in found(
        loader, "model.price={prefill: 1, sampel: 2}"
    )
    assert "model.price: '3' is not a mapping with the keys prefill," in found(loader, "model.price=3")
    assert "'model.engine' is null here" in found(loader, "model=qwen3_5_4b", "model.engine={device: cpu}")


def test_a_key_of_another_option_is_not_suggested(loader, tmp_path):
    (tmp_path / "p.jsonl").write_text("")
    message = found(loader, "data=jsonl", f"data.path={tmp_path}/p.jsonl", "data.train_size=64")
    assert message == "data.train_size: there is no such key."


def test_a_missing_file_is_refused(loader, tmp_path):
    assert "data.path: there is no file" in found(loader, "data=jsonl", f"data.path={tmp_path}/absent.jsonl")


def test_forced_sampling_is_allowed(loader):
    assert found(loader, "rollout.temperature=0.7", "rollout.force_sampling=true") == ""


def test_a_named_package_is_allowed(loader):
    assert found(loader, "reward._target_=mine.Scorer", "allow_targets=[mine]") == ""


def test_each_job_of_a_sweep_is_checked(loader):
    message = found(loader, "ppo.group_size=1,4", "ppo.loss=ppo,cispo", "rollout.top_k=5", multirun=True)
    assert message.splitlines()[0].startswith("rollout.top_k: ")  # of every job
    assert message.splitlines()[1].startswith("job 0, 1: ppo.group_size: 1 sample")
    assert len(message.splitlines()) == 2


def test_a_sweep_preset_is_checked_without_multirun(loader):
    assert "job 1: ppo.group_size: there" not in found(loader, "sweep=group_size")
    message = found(loader, "sweep=code_budget", "rollout.max_assistant_turns=3")
    assert [line.split(":")[0] for line in message.splitlines()] == ["job 3", "job 4"]


def test_a_saved_configuration_without_schema_is_checked(compose_entry):
    cfg = compose_entry("train").cfg
    saved = OmegaConf.create(OmegaConf.to_container(cfg))
    saved.pop("hydra")
    assert problems(saved) == []
    saved.ppo.groupsize = 4
    saved.model.lora.rank = "many"
    with pytest.raises(UserError) as caught:
        check(saved)
    assert "model.lora.rank: Value 'many'" in str(caught.value) and "ppo.groupsize: there is" in str(caught.value)


def run_entry(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-X", "importtime", "-m", "retool.train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_mistake_ends_with_one_message_before_anything_heavy_is_imported(tmp_path):
    done = run_entry("ppo.groupsize=4", f"output_root={tmp_path}")
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 1
    assert said == [
        "The configuration has a problem:",
        "  ppo.groupsize: there is no such key. Did you mean 'ppo.group_size'?",
    ]
    assert not imported & {"torch", "transformers", "pytrio", "swanlab", "datasets", "sympy", "math_verify", "numpy"}
    assert list(tmp_path.iterdir()) == []


def test_cfg_shows_the_value(tmp_path):
    done = run_entry("rollout.max_code_calls=3", "--cfg", "job", "-p", "rollout")
    assert done.returncode == 0 and "max_code_calls: 3" in done.stdout
