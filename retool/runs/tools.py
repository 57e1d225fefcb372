"""What answers the policy during a rollout: the sandbox and the scorer, opened together, and the rollout itself.

Contents: `Tools`, `open_tools`, `build_rollout`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from omegaconf import DictConfig

from retool.config import build
from retool.reward.verdict import AsyncScorer
from retool.rollout.groups import Rollout
from retool.sandbox.base import Sandbox


@dataclass(frozen=True, slots=True)
class Tools:
    """Both have passed their canary."""

    sandbox: Sandbox
    scorer: AsyncScorer


@asynccontextmanager
async def open_tools(cfg: DictConfig) -> AsyncIterator[Tools]:
    """Opens the sandbox and starts the scorer. Raises `InfrastructureError` if either does not work here."""
    allowed = list(cfg.allow_targets)
    with build(cfg.reward, allow_targets=allowed) as scorer:
        async with build(cfg.sandbox, allow_targets=allowed) as sandbox:
            yield Tools(sandbox, scorer)


def build_rollout(cfg: DictConfig, **changes: object) -> Rollout:
    """The rollout of the `rollout` group, with `changes` to its arguments (an evaluation samples differently)."""
    rollout = build(cfg.rollout, allow_targets=list(cfg.allow_targets), omit=("force_sampling",), **changes)
    assert isinstance(rollout, Rollout)
    return rollout
