"""The tracker of a run: the record in `metrics.jsonl`, and the mirror that the configuration asks for.

Contents: `RunTracker`, `open_tracker`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from retool.errors import UserError
from retool.tracking.base import FinishState, MultiTracker, Tracker
from retool.tracking.jsonl import JsonlTracker
from retool.tracking.swanlab import SwanlabMirror, SwanlabMode, SwanlabRun


class RunTracker:
    """Writes the record first, then the mirror. `mirror_id` is what a resumed run passes to continue the mirror."""

    def __init__(self, record: JsonlTracker, mirror: SwanlabMirror | None) -> None:
        trackers: list[Tracker] = [record]
        if mirror is not None:
            trackers.append(mirror)
        self._all = MultiTracker(trackers)
        self._mirror = mirror

    @property
    def mirror_id(self) -> str | None:
        return None if self._mirror is None else self._mirror.run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._all.log(step, metrics)

    def log_text(self, step: int, name: str, text: str) -> None:
        self._all.log_text(step, name, text)

    def finish(self, state: FinishState, error: str | None = None) -> None:
        self._all.finish(state, error)


def open_tracker(
    run_dir: Path,
    *,
    mode: str = "disabled",
    project: str | None = None,
    workspace: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    name: str | None = None,
    config: Mapping[str, object] | None = None,
    mirror_id: str | None = None,
) -> RunTracker:
    """Opens the trackers of a run directory. `config`: the resolved configuration as plain containers.

    `mode` disabled writes the record alone. Raises `UserError` for an unknown mode.
    """
    if mode not in list(SwanlabMode):
        raise UserError(f"tracker.swanlab.mode={mode} is not one of {', '.join(SwanlabMode)}.")
    record = JsonlTracker(run_dir / "metrics.jsonl")
    if mode == SwanlabMode.DISABLED:
        return RunTracker(record, None)
    run = SwanlabRun(
        project=project or "retool", workspace=workspace, name=name, group=group, tags=tuple(tags), run_id=mirror_id
    )
    mirror = SwanlabMirror(mode=SwanlabMode(mode), directory=run_dir / "swanlab", run=run, config=dict(config or {}))
    return RunTracker(record, mirror)
