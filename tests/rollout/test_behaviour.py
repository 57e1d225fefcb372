"""What a trajectory does, as a specification. A change here is a change of what models are trained on: decide it, then
change the test.

 1. A turn without a call is the answer: `answered`, scored on its text.
 2. A call is run, its output is appended as an observation, and the policy goes on from exactly the tokens so far.
 3. Only sampled tokens are marked as such: not the prompt, the template's glue or the observation.
 4. A turn that the sampler cut is continued from where it was cut, and read as one with what follows.
 5. A cut turn is no answer: with the trajectory's budget used up it is `token_limit`, scored on the empty text.
 6. Each request may sample the smaller of the turn limit and what the trajectory has left.
 7. A call in the last allowed turn is `turn_limit`; it is not run. Continuing a cut turn does not count as a turn.
 8. Past the code budget a call gets a reply that says so, and the policy may still answer.
 9. A malformed call gets the message of its kind, and costs a turn but no code call.
10. With `on_parse_error=end` a malformed call is `parse_error`.
11. An observation longer than its limit loses its middle.
12. An observation that leaves no room for another token is `token_limit`, and is not appended.
13. A prompt that leaves no room is `token_limit` without a turn or a request.
14. A failed sampler, sandbox or scorer is `infrastructure`: with the reason and the turns so far, without a verdict.
15. What code does wrong is an observation like any other.
16. Whatever is not an answer is scored on the empty text.
17. Text-only turns are answers, whatever they look like; nothing is run.
18. The end of a turn that the policy did not sample is added to the observation.
19. Reasoning is neither run nor scored.
20. The records keep the texts that were seen: of the first prompt, the turns and the observations.
"""

import pytest
from malformed_turns import MALFORMED_TURNS
from rollout_fakes import (
    CALL,
    END,
    ScriptedSampler,
    ScriptedSandbox,
    ScriptedScorer,
    marks,
    protocol,
    result,
    roll,
    roll_one,
)
from rollout_fakes import text as readable
from rollout_fakes import tokens as literal

from retool.errors import InfrastructureError
from retool.policy.types import Completion, SamplerStop
from retool.rollout.trajectory import CallOutcome, StopReason
from retool.sandbox.base import ExecutionStatus


async def test_01_a_turn_without_a_call_is_the_answer():
    scorer = ScriptedScorer()
    trajectory = await roll_one({"Q2|": ["4|"]}, scorer=scorer)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.final_text == "4"
    assert trajectory.verdict.reward == 1.0
    assert scorer.asked == [("4", "4")]
    # tokens  Q   2   |   4   |
    # mask    .   .   .   x   x
    assert trajectory.tokens == (81, 50, 256, 52, 256)
    assert trajectory.sampled_mask == (False, False, False, True, True)
    assert trajectory.sampled_logprobs == (0.0, 0.0, 0.0, -0.5, -0.5)


async def test_02_a_call_is_run_and_the_policy_goes_on_from_the_tokens_so_far():
    sandbox = ScriptedSandbox({"1": "5"})
    sampler = ScriptedSampler({"Q2|": [f"a\n{CALL}|"], f"Q2|a\n{CALL}|R5|": ["4|"]})
    trajectory = await roll_one(sampler, sandbox=sandbox)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert sandbox.codes == ["1"]
    first, second = trajectory.turns
    assert (first.call, first.code, first.result.stdout) == (CallOutcome.EXECUTED, "1", "5")
    assert second.call is CallOutcome.NONE
    assert second.prompt_tokens == first.prompt_tokens + first.completion_tokens + first.observation_tokens
    assert [request["prompt"] for request in sampler.requests] == ["Q2|", f"Q2|a\n{CALL}|R5|"]


