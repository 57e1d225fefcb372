import subprocess
import sys

import pytest

from retool.errors import UserError
from retool.runs.run_dir import RunDirectory
from retool.runs.status import RunState, RunStatus, read_status, write_status

HOLD = """
import sys
from pathlib import Path
from retool.runs.run_dir import RunDirectory
RunDirectory(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_one_live_process_a_directory(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    directory = RunDirectory(tmp_path)
    assert directory.is_live()
    with pytest.raises(UserError, match=f"in use by process {holder.pid} on .*choose another hydra.run.dir"):
        directory.acquire()
    holder.kill()
    holder.communicate()
    assert not directory.is_live()
    directory.acquire()
    assert directory.is_live()
    directory.release()
    assert not directory.is_live()


def test_an_unwritable_place_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written.*output_root"):
        RunDirectory(tmp_path / "file" / "run").acquire()


def test_what_hydra_writes_does_not_count_as_use(tmp_path):
    directory = RunDirectory(tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "train.log").write_text("")
    directory.acquire()
    assert not directory.is_used()
    directory.metrics.write_text("")
    assert directory.is_used()
    directory.release()


def test_trajectories_are_cut_to_a_step(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.trajectories.mkdir()
    files = [directory.step_trajectories(step) for step in (0, 1, 2, 10)]
    files += [directory.eval_trajectories(label) for label in ("step-0000-a", "step-0002-a", "amc23")]
    for file in files:
        file.write_bytes(b"")
    directory.cut_trajectories(2)
    assert sorted(file.name for file in directory.trajectories.iterdir()) == [
        "eval-amc23.jsonl.gz",
        "eval-step-0000-a.jsonl.gz",
        "step-0000.jsonl.gz",
        "step-0001.jsonl.gz",
    ]


def test_a_status_comes_back(tmp_path):
    path = tmp_path / "status.json"
    assert read_status(path) is None
    write_status(path, RunStatus(RunState.FAILED, 3, "why"))
    assert read_status(path) == RunStatus(RunState.FAILED, 3, "why")
    path.write_text('{"state": "running"}')
    with pytest.raises(ValueError, match="is not the status of a run"):
        read_status(path)
