"""`retool-serve`: what it prints, that the SDK works with just that, and that it stops when asked."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
import pytrio as trio
service = trio.ServiceClient()
sampler = service.create_sampling_client("hf")
params = trio.SamplingParams(max_tokens=4, seed=1)
(sequence,) = sampler.sample(trio.ModelInput.from_ints([5, 6, 7]), sampling_params=params).result().sequences
print(json.dumps(sequence.tokens))
"""


def serve(arguments, directory):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "retool.serve", *arguments]
    return subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_serving_another_program(model, tmp_path, isolated_home):
    server = serve(["model=hf", f"model.base_model={model}", "port=0", "key=local"], tmp_path)
    try:
        assert server.stdout.readline().startswith(f"Serving hf, {model} from {model}; checkpoints in {tmp_path}")
        exported = dict(server.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(2))
        assert exported["PYTRIO_API_KEY"] == "local"
        with urllib.request.urlopen(exported["PYTRIO_BASE_URL"] + "/health") as reply:
            assert json.load(reply) == {"status": "ok"}
        environment = {**os.environ, **exported, "HOME": str(isolated_home)}
        program = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        assert len(json.loads(program.stdout)) == 4
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=20)
        assert (server.returncode, errors) == (0, "")
    finally:
        server.kill()
    written = {path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("*")}
    assert written <= {("home",), ("outputs",), ("outputs", "serve")} | {
        ("home", name) for name in (".pytrio", ".cache")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=qwen3_5_4b"], "model=qwen3_5_4b runs on the PyTRIO cloud, there is nothing to serve."),
        (["prot=1"], "prot: there is no such key. Did you mean 'port'?"),
    ],
)
def test_mistakes_end_in_a_message(tmp_path, arguments, message):
    server = serve(arguments, tmp_path)
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 1
    assert message in errors and "Traceback" not in errors
