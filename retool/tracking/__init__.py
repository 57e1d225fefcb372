"""Where a run's figures go: `metrics.jsonl` always, and a SwanLab mirror where asked for."""

from retool.tracking.base import FinishState, MultiTracker, Tracker
from retool.tracking.jsonl import JsonlTracker, cut_jsonl, read_jsonl
from retool.tracking.open import RunTracker, open_tracker

__all__ = [
    "FinishState",
    "JsonlTracker",
    "MultiTracker",
    "RunTracker",
    "Tracker",
    "cut_jsonl",
    "open_tracker",
    "read_jsonl",
]
