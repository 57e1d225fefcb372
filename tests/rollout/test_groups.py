"""Groups: shared first requests, seeds, concurrency, callbacks, errors and cancellation."""

import asyncio

import pytest
from rollout_fakes import CALL, PROBLEM, ScriptedSampler, ScriptedSandbox, ScriptedScorer, protocol, roll

from retool.data.problem import Problem
from retool.errors import UserError
from retool.policy.types import SamplingSettings
from retool.rollout.groups import Rollout
from retool.rollout.seeds import request_seed
from retool.rollout.trajectory import StopReason


def problem(question: str) -> Problem:
    return Problem(id=f"p{question}", question=question, answer="4", data_source="test")


async def test_a_group_shares_its_first_request_and_keeps_the_order_of_samples():
    sampler = ScriptedSampler({"Q2|": ["1|", f"{CALL}|", "4|"], f"Q2|{CALL}|R1|": ["4|"]})
    [group] = await roll(sampler, group_size=3)
    assert [request["num_samples"] for request in sampler.requests] == [3, 1]
    assert [t.sample_index for t in group.trajectories] == [0, 1, 2]
    assert [t.final_text for t in group.trajectories] == ["1", "4", "4"]
    assert group.problem is PROBLEM
    assert len(group.trajectories[1].turns) == 2


async def test_groups_come_in_the_order_of_the_problems():
    problems = [problem(question) for question in "3124"]
    groups = await roll({f"Q{q}|": ["4|", "4|"] for q in "1234"}, problems=problems, group_size=2)
    assert [group.problem for group in groups] == problems


async def test_no_problems_no_groups():
    assert await roll({}, problems=()) == []


async def test_seeds_depend_on_what_a_request_is_and_on_nothing_else():
    def replies():
        return ScriptedSampler({"Q1|": [f"{CALL}|", "4|"], "Q2|": ["a", "4|"], f"Q1|{CALL}|R1|": ["4|"], "Q2|a": ["|"]})

    async def seeds(problems, **options):
        sampler = replies()
        await roll(sampler, problems=[problem(q) for q in problems], group_size=2, **options)
        return {request["prompt"]: request["seed"] for request in sampler.requests}

    forward = await seeds("12")
    assert forward == await seeds("21") == await seeds("12", max_concurrency=1)
    assert len(set(forward.values())) == 4
    assert forward["Q1|"] == request_seed(42, step=0, problem_id="p1", sample=0, request=0)
    assert forward[f"Q1|{CALL}|R1|"] == request_seed(42, step=0, problem_id="p1", sample=0, request=1)
    assert not set(forward.values()).intersection((await seeds("12", step=1)).values())
    assert not set(forward.values()).intersection((await seeds("12", seed=43)).values())


async def test_a_repeated_problem_gets_other_seeds():
    sampler = ScriptedSampler({"Q2|": ["4|"] * 4})
    groups = await roll(sampler, problems=[PROBLEM, PROBLEM], group_size=2)
    assert len({request["seed"] for request in sampler.requests}) == 2
    assert [[t.sample_index for t in group.trajectories] for group in groups] == [[0, 1], [0, 1]]


async def test_every_trajectory_is_reported_once_as_it_finishes():
    seen = []
    replies = {"Q2|": [f"{CALL}|", "4|"], f"Q2|{CALL}|R1|": ["4|"]}
    [group] = await roll(replies, group_size=2, on_trajectory=seen.append)
    assert [t.sample_index for t in seen] == [1, 0]  # the one that needs no tool is first
    assert sorted(seen, key=lambda t: t.sample_index) == list(group.trajectories)


class CountingSampler(ScriptedSampler):
    """Counts the requests that are open at the same time."""

    def __init__(self, replies) -> None:
        super().__init__(replies)
        self.open = 0
        self.most = 0

    async def sample(self, prompt, **request):
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return await super().sample(prompt, **request)
        finally:
            self.open -= 1


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 6)])
async def test_no_more_trajectories_at_work_than_allowed(limit, most):
    sampler = CountingSampler({f"Q{q}|": ["4|"] for q in "123456"})
    groups = await roll(sampler, problems=[problem(q) for q in "123456"], max_concurrency=limit)
    assert sampler.most == most
    assert all(t.stop_reason is StopReason.ANSWERED for group in groups for t in group.trajectories)


