"""The policy client with an engine in a process of its own."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retool.errors import InfrastructureError, UserError
from retool.policy.client import PolicyClient
from retool.policy.types import SamplerStop, SamplingSettings, TokenDatum
from tests.engine.wire_model import END, running_server
from tests.policy.conftest import ENGINE, LORA

GREEDY = SamplingSettings(temperature=0.0)
DATUM = TokenDatum([5, 6, 7, 8, 9], [6, 7, 8, 9, END], weights=[0, 0, 1, 1, 1])
ADAM = {"learning_rate": 0.02}


def alive(pid: int) -> bool:
    """Whether a process runs (one that nobody waited for yet does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_death(pid: int, seconds: float = 10) -> bool:
    limit = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.05)
    return not alive(pid)


async def sample(sampler, **changes):
    options = {"num_samples": 1, "max_tokens": 4, "seed": 1, "stop_token_ids": [END], "settings": GREEDY, **changes}
    return await sampler.sample([5, 6, 7], **options)


def open_client(model, engine_dir=None, **engine):
    return PolicyClient.open(base_model=str(model), engine={**ENGINE, **engine}, engine_dir=engine_dir)


async def train(client, steps):
    losses = []
    for _ in range(steps):
        output, metrics = await client.train_step([DATUM], loss="cross_entropy", config={}, adam=ADAM)
        assert metrics["grad_norm"] > 0
        losses.append(output.metrics["loss_sum"])
    return losses


@pytest.mark.slow
async def test_train_sample_save_and_resume_from_a_copy(model, tmp_path, isolated_home, monkeypatch):
    monkeypatch.setenv("PYTRIO_API_KEY", "cloud-key")
    async with await open_client(model, tmp_path / "engine") as client:
        assert client.model_id == str(model)
        assert client.tokenizer().decode([5]) == "t5"
        await client.create_training(lora=LORA, seed=1)
        before = await client.forward([DATUM], loss="cross_entropy", config={})
        assert [len(row) for row in before.logprobs] == [5]
        losses = await train(client, 8)
        assert losses[0] == pytest.approx(before.metrics["loss_sum"]) and losses[-1] < 0.5
        # What was learned: 5, 6, 7 -> 8, 9, <end>.
        (completion,) = await sample(await client.sampler())
        assert (completion.tokens, completion.stop) == ((8, 9, END), SamplerStop.STOP)
        state = await client.save_state("step-8")
        weights = await client.save_weights("step-8")
        expected = await train(client, 2)
        (completion,) = await sample(await client.sampler_from(weights), max_tokens=1)
        assert (completion.tokens, completion.stop) == ((8,), SamplerStop.LENGTH)
        base = await sample(await client.sampler_from(None), num_samples=3, settings=SamplingSettings())
        assert len(base) == 3
        pid = client.engine_pid
    assert wait_for_death(pid)
    (tmp_path / "engine").rename(tmp_path / "moved")
    async with await open_client(model, tmp_path / "moved") as client:
        with pytest.raises(UserError, match=r"rank=8; set model\.lora"):
            await client.create_training(lora={**LORA, "rank": 16}, seed=1, init_from=state)
        await client.create_training(lora=LORA, seed=5, init_from=state, with_optimizer=True)
        assert await train(client, 2) == expected
    assert not (isolated_home / ".pytrio").exists()
    assert "cloud-key" not in (tmp_path / "moved" / "engine.log").read_text()
    directory = tmp_path / "moved" / "checkpoints" / state.removeprefix("trio://")
    async with await open_client(model, tmp_path / "another") as client:
        await client.create_training(lora=LORA, seed=5, init_from=str(directory), with_optimizer=True)
        assert await train(client, 2) == expected
        with pytest.raises(UserError, match=r"weights/nothing.*no checkpoint"):
            await client.sampler_from("trio://train-1/weights/nothing")
        with pytest.raises(UserError, match="sequence_too_long"):
            await sample(await client.sampler(), max_tokens=1000)