async def test_03_only_sampled_tokens_are_marked():
    trajectory = await roll_one({"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R1|": ["4|"]})
    #          Q   2   |   `   `   `   p    y    \n  1   \n  `   `   `   |    R   1   |    4   |
    # mask     .   .   .   x   x   x   x    x    x   x   x   x   x   x   x    .   .   .    x   x
    assert trajectory.tokens == (
        *(81, 50, 256),
        *(96, 96, 96, 112, 121, 10, 49, 10, 96, 96, 96, 256),
        *(82, 49, 256),
        *(52, 256),
    )
    assert marks(trajectory) == "..." + "xxxxxxxxxxxx" + "..." + "xx"
    assert trajectory.sampled_logprobs == (0.0,) * 3 + (-0.5,) * 12 + (0.0,) * 3 + (-0.5,) * 2


async def test_04_a_cut_turn_is_continued_and_read_as_a_whole():
    scorer = ScriptedScorer()
    sampler = ScriptedSampler(
        {
            "Q2|": ["```p"],
            "Q2|```p": ["y\n1\n"],
            "Q2|```py\n1\n": ["```|"],
            f"Q2|{CALL}|R1|": ["4"],
            f"Q2|{CALL}|R1|4": ["2|"],
        }
    )
    trajectory = await roll_one(sampler, scorer=scorer, max_turn_tokens=4)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert scorer.asked == [("42", "4")]
    assert [turn.sampler_stop for turn in trajectory.turns] == [
        SamplerStop.LENGTH, SamplerStop.LENGTH, SamplerStop.STOP, SamplerStop.LENGTH, SamplerStop.STOP
    ]  # fmt: skip
    assert [turn.call for turn in trajectory.turns] == [
        CallOutcome.NONE, CallOutcome.NONE, CallOutcome.EXECUTED, CallOutcome.NONE, CallOutcome.NONE
    ]  # fmt: skip
    assert [len(turn.observation_tokens) for turn in trajectory.turns] == [0, 0, 3, 0, 0]
    # text     Q2|  ```p y\n1\n ```|  R1|  4 2|
    # mask     ...  xxxx xxxx   xxxx  ...  x xx
    assert readable(trajectory.tokens) == f"Q2|{CALL}|R1|42|"
    assert marks(trajectory) == "..." + "xxxx" + "xxxx" + "xxxx" + "..." + "x" + "xx"


async def test_04_a_stop_token_as_the_last_one_allowed_ends_the_turn():
    class Sampler(ScriptedSampler):
        def _completion(self, reply):
            return Completion(literal(reply), (-0.5,) * len(reply), SamplerStop.LENGTH)

    trajectory = await roll_one(Sampler({"Q2|": ["4|"]}))
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.turns[0].sampler_stop is SamplerStop.STOP


async def test_05_a_cut_turn_is_no_answer():
    scorer = ScriptedScorer()
    trajectory = await roll_one({"Q2|": ["12345"]}, scorer=scorer, max_trajectory_tokens=8)
    assert trajectory.stop_reason is StopReason.TOKEN_LIMIT
    assert (trajectory.final_text, trajectory.verdict.correct) == ("", False)
    assert scorer.asked == [("", "4")]
    # text  Q2| 12345
    # mask  ... xxxxx
    assert readable(trajectory.tokens) == "Q2|12345"
    assert marks(trajectory) == "...xxxxx"


async def test_06_requests_ask_for_no_more_than_both_limits_allow():
    sampler = ScriptedSampler({"Q2|": ["aaaa"], "Q2|aaaa": ["bbbb"], "Q2|aaaabbbb": ["4|"]})
    await roll_one(sampler, max_trajectory_tokens=13, max_turn_tokens=4)
    assert [request["max_tokens"] for request in sampler.requests] == [4, 4, 2]


async def test_07_a_call_in_the_last_turn_is_not_run():
    sandbox, scorer = ScriptedSandbox(), ScriptedScorer()
    trajectory = await roll_one(
        {"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R1|": ["```p"], f"Q2|{CALL}|R1|```p": ["y\n1\n```|"]},
        sandbox=sandbox,
        scorer=scorer,
        max_assistant_turns=2,
        max_turn_tokens=12,
    )
    assert trajectory.stop_reason is StopReason.TURN_LIMIT
    assert sandbox.codes == ["1"]
    assert (trajectory.turns[-1].call, trajectory.turns[-1].code) == (CallOutcome.OVER_BUDGET, "1")
    assert trajectory.turns[-1].observation_tokens == ()
    assert scorer.asked == [("", "4")]


