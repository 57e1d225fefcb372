"""Records of what a policy did: turns, trajectories and groups of trajectories of one problem."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from retool.data.problem import Problem
from retool.policy.types import SamplerStop
from retool.reward.verdict import Verdict
from retool.sandbox.base import ExecutionResult


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWERED = "answered"
    """The policy ended a turn without calling the tool; that turn is scored."""
    TURN_LIMIT = "turn_limit"
    """The last allowed turn asked for the tool once more."""
    TOKEN_LIMIT = "token_limit"
    """The trajectory's token budget ran out before an answer."""
    PARSE_ERROR = "parse_error"
    """A malformed tool call, where the configuration ends the trajectory at one."""
    INFRASTRUCTURE = "infrastructure"
    """The service, the sandbox or the scorer failed; the trajectory never enters the loss."""


class CallOutcome(StrEnum):
    """What became of a turn's tool call."""

    NONE = "none"
    """The turn holds no call."""
    EXECUTED = "executed"
    """Well formed, and run in the sandbox."""
    MALFORMED = "malformed"
    """Not a call that the protocol can read."""
    OVER_BUDGET = "over_budget"
    """Well formed, but not run: the code budget was used up, or it was the last allowed turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the sampler and what followed.

    `prompt_tokens` is the whole context that was sent. `observation_tokens` is everything appended after the sampled
    tokens before the next request: the missing end of the turn, the tool's answer and the next generation prompt.
    It is empty for the last turn, and for a turn that the sampler cut and the next turn continues.
    `observation_text` is what the tool's answer in it says; `prompt_text` is the first prompt's text, and empty in
    later turns.
    """

    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    sampler_stop: SamplerStop
    call: CallOutcome = CallOutcome.NONE
    code: str | None = None
    result: ExecutionResult | None = None
    observation_tokens: tuple[int, ...] = ()
    observation_text: str = ""
    prompt_text: str = ""

    @property
    def continues(self) -> bool:
        """Whether the sampler cut the turn, so that the next record, if there is one, goes on with it."""
        return self.sampler_stop is SamplerStop.LENGTH and not self.observation_tokens


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All turns of one sample of one problem.

    `verdict` is `None` only for `StopReason.INFRASTRUCTURE`. `advantage` is filled in by the update.
    `final_text` is the text that was scored.
    """

    problem: Problem
    sample_index: int
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    final_text: str = ""
    verdict: Verdict | None = None
    advantage: float | None = None
    error: str | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt, sampled and observation tokens in order: what the policy saw and wrote."""
        if not self.turns:
            return ()
        last = self.turns[-1]
        return last.prompt_tokens + last.completion_tokens + last.observation_tokens

    @property
    def sampled_mask(self) -> tuple[bool, ...]:
        """True where the policy sampled the token. Same length as `tokens`."""
        mask = [False] * len(self.tokens)
        for turn in self.turns:
            start = len(turn.prompt_tokens)
            mask[start : start + len(turn.completion_tokens)] = [True] * len(turn.completion_tokens)
        return tuple(mask)

    @property
    def sampled_logprobs(self) -> tuple[float, ...]:
        """The sampler's logprob where the policy sampled the token, 0 elsewhere. Same length as `tokens`."""
        logprobs = [0.0] * len(self.tokens)
        for turn in self.turns:
            start = len(turn.prompt_tokens)
            logprobs[start : start + len(turn.completion_tokens)] = turn.logprobs
        return tuple(logprobs)

    @property
    def code_calls(self) -> int:
        return sum(turn.call is CallOutcome.EXECUTED for turn in self.turns)

    def with_advantage(self, advantage: float) -> "Trajectory":
        return replace(self, advantage=advantage)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """All trajectories of one problem in one step."""

    problem: Problem
    trajectories: tuple[Trajectory, ...]

    @property
    def scored(self) -> Sequence[Trajectory]:
        """The trajectories that have a verdict: all but infrastructure failures."""
        return [t for t in self.trajectories if t.verdict is not None]
