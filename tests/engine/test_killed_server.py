"""A server that dies in the middle of a run: its client hears of it, and a new server goes on from the saved state."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytrio as trio
from pytrio.errors.base import PyTrioError

from tests.engine.sdk_scenarios import step
from tests.engine.wire_model import KEY, build_model

ROOT = Path(__file__).resolve().parents[2]
WINDOW_S = 2.0


@contextmanager
def server_process(model: Path, engine_dir: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [
        sys.executable,
        "-m",
        "retool.serve",
        "model=hf",
        f"model.base_model={model}",
        f"engine_dir={engine_dir}",
    ]
    command += ["port=0", f"key={KEY}", "model.engine.max_seq_len=256", "model.engine.deterministic=true"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        yield process, address[0]
    finally:
        process.kill()
        process.communicate()


def connect(url: str, home: Path) -> trio.ServiceClient:
    trio.configure_observability(enabled=False)
    trio.configure(
        home=str(home),
        base_url=url,
        api_key=KEY,
        log_level="ERROR",
        control_retry_timeout_seconds=WINDOW_S,
        training_retry_timeout_seconds=WINDOW_S,
        sampling_retry_timeout_seconds=WINDOW_S,
    )
    return trio.ServiceClient()


@pytest.mark.slow
def test_kill_restart_resume(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model")
    with server_process(model, tmp_path / "engine", tmp_path) as (process, url):
        service = connect(url, tmp_path)
        training = service.create_lora_training_client("hf", rank=8, seed=1)
        sampler = service.create_sampling_client("hf")
        for _ in range(2):
            step(training)
        saved = training.save_state("two").result()
        expected = [step(training) for _ in range(2)]
        process.kill()
        process.wait()
        with pytest.raises(PyTrioError):
            step(training)
        params = trio.SamplingParams(max_tokens=2)
        with pytest.raises(PyTrioError):
            sampler.sample(trio.ModelInput.from_ints([5]), sampling_params=params).result()
        service._runtime.shutdown()
    with server_process(model, tmp_path / "engine", tmp_path) as (_, url):
        service = connect(url, tmp_path)
        resumed = service.create_training_client_from_state_with_optimizer(saved.path)
        assert [step(resumed) for _ in range(2)] == expected
        service._runtime.shutdown()
    assert not list((tmp_path / "engine").rglob(".staging-*"))
