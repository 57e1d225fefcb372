"""The mirror for real in offline mode, and that none of its faults reaches the run."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from retool.tracking.base import FinishState
from retool.tracking.swanlab import SwanLabTracker


def open_mirror(directory: Path, mode: str) -> SwanLabTracker:
    return SwanLabTracker(
        mode=mode,
        project="test",
        workspace=None,
        group=None,
        tags=[],
        name="run",
        config={"ppo": {"group_size": 8, "clip": [0.8, 1.28]}, "resume": None},
        directory=directory,
    )


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_offline_runs_follow_each_other_in_one_process(tmp_path: Path) -> None:
    for name, state in (("a", FinishState.FAILED), ("b", FinishState.DONE)):
        mirror = open_mirror(tmp_path / name, "offline")
        mirror.log(0, {"reward/mean": -0.5, "reward/correct": 0.25})
        mirror.log_text(0, "trajectories", "<script>alert(1)</script>")
        mirror.finish(state, "it broke" if state is FinishState.FAILED else None)
        mirror.finish(state)
        assert any(path.is_file() for path in (tmp_path / name).rglob("*"))


def test_online_without_a_key_goes_offline_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        mirror = open_mirror(tmp_path, "online")
    mirror.finish(FinishState.DONE)
    assert mirror.mode == "offline"
    assert "no SwanLab key" in caplog.text


def test_a_failing_mirror_warns_once_and_the_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mirror = open_mirror(tmp_path, "offline")

    def broken(*_: object, **__: object) -> None:
        raise ConnectionError("upload failed")

    real = mirror._swanlab
    mirror._swanlab = SimpleNamespace(log=broken)
    with caplog.at_level(logging.WARNING):
        mirror.log(0, {"x": 1.0})
        mirror.log(1, {"x": 1.0})
    assert caplog.text.count("upload failed") == 1
    mirror._swanlab = real
    mirror.finish(FinishState.DONE)