async def test_a_killed_engine_is_noticed_at_once_with_its_last_words(model, tmp_path):
    client = await open_client(model, tmp_path / "engine")
    await client.create_training(lora=LORA, seed=1)
    sampler = await client.sampler()
    pid = client.engine_pid
    os.kill(pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(sample(sampler)) for _ in range(3)]
    waiting.append(asyncio.create_task(train(client, 1)))
    await asyncio.sleep(0.3)
    with (tmp_path / "engine" / "engine.log").open("a") as log:
        log.write("the last words\n")
    os.kill(pid, signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [type(result) for result in results] == [InfrastructureError] * 4
    for result in results:
        assert "killed by SIGKILL" in str(result) and "the last words" in str(result)
    with pytest.raises(InfrastructureError, match="killed by SIGKILL"):
        await client.save_state("too-late")
    await asyncio.wait_for(client.aclose(), 5)
    await client.aclose()


async def test_signals_of_the_job_are_left_to_the_parent(model):
    async with await open_client(model) as client:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            os.kill(client.engine_pid, number)
        assert len(await sample(await client.sampler_from(None))) == 1


async def test_what_the_engine_refuses_is_the_users_matter(tmp_path):
    with pytest.raises(UserError, match="no base model '/nowhere'"):
        await PolicyClient.open(base_model="/nowhere", engine=ENGINE, engine_dir=tmp_path)


async def test_an_engine_that_dies_at_the_start_says_why(model, tmp_path):
    with pytest.raises(InfrastructureError, match=r"(?s)exit code 1.*TypeError.*no_such_setting"):
        await open_client(model, tmp_path, no_such_setting=1)


async def test_one_engine_a_directory(model, tmp_path):
    async with await open_client(model, tmp_path):
        with pytest.raises(UserError, match="Another engine is using"):
            await open_client(model, tmp_path)


async def test_any_server_of_the_protocol(model, tmp_path, isolated_home, monkeypatch):
    with running_server(model, tmp_path / "engine") as url:
        async with await PolicyClient.open(base_model="small", base_url=url, api_key="engine-test-key") as client:
            assert client.model_id == str(model)
            assert len(await sample(await client.sampler_from(None))) == 1
            with pytest.raises(UserError, match="local directory"):
                await client.sampler_from(str(tmp_path))
        with pytest.raises(UserError, match="API key"):
            await PolicyClient.open(base_model="small", base_url=url, api_key="wrong")
        monkeypatch.setenv("PYTRIO_API_KEY", "cloud-key")
        with pytest.raises(UserError, match="not sent elsewhere"):
            await PolicyClient.open(base_model="small", base_url=url)


PARENT = """
import asyncio, json, os, sys, threading
from pathlib import Path
from retool.policy.client import PolicyClient

async def main():
    client = await PolicyClient.open(base_model=sys.argv[1], engine={"device": "cpu"}, engine_dir=Path(sys.argv[2]))
    child = os.fork()  # holds the engine's pipe open, as workers that a run forks do
    if child == 0:
        import time
        time.sleep(30)
        os._exit(0)
    print(json.dumps({"engine": client.engine_pid, "child": child}), flush=True)
    await asyncio.sleep(60)

if sys.argv[3] == "thread":
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_no_orphan_when_the_parent_is_killed(model, tmp_path, where):
    command = [sys.executable, "-c", PARENT, str(model), str(tmp_path / "engine"), where]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        pids = json.loads(parent.stdout.readline())
        assert alive(pids["engine"])
        parent.kill()
        parent.wait()
        assert wait_for_death(pids["engine"])
        assert alive(pids["child"]), "the pipe was still open"
    finally:
        parent.kill()
        with contextlib.suppress(NameError, ProcessLookupError):
            os.kill(pids["child"], signal.SIGKILL)


THREADED = """
import asyncio, os, sys, threading, time
from pathlib import Path
from retool.policy.engine_process import EngineProcess

started = []

async def start():
    started.append(await EngineProcess.start(
        engine={"base_model": sys.argv[1]}, engine_dir=Path(sys.argv[2]), names=["m"]))

thread = threading.Thread(target=lambda: asyncio.run(start()))
thread.start()
thread.join()
time.sleep(1.5)
print(started[0]._process.poll(), flush=True)
"""


def test_the_engine_outlives_the_thread_that_started_it(model, tmp_path):
    command = [sys.executable, "-c", THREADED, str(model), str(tmp_path / "engine")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "None\n"
