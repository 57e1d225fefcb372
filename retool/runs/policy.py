"""From the `model` group to something that can be sampled and trained.

Contents: `open_policy` (a connected client, and the embedded engine with it), `open_protocol` (how the model is
spoken to), `require_credentials` (fails early where the service would refuse), `require_room` (a prompt must leave
some), `weights_note` (for results).
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from retool.config import schema
from retool.config.paths import chat_template_path
from retool.config.weights import describe_weights
from retool.data.problem import Problem
from retool.errors import UserError
from retool.runs.run_dir import RunDirectory

_LOOKED_AT = 32
logger = logging.getLogger("retool.runs")

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from retool.policy.client import PolicyClient
    from retool.protocol.chat import ChatProtocol


def require_credentials(model: schema.Model) -> None:
    """Raises `UserError` if the model is served elsewhere and there is no key for that server. Loads nothing heavy."""
    if model.engine is None:
        from retool.policy.credentials import check_credentials

        check_credentials(model.base_url)


def require_room(protocol: "ChatProtocol", problems: Sequence[Problem], max_trajectory_tokens: int) -> None:
    """Raises `UserError` when not one of the first problems leaves the policy a token to sample."""
    lengths = [len(protocol.initial_prompt(problem.question)) for problem in problems[:_LOOKED_AT]]
    if lengths and min(lengths) >= max_trajectory_tokens:
        raise UserError(
            f"rollout.max_trajectory_tokens={max_trajectory_tokens} leaves no room for an answer: the prompt of "
            f"{problems[0].id} alone has {lengths[0]} tokens. Raise it, or shorten model.system_prompt."
        )


def weights_note(model_id: str, model: schema.Model) -> dict[str, str]:
    """Which base weights a result belongs to. `model_id`: a directory (embedded engine) or the service's name."""
    if model.engine is None:
        return {"model": model_id, "origin": "service"}
    return {"name": model.base_model, **describe_weights(Path(model_id))}


@asynccontextmanager
async def open_policy(model: schema.Model, directory: RunDirectory) -> "AsyncIterator[PolicyClient]":
    """A client for the policy's service; with `model.engine` the engine is started, its weights in the run directory.

    Raises `UserError` for missing credentials or an unknown model, `InfrastructureError` if the service cannot be used.
    """
    from retool.policy.client import PolicyClient

    if model.engine is not None:
        logger.info("Starting the embedded engine with %s", model.base_model)
    client = await PolicyClient.open(
        base_model=model.base_model,
        base_url=model.base_url,
        engine=None if model.engine is None else asdict(model.engine),
        engine_dir=directory.engine,
    )
    try:
        yield client
    finally:
        await client.aclose()


def open_protocol(
    tokenizer: "PreTrainedTokenizerBase", model: schema.Model, *, code_budget: int, mode: str = "retool"
) -> "ChatProtocol":
    """The conversation format of the model. Raises `UserError` for a chat template that cannot carry it."""
    from retool.protocol.chat import ChatProtocol

    template = None
    if model.chat_template is not None:
        template = chat_template_path(model.chat_template).read_text(encoding="utf-8")
    return ChatProtocol(
        tokenizer,
        tool_format=model.tool_format,
        thinking=model.thinking,
        mode=mode,
        system_prompt=model.system_prompt,
        code_budget=code_budget,
        chat_template=template,
    )
