"""The SwanLab mirror: offline for real, and every way in which it can fail without ending the run."""

import importlib.util
import logging
import signal
import socket
import sys
from pathlib import Path

import pytest

from retool.tracking import FinishState, open_tracker, read_jsonl
from retool.tracking.swanlab import SwanlabMode

swanlab = pytest.importorskip("swanlab")

CONFIG = {"model": {"lora": {"rank": 32}, "init_from": None}, "tags": ["a", 1]}


@pytest.fixture(autouse=True)
def no_account(tmp_path_factory, monkeypatch):
    """A home, a working directory and an environment without any SwanLab credentials."""
    empty = tmp_path_factory.mktemp("home")
    monkeypatch.chdir(empty)
    monkeypatch.setenv("HOME", str(empty))
    monkeypatch.setenv("SWANLAB_ROOT", str(empty / ".swanlab"))
    for name in ("SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_API_HOST", "SWANLAB_WEB_HOST"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert not swanlab.has_run()


def mirrored(tmp_path, mode, **arguments):
    return open_tracker(tmp_path, mode=mode, config=CONFIG, **arguments)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_offline(tmp_path, caplog):
    hooks = sys.excepthook, signal.getsignal(signal.SIGINT)
    tracker = mirrored(tmp_path, "offline", project="p", name="n", tags=["t"])
    assert (sys.excepthook, signal.getsignal(signal.SIGINT)) == hooks
    tracker.log(0, {"reward/mean": 0.5})
    tracker.log_text(0, "sample", "the whole trajectory")
    assert swanlab.get_run().mode == "offline"
    assert swanlab.get_run().id == tracker.mirror_id
    tracker.finish(FinishState.DONE)
    tracker.finish(FinishState.DONE)
    (record,) = (tmp_path / "swanlab").glob("run-*/*.swanlab")
    assert record.stat().st_size > 0
    (config,) = (tmp_path / "swanlab").glob("run-*/files/config.yaml")
    assert "init_from" in config.read_text()
    (text,) = (tmp_path / "swanlab").glob("run-*/media/text/*")
    assert text.read_text() == "the whole trajectory"
    assert not list((tmp_path / "swanlab").glob("run-*/files/requirements*"))
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 0, "reward/mean": 0.5}]
    assert warnings(caplog) == []
    assert (sys.excepthook, signal.getsignal(signal.SIGINT)) == hooks


@pytest.mark.parametrize(
    ("state", "error", "expected"),
    [
        (FinishState.DONE, None, ("success", None)),
        (FinishState.FAILED, "boom", ("crashed", "boom")),
        (FinishState.FAILED, None, ("crashed", "unknown")),
        (FinishState.REQUEUED, None, ("aborted", None)),
    ],
)
def test_finish_states(tmp_path, monkeypatch, state, error, expected):
    seen = []
    finish = swanlab.Run.finish

    def watch(self, state="success", error=None):
        seen.append((state, error))
        finish(self, state=state, error=error)

    monkeypatch.setattr(swanlab.Run, "finish", watch)
    mirrored(tmp_path, "offline").finish(state, error)
    assert seen == [expected]


def test_runs_follow_each_other_in_one_process(tmp_path, caplog):
    for name, state in (("a", FinishState.FAILED), ("b", FinishState.DONE)):
        tracker = mirrored(tmp_path / name, "offline")
        tracker.log(0, {"reward/mean": -0.5, "reward/correct": 0.25})
        tracker.log_text(0, "trajectories", "<script>alert(1)</script>")
        tracker.finish(state, "it broke" if state is FinishState.FAILED else None)
        assert list((tmp_path / name / "swanlab").glob("run-*/*.swanlab"))
    assert warnings(caplog) == []


def test_a_resumed_run_keeps_its_id(tmp_path):
    first = mirrored(tmp_path, "offline")
    first.finish(FinishState.REQUEUED)
    second = mirrored(tmp_path, "offline", mirror_id=first.mirror_id)
    second.finish(FinishState.DONE)
    assert second.mirror_id == first.mirror_id is not None


