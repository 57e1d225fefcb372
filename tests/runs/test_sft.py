"""The literal sequence of a trace, the learning rate, and a whole small run of `retool.sft` with its continuation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from retool.config.paths import conf_dir
from retool.data.problem import Problem
from retool.data.traces import Trace
from retool.engine.model.registry import resolve
from retool.protocol.chat import ChatProtocol
from retool.runs.sft import learning_rate
from retool.runs.tuning_data import trace_datum

PROBLEM = Problem("arithmetic-1", "Compute 12 times 34.", "408", "arithmetic")


@pytest.fixture(scope="module")
def protocol() -> ChatProtocol:
    return ChatProtocol(AutoTokenizer.from_pretrained(str(resolve("tiny"))), system_prompt="")


def test_only_what_the_policy_writes_has_weight(protocol: ChatProtocol) -> None:
    call = protocol.encode_turn(protocol.render_call("print(12*34)"))
    answer = protocol.encode_turn(r"\boxed{408}")
    prompt, glue = protocol.initial_prompt(PROBLEM.question), protocol.continuation(call, "408")
    datum = trace_datum(protocol, Trace(PROBLEM, "print(12*34)"), "408", r"\boxed{408}")
    assert tuple(datum.tokens) == (*prompt, *call, *glue, *answer)[:-1]
    assert tuple(datum.target_tokens) == (*prompt, *call, *glue, *answer)[1:]
    # prompt 0 (the last prompt token predicts the first of the call), call 1, observation 0, answer 1
    expected = [0] * (len(prompt) - 1) + [1] * len(call) + [0] * len(glue) + [1] * len(answer)
    assert list(datum.weights or ()) == expected


def test_a_direct_answer_has_no_observation(protocol: ChatProtocol) -> None:
    prompt, answer = protocol.initial_prompt(PROBLEM.question), protocol.encode_turn(r"\boxed{408}")
    datum = trace_datum(protocol, Trace(PROBLEM, None), None, r"\boxed{408}")
    assert list(datum.weights or ()) == [0] * (len(prompt) - 1) + [1] * len(answer)


def test_learning_rate_warms_up_and_decays() -> None:
    rates = [learning_rate(step, 10, 2, 1.0) for step in range(10)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


def sft(run_dir: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "retool.sft", f"hydra.run.dir={run_dir}"]
    return subprocess.run([*command, *overrides], cwd=conf_dir().parent, capture_output=True, text=True, check=False)


def test_a_run_leaves_weights_that_training_starts_from(tmp_path: Path) -> None:
    small = ("data.train_size=64", "data.holdout=8", "sft.epochs=1", "sft.batch_size=32")
    done = sft(tmp_path / "sft", *small)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "sft" / "result.json").read_text())
    assert result["kind"] == "sft" and result["steps"] == 2 and result["eval"]["eval/count"] == 8
    rows = [json.loads(line) for line in (tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["sft/loss"] > 0 for row in rows[:2]) and rows[2]["sft/validation_loss"] > 0
    again = sft(tmp_path / "sft", *small)
    assert again.returncode == 0 and json.loads((tmp_path / "sft" / "result.json").read_text()) == result
    command = [sys.executable, "-m", "retool.train", "experiment=smoke", f"model.init_from={tmp_path / 'sft'}"]
    command += [f"hydra.run.dir={tmp_path / 'train'}", "max_steps=1", "eval.limit=4"]
    trained = subprocess.run(command, cwd=conf_dir().parent, capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stderr


def test_data_without_solutions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"id": "1", "question": "Why?", "answer": "7"}\n')
    refused = sft(tmp_path / "sft", "data=jsonl", f"data.path={path}", "data.holdout=0")
    assert refused.returncode == 1
    assert "No trace can be written" in refused.stderr and "Traceback" not in refused.stderr
