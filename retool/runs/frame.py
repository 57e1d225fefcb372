"""What every run does around its work: `complete` (dry run, session, result, report), and the start of training:
`initial_weights`, `begin_training`."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from retool.config import schema
from retool.runs import dry_run, summary
from retool.runs.references import CheckpointUse, resolve_checkpoint
from retool.runs.reporting import write_report_of
from retool.runs.session import RunSession, open_run

if TYPE_CHECKING:
    from retool.policy.client import PolicyClient


def complete(cfg: DictConfig, work: Callable[[RunSession], Coroutine[None, None, Mapping[str, object]]]) -> None:
    """Does the work, whose value is the result, or continues it, or shows the result of a run that is finished."""
    if cfg.dry_run:
        dry_run.run(cfg)
        return
    with open_run(cfg) as session:
        result = session.finished
        if result is None:
            result = dict(asyncio.run(work(session)))
            session.record(result)
            session.finish()
            write_report_of(session.directory)
        summary.show(result, session.directory)


def initial_weights(model: schema.Model) -> str | None:
    """The address that `model.init_from` names. Raises `UserError` where it names nothing."""
    if model.init_from is None:
        return None
    embedded = model.engine is not None
    return resolve_checkpoint(model.init_from, key="model.init_from", use=CheckpointUse.TRAIN, embedded=embedded)


async def begin_training(session: RunSession, client: "PolicyClient", model: schema.Model, initial: str | None) -> None:
    """From the saved state with its optimizer, or from the initial weights."""
    state = session.resume
    await client.create_training(
        lora=asdict(model.lora),
        seed=session.cfg.seed,
        init_from=initial if state is None else state.uri,
        with_optimizer=state is not None,
    )
