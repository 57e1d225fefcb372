"""What the metrics of a run say is going wrong, in plain words.

A run can go on for hours after it has stopped to learn. `HealthCheck` reads the rows of `metrics.jsonl` and names what
a person would see in the curves: the policy no longer uses the tool, hardly a group carries a signal, the trainer does
not agree with the sampler about the same weights.

Contents: `Symptom`, `SymptomKind`, `HealthCheck`, `symptoms`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

WINDOW = 3
"""Steps over which a rate is averaged before it is judged."""
TOOL_RATE = 0.3
"""Tool use below this share of trajectories cannot collapse."""
COLLAPSED = 0.25
"""The share of its highest value at which tool use counts as collapsed."""
DEGENERATE = 0.9
"""The share of groups without a signal that is too much."""
MISMATCH = 0.05
"""The mean |log ratio| of the first update, in nats a token, above which sampler and trainer disagree."""

Row = Mapping[str, object]


class SymptomKind(StrEnum):
    """What can be told from metrics alone."""

    TOOL_COLLAPSE = "tool_collapse"
    """The policy used the tool, and hardly does so any more."""
    NO_SIGNAL = "no_signal"
    """Nearly all groups have equal rewards, and not because nearly all are right: nearly nothing is learned."""
    MISMATCH = "mismatch"
    """Under the same weights the trainer finds other logprobs than the sampler."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """Seen first after `step`."""

    kind: SymptomKind
    step: int
    message: str


class HealthCheck:
    """Reads the rows of a run one after the other, each in a time that does not depend on how many there were."""

    def __init__(self) -> None:
        self._steps = 0
        self._window: deque[Row] = deque(maxlen=WINDOW)
        self._rates: deque[float] = deque(maxlen=WINDOW)
        self._highest_rate = 0.0
        self._seen: set[SymptomKind] = set()

    def observe(self, row: Row) -> list[Symptom]:
        """What shows for the first time after this row. A row of an evaluation alone says nothing."""
        if "rollout/trajectories" not in row:
            return []
        self._steps += 1
        self._window.append(row)
        self._rates.extend(_figures([row], "rollout/tool_call_rate"))
        step = row.get("step")
        found = [
            Symptom(kind, step if isinstance(step, int) else self._steps - 1, message)
            for kind, message in self._showing()
            if kind not in self._seen
        ]
        self._seen.update(symptom.kind for symptom in found)
        return found

    def _showing(self) -> Iterator[tuple[SymptomKind, str]]:
        if self._steps == 1:
            yield from _mismatch(self._window[0])
        if len(self._rates) == WINDOW:
            rate = fmean(self._rates)
            self._highest_rate = max(self._highest_rate, rate)
            if self._highest_rate >= TOOL_RATE and rate < COLLAPSED * self._highest_rate:
                yield SymptomKind.TOOL_COLLAPSE, _tool_collapse(rate, self._highest_rate)
        if len(self._window) == WINDOW:
            yield from _no_signal(list(self._window))


def symptoms(rows: Iterable[Row]) -> list[Symptom]:
    """The first appearance of each kind, in the order of the steps. `rows`: those of `metrics.jsonl`."""
    check = HealthCheck()
    return [symptom for row in rows for symptom in check.observe(row)]


def _mismatch(first: Row) -> Iterator[tuple[SymptomKind, str]]:
    for mismatch in _figures([first], "ppo/mismatch_log_ratio_mean"):
        if mismatch > MISMATCH:
            yield (
                SymptomKind.MISMATCH,
                f"Sampler and trainer differ by {mismatch:.3g} nats a token under the same weights, so the ratio of "
                "the first update is not 1. Sampling in another precision than training does this, and so does "
                "sampling at a temperature or with a cut that the logprobs do not contain.",
            )


def _tool_collapse(rate: float, highest: float) -> str:
    return (
        f"The policy has nearly stopped using the tool: {rate:.0%} of trajectories run code, after {highest:.0%}. A "
        "lower ppo.learning_rate, or a ppo.kl_coef, keeps it closer to where it began."
    )


def _no_signal(steps: Sequence[Row]) -> Iterator[tuple[SymptomKind, str]]:
    degenerate, right = (
        fmean(_figures(steps, f"rollout/{name}") or [0.0]) for name in ("degenerate_group_rate", "groups_all_right")
    )
    if degenerate >= DEGENERATE > right:
        why = "are right, so the questions are too easy" if right > 0.5 else "are wrong, so the questions are too hard"
        yield (
            SymptomKind.NO_SIGNAL,
            f"Over {WINDOW} steps at least {DEGENERATE:.0%} of groups had equal rewards and taught nothing. Most of "
            f"them {why} for this policy. Other data, a larger ppo.group_size or ppo.dynamic_sampling.enabled=true "
            "help.",
        )


def _figures(steps: Sequence[Row], name: str) -> list[float]:
    return [float(value) for row in steps if isinstance(value := row.get(name), int | float)]
