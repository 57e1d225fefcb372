"""Counts and latencies of a sandbox between two looks. `SandboxMetrics`."""

from collections import Counter, deque
from collections.abc import Sequence

from retool.sandbox.base import ExecutionStatus

_KEPT_LATENCIES = 10_000


class SandboxMetrics:
    """Collects one entry a call. Bounded: of more than 10,000 calls, the latest count for the percentiles."""

    def __init__(self, tier: str = "") -> None:
        self._tier = tier
        self._outcomes: Counter[ExecutionStatus] = Counter()
        self._latencies: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._queued: deque[float] = deque(maxlen=_KEPT_LATENCIES)

    def add(self, status: ExecutionStatus, *, latency_s: float, queued_s: float) -> None:
        """Counts a call that waited `queued_s` for a free worker and then took `latency_s`."""
        self._outcomes[status] += 1
        self._latencies.append(latency_s)
        self._queued.append(queued_s)

    def take(self) -> dict[str, float]:
        """Everything since the last `take`, which it forgets. Percentiles are absent when there was no call."""
        figures = {"sandbox/calls": float(sum(self._outcomes.values()))}
        figures |= {f"sandbox/{status}": float(self._outcomes[status]) for status in ExecutionStatus}
        if self._latencies:
            figures["time/sandbox_latency_p50"] = percentile(self._latencies, 0.5)
            figures["time/sandbox_latency_p95"] = percentile(self._latencies, 0.95)
            figures["time/sandbox_queue_p50"] = percentile(self._queued, 0.5)
        self._outcomes.clear()
        self._latencies.clear()
        self._queued.clear()
        return figures


def percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` of the sorted values, interpolated linearly between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
