"""The record of a run: whole lines on disk whatever happens, and back to a step for a resume."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.tracking import FinishState, JsonlTracker, cut_jsonl, read_jsonl


def test_one_object_a_line(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log(0, {"reward/mean": -0.5, "train/datums": np.float32(3)})
    assert path.read_text() == '{"step": 0, "reward/mean": -0.5, "train/datums": 3.0}\n'
    tracker.log(1, {})
    tracker.log_text(1, "sample", "text")
    tracker.finish(FinishState.DONE)
    tracker.finish(FinishState.DONE)
    assert read_jsonl(path) == [{"step": 0, "reward/mean": -0.5, "train/datums": 3.0}, {"step": 1}]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_figures_come_back_to_the_last_digit(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log(0, {"x": value})
    tracker.finish(FinishState.DONE)
    assert read_jsonl(path)[0]["x"] == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_refuses_figures_that_are_not_finite(tmp_path, value):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"Step 4 .*: ppo/kl\."):
        tracker.log(4, {"reward/mean": 1.0, "ppo/kl": value})
    assert read_jsonl(tmp_path / "metrics.jsonl") == []


def test_refuses_to_log_after_the_end(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.finish(FinishState.FAILED, "broken")
    with pytest.raises(ValueError, match="after the tracker was finished"):
        tracker.log(0, {})


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = (
        "import sys; from pathlib import Path; from retool.tracking import JsonlTracker\n"
        "tracker = JsonlTracker(Path(sys.argv[1]))\n"
        "for step in range(10**9):\n"
        "    tracker.log(step, {'x': step / 7})\n"
        "    if step == 20: print('ready', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    rows = read_jsonl(path)
    assert len(rows) >= 21
    assert [row["step"] for row in rows] == list(range(len(rows)))


def test_a_torn_line_is_left_out_and_then_removed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "x": 1.0}\n{"step": 1, "x"')
    assert read_jsonl(path) == [{"step": 0, "x": 1.0}]
    JsonlTracker(path).log(1, {"x": 2.0})
    assert path.read_text() == '{"step": 0, "x": 1.0}\n{"step": 1, "x": 2.0}\n'


@pytest.mark.parametrize("line", ["{", "[1]", "3"])
def test_a_broken_line_inside_is_an_error(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2 is not"):
        read_jsonl(path)


def test_cut_to_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "row": row}) + "\n" for row, step in enumerate([0, 1, 1, 2, 3])]
    path.write_text("".join(lines) + '{"step": 4')
    assert cut_jsonl(path, 2) == 2
    assert path.read_text() == "".join(lines[:3])
    assert os.listdir(tmp_path) == ["metrics.jsonl"]  # noqa: PTH208


def test_cut_leaves_an_equal_file_and_a_missing_one_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert cut_jsonl(path, 5) == 0
    assert not path.exists()
    path.write_text('{"step": 0}\n')
    before = path.stat().st_ino
    assert cut_jsonl(path, 1) == 0
    assert path.stat().st_ino == before


def test_a_failed_cut_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n')

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        cut_jsonl(path, 1)
    assert path.read_text() == '{"step": 0}\n{"step": 1}\n'