async def test_07_a_malformed_call_in_the_last_turn_is_turn_limit_too():
    trajectory = await roll_one({"Q2|": ["```py\n1|"]}, max_assistant_turns=1)
    assert trajectory.stop_reason is StopReason.TURN_LIMIT
    assert trajectory.turns[-1].call is CallOutcome.MALFORMED


async def test_08_past_the_code_budget_the_policy_is_told_so_and_may_answer():
    told = "The code was not run: all 1 code calls are used up. Give the final answer in \\boxed{} without a tool call."
    sandbox = ScriptedSandbox()
    trajectory = await roll_one(
        {
            "Q2|": [f"{CALL}|"],
            f"Q2|{CALL}|R1|": [f"{CALL}|"],
            f"Q2|{CALL}|R1|{CALL}|R{told}|": ["4|"],
        },
        sandbox=sandbox,
        max_code_calls=1,
    )
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.verdict.correct
    assert sandbox.codes == ["1"]
    assert [turn.call for turn in trajectory.turns] == [CallOutcome.EXECUTED, CallOutcome.OVER_BUDGET, CallOutcome.NONE]
    assert trajectory.turns[1].code == "1" and trajectory.turns[1].result is None
    assert trajectory.code_calls == 1


async def test_08_without_any_code_budget_the_reply_says_that():
    told = "The code was not run: no code calls are allowed. Give the final answer in \\boxed{} without a tool call."
    replies = {"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R{told}|": ["4|"]}
    sandbox = ScriptedSandbox()
    assert (await roll_one(replies, sandbox=sandbox, max_code_calls=0)).stop_reason is StopReason.ANSWERED
    assert sandbox.codes == []


@pytest.mark.parametrize(("options", "turn"), MALFORMED_TURNS)
async def test_09_a_malformed_call_gets_its_message_and_costs_a_turn_but_no_code_call(options, turn):
    parsed = protocol(**options).parse(turn)
    sandbox = ScriptedSandbox()
    good = protocol(**options).render_call("1")
    after = f"Q2|{turn}|R{parsed.message}|"
    trajectory = await roll_one(
        {"Q2|": [f"{turn}|"], after: [f"{good}|"], f"{after}{good}|R1|": ["4|"]},
        sandbox=sandbox,
        options=options,
        max_code_calls=1,
        max_assistant_turns=3,
    )
    assert [t.call for t in trajectory.turns] == [CallOutcome.MALFORMED, CallOutcome.EXECUTED, CallOutcome.NONE]
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.turns[0].code is None
    assert trajectory.turns[0].observation_text == parsed.message
    # The message is an observation: not sampled.
    head, message, tail = 3 + len(turn) + 1, len(f"R{parsed.message}|"), len(f"{good}|")
    assert marks(trajectory) == "..." + "x" * (head - 3) + "." * message + "x" * tail + "..." + "xx"


async def test_10_on_parse_error_end_ends_the_trajectory():
    scorer = ScriptedScorer()
    trajectory = await roll_one({"Q2|": ["```py\n1|"]}, on_parse_error="end", scorer=scorer)
    assert trajectory.stop_reason is StopReason.PARSE_ERROR
    assert trajectory.turns[0].call is CallOutcome.MALFORMED
    assert scorer.asked == [("", "4")]
    # text  Q2| ```py\n1|
    # mask  ... xxxxx x xx
    assert marks(trajectory) == "..." + "xxxxxxxx"


