"""Figures of batches, worked out by hand."""

import pytest
from rollout_fakes import CALL, ScriptedSandbox, problem_batch, result, roll

from retool.errors import InfrastructureError
from retool.rollout.metrics import rollout_metrics
from retool.sandbox.base import ExecutionStatus


async def batch():
    """Six trajectories in three groups of two.

    Q1: an answer after a call (right) · an answer in two pieces (wrong)
    Q2: a malformed call, then a failing call, then an over-budget call, then right · right at once
    Q3: cut at the token limit · the sampler fails at its second request
    """
    bad = "```py\n1"
    told = "The tool call was not run: the Python block has no end. Close it with ``` on a line."
    fail = "```py\n2\n```"
    used = "The code was not run: all 1 code calls are used up. Give the final answer in \\boxed{} without a tool call."
    after_bad = f"Q2|{bad}|R{told}|"
    after_fail = f"{after_bad}{fail}|Rno|"
    replies = {
        "Q1|": [f"{CALL}|", "1"],
        f"Q1|{CALL}|R1|": ["4|"],
        "Q1|1": ["2|"],
        "Q2|": [f"{bad}|", "4|"],
        after_bad: [f"{fail}|"],
        after_fail: [f"{CALL}|"],
        f"{after_fail}{CALL}|R{used}|": ["4|"],
        "Q3|": ["x" * 397, f"{CALL}|"],
        f"Q3|{CALL}|R1|": [InfrastructureError("gone")],
    }
    return await roll(
        replies,
        problems=problem_batch("123"),
        group_size=2,
        sandbox=ScriptedSandbox({"1": "1", "2": result("no", ExecutionStatus.ERROR)}),
        max_code_calls=1,
        max_trajectory_tokens=400,
    )


async def test_figures_of_a_mixed_batch():
    groups = await batch()
    metrics = rollout_metrics(groups)
    lengths = [len(t.tokens) for group in groups for t in group.scored]
    expected = {
        "reward/mean": (1 - 1 + 1 + 1 - 1) / 5,
        "reward/correct": 3 / 5,
        "reward/format": 4 / 5,
        "reward/correct_with_tool": 2 / 2,
        "reward/correct_without_tool": 1 / 3,
        "reward/reason/correct_text": 3 / 5,
        "reward/reason/no_box": 2 / 5,
        "reward/reason/timeout": 0.0,
        "rollout/stop/answered": 4 / 6,
        "rollout/stop/token_limit": 1 / 6,
        "rollout/stop/infrastructure": 1 / 6,
        "rollout/stop/turn_limit": 0.0,
        "rollout/stop/parse_error": 0.0,
        "rollout/turns": (2 + 1 + 4 + 1 + 1) / 5,
        "rollout/code_calls": (1 + 0 + 1 + 0 + 0) / 5,
        "rollout/tool_call_rate": 2 / 5,
        "rollout/valid_tool_call_rate": 3 / 4,
        "rollout/tool_success_rate": 1 / 2,
        "rollout/malformed_calls": 1.0,
        "rollout/over_budget_calls": 1.0,
        "rollout/cut_request_rate": 2 / 10,
        "rollout/trajectory_tokens": sum(lengths) / 5,
        "rollout/repetition": (1 - 1 / 390) / 10,  # one of ten turns: 397 times the same token
        "rollout/trajectory_tokens_max": 400.0,
        "rollout/degenerate_group_rate": 2 / 3,
        "rollout/groups_all_right": 1 / 3,
        "rollout/groups_all_wrong": 1 / 3,
        "rollout/groups_mixed": 1 / 3,
        "rollout/trajectories": 6.0,
        "rollout/infrastructure_failures": 1.0,
        "rollout/infrastructure_failures_rate": 1 / 6,
    }
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)
    sampled = [sum(t.sampled_mask) for group in groups for t in group.scored]
    assert metrics["rollout/sampled_tokens"] == pytest.approx(sum(sampled) / 5)


async def test_a_figure_without_data_has_no_key():
    answers_only = rollout_metrics(await roll({"Q2|": ["4|"]}))
    for key in ("rollout/valid_tool_call_rate", "rollout/tool_success_rate", "reward/correct_with_tool"):
        assert key not in answers_only
    assert answers_only["reward/correct_without_tool"] == 1.0
    failed = rollout_metrics(await roll({"Q2|": [InfrastructureError("x")]}))
    assert not any(key.startswith("reward/") for key in failed)
    assert "rollout/degenerate_group_rate" not in failed and "rollout/turns" not in failed
    assert failed["rollout/infrastructure_failures_rate"] == 1.0
    assert rollout_metrics([]) == {}


async def test_lengths_are_told_apart_by_outcome():
    groups = await batch()
    metrics = rollout_metrics(groups)
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for trajectory in (t for group in groups for t in group.scored):
        lengths[trajectory.verdict.correct].append(sum(len(turn.completion_tokens) for turn in trajectory.turns))
    assert metrics["rollout/sampled_tokens_right"] == sum(lengths[True]) / 3
    assert metrics["rollout/sampled_tokens_wrong"] == sum(lengths[False]) / 2