@pytest.mark.skipif(importlib.util.find_spec("swanboard") is not None, reason="the dashboard is installed")
def test_local_without_the_dashboard_goes_offline(tmp_path, caplog):
    tracker = mirrored(tmp_path, "local")
    assert swanlab.get_run().mode == "offline"
    assert warnings(caplog) == [
        "tracker.swanlab.mode=local needs SwanLab's dashboard, which is not installed "
        "(pip install 'retool[dashboard]'). The mirror is kept offline instead."
    ]
    tracker.finish(FinishState.DONE)


def test_online_without_a_key_goes_offline_and_never_asks(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked for input"))
    tracker = mirrored(tmp_path, "online")
    assert swanlab.get_run().mode == "offline"
    (warning,) = warnings(caplog)
    assert "there is no API key" in warning
    tracker.finish(FinishState.DONE)


def test_online_without_a_network_goes_offline(tmp_path, caplog, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{unused.getsockname()[1]}"  # bound but not listening: refused at once
        monkeypatch.setenv("SWANLAB_API_KEY", "k" * 21)
        monkeypatch.setenv("SWANLAB_API_HOST", host)
        monkeypatch.setattr("urllib.request.getproxies", dict)
        tracker = mirrored(tmp_path, "online")
    assert swanlab.get_run().mode == "offline"
    (warning,) = warnings(caplog)
    assert "cannot be reached" in warning
    tracker.finish(FinishState.DONE)


def test_online_refused_by_the_service_goes_offline(tmp_path, caplog, monkeypatch):
    start = swanlab.init

    def refuse(**arguments):
        if arguments["mode"] == "online":
            raise RuntimeError("AuthenticationError")
        return start(**arguments)

    monkeypatch.setattr("swanlab.init", refuse)
    monkeypatch.setattr("retool.tracking.swanlab._online_obstacle", lambda: None)
    tracker = mirrored(tmp_path, "online")
    assert swanlab.get_run().mode == "offline"
    (warning,) = warnings(caplog)
    assert "AuthenticationError" in warning
    tracker.finish(FinishState.DONE)


def test_a_failure_at_the_start_is_one_warning(tmp_path, caplog):
    (tmp_path / "swanlab").write_text("a file where the directory should be")
    tracker = mirrored(tmp_path, "offline")
    tracker.log(0, {"x": 1.0})
    tracker.finish(FinishState.DONE)
    assert len(warnings(caplog)) == 1
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 0, "x": 1.0}]


def test_a_failure_in_the_middle_stops_the_mirror_alone(tmp_path, caplog, monkeypatch):
    tracker = mirrored(tmp_path, "offline")

    def fail(self, *_, **__):
        raise RuntimeError("no space left")

    monkeypatch.setattr(swanlab.Run, "log", fail)
    for step in range(3):
        tracker.log(step, {"x": 1.0})
        tracker.log_text(step, "sample", "text")
    tracker.finish(FinishState.DONE)
    assert len(warnings(caplog)) == 1
    assert "metrics.jsonl goes on" in warnings(caplog)[0]
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 3


def test_a_failure_at_the_end_is_one_warning(tmp_path, caplog, monkeypatch):
    tracker = mirrored(tmp_path, "offline")
    finish = swanlab.Run.finish

    def fail(self, *_, **__):
        finish(self)
        raise RuntimeError("lost")

    monkeypatch.setattr(swanlab.Run, "finish", fail)
    tracker.finish(FinishState.FAILED, "boom")
    assert len(warnings(caplog)) == 1


def test_a_run_left_active_is_not_in_the_way(tmp_path):
    Path("left").mkdir()
    swanlab.init(mode="offline", log_dir="left")
    tracker = mirrored(tmp_path, "offline")
    tracker.log(0, {"x": 1.0})
    tracker.finish(FinishState.DONE)


def test_modes_are_those_of_swanlab():
    assert set(SwanlabMode) == {"disabled", "offline", "local", "online"}
