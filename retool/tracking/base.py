"""What a run reports its progress to.

Contents: `FinishState` (how a run ended), `Tracker` (the interface), `MultiTracker` (several as one).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol


class FinishState(StrEnum):
    """How a run ended."""

    DONE = "done"
    """All steps were made."""
    FAILED = "failed"
    """An error ended the run; the message goes along."""
    REQUEUED = "requeued"
    """The run saved its state and left, to be continued later."""


class Tracker(Protocol):
    """Takes the figures and texts of a run, in the order of its steps."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row of figures. A step may have several; all of them are finite."""
        ...

    def log_text(self, step: int, name: str, text: str) -> None:
        """A text to read, such as a sample trajectory."""
        ...

    def finish(self, state: FinishState, error: str | None = None) -> None:
        """Closes the tracker. Nothing is logged afterwards; a second call does nothing."""
        ...


class MultiTracker:
    """Passes everything on to each of several trackers, in order."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def log_text(self, step: int, name: str, text: str) -> None:
        for tracker in self._trackers:
            tracker.log_text(step, name, text)

    def finish(self, state: FinishState, error: str | None = None) -> None:
        """Finishes every tracker, whatever another one raises; then raises the first of those errors."""
        errors: list[Exception] = []
        for tracker in self._trackers:
            try:
                tracker.finish(state, error)
            except Exception as failure:  # noqa: BLE001  kept and raised below, once all have been told
                errors.append(failure)
        if errors:
            raise errors[0]
