"""Trajectories survive the way through JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import CALL, ScriptedSandbox, ScriptedScorer, roll_one

from retool.data.problem import Problem
from retool.errors import InfrastructureError, UserError
from retool.policy.types import SamplerStop
from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.serialise import trajectory_from_json, trajectory_to_json
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, Turn
from retool.sandbox.base import ExecutionResult, ExecutionStatus

TOOL = {"Q2|": ["```p"], "Q2|```p": ["y\n1\n```|"], f"Q2|{CALL}|R1|": ["4|"]}


async def test_layout():
    record = trajectory_to_json((await roll_one(TOOL)).with_advantage(0.5), step=7)
    assert list(record) == [
        "step", "problem", "sample_index", "stop_reason", "final_text", "verdict", "advantage", "error", "turns"
    ]  # fmt: skip
    assert record["step"] == 7
    assert record["problem"] == {"id": "p", "question": "2", "answer": "4", "data_source": "test"}
    assert record["verdict"] == {
        "reward": 1.0, "correct": True, "valid_format": True, "reason": "correct_text", "extracted": "4"
    }  # fmt: skip
    assert (record["stop_reason"], record["advantage"], record["error"]) == ("answered", 0.5, None)
    first, second, third = record["turns"]
    assert (first["prompt_tokens"], first["prompt_text"]) == ([81, 50, 256], "Q2<|end|>")
    assert "prompt_tokens" not in second and "prompt_tokens" not in third
    assert (first["sampler_stop"], first["call"]) == ("length", "none")
    assert (second["call"], second["code"], second["result"]["status"]) == ("executed", "1", "ok")
    assert (second["observation_tokens"], second["observation_text"]) == ([82, 49, 256], "1")


@pytest.mark.parametrize(
    ("replies", "options"),
    [
        (TOOL, {}),
        ({"Q2|": ["4"]}, {"max_trajectory_tokens": 4}),
        ({}, {"max_trajectory_tokens": 3}),
        ({"Q2|": [InfrastructureError("x")]}, {}),
        ({"Q2|": [f"{CALL}|"]}, {"sandbox": ScriptedSandbox({"1": InfrastructureError("x")})}),
        ({"Q2|": ["4|"]}, {"scorer": ScriptedScorer(InfrastructureError("x"))}),
    ],
)
async def test_every_kind_of_trajectory_comes_back(replies, options):
    trajectory = await roll_one(replies, **options)
    assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory, step=0)))) == trajectory


TEXT = st.text(max_size=8)
TOKENS = st.lists(st.integers(0, 300), max_size=4).map(tuple)
RESULTS = st.builds(
    ExecutionResult,
    status=st.sampled_from(ExecutionStatus),
    stdout=TEXT,
    stderr=TEXT,
    returncode=st.none() | st.integers(-9, 255),
    cpu_seconds=st.floats(0, 100),
    wall_seconds=st.floats(0, 100),
    text=TEXT,
)
VERDICTS = st.builds(
    Verdict,
    reward=st.floats(-1, 1),
    correct=st.booleans(),
    valid_format=st.booleans(),
    reason=st.sampled_from(VerdictReason),
    extracted=st.none() | TEXT,
)


@st.composite
def trajectories(draw) -> Trajectory:
    context = draw(TOKENS)
    turns = []
    for index in range(draw(st.integers(0, 3))):
        sampled = draw(TOKENS)
        turn = Turn(
            prompt_tokens=context,
            completion_tokens=sampled,
            logprobs=tuple(draw(st.floats(-50, 0)) for _ in sampled),
            text=draw(TEXT),
            sampler_stop=draw(st.sampled_from(SamplerStop)),
            call=draw(st.sampled_from(CallOutcome)),
            code=draw(st.none() | TEXT),
            result=draw(st.none() | RESULTS),
            observation_tokens=draw(TOKENS),
            observation_text=draw(TEXT),
            prompt_text=draw(TEXT) if index == 0 else "",
        )
        turns.append(turn)
        context = context + turn.completion_tokens + turn.observation_tokens
    return Trajectory(
        problem=draw(st.builds(Problem, id=TEXT, question=TEXT, answer=TEXT, data_source=TEXT)),
        sample_index=draw(st.integers(0, 9)),
        turns=tuple(turns),
        stop_reason=draw(st.sampled_from(StopReason)),
        final_text=draw(TEXT),
        verdict=draw(st.none() | VERDICTS),
        advantage=draw(st.none() | st.floats(-2, 2)),
        error=draw(st.none() | TEXT),
    )


@given(trajectories())
def test_any_trajectory_comes_back(trajectory):
    assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory, step=1)))) == trajectory


async def test_a_broken_chain_of_turns_is_not_written():
    trajectory = await roll_one(TOOL)
    broken = replace(trajectory, turns=(trajectory.turns[0], trajectory.turns[2]))
    with pytest.raises(ValueError, match=r"Turn 1 of p\[0\] does not continue"):
        trajectory_to_json(broken, step=0)


@pytest.mark.parametrize(
    "spoil", [{"turns": None}, {"stop_reason": "tired"}, {"problem": {"id": "p"}}, {"verdict": {}}]
)
async def test_another_record_is_refused(spoil):
    record = trajectory_to_json(await roll_one(TOOL), step=0) | spoil
    with pytest.raises(UserError, match="Not a trajectory record"):
        trajectory_from_json(record)
    with pytest.raises(UserError, match="KeyError: 'turns'"):
        trajectory_from_json({})
