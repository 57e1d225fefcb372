"""Tokens that a service charges for, and what they cost where the price is known.

Contents: `Tokens` (counted or estimated), `rollout_tokens`, `reference_tokens`, `training_plan`, `evaluation_plan`,
`describe`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from omegaconf import DictConfig

from retool.config import schema
from retool.rollout.trajectory import TrajectoryGroup

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """`prefill`: prompts of all requests, a context counted once a request (the
    first request serves a whole group); `sampled`; `trained`: those in datums."""

    prefill: int = 0
    sampled: int = 0
    trained: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prefill + other.prefill, self.sampled + other.sampled, self.trained + other.trained)

    def counts(self) -> dict[str, int]:
        """The figures by name, as a resume state holds them."""
        return asdict(self)

    def cost(self, price: schema.Price | None) -> float | None:
        """In the price's currency; `None` without a price."""
        if price is None:
            return None
        total = self.prefill * price.prefill + self.sampled * price.sample + self.trained * price.train
        return total / _MILLION

    def metrics(self, price: schema.Price | None) -> dict[str, float]:
        """`cost/prefill_tokens`, `cost/sampled_tokens`, `cost/trained_tokens`, and `cost/total` with a price."""
        cost = self.cost(price)
        counts = {f"cost/{name}_tokens": float(count) for name, count in self.counts().items()}
        return counts if cost is None else {**counts, "cost/total": cost}


def rollout_tokens(groups: Iterable[TrajectoryGroup]) -> Tokens:
    """What sampling these groups took. A service that reuses prefixes may charge less."""
    prefill = sampled = 0
    for group in groups:
        first = [len(t.turns[0].prompt_tokens) for t in group.trajectories if t.turns]
        prefill += first[0] if first else 0
        for trajectory in group.trajectories:
            prefill += sum(len(turn.prompt_tokens) for turn in trajectory.turns[1:])
            sampled += sum(len(turn.completion_tokens) for turn in trajectory.turns)
    return Tokens(prefill, sampled)


def reference_tokens(groups: Iterable[TrajectoryGroup]) -> Tokens:
    """What it takes to ask a reference policy about every trajectory: each is a prompt with one sampled token."""
    lengths = [len(t.tokens) for group in groups for t in group.scored]
    return Tokens(prefill=sum(lengths), sampled=len(lengths))


def training_plan(cfg: DictConfig, *, problems: int) -> list[tuple[str, Tokens]]:
    """What a training run takes if every trajectory fills its budget. `problems` are evaluated before and after."""
    trajectories = cfg.max_steps * cfg.ppo.questions_per_batch * cfg.ppo.group_size
    sampling = _full_trajectories(cfg, trajectories)
    budget = cfg.rollout.max_trajectory_tokens
    trained = Tokens(trained=trajectories * budget)
    if cfg.ppo.kl_coef > 0:
        trained += Tokens(prefill=trajectories * budget, sampled=trajectories)
    if cfg.ppo.dynamic_sampling.enabled:
        trajectories *= cfg.ppo.dynamic_sampling.max_rounds
    evaluations = 1 if cfg.max_steps == 0 else 2
    if cfg.eval.every is not None:
        evaluations += max(0, cfg.max_steps - 1) // cfg.eval.every
    return [("training", sampling + trained), *evaluation_plan(cfg, problems=problems * evaluations)]


def evaluation_plan(cfg: DictConfig, *, problems: int) -> list[tuple[str, Tokens]]:
    """As `training_plan`, for an evaluation alone."""
    return [("evaluation", _full_trajectories(cfg, problems * cfg.eval.samples))]


def _full_trajectories(cfg: DictConfig, count: int) -> Tokens:
    """In a budget of L, the prompts of t equal turns grow from 0 to L (t - 1) / t; a first prompt as long as a turn is
    added to each.
    """
    budget, turns = cfg.rollout.max_trajectory_tokens, cfg.rollout.max_assistant_turns
    return Tokens(count * budget * (turns + 1) // 2, count * budget)


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
