"""The budgets of one trajectory, as one declarative object.

A trajectory is checked in this order, and ends at the first check that says so:

Before the first request
1. The prompt leaves no room for a token: `token_limit`, without a turn.

After each request
2. The sampler failed: `infrastructure`.
3. The sampler cut the turn for length: the turn goes on with the next request if a token of the trajectory's budget is
   left, else `token_limit`. A cut turn is never read, neither as an answer nor as a call.
4. The turn is an answer: `answered`.
5. The turn is a malformed call and `on_parse_error` is `end`: `parse_error`.
6. It was the last allowed turn: `turn_limit`. Its call is not run.
7. A well-formed call is run if the code budget allows it; if the sandbox failed: `infrastructure`. Past the budget the
   policy is told so, and a malformed call is told what is wrong with it.
8. The observation, cut to its own limit, does not leave room for one more token: `token_limit`.

At the end
9. An answer is scored on its text, any other end on the empty text; if the scorer failed: `infrastructure`.

Contents: `RolloutLimits`, `OnParseError`.
"""

from dataclasses import dataclass
from enum import StrEnum

from retool.errors import UserError


class OnParseError(StrEnum):
    """What follows a malformed call."""

    REPLY = "reply"
    """The policy is told what is wrong and goes on."""
    END = "end"
    """The trajectory ends as `parse_error`."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Budgets of one trajectory. Raises `UserError` for values that allow no trajectory at all.

    `max_code_calls`: calls that are run.
    `max_assistant_turns`: turns of the policy, the answer included. A turn that the sampler cut and the next request
    continues is one turn.
    `max_trajectory_tokens`: prompt, sampled and observation tokens together.
    `max_turn_tokens`: tokens of one request to the sampler; `None` means whatever the trajectory has left.
    `max_observation_tokens`: tokens of the text of one observation; the template's tokens around it are not counted.
    """

    max_code_calls: int = 4
    max_assistant_turns: int = 6
    max_trajectory_tokens: int = 8192
    max_turn_tokens: int | None = None
    max_observation_tokens: int = 512

    def __post_init__(self) -> None:
        lowest = {
            "max_code_calls": 0,
            "max_assistant_turns": 1,
            "max_trajectory_tokens": 2,
            "max_observation_tokens": 1,
        }
        for key, low in lowest.items():
            if getattr(self, key) < low:
                raise UserError(f"rollout.{key}: {getattr(self, key)} is too small; use at least {low}.")
        if self.max_turn_tokens is not None and self.max_turn_tokens < 1:
            raise UserError(f"rollout.max_turn_tokens: {self.max_turn_tokens} is too small; use null or at least 1.")

    def request_tokens(self, context_tokens: int) -> int:
        """How many tokens the next request may sample after a context of so many; 0 if there is no room."""
        left = max(0, self.max_trajectory_tokens - context_tokens)
        return left if self.max_turn_tokens is None else min(left, self.max_turn_tokens)
