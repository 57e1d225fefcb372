"""What a run would do, without sampling or training: one rendered prompt with its masks, tokens and cost."""

import asyncio
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from retool.config import check, schema, typed
from retool.errors import UserError
from retool.rollout.preview import SegmentKind, preview
from retool.runs.cost import describe, evaluation_plan, training_plan
from retool.runs.datasets import load_eval_sets, load_split
from retool.runs.policy import open_protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STYLES = {SegmentKind.PROMPT: "dim", SegmentKind.SAMPLED: "bold green", SegmentKind.OBSERVATION: "yellow"}


def run(cfg: DictConfig) -> None:
    """Prints to standard output. Reads the data and the tokenizer, and writes no run.

    Raises `UserError` for everything that would stop the run before its first step.
    """
    check(cfg)
    split = load_split(cfg)
    eval_sets = load_eval_sets(cfg, split)
    model = typed(cfg.model, schema.Model)
    training = "ppo" in cfg
    mode = "retool" if training else cfg.eval.mode
    protocol = open_protocol(asyncio.run(_tokenizer(model)), model, code_budget=cfg.rollout.max_code_calls, mode=mode)
    problems = split.train or split.holdout
    if not problems:
        raise UserError("data holds no problems.")
    console = Console(highlight=False, soft_wrap=True)
    problem = problems[0]
    console.print(
        f"[bold]{escape(problem.id)}[/bold], gold answer {escape(problem.answer)}. In the loss: sampled, green."
    )
    for segment in preview(protocol, problem.question):
        console.print(f"[bold]--- {segment.kind.value}: {len(segment.tokens)} tokens[/bold]")
        console.print(Text(segment.text, style=_STYLES[segment.kind]))
    for note in protocol.notes:
        console.print(f"Note: {escape(note)}")
    evaluated = sum(len(eval_set.problems) for eval_set in eval_sets)
    plan = training_plan(cfg, problems=evaluated) if training else evaluation_plan(cfg, problems=evaluated)
    console.print(escape(describe(plan, model.pricing)))


async def _tokenizer(model: schema.Model) -> "PreTrainedTokenizerBase":
    """That of a service is loaded without speaking to it; the embedded engine says where its own is."""
    from retool.policy.client import PolicyClient
    from retool.policy.tokenizers import load_tokenizer

    if model.engine is None:
        return load_tokenizer(model.base_model)
    engine = {"device": "cpu", "dtype": model.engine.dtype}
    async with await PolicyClient.open(base_model=model.base_model, engine=engine) as client:
        return client.tokenizer()