async def test_11_a_long_observation_loses_its_middle():
    sampler = ScriptedSampler({"Q2|": [f"{CALL}|"]})
    shown = protocol().truncate("a" * 500 + "b" * 500, 100)
    sampler.replies[f"Q2|{CALL}|R{shown}|"] = ["4|"]
    trajectory = await roll_one(
        sampler, sandbox=ScriptedSandbox({"1": "a" * 500 + "b" * 500}), max_observation_tokens=100
    )
    observation = trajectory.turns[0].observation_text
    assert observation.startswith("aaa") and observation.endswith("bbb") and "1000 tokens in all" in observation
    assert len(trajectory.turns[0].observation_tokens) <= 100 + len("R|")
    assert trajectory.turns[0].result.text == "a" * 500 + "b" * 500  # the record keeps all of it


async def test_12_an_observation_that_does_not_fit_is_token_limit_and_not_appended():
    scorer = ScriptedScorer()
    used = len(f"Q2|{CALL}|R1|")
    for room in (used, used + 1):
        trajectory = await roll_one(
            {"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R1|": ["4"]}, scorer=scorer, max_trajectory_tokens=room
        )
        assert trajectory.stop_reason is StopReason.TOKEN_LIMIT
        assert trajectory.turns[0].result.stdout == "1"
        # Without room for a token after it, the observation is left out; with room for one, that one is sampled.
        expected = f"Q2|{CALL}|" if room == used else f"Q2|{CALL}|R1|4"
        assert readable(trajectory.tokens) == expected
    assert scorer.asked == [("", "4")] * 2


async def test_13_a_prompt_that_does_not_fit_is_token_limit_without_a_request():
    sampler = ScriptedSampler({})
    [group] = await roll(sampler, group_size=2, max_trajectory_tokens=3)
    assert [t.stop_reason for t in group.trajectories] == [StopReason.TOKEN_LIMIT] * 2
    assert [t.turns for t in group.trajectories] == [(), ()]
    assert [t.verdict.correct for t in group.trajectories] == [False, False]
    assert sampler.requests == []


async def test_14_a_failed_first_request_fails_the_group():
    scorer = ScriptedScorer()
    [group] = await roll({"Q2|": [InfrastructureError("HTTP 502")]}, group_size=2, scorer=scorer)
    for trajectory in group.trajectories:
        assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
        assert (trajectory.verdict, trajectory.turns, trajectory.error) == (None, (), "sampler: HTTP 502")
    assert scorer.asked == []
    assert group.scored == []


async def test_14_a_later_failure_keeps_the_turns_so_far():
    trajectory = await roll_one({"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R1|": [InfrastructureError("gone")]})
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.INFRASTRUCTURE, "sampler: gone")
    assert trajectory.verdict is None
    assert readable(trajectory.tokens) == f"Q2|{CALL}|R1|"


@pytest.mark.parametrize(
    "failure", [InfrastructureError("no workers"), result("", ExecutionStatus.INFRASTRUCTURE, stderr="no workers")]
)
async def test_14_a_failed_sandbox(failure):
    scorer = ScriptedScorer()
    trajectory = await roll_one({"Q2|": [f"{CALL}|"]}, sandbox=ScriptedSandbox({"1": failure}), scorer=scorer)
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.INFRASTRUCTURE, "sandbox: no workers")
    assert trajectory.verdict is None and scorer.asked == []
    assert trajectory.turns[0].result.status is ExecutionStatus.INFRASTRUCTURE
    assert trajectory.turns[0].observation_tokens == ()


async def test_14_a_failed_scorer():
    trajectory = await roll_one({"Q2|": ["4|"]}, scorer=ScriptedScorer(InfrastructureError("dead")))
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.INFRASTRUCTURE, "scorer: dead")
    assert trajectory.verdict is None
    assert trajectory.final_text == "4"


