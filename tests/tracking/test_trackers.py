"""Several trackers as one, and the tracker of a run."""

import subprocess
import sys

import pytest

from retool.errors import UserError
from retool.tracking import FinishState, MultiTracker, open_tracker, read_jsonl


class Recorder:
    """Keeps what it is told; fails at the end if asked to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.calls, self.failure = [], failure

    def log(self, step, metrics):
        self.calls.append(("log", step, dict(metrics)))

    def log_text(self, step, name, text):
        self.calls.append(("text", step, name, text))

    def finish(self, state, error=None):
        self.calls.append(("finish", state, error))
        if self.failure:
            raise self.failure


def test_everything_reaches_everyone():
    recorders = [Recorder(), Recorder()]
    tracker = MultiTracker(recorders)
    tracker.log(0, {"x": 1.0})
    tracker.log_text(0, "sample", "text")
    tracker.finish(FinishState.FAILED, "boom")
    expected = [("log", 0, {"x": 1.0}), ("text", 0, "sample", "text"), ("finish", FinishState.FAILED, "boom")]
    assert [r.calls for r in recorders] == [expected, expected]


def test_all_are_finished_though_one_fails():
    recorders = [Recorder(OSError("first")), Recorder(OSError("second")), Recorder()]
    with pytest.raises(OSError, match="first"):
        MultiTracker(recorders).finish(FinishState.DONE)
    assert all(r.calls for r in recorders)


@pytest.mark.parametrize("arguments", [{}, {"mode": "disabled"}])
def test_the_record_alone_does_not_import_swanlab(tmp_path, arguments):
    code = (
        "import sys; from pathlib import Path; from retool.tracking import FinishState, open_tracker\n"
        f"tracker = open_tracker(Path(sys.argv[1]), **{arguments!r})\n"
        "tracker.log(0, {'x': 1.0}); tracker.log_text(0, 'a', 'b'); tracker.finish(FinishState.DONE)\n"
        "assert tracker.mirror_id is None and 'swanlab' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 0, "x": 1.0}]


@pytest.mark.parametrize("arguments", [{"mode": "cloud"}])
def test_refuses_unknown_names(tmp_path, arguments):
    with pytest.raises(UserError, match="is not one of"):
        open_tracker(tmp_path, **arguments)
