r"""From worked traces to training sequences: executed, checked and tokenised as a rollout would be.

Contents: `TuningData`, `prepare_tuning_data`, `trace_datum`.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from omegaconf import DictConfig

from retool.config import build
from retool.data.problem import Problem, ProblemSplit
from retool.data.traces import Trace, write_traces
from retool.errors import UserError
from retool.policy.types import TokenDatum
from retool.protocol.chat import ChatProtocol
from retool.runs.tools import Tools

logger = logging.getLogger("retool.runs")

_VALIDATION_PART = 20


@runtime_checkable
class RowSource(Protocol):
    """A source that also gives the publisher's rows."""

    def load_rows(self) -> "RowSplit": ...


class RowSplit(Protocol):
    """Problems with their rows."""

    @property
    def train(self) -> Sequence["ProblemRow"]: ...

    @property
    def holdout(self) -> Sequence["ProblemRow"]: ...


class ProblemRow(Protocol):
    """One problem and the row it was read from."""

    @property
    def problem(self) -> Problem: ...

    @property
    def row(self) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class TuningData:
    """Sequences to train on and to validate with, and how many traces were dropped for which reason."""

    train: tuple[TokenDatum, ...]
    validation: tuple[TokenDatum, ...]
    dropped: Mapping[str, int]


def load_rows(cfg: DictConfig) -> tuple[ProblemSplit, list[tuple[Problem, Mapping[str, object]]]]:
    """The problems of `data`, and its training problems with the publisher's rows where there are any."""
    source = build(cfg.data, allow_targets=list(cfg.allow_targets))
    if isinstance(source, RowSource):
        rows = source.load_rows()
        split = ProblemSplit([row.problem for row in rows.train], [row.problem for row in rows.holdout])
        return split, [(row.problem, row.row) for row in rows.train]
    loaded: ProblemSplit = source.load()
    return loaded, [(problem, {}) for problem in loaded.train]


async def prepare_tuning_data(
    cfg: DictConfig,
    rows: Iterable[tuple[Problem, Mapping[str, object]]],
    protocol: ChatProtocol,
    tools: Tools,
) -> TuningData:
    """Writes, executes, checks and tokenises traces of the training problems.

    A trace is dropped when its code does not run, when its output is not the gold answer, or when it has more than
    `sft.max_tokens`. One in twenty is kept for validation. Raises `UserError` when nothing is left.
    """
    traces = write_traces(rows, tool_share=cfg.sft.tool_share, seed=cfg.seed)
    if cfg.sft.limit is not None:
        traces = random.Random(f"{cfg.seed}/traces").sample(traces, min(cfg.sft.limit, len(traces)))
    if not traces:
        raise UserError("No trace can be written for the problems of data: it needs equations or worked solutions.")
    prepared = await asyncio.gather(*(_prepare(trace, protocol, tools, cfg.sft.max_tokens) for trace in traces))
    data = [item for item in prepared if isinstance(item, TokenDatum)]
    dropped = Counter(item for item in prepared if isinstance(item, str))
    logger.info("Traces: %d usable of %d%s", len(data), len(traces), f"; dropped: {dict(dropped)}" if dropped else "")
    held = max(1, len(data) // _VALIDATION_PART)
    if len(data) <= held:
        raise UserError(
            f"Only {len(data)} of {len(traces)} traces can be used (dropped: {dict(dropped)}). "
            f"sft.max_tokens={cfg.sft.max_tokens} is the longest that is taken."
        )
    return TuningData(tuple(data[held:]), tuple(data[:held]), dict(dropped))


async def _prepare(trace: Trace, protocol: ChatProtocol, tools: Tools, max_tokens: int) -> TokenDatum | str:
    """The trace's sequence, or why it cannot be used."""
    answer, observation = trace.problem.answer, None
    if trace.code is not None:
        result = await tools.sandbox.run(trace.code)
        if not result.ok:
            return f"code_{result.status}"
        answer, observation = result.stdout.strip(), result.text
    final = rf"\boxed{{{answer}}}"
    if not (await tools.scorer.ascore(final, trace.problem.answer)).correct:
        return "wrong_answer"
    datum = trace_datum(protocol, trace, observation, final)
    return datum if len(datum.tokens) <= max_tokens else "too_long"


def trace_datum(protocol: ChatProtocol, trace: Trace, observation: str | None, final: str) -> TokenDatum:
    """Prompt, call, observation and answer as one sequence: weight 1 on what the policy is to write, 0 elsewhere."""
    tokens = list(protocol.initial_prompt(trace.problem.question))
    weights = [0.0] * len(tokens)
    if trace.code is not None and observation is not None:
        call = protocol.encode_turn(protocol.render_call(trace.code))
        glue = protocol.continuation(call, observation)
        tokens += [*call, *glue]
        weights += [1.0] * len(call) + [0.0] * len(glue)
    answer = protocol.encode_turn(final)
    tokens += answer
    weights += [1.0] * len(answer)
    return TokenDatum(tokens=tokens[:-1], target_tokens=tokens[1:], weights=weights[1:])
