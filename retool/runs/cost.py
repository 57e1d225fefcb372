"""Tokens that a service charges for, and what they cost where the price is known.

Contents: `Tokens` (counted or estimated), `rollout_tokens`; the estimates `training_bound`, `evaluation_bound`; `describe`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from retool.config import schema
from retool.rollout.trajectory import Trajectory

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """`prefill`: prompts of all requests, a context counted once a request; `sampled`; `trained`: those in datums."""

    prefill: int = 0
    sampled: int = 0
    trained: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prefill + other.prefill, self.sampled + other.sampled, self.trained + other.trained)

    def cost(self, price: schema.Price | None) -> float | None:
        """In the price's currency; `None` without a price."""
        if price is None:
            return None
        total = self.prefill * price.prefill + self.sampled * price.sample + self.trained * price.train
        return total / _MILLION

    def metrics(self, price: schema.Price | None) -> dict[str, float]:
        """`cost/prefill_tokens`, `cost/sampled_tokens`, `cost/trained_tokens`, and `cost/total` with a price."""
        cost = self.cost(price)
        counts = {f"cost/{name}_tokens": float(count) for name, count in asdict(self).items()}
        return counts if cost is None else {**counts, "cost/total": cost}


def rollout_tokens(trajectories: Iterable[Trajectory]) -> Tokens:
    """What sampling these trajectories took. A service that reuses prefixes may charge less."""
    prefill = sampled = 0
    for trajectory in trajectories:
        for turn in trajectory.turns:
            prefill += len(turn.prompt_tokens)
            sampled += len(turn.completion_tokens)
    return Tokens(prefill, sampled)


def training_bound(*, steps: int, trajectories: int, max_trajectory_tokens: int, turns: int) -> Tokens:
    """What training takes if every trajectory fills its budget, in turns of equal length."""
    count = steps * trajectories
    rollout = evaluation_bound(trajectories=count, max_trajectory_tokens=max_trajectory_tokens, turns=turns)
    return Tokens(rollout.prefill, rollout.sampled, count * max_trajectory_tokens)


def evaluation_bound(*, trajectories: int, max_trajectory_tokens: int, turns: int) -> Tokens:
    """As `training_bound`, without training. In a budget of L, the prompts of t equal turns grow from 0 to L (t - 1) / t;
    a first prompt as long as a turn is added to each."""
    prefill = max_trajectory_tokens * (turns + 1) // 2
    return Tokens(trajectories * prefill, trajectories * max_trajectory_tokens)


def describe(parts: Sequence[tuple[str, Tokens]], price: schema.Price | None) -> str:
    """One sentence with the tokens of each part and the cost of all together, or that it is unknown."""
    total = sum((tokens for _, tokens in parts), Tokens())
    listed = "; ".join(
        f"{name}: {tokens.prefill / _MILLION:.2f} M prefilled, {tokens.sampled / _MILLION:.2f} M sampled"
        + (f", {tokens.trained / _MILLION:.2f} M trained" if tokens.trained else "")
        for name, tokens in parts
    )
    if price is None:
        return f"If every trajectory fills its budget: {listed}. Cost unknown: model.price is not set."
    cost = f"{total.cost(price):.2f} {price.currency}"
    return f"If every trajectory fills its budget: {listed}. Cost {cost} (prices: {price.source})."
