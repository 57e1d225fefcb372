"""From the `model` group to something that can be sampled and trained.

Contents: `open_policy` (a connected client, and the embedded engine with it), `open_protocol` (how the model is
spoken to), `load_template` (the chat template that the configuration names).
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

    load_template(tokenizer, model)
    return ChatProtocol(
        tokenizer,
        tool_format=model.tool_format,
        thinking=model.thinking,
        mode=mode,
        system_prompt=model.system_prompt,
        code_budget=code_budget,
    )


def load_template(tokenizer: "PreTrainedTokenizerBase", model: schema.Model) -> None:
    """Gives the tokenizer the template of `model.chat_template`, if one is set."""
    if model.chat_template is not None:
        tokenizer.chat_template = chat_template_path(model.chat_template).read_text(encoding="utf-8")
