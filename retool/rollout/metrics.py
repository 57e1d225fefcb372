"""Figures of a batch of trajectories, before any of them is masked out of the loss.

A figure without data has no key. Rates are shares in [0, 1].

| key | over | meaning |
| --- | --- | --- |
| `reward/mean` | scored | mean reward |
| `reward/correct`, `reward/format` | scored | right answers; answers in the required form |
| `reward/correct_with_tool`, `…_without_tool` | scored, split | right answers where code ran, and where not |
| `reward/reason/<reason>` | scored | share of each verdict reason |
| `rollout/stop/<reason>` | all | share of each stop reason |
| `rollout/turns` | scored | mean number of the policy's turns; a cut turn and what continues it are one |
| `rollout/code_calls` | scored | mean number of executed calls |
| `rollout/trajectory_tokens`, `…_max` | scored | mean and greatest number of tokens: prompt, sampled, observations |
| `rollout/sampled_tokens` | scored | mean number of sampled tokens |
| `rollout/sampled_tokens_right`, `…_wrong` | scored, split | the same for right and for wrong answers |
| `rollout/repetition` | turns | mean share of the turn's 8-token windows that occurred in it before |
| `rollout/tool_call_rate` | scored | trajectories that executed code |
| `rollout/valid_tool_call_rate` | calls | well-formed calls, run or not, among all attempts |
| `rollout/tool_success_rate` | executed calls | calls whose code ended without an error |
| `rollout/malformed_calls`, `rollout/over_budget_calls` | scored | their number in the batch |
| `rollout/cut_request_rate` | requests | completions that the sampler cut for length |
| `rollout/degenerate_group_rate` | groups | groups whose rewards are all equal, so that nothing is learned from them |
| `rollout/groups_all_right`, `…_all_wrong`, `…_mixed` | groups | share of groups by their right answers |
| `rollout/trajectories` | all | their number |
| `rollout/infrastructure_failures`, `…_rate` | all | trajectories that a machine's failure ended |

Scored means all but infrastructure failures: these are cut off at a random point and would bias every mean.

Contents: `rollout_metrics`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, TrajectoryGroup, Turn
from retool.sandbox.base import ExecutionStatus

_WINDOW = 8


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The figures of the module's table, for one batch."""
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [trajectory for group in groups for trajectory in group.scored]
    figures = _rewards(scored) | _shape(scored) | _calls(scored) | _groups(groups)
    stops = Counter(trajectory.stop_reason for trajectory in everything)
    if everything:
        failures = stops[StopReason.INFRASTRUCTURE]
        figures |= {f"rollout/stop/{reason}": stops[reason] / len(everything) for reason in StopReason}
        figures["rollout/trajectories"] = float(len(everything))
        figures["rollout/infrastructure_failures"] = float(failures)
        figures["rollout/infrastructure_failures_rate"] = failures / len(everything)
    return figures


def _rewards(scored: Sequence[Trajectory]) -> dict[str, float]:
    verdicts = [(trajectory, _verdict(trajectory)) for trajectory in scored]
    reasons = Counter(verdict.reason for _, verdict in verdicts)
    figures = {f"reward/reason/{reason}": reasons[reason] / len(scored) for reason in VerdictReason if scored}
    return figures | _means(
        {
            "reward/mean": (verdict.reward for _, verdict in verdicts),
            "reward/correct": (verdict.correct for _, verdict in verdicts),
            "reward/format": (verdict.valid_format for _, verdict in verdicts),
            "reward/correct_with_tool": (v.correct for trajectory, v in verdicts if trajectory.code_calls),
            "reward/correct_without_tool": (v.correct for trajectory, v in verdicts if not trajectory.code_calls),
        }
    )


def _shape(scored: Sequence[Trajectory]) -> dict[str, float]:
    lengths = [len(trajectory.tokens) for trajectory in scored]
    figures = _means(
        {
            "rollout/turns": (_assistant_turns(trajectory) for trajectory in scored),
            "rollout/code_calls": (trajectory.code_calls for trajectory in scored),
            "rollout/trajectory_tokens": lengths,
            "rollout/sampled_tokens": (_sampled_tokens(trajectory) for trajectory in scored),
            "rollout/sampled_tokens_right": (_sampled_tokens(t) for t in scored if _verdict(t).correct),
            "rollout/sampled_tokens_wrong": (_sampled_tokens(t) for t in scored if not _verdict(t).correct),
            "rollout/repetition": (_repetition(turn.completion_tokens) for turn in _turns(scored)),
            "rollout/tool_call_rate": (trajectory.code_calls > 0 for trajectory in scored),
            "rollout/cut_request_rate": (turn.continues for turn in _turns(scored)),
        }
    )
    return figures | ({"rollout/trajectory_tokens_max": float(max(lengths))} if lengths else {})


def _calls(scored: Sequence[Trajectory]) -> dict[str, float]:
    attempts = [turn for turn in _turns(scored) if turn.call is not CallOutcome.NONE]
    figures = _means(
        {
            "rollout/valid_tool_call_rate": (turn.call is not CallOutcome.MALFORMED for turn in attempts),
            "rollout/tool_success_rate": (
                turn.result.ok
                for turn in attempts
                if turn.result is not None and turn.result.status is not ExecutionStatus.INFRASTRUCTURE
            ),
        }
    )
    outcomes = Counter(turn.call for turn in attempts)
    if scored:
        figures["rollout/malformed_calls"] = float(outcomes[CallOutcome.MALFORMED])
        figures["rollout/over_budget_calls"] = float(outcomes[CallOutcome.OVER_BUDGET])
    return figures


def _groups(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    verdicts = [[_verdict(trajectory) for trajectory in group.scored] for group in groups if group.scored]
    right = [fmean(verdict.correct for verdict in group) for group in verdicts]
    return _means(
        {
            "rollout/degenerate_group_rate": (len({verdict.reward for verdict in group}) == 1 for group in verdicts),
            "rollout/groups_all_right": (share == 1 for share in right),
            "rollout/groups_all_wrong": (share == 0 for share in right),
            "rollout/groups_mixed": (0 < share < 1 for share in right),
        }
    )


def _means(columns: dict[str, Iterable[float]]) -> dict[str, float]:
    """The mean of each column that has any value."""
    values = {key: list(column) for key, column in columns.items()}
    return {key: fmean(column) for key, column in values.items() if column}


def _verdict(trajectory: Trajectory) -> Verdict:
    if trajectory.verdict is None:
        raise ValueError(f"{trajectory.problem.id}[{trajectory.sample_index}] has no verdict.")
    return trajectory.verdict


def _turns(trajectories: Iterable[Trajectory]) -> list[Turn]:
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def _assistant_turns(trajectory: Trajectory) -> int:
    return len(trajectory.turns) - sum(turn.continues for turn in trajectory.turns[:-1])


def _repetition(tokens: Sequence[int]) -> float:
    """A policy that falls into a loop repeats whole windows; ordinary text hardly does."""
    windows = [tuple(tokens[i : i + _WINDOW]) for i in range(len(tokens) - _WINDOW + 1)]
    return 1.0 - len(set(windows)) / len(windows) if windows else 0.0


def _sampled_tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.completion_tokens) for turn in trajectory.turns)
