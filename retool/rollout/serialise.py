"""Trajectories as JSON objects, one a line of `trajectories/*.jsonl.gz`, and back.

The object has the keys `step`, `problem` {`id`, `question`, `answer`, `data_source`}, `sample_index`, `stop_reason`,
`final_text`, `verdict` (null for an infrastructure failure), `advantage`, `error` and `turns`, each
{`completion_tokens`, `logprobs`, `text`, `sampler_stop`, `call`, `code`, `result`, `observation_tokens`,
`observation_text`}. The first turn has `prompt_tokens` and `prompt_text` too; the prompt of a later one is what came
before it.

Contents: `trajectory_to_json`, `trajectory_from_json`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from retool.data.problem import Problem
from retool.errors import UserError
from retool.policy.types import SamplerStop
from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, Turn
from retool.sandbox.base import ExecutionResult, ExecutionStatus

JsonObject = dict[str, Any]
"""A JSON object as `json` reads it; its values have no static type."""


def trajectory_to_json(trajectory: Trajectory, *, step: int) -> JsonObject:
    """The trajectory as an object that `json.dumps` writes.

    Raises `ValueError` where a turn does not continue the one before it.
    """
    context: tuple[int, ...] | None = None
    turns: list[JsonObject] = []
    for turn in trajectory.turns:
        if context is not None and turn.prompt_tokens != context:
            raise ValueError(
                f"Turn {len(turns)} of {trajectory.problem.id}[{trajectory.sample_index}] does not continue the last."
            )
        turns.append(_turn_to_json(turn, first=context is None))
        context = turn.prompt_tokens + turn.completion_tokens + turn.observation_tokens
    return {
        "step": step,
        "problem": asdict(trajectory.problem),
        "sample_index": trajectory.sample_index,
        "stop_reason": trajectory.stop_reason.value,
        "final_text": trajectory.final_text,
        "verdict": None if trajectory.verdict is None else _plain(asdict(trajectory.verdict)),
        "advantage": trajectory.advantage,
        "error": trajectory.error,
        "turns": turns,
    }


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of an object that `trajectory_to_json` wrote. Raises `UserError` for any other."""
    try:
        return _trajectory(record)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"Not a trajectory record of this version ({type(error).__name__}: {error}). "
            "Read files that this version's runs wrote under trajectories/."
        ) from error


def _turn_to_json(turn: Turn, *, first: bool) -> JsonObject:
    prompt: JsonObject = {"prompt_tokens": list(turn.prompt_tokens), "prompt_text": turn.prompt_text} if first else {}
    return prompt | {
        "completion_tokens": list(turn.completion_tokens),
        "logprobs": list(turn.logprobs),
        "text": turn.text,
        "sampler_stop": turn.sampler_stop.value,
        "call": turn.call.value,
        "code": turn.code,
        "result": None if turn.result is None else _plain(asdict(turn.result)),
        "observation_tokens": list(turn.observation_tokens),
        "observation_text": turn.observation_text,
    }


def _plain(fields: JsonObject) -> JsonObject:
    """Enumeration members as their values."""
    return {key: getattr(value, "value", value) for key, value in fields.items()}


def _trajectory(record: Mapping[str, Any]) -> Trajectory:
    turns: list[Turn] = []
    for fields in record["turns"]:
        turns.append(_turn(fields, turns[-1] if turns else None))
    verdict = record["verdict"]
    return Trajectory(
        problem=Problem(**record["problem"]),
        sample_index=record["sample_index"],
        turns=tuple(turns),
        stop_reason=StopReason(record["stop_reason"]),
        final_text=record["final_text"],
        verdict=None if verdict is None else Verdict(**(verdict | {"reason": VerdictReason(verdict["reason"])})),
        advantage=record["advantage"],
        error=record["error"],
    )


def _turn(fields: Mapping[str, Any], last: Turn | None) -> Turn:
    if last is None:
        prompt, prompt_text = tuple(fields["prompt_tokens"]), fields["prompt_text"]
    else:
        prompt, prompt_text = last.prompt_tokens + last.completion_tokens + last.observation_tokens, ""
    result = fields["result"]
    return Turn(
        prompt_tokens=prompt,
        completion_tokens=tuple(fields["completion_tokens"]),
        logprobs=tuple(fields["logprobs"]),
        text=fields["text"],
        sampler_stop=SamplerStop(fields["sampler_stop"]),
        call=CallOutcome(fields["call"]),
        code=fields["code"],
        result=None if result is None else ExecutionResult(**(result | {"status": ExecutionStatus(result["status"])})),
        observation_tokens=tuple(fields["observation_tokens"]),
        observation_text=fields["observation_text"],
        prompt_text=prompt_text,
    )
