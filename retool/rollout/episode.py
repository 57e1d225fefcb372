"""One trajectory: the state machine between sampler, protocol, sandbox and scorer.

The order of its checks is that of `retool.rollout.limits`.

Contents: `Environment`, `Episode`, `check_completion`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from retool.data.problem import Problem
from retool.errors import InfrastructureError
from retool.policy.types import Completion, Sampler, SamplerStop, SamplingSettings
from retool.protocol.chat import ChatProtocol
from retool.protocol.types import ParsedTurn, TurnKind
from retool.reward.verdict import AsyncScorer, Verdict
from retool.rollout.limits import OnParseError, RolloutLimits
from retool.rollout.trajectory import CallOutcome, StopReason, Trajectory, Turn
from retool.rollout.watchdog import Watchdog
from retool.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox


@dataclass(frozen=True, slots=True)
class Environment:
    """What the trajectories of one rollout share."""

    sampler: Sampler
    protocol: ChatProtocol
    sandbox: Sandbox
    scorer: AsyncScorer
    limits: RolloutLimits
    settings: SamplingSettings
    on_parse_error: OnParseError
    watchdog: Watchdog

    async def sample(self, prompt: tuple[int, ...], *, num_samples: int, seed: int, name: str) -> list[Completion]:
        """Asks the sampler, within the limits. Raises `InfrastructureError` if it fails or answers nonsense."""
        max_tokens = self.limits.request_tokens(len(prompt))
        try:
            with self.watchdog.waiting(f"the sampler for {name}"):
                completions = await self.sampler.sample(
                    prompt,
                    num_samples=num_samples,
                    max_tokens=max_tokens,
                    seed=seed,
                    stop_token_ids=self.protocol.stop_token_ids,
                    settings=self.settings,
                )
        except InfrastructureError as error:
            raise InfrastructureError(f"sampler: {error}") from error
        if len(completions) != num_samples:
            raise InfrastructureError(f"sampler: {num_samples} completions were asked for, {len(completions)} came.")
        for completion in completions:
            check_completion(completion, max_tokens)
        return completions


def check_completion(completion: Completion, max_tokens: int) -> None:
    """Raises `InfrastructureError` for a completion that no sampler should return."""
    count = len(completion.tokens)
    if not 0 < count <= max_tokens:
        raise InfrastructureError(f"sampler: a completion of 1 to {max_tokens} tokens was asked for, {count} came.")
    if len(completion.logprobs) != count:
        raise InfrastructureError(f"sampler: {count} tokens came with {len(completion.logprobs)} logprobs.")


class Episode:
    """Runs one trajectory from its first completion to its verdict. Used once."""

    def __init__(
        self,
        environment: Environment,
        problem: Problem,
        sample_index: int,
        prompt: tuple[int, ...],
        seed_of: Callable[[int], int],
    ) -> None:
        """`seed_of(i)` is the seed of the trajectory's request number i."""
        self._env = environment
        self._problem = problem
        self._sample_index = sample_index
        self._context = prompt
        self._seed_of = seed_of
        self._turns: list[Turn] = []
        self._open_turn: tuple[int, ...] = ()
        self._assistant_turns = 0
        self._code_calls = 0
        self._final_text = ""

    async def run(self, first: Completion) -> Trajectory:
        """The finished and scored trajectory, `first` being the answer to its first request."""
        try:
            stop = await self._take_turns(first)
        except InfrastructureError as error:
            return self.failed(error)
        return await self.ended(stop)

    async def ended(self, stop: StopReason) -> Trajectory:
        """The trajectory up to here, scored."""
        try:
            verdict = await self._score()
        except InfrastructureError as error:
            return self.failed(InfrastructureError(f"scorer: {error}"))
        return self._trajectory(stop, verdict=verdict)

    def failed(self, error: InfrastructureError) -> Trajectory:
        """The trajectory up to here, which a machine's failure ended."""
        return self._trajectory(StopReason.INFRASTRUCTURE, error=str(error))

    def _trajectory(self, stop: StopReason, *, verdict: Verdict | None = None, error: str | None = None) -> Trajectory:
        return Trajectory(
            problem=self._problem,
            sample_index=self._sample_index,
            turns=tuple(self._turns),
            stop_reason=stop,
            final_text=self._final_text,
            verdict=verdict,
            error=error,
        )

    @property
    def _name(self) -> str:
        return f"{self._problem.id}[{self._sample_index}] request {len(self._turns)}"

    async def _take_turns(self, first: Completion) -> StopReason:
        completion = first
        while True:
            if self._record(completion):
                stop = await self._respond()
                if stop is not None:
                    return stop
            elif not self._env.limits.request_tokens(len(self._context)):
                return StopReason.TOKEN_LIMIT
            completion = (
                await self._env.sample(
                    self._context, num_samples=1, seed=self._seed_of(len(self._turns)), name=self._name
                )
            )[0]

    def _record(self, completion: Completion) -> bool:
        """Appends the sampled tokens; true if they end the turn."""
        protocol = self._env.protocol
        ended = completion.stop is SamplerStop.STOP or completion.tokens[-1] in protocol.stop_token_ids
        self._turns.append(
            Turn(
                prompt_tokens=self._context,
                completion_tokens=completion.tokens,
                logprobs=completion.logprobs,
                text=protocol.decode(completion.tokens),
                sampler_stop=SamplerStop.STOP if ended else SamplerStop.LENGTH,
                prompt_text="" if self._turns else protocol.full_text(self._context),
            )
        )
        self._context += completion.tokens
        self._open_turn += completion.tokens
        return ended

    async def _respond(self) -> StopReason | None:
        """Reads the finished turn and appends its observation; the reason to stop, if there is one."""
        text = self._env.protocol.decode(self._open_turn)
        parsed = self._env.protocol.parse(text)
        self._assistant_turns += 1
        if parsed.kind is TurnKind.ANSWER:
            self._final_text = self._env.protocol.scored_text(text)
            return StopReason.ANSWERED
        malformed = parsed.kind is TurnKind.MALFORMED
        outcome = CallOutcome.MALFORMED if malformed else CallOutcome.OVER_BUDGET
        self._turns[-1] = replace(self._turns[-1], call=outcome, code=parsed.code)
        if malformed and self._env.on_parse_error is OnParseError.END:
            return StopReason.PARSE_ERROR
        if self._assistant_turns >= self._env.limits.max_assistant_turns:
            return StopReason.TURN_LIMIT
        return self._append(await self._observe(parsed))

    async def _observe(self, parsed: ParsedTurn) -> str:
        """What the policy is shown after a turn with a call."""
        if parsed.message is not None:
            return parsed.message
        budget = self._env.limits.max_code_calls
        if self._code_calls >= budget:
            reason = f"all {budget} code calls are used up" if budget else "no code calls are allowed"
            return f"The code was not run: {reason}. Give the final answer in \\boxed{{}} without a tool call."
        self._code_calls += 1
        result = await self._execute(parsed.code or "")
        self._turns[-1] = replace(self._turns[-1], call=CallOutcome.EXECUTED, result=result)
        if result.status is ExecutionStatus.INFRASTRUCTURE:
            raise InfrastructureError(f"sandbox: {result.stderr or result.text or 'no reason given'}")
        return result.text

    async def _execute(self, code: str) -> ExecutionResult:
        try:
            with self._env.watchdog.waiting(f"the sandbox for {self._name}"):
                return await self._env.sandbox.run(code)
        except InfrastructureError as error:
            return ExecutionResult(
                status=ExecutionStatus.INFRASTRUCTURE,
                stdout="",
                stderr=str(error),
                returncode=None,
                cpu_seconds=0.0,
                wall_seconds=0.0,
                text="",
            )

    def _append(self, observation: str) -> StopReason | None:
        limits = self._env.limits
        observation = self._env.protocol.truncate(observation, limits.max_observation_tokens)
        tokens = self._env.protocol.continuation(self._open_turn, observation)
        if not limits.request_tokens(len(self._context) + len(tokens)):
            return StopReason.TOKEN_LIMIT
        self._turns[-1] = replace(self._turns[-1], observation_tokens=tokens, observation_text=observation)
        self._context += tokens
        self._open_turn = ()
        return None

    async def _score(self) -> Verdict:
        with self._env.watchdog.waiting(f"the scorer for {self._name}"):
            return await self._env.scorer.ascore(self._final_text, self._problem.answer)
