"""The product as a user runs it: the smoke experiment on the embedded engine, interrupted, continued and evaluated."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SMOKE = ("experiment=smoke", "max_steps=3", "sandbox.allow_unsafe=true")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

pytestmark = pytest.mark.slow


def command(entry: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", f"retool.{entry}", *overrides]


def run(tmp_path: Path, entry: str, *overrides: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(entry, *overrides), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )


def rows(directory: Path) -> list[dict]:
    """The metrics without what depends on the clock or the machine."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")} for line in lines]


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """A run from beginning to end."""
    directory = tmp_path_factory.mktemp("straight")
    done = run(directory, "train", *SMOKE, f"hydra.run.dir={directory}/run")
    assert done.returncode == 0, done.stderr
    assert "Held-out accuracy after: " in done.stdout and f"Run directory: {directory}/run" in done.stdout
    return directory / "run"


def test_a_run_is_complete(straight):
    assert json.loads((straight / "status.json").read_text())["state"] == "done"
    assert [row["step"] for row in rows(straight)] == [0, 1, 2, 3]
    result = json.loads((straight / "result.json").read_text())
    assert result["steps"] == 3 and result["checkpoint"] == "step-0003"
    assert result["eval"]["before"]["eval/count"] == result["eval"]["after"]["eval/count"] == 8
    names = {path.name for path in (straight / "trajectories").iterdir()}
    assert {"step-0000.jsonl.gz", "step-0002.jsonl.gz", "eval-step-0003-holdout.jsonl.gz"} <= names


def test_a_killed_run_continues_to_the_same_metrics(straight, tmp_path):
    directory = tmp_path / "run"
    arguments = command("train", *SMOKE, f"hydra.run.dir={directory}")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (directory / "resume.json").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert json.loads((directory / "status.json").read_text())["state"] == "running"
    refused = run(tmp_path, "train", *SMOKE, f"hydra.run.dir={directory}", "ppo.learning_rate=1e-3")
    assert refused.returncode == 1 and "ppo.learning_rate: 0.003 -> 0.001" in refused.stderr
    done = run(tmp_path, "train", *SMOKE, f"hydra.run.dir={directory}")
    assert done.returncode == 0, done.stderr
    assert rows(directory) == rows(straight)
    result = (directory / "result.json").read_bytes()
    again = run(tmp_path, "train", *SMOKE, f"hydra.run.dir={directory}")
    assert again.returncode == 0 and (directory / "result.json").read_bytes() == result


def test_the_death_of_the_engine_ends_the_run(tmp_path):
    directory = tmp_path / "run"
    arguments = command("train", *SMOKE, f"hydra.run.dir={directory}")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not (directory / "resume.json").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (engine,) = (int(child) for child in children if b"retool.engine" in Path(f"/proc/{child}/cmdline").read_bytes())
    os.kill(engine, 9)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The embedded engine" in stderr and "was killed by SIGKILL" in stderr and "Traceback" not in stderr
    status = json.loads((directory / "status.json").read_text())
    assert status["state"] == "failed" and "SIGKILL" in status["error"]


def test_a_checkpoint_is_evaluated(straight, tmp_path):
    arguments = (f"model.checkpoint={straight}/step-0003", "eval.limit=4", "sandbox.allow_unsafe=true")
    done = run(tmp_path, "eval", *arguments, "hydra.run.dir=evaluation")
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "evaluation"
    records = [json.loads(line) for line in (directory / "records-holdout.jsonl").read_text().splitlines()]
    assert len(records) == 4 and all(record["samples"][0]["turns"] for record in records)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["eval"]["eval/count"] == 4 and summary["checkpoint"].endswith("/sampler_weights/step-0003")


def test_a_dry_run_shows_the_prompt_and_makes_no_run(tmp_path):
    done = run(tmp_path, "train", "dry_run=true", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert "--- prompt: " in done.stdout and "--- observation: " in done.stdout
    assert "Cost unknown: model.price is not set." in done.stdout.replace("\n", " ")
    assert not (tmp_path / "run" / "status.json").exists()


def test_the_cloud_without_credentials_is_refused_early(tmp_path):
    environment = {key: value for key, value in ENVIRONMENT.items() if not key.startswith("PYTRIO_")}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(
        command("train", "model=qwen3_5_4b", "hydra.run.dir=run"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "There is no API key" in done.stderr and "Traceback" not in done.stderr