async def test_a_slow_tool_of_one_trajectory_holds_up_no_other():
    release = asyncio.Event()

    class SlowSandbox(ScriptedSandbox):
        async def run(self, code, cpu_time_s=None, wall_time_s=None):
            await release.wait()
            return await super().run(code)

    finished = []
    replies = {"Q1|": [f"{CALL}|"], f"Q1|{CALL}|R1|": ["4|"], "Q2|": ["4|"], "Q3|": ["4|"]}
    task = asyncio.create_task(
        roll(
            replies,
            problems=[problem(q) for q in "123"],
            sandbox=SlowSandbox(),
            on_trajectory=lambda t: finished.append(t.problem.question),
        )
    )
    for _ in range(50):
        await asyncio.sleep(0)
    assert finished == ["2", "3"]
    release.set()
    await task
    assert finished == ["2", "3", "1"]


async def test_cancellation_leaves_no_request_behind():
    sampler = CountingSampler({"Q2|": [f"{CALL}|"] * 3, f"Q2|{CALL}|R1|": ["4|"] * 3})
    before = asyncio.all_tasks()
    task = asyncio.create_task(roll(sampler, group_size=3))
    for _ in range(50):
        await asyncio.sleep(0)
        if sampler.open == 3:
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sampler.open == 0
    assert asyncio.all_tasks() == before


async def test_no_task_is_left_after_a_run():
    before = asyncio.all_tasks()
    await roll({"Q2|": ["4|"]})
    assert asyncio.all_tasks() == before


async def test_an_error_that_is_nobodys_machine_ends_the_run_as_itself():
    with pytest.raises(KeyError, match="unplanned"):
        await roll({"Q2|": [f"{CALL}|"]}, sandbox=ScriptedSandbox({"1": KeyError("unplanned")}))


async def test_several_such_errors_come_as_a_group():
    with pytest.raises(ExceptionGroup):
        await roll({"Q2|": ["4|", "4|"]}, group_size=2, scorer=ScriptedScorer(ValueError("twice")))


async def test_a_user_error_of_a_plugged_in_component_keeps_its_message():
    with pytest.raises(UserError, match="my reward needs a key"):
        await roll({"Q2|": ["4|", "4|"]}, group_size=2, scorer=ScriptedScorer(UserError("my reward needs a key")))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_code_calls": -1}, "rollout.max_code_calls: -1"),
        ({"max_assistant_turns": 0}, "rollout.max_assistant_turns: 0"),
        ({"max_trajectory_tokens": 1}, "rollout.max_trajectory_tokens: 1"),
        ({"max_turn_tokens": 0}, "rollout.max_turn_tokens: 0"),
        ({"max_observation_tokens": 0}, "rollout.max_observation_tokens: 0"),
        ({"temperature": -0.1}, "rollout.temperature: -0.1"),
        ({"top_p": 0.0}, "rollout.top_p: 0.0"),
        ({"top_p": 1.1}, "rollout.top_p: 1.1"),
        ({"top_k": 0}, "rollout.top_k: 0"),
        ({"max_concurrency": 0}, "rollout.max_concurrency: 0"),
        ({"on_parse_error": "retry"}, "rollout.on_parse_error: 'retry' is none of reply, end"),
    ],
)
def test_settings_out_of_range_are_refused(option, message):
    with pytest.raises(UserError, match=message):
        Rollout(**option)


async def test_group_size_must_be_positive():
    with pytest.raises(UserError, match="group_size: 0"):
        await roll({}, group_size=0)


async def test_sampling_settings_reach_the_sampler():
    class Recording(ScriptedSampler):
        async def sample(self, prompt, *, settings, **request):
            self.settings = settings
            return await super().sample(prompt, settings=settings, **request)

    sampler = Recording({"Q2|": ["4|"]})
    await roll(sampler, temperature=0.5, top_p=0.7, top_k=20)
    assert sampler.settings == SamplingSettings(temperature=0.5, top_p=0.7, top_k=20)
    assert protocol().stop_token_ids == (256,)
