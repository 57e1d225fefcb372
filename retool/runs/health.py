"""What the metrics of a run say is going wrong, in plain words.

A run can go on for hours after it has stopped to learn. `symptoms` reads the rows of `metrics.jsonl` and names what a
person would see in the curves: the policy no longer uses the tool, hardly a group carries a signal, the trainer does
not agree with the sampler about the same weights.

Contents: `Symptom`, `SymptomKind`, `symptoms`.
"""

from collections.abc import Iterator, Mapping, Sequence
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


def symptoms(rows: Sequence[Row]) -> list[Symptom]:
    """The first appearance of each kind, in the order of the steps. `rows`: those of `metrics.jsonl`."""
    steps = [row for row in rows if "rollout/trajectories" in row]
    found: dict[SymptomKind, Symptom] = {}
    for end in range(1, len(steps) + 1):
        for kind, message in _seen(steps[:end]):
            step = steps[end - 1].get("step")
            found.setdefault(kind, Symptom(kind, step if isinstance(step, int) else end - 1, message))
    return list(found.values())


def _seen(steps: Sequence[Row]) -> Iterator[tuple[SymptomKind, str]]:
    mismatch = _figures(steps[:1], "ppo/mismatch_log_ratio_mean")
    if len(steps) == 1 and mismatch and mismatch[0] > MISMATCH:
        yield (
            SymptomKind.MISMATCH,
            f"Sampler and trainer differ by {mismatch[0]:.3g} nats a token under the same weights, so the ratio of the "
            "first update is not 1. Sampling in another precision than training does this, and so does sampling at a "
            "temperature or with a cut that the logprobs do not contain.",
        )
    if len(steps) < WINDOW:
        return
    rates = _figures(steps, "rollout/tool_call_rate")
    means = [fmean(rates[i : i + WINDOW]) for i in range(len(rates) - WINDOW + 1)]
    if means and max(means) >= TOOL_RATE and means[-1] < COLLAPSED * max(means):
        yield (
            SymptomKind.TOOL_COLLAPSE,
            f"The policy has nearly stopped using the tool: {means[-1]:.0%} of trajectories run code, after "
            f"{max(means):.0%}. A lower ppo.learning_rate, or a ppo.kl_coef, keeps it closer to where it began.",
        )
    degenerate, right = (
        fmean(_figures(steps[-WINDOW:], f"rollout/{name}") or [0.0])
        for name in ("degenerate_group_rate", "groups_all_right")
    )
    if degenerate >= DEGENERATE > right:
        yield SymptomKind.NO_SIGNAL, _no_signal(right)


def _no_signal(right: float) -> str:
    why = "are right, so the questions are too easy" if right > 0.5 else "are wrong, so the questions are too hard"
    return (
        f"Over {WINDOW} steps at least {DEGENERATE:.0%} of groups had equal rewards and taught nothing. Most of them "
        f"{why} for this policy. Other data, a larger ppo.group_size or ppo.dynamic_sampling.enabled=true help."
    )


def _figures(steps: Sequence[Row], name: str) -> list[float]:
    return [float(value) for row in steps if isinstance(value := row.get(name), int | float)]
