"""From the `model` group to something that can be sampled and trained.

Contents: `open_policy` (a connected client, and the embedded engine with it), `open_protocol` (how the model is
spoken to), `require_credentials` (fails early where the service would refuse).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from retool.config import schema
from retool.config.paths import chat_template_path
from retool.runs.run_dir import RunDirectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from retool.policy.client import PolicyClient
    from retool.protocol.chat import ChatProtocol


def require_credentials(model: schema.Model) -> None:
    """Raises `UserError` if the model is served elsewhere and there is no key for that server. Loads nothing heavy."""
    if model.engine is None:
        from retool.policy.credentials import check_credentials

        check_credentials(model.base_url)


@asynccontextmanager
async def open_policy(model: schema.Model, directory: RunDirectory) -> "AsyncIterator[PolicyClient]":
    """A client for the policy's service; with `model.engine` the engine is started, its weights in the run directory.

    Raises `UserError` for missing credentials or an unknown model, `InfrastructureError` if the service cannot be used.
    """
    from retool.policy.client import PolicyClient

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
