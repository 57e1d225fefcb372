"""A training run, from configuration to result: `run`.

The order is that of cost: what can be refused is refused before anything is loaded, and what is paid for comes last.
"""

import logging
import time
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from retool.config import build, schema, typed
from retool.data.problem import ProblemSplit
from retool.ppo.reference import TokenScorer
from retool.ppo.update import PPO
from retool.runs import summary
from retool.runs.cost import describe, training_plan
from retool.runs.datasets import EvalSet, load_eval_sets, load_split, verify_golds
from retool.runs.evaluation import build_evaluator
from retool.runs.files import JsonObject
from retool.runs.frame import begin_training, complete, initial_weights
from retool.runs.loop import LoopParts, LoopSettings, TrainingLoop
from retool.runs.order import ProblemOrder
from retool.runs.policy import open_policy, open_protocol, require_credentials, require_room, weights_note
from retool.runs.progress import Progress
from retool.runs.saving import StateKeeper
from retool.runs.session import RunSession
from retool.runs.tools import Tools, build_rollout, open_tools

if TYPE_CHECKING:
    from retool.policy.client import PolicyClient

logger = logging.getLogger("retool.runs")


def run(cfg: DictConfig) -> None:
    """Trains as configured, or continues, or shows the result of a run that is finished."""
    complete(cfg, _train)


async def _train(session: RunSession) -> JsonObject:
    """Opens the components and makes the remaining steps."""
    cfg, began = session.cfg, time.perf_counter()
    model = typed(cfg.model, schema.Model)
    require_credentials(model)
    initial = initial_weights(model)
    async with open_tools(cfg) as tools:
        split = verify_golds(load_split(cfg), tools.scorer)
        eval_sets = load_eval_sets(cfg, split)
        ppo = build(
            cfg.ppo,
            allow_targets=list(cfg.allow_targets),
            omit=("thresholds",),
            seed=cfg.seed,
            normalisation=_normalisation(model),
        )
        order = ProblemOrder(split.train, batch=ppo.questions_per_batch, seed=cfg.seed)
        _announce(cfg, model, split, eval_sets)
        async with open_policy(model, session.directory) as client:
            await begin_training(session, client, model, initial)
            reference = await client.sampler_from(initial) if ppo.kl_coef > 0 else None
            parts = _parts(session, client, model, tools, eval_sets, ppo, order, reference)
            require_room(parts.protocol, split.train, cfg.rollout.max_trajectory_tokens)
            with Progress(steps=cfg.max_steps, completed=session.step) as progress:
                loop = TrainingLoop(session, parts, _settings(cfg, model), progress)
                await loop.run()
            ending = summary.Ending(loop.spent, weights_note(client.model_id, model))
    return summary.training_result(session, ending, seconds=time.perf_counter() - began)


def _parts(
    session: RunSession,
    client: "PolicyClient",
    model: schema.Model,
    tools: Tools,
    eval_sets: list[EvalSet],
    ppo: PPO,
    order: ProblemOrder,
    reference: TokenScorer | None,
) -> LoopParts:
    cfg, tokenizer = session.cfg, client.tokenizer()
    return LoopParts(
        client=client,
        protocol=open_protocol(tokenizer, model, code_budget=cfg.rollout.max_code_calls),
        tools=tools,
        rollout=build_rollout(cfg),
        ppo=ppo,
        order=order,
        evaluator=build_evaluator(cfg, eval_sets, tokenizer, tools, session.directory),
        keeper=StateKeeper(session, client, typed(cfg.checkpoint, schema.Checkpoint)),
        reference=reference,
    )


def _settings(cfg: DictConfig, model: schema.Model) -> LoopSettings:
    return LoopSettings(
        seed=cfg.seed,
        max_steps=cfg.max_steps,
        eval_every=cfg.eval.every,
        max_infrastructure_rate=cfg.max_infrastructure_rate,
        max_cost=cfg.max_cost,
        price=model.pricing,
    )


def _normalisation(model: schema.Model) -> str:
    """What the server divides a loss by. Of the cloud service it is not published; the recipe takes it to be this."""
    return "total_samples" if model.engine is None else model.engine.normalisation


def _announce(cfg: DictConfig, model: schema.Model, split: ProblemSplit, eval_sets: list[EvalSet]) -> None:
    """Says what the run will work on and, before the first call to a paid service, what it may cost."""
    for eval_set in eval_sets:
        logger.info("Evaluation: %d problems of %s", len(eval_set.problems), eval_set.name)
    if not eval_sets:
        logger.warning("Nothing is evaluated: data.holdout is 0 and eval.sets is empty.")
    logger.info("Training: %d problems, %d steps", len(split.train), cfg.max_steps)
    if model.engine is None:
        plan = training_plan(cfg, problems=sum(len(eval_set.problems) for eval_set in eval_sets))
        logger.warning("This run uses a paid service. %s", describe(plan, model.pricing))
