"""Problems for training and evaluation, from `data` and from the data options that `eval.sets` names.

Contents: `load_split`, `verify_golds`, `EvalSet`, `load_eval_sets`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from retool.config import build, schema, typed
from retool.config.compose import compose, config_loader
from retool.data.problem import Problem, ProblemSplit
from retool.errors import UserError
from retool.reward.verdict import AsyncScorer

_SHOWN = 5
logger = logging.getLogger("retool.runs")


@dataclass(frozen=True, slots=True)
class EvalSet:
    """Problems that are evaluated together. `name` is the data option, or `holdout` for the rows that data keeps."""

    name: str
    problems: tuple[Problem, ...]


def load_split(cfg: DictConfig) -> ProblemSplit:
    """The problems of `data`. Raises `UserError` for a file or a problem that cannot be used."""
    split: ProblemSplit = build(cfg.data, allow_targets=list(cfg.allow_targets)).load()
    return split


@runtime_checkable
class GoldChecker(Protocol):
    """A scorer that can tell beforehand which gold answers it could not compare with."""

    def check_gold(self, gold: str) -> str | None:
        """`None` if answers can be compared with `gold`, else why not."""
        ...


def verify_golds(split: ProblemSplit, scorer: AsyncScorer) -> ProblemSplit:
    """`split` without the problems whose gold answer the scorer cannot compare with; a warning says which.

    Raises `UserError` when none is left to train on. A scorer that cannot tell is believed.
    """
    if not isinstance(scorer, GoldChecker):
        return split
    refused: list[str] = []

    def usable(problem: Problem) -> bool:
        reason = scorer.check_gold(problem.answer)
        if reason is not None:
            refused.append(f"{problem.id}: {reason}")
        return reason is None

    checked = ProblemSplit(
        train=[problem for problem in split.train if usable(problem)],
        holdout=[problem for problem in split.holdout if usable(problem)],
    )
    if refused:
        shown = "; ".join(refused[:_SHOWN])
        logger.warning("%d problems are left out, since their gold answers cannot be scored: %s", len(refused), shown)
    if split.train and not checked.train:
        raise UserError(f"No gold answer of data can be scored, such as {refused[0]}.")
    return checked


def load_eval_sets(cfg: DictConfig, split: ProblemSplit) -> list[EvalSet]:
    """The sets of `eval.sets`, or the rows that `data` holds out; at most `eval.limit` problems of each.

    Empty where nothing is held out. Raises `UserError` for a set that does not exist or holds training problems.
    """
    settings = typed(cfg.eval, schema.Evaluation)
    if not settings.sets:
        found = [EvalSet("holdout", tuple(split.holdout[: settings.limit]))]
        return [eval_set for eval_set in found if eval_set.problems]
    trained = {problem.id for problem in split.train} if "ppo" in cfg else set()
    sets = []
    for name in settings.sets:
        problems = _load_set(cfg, name, settings.paths.get(name))
        shared = [problem.id for problem in problems if problem.id in trained]
        if shared:
            raise UserError(
                f"eval.sets: '{name}' holds {len(shared)} problems that are trained on, such as {shared[0]}."
            )
        sets.append(EvalSet(name, tuple(problems[: settings.limit])))
    return sets


def _load_set(cfg: DictConfig, name: str, path: str | None) -> Sequence[Problem]:
    """All problems of a data option: what it holds out if it does, otherwise everything."""
    overrides = [f"data={name}", f"seed={cfg.seed}"]
    if path is not None:
        overrides.append(f'data.path="{path}"')
    composition = compose(config_loader(_user_directories()), "eval", overrides, RunMode.RUN)
    if composition.problems or composition.cfg is None:
        raise UserError(f"eval.sets: {' '.join(composition.problems)}")
    split = load_split(composition.cfg)
    return split.holdout or split.train


def _user_directories() -> list[str]:
    """Configuration directories that this run's command line added, so that a user's own data options are found."""
    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    return [source.path for source in sources if source.provider not in ("hydra", "main", "schema") and source.path]
