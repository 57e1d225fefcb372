"""A protocol whose token ids are readable, and scripted stand-ins for sampler, sandbox and scorer.

Every byte is a token with the byte's value for an id ("A" is 65), and the end of a turn is token 256, written "|" here.
A dialogue reads `Q<question>|<turn>|R<output>|<turn>|…`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from retool.data.problem import Problem
from retool.policy.types import Completion, SamplerStop, SamplingSettings
from retool.protocol import ChatProtocol
from retool.reward.verdict import Verdict, VerdictReason
from retool.rollout.groups import Rollout
from retool.rollout.trajectory import Trajectory, TrajectoryGroup
from retool.sandbox.base import ExecutionResult, ExecutionStatus

END = 256
TEMPLATE = (
    "{% for m in messages %}{{ {'user': 'Q', 'assistant': '', 'tool': 'R'}[m.role] }}{{ m.content }}<|end|>{% endfor %}"
)
CALL = "```py\n1\n```"
PROBLEM = Problem(id="p", question="2", answer="4", data_source="test")


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


@lru_cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab=_byte_of_character(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@lru_cache
def protocol(**options: str) -> ChatProtocol:
    options = {"system_prompt": "", "tool_format": "fenced_python", **options}
    return ChatProtocol(byte_tokenizer(), chat_template=TEMPLATE, **options)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(END if character == "|" else ord(character) for character in text)


def text(ids: Sequence[int]) -> str:
    return "".join("|" if i == END else chr(i) for i in ids)


def marks(trajectory: Trajectory) -> str:
    """`x` for each sampled token of the trajectory, `.` for the others."""
    return "".join("x" if sampled else "." for sampled in trajectory.sampled_mask)


class ScriptedSampler:
    """Answers a prompt with the next of its replies. A reply with "|" at its end stopped, one without was cut."""

    def __init__(self, replies: Mapping[str, Sequence[str | Exception]]) -> None:
        self.replies = {prompt: list(queue) for prompt, queue in replies.items()}
        self.requests: list[dict] = []

    async def sample(
        self,
        prompt: Sequence[int],
        *,
        num_samples: int,
        max_tokens: int,
        seed: int,
        stop_token_ids: Sequence[int],
        settings: SamplingSettings,
    ) -> list[Completion]:
        self.requests.append(
            {"prompt": text(prompt), "num_samples": num_samples, "max_tokens": max_tokens, "seed": seed}
        )
        assert tuple(stop_token_ids) == (END,)
        await asyncio.sleep(0)
        return [self._completion(self.replies[text(prompt)].pop(0)) for _ in range(num_samples)]

    def _completion(self, reply: str | Exception) -> Completion:
        if isinstance(reply, Exception):
            raise reply
        ids = tokens(reply)
        stop = SamplerStop.STOP if reply.endswith("|") else SamplerStop.LENGTH
        return Completion(ids, tuple(-0.5 for _ in ids), stop)


def result(output: str, status: ExecutionStatus = ExecutionStatus.OK, stderr: str = "") -> ExecutionResult:
    return ExecutionResult(status, output, stderr, 0, 0.01, 0.02, output)


class ScriptedSandbox:
    """Answers code with what the script says: text, a whole result or an error."""

    def __init__(self, outputs: Mapping[str, str | ExecutionResult | Exception] | None = None) -> None:
        self.outputs = {"1": "1"} if outputs is None else dict(outputs)
        self.codes: list[str] = []

    async def run(
        self, code: str, cpu_time_s: float | None = None, wall_time_s: float | None = None
    ) -> ExecutionResult:
        self.codes.append(code)
        await asyncio.sleep(0)
        output = self.outputs[code]
        if isinstance(output, Exception):
            raise output
        return result(output) if isinstance(output, str) else output

    def metrics(self) -> dict[str, float]:
        return {}


class ScriptedScorer:
    """Right if the text is the gold answer. Keeps what it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[str, str]] = []

    async def ascore(self, text: str, gold: str) -> Verdict:
        self.asked.append((text, gold))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        correct = text == gold
        reason = VerdictReason.CORRECT_TEXT if correct else VerdictReason.NO_BOX
        return Verdict(1.0 if correct else -1.0, correct, bool(text), reason, text or None)


async def roll(
    replies: Mapping[str, Sequence[str | Exception]] | ScriptedSampler,
    *,
    sandbox: ScriptedSandbox | None = None,
    scorer: ScriptedScorer | None = None,
    problems: Sequence[Problem] = (PROBLEM,),
    group_size: int = 1,
    seed: int = 42,
    step: int = 0,
    options: Mapping[str, str] | None = None,
    on_trajectory=None,
    **limits: object,
) -> list[TrajectoryGroup]:
    """Runs a rollout against the scripts."""
    return await Rollout(**limits).run(
        problems,
        group_size=group_size,
        seed=seed,
        step=step,
        sampler=replies if isinstance(replies, ScriptedSampler) else ScriptedSampler(replies),
        protocol=protocol(**(options or {})),
        sandbox=sandbox or ScriptedSandbox(),
        scorer=scorer or ScriptedScorer(),
        on_trajectory=on_trajectory,
    )


async def roll_one(replies, **options: object) -> Trajectory:
    """The only trajectory of a rollout against the scripts."""
    [group] = await roll(replies, **options)
    [trajectory] = group.trajectories
    return trajectory


def problem_batch(questions: str) -> list[Problem]:
    """One problem a character, with the answer 4."""
    return [Problem(id=f"p{question}", question=question, answer="4", data_source="test") for question in questions]