@pytest.mark.parametrize(
    ("completions", "reason"),
    [
        ([], "1 completions were asked for, 0 came"),
        ([Completion((), (), SamplerStop.LENGTH)], "0 came"),
        ([Completion((52, END), (-0.5,), SamplerStop.STOP)], "2 tokens came with 1 logprobs"),
        ([Completion((52,) * 99, (-0.5,) * 99, SamplerStop.LENGTH)], "1 to 5 tokens was asked for, 99 came"),
    ],
)
async def test_14_an_answer_that_no_sampler_should_give_is_a_failure_of_the_sampler(completions, reason):
    class Broken(ScriptedSampler):
        async def sample(self, prompt, **request):
            return completions

    trajectory = await roll_one(Broken({}), max_turn_tokens=5)
    assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
    assert trajectory.error.startswith("sampler: ") and reason in trajectory.error


@pytest.mark.parametrize("status", [s for s in ExecutionStatus if s is not ExecutionStatus.INFRASTRUCTURE])
async def test_15_what_code_does_wrong_is_an_observation(status):
    sandbox = ScriptedSandbox({"1": result("ouch", status)})
    trajectory = await roll_one({"Q2|": [f"{CALL}|"], f"Q2|{CALL}|Rouch|": ["4|"]}, sandbox=sandbox)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.turns[0].call is CallOutcome.EXECUTED
    assert trajectory.turns[0].result.status is status


async def test_16_what_is_not_an_answer_is_scored_on_the_empty_text():
    """The gold answer in a cut, a malformed or a calling turn earns nothing; see also 5, 7, 10 and 12."""
    for replies, limits in (
        ({"Q2|": ["4"]}, {"max_trajectory_tokens": 4}),
        ({"Q2|": [f"4\n{CALL}|"]}, {"max_assistant_turns": 1}),
        ({"Q2|": ["4\n```py\n1|"]}, {"on_parse_error": "end"}),
    ):
        scorer = ScriptedScorer()
        trajectory = await roll_one(replies, scorer=scorer, **limits)
        assert scorer.asked == [("", "4")]
        assert (trajectory.final_text, trajectory.verdict.reward) == ("", -1.0)


async def test_17_text_only_turns_are_answers_and_nothing_is_run():
    sandbox, scorer = ScriptedSandbox(), ScriptedScorer()
    trajectory = await roll_one(
        {"Q2|": ["```p"], "Q2|```p": ["y\n1\n```|"]}, sandbox=sandbox, scorer=scorer, options={"mode": "text_only"}
    )
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert sandbox.codes == []
    assert scorer.asked == [(CALL, "4")]
    assert [turn.call for turn in trajectory.turns] == [CallOutcome.NONE, CallOutcome.NONE]


async def test_18_an_unsampled_end_of_turn_is_part_of_the_observation():
    class Stripped(ScriptedSampler):
        """A service that does not return the stop token."""

        def _completion(self, reply):
            ids = literal(reply.removesuffix("|"))
            return Completion(ids, (-0.5,) * len(ids), SamplerStop.STOP)

    trajectory = await roll_one(Stripped({"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R1|": ["4|"]}))
    assert trajectory.turns[0].observation_tokens == literal("|R1|")
    # text  Q2| ```py\n1\n``` |R1| 4
    # mask  ... xxxxxx xx xxx .... x
    assert marks(trajectory) == "..." + "x" * 11 + "...." + "x"


async def test_19_reasoning_is_neither_run_nor_scored():
    sandbox, scorer = ScriptedSandbox(), ScriptedScorer()
    thought = f"<think>{CALL}\n</think>4|"
    trajectory = await roll_one({"Q2|": [thought]}, sandbox=sandbox, scorer=scorer, options={"thinking": "keep"})
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert sandbox.codes == []
    assert scorer.asked == [("4", "4")]
    assert readable(trajectory.tokens) == f"Q2|{thought}"


async def test_20_the_records_keep_the_texts_that_were_seen():
    trajectory = await roll_one({"Q2|": [f"{CALL}|"], f"Q2|{CALL}|R1|": ["4|"]})
    first, second = trajectory.turns
    assert (first.prompt_text, first.text, first.observation_text) == ("Q2<|end|>", CALL, "1")
    assert (second.prompt_text, second.text, second.observation_text) == ("", "4", "")
