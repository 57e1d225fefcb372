"""An evaluation on its own: `run`. Every problem is one line of `records-<set>.jsonl`, written when it is complete.

An evaluation that was interrupted goes on with the problems that have no line yet. Seeds follow from the problem, so
the records are the same as without the interruption.
"""

import logging
import time

from omegaconf import DictConfig

from retool.config import schema, typed
from retool.errors import UserError
from retool.policy.types import Sampler
from retool.rollout.serialise import trajectory_to_json
from retool.rollout.trajectory import Trajectory, TrajectoryGroup
from retool.runs import summary
from retool.runs.cost import describe, evaluation_plan, rollout_tokens
from retool.runs.datasets import EvalSet, load_eval_sets, load_split, verify_golds
from retool.runs.evaluation import Evaluator, build_evaluator, evaluation_metrics
from retool.runs.files import JsonObject, write_json, write_jsonl_gz
from retool.runs.frame import complete
from retool.runs.infrastructure import check_infrastructure
from retool.runs.policy import open_policy, require_credentials, require_room, weights_note
from retool.runs.progress import Progress
from retool.runs.records import RecordFile
from retool.runs.references import CheckpointUse, resolve_checkpoint
from retool.runs.session import RunSession
from retool.runs.tools import open_tools

logger = logging.getLogger("retool.runs")


def run(cfg: DictConfig) -> None:
    """Evaluates as configured, or goes on, or shows the result of an evaluation that is finished."""
    complete(cfg, _evaluate)


async def _evaluate(session: RunSession) -> JsonObject:
    """Opens the components and samples the sets."""
    cfg, began = session.cfg, time.perf_counter()
    model = typed(cfg.model, schema.Model)
    require_credentials(model)
    address = _checkpoint(model)
    async with open_tools(cfg) as tools:
        split = verify_golds(load_split(cfg), tools.scorer)
        sets = load_eval_sets(cfg, split)
        if not sets:
            raise UserError("There is nothing to evaluate: data.holdout is 0 and eval.sets is empty.")
        if model.engine is None:
            plan = evaluation_plan(cfg, problems=sum(len(eval_set.problems) for eval_set in sets))
            logger.warning("This run uses a paid service. %s", describe(plan, model.pricing))
        async with open_policy(model, session.directory) as client:
            evaluator = build_evaluator(cfg, sets, client.tokenizer(), tools, session.directory)
            for eval_set in sets:
                require_room(evaluator.protocol, eval_set.problems, cfg.rollout.max_trajectory_tokens)
            work = _sample_sets(session, evaluator, await client.sampler_from(address))
            groups = await session.preemption.unless_leaving(work)
            weights = weights_note(client.model_id, model)
    metrics = evaluation_metrics(groups, evaluator.settings.k)
    session.tracker.log(0, metrics)
    everything = [group for found in groups.values() for group in found]
    ending = summary.Ending(rollout_tokens(everything), weights)
    seconds = time.perf_counter() - began
    result = summary.evaluation_result(session, metrics, ending, checkpoint=address, seconds=seconds)
    write_json(session.directory.summary, result)
    return result


def _checkpoint(model: schema.Model) -> str | None:
    """The address of the weights to evaluate; `None` for the base model."""
    embedded = model.engine is not None
    for key, reference in (("checkpoint", model.checkpoint), ("init_from", model.init_from)):
        if reference is not None:
            return resolve_checkpoint(reference, key=f"model.{key}", use=CheckpointUse.SAMPLE, embedded=embedded)
    return None


async def _sample_sets(session: RunSession, evaluator: Evaluator, sampler: Sampler) -> dict[str, list[TrajectoryGroup]]:
    """The groups of each set, new ones and those that an earlier process recorded."""
    found: dict[str, list[TrajectoryGroup]] = {}
    with Progress(steps=0) as progress:
        for eval_set in evaluator.sets:
            path = session.directory.eval_records(eval_set.name)
            records = RecordFile(path, eval_set, evaluator.settings.samples)
            remaining = EvalSet(eval_set.name, tuple(records.open))
            logger.info("%s: %d of %d problems to do", eval_set.name, len(remaining.problems), len(eval_set.problems))
            progress.begin(f"eval {eval_set.name}", len(remaining.problems) * evaluator.settings.samples)

            def note(trajectory: Trajectory, records: RecordFile = records) -> None:
                records.add(trajectory)
                progress.trajectory()

            if remaining.problems:
                groups = await evaluator.sample(sampler, remaining, note)
                check_infrastructure(groups, session.cfg.max_infrastructure_rate, f"the evaluation on {eval_set.name}")
            records.sort()
            found[eval_set.name] = records.ordered()
            rows = [trajectory_to_json(t, step=0) for group in found[eval_set.name] for t in group.trajectories]
            write_jsonl_gz(session.directory.eval_trajectories(eval_set.name), rows)
    return found
