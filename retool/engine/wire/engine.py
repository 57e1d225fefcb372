"""`Engine`: what the wire layer needs from the compute loop (`retool.engine.loop.EngineLoop` is one)."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from retool.engine.types import (
    AdamParams,
    BatchTotals,
    ForwardResult,
    LoraSpec,
    LossSpec,
    SampleRequest,
    SampleResult,
    TrainingSample,
)


class Engine(Protocol):
    """One base model with its training runs and sampling adapters. Every method may be called from any thread.

    Operations run in the order of submission. Futures fail with `EngineError` for requests that cannot be served; a
    failed `forward` leaves the gradients as they were.
    """

    model_id: str
    """A local directory with configuration and tokenizer, readable by clients on this machine."""
    model_alias: str
    vocab_size: int
    max_seq_len: int

    def create_run(
        self, run_id: str, lora: LoraSpec, checkpoint: Path | None = None, load_optimizer: bool = False
    ) -> "Future[None]": ...

    def forward(
        self, run_id: str, samples: Sequence[TrainingSample], loss: LossSpec, totals: BatchTotals, *, backward: bool
    ) -> "Future[ForwardResult]": ...

    def optim_step(self, run_id: str, adam: AdamParams) -> "Future[dict[str, float]]": ...

    def drop_gradients(self, run_id: str) -> "Future[None]": ...

    def save(self, run_id: str, directory: Path, *, optimizer: bool) -> "Future[int]": ...

    def snapshot(self, run_id: str, adapter: str) -> "Future[None]": ...

    def load_adapter(self, adapter: str, directory: Path) -> "Future[None]": ...

    def drop_adapter(self, adapter: str) -> object: ...

    def drop_run(self, run_id: str) -> object: ...

    def sample(self, request: SampleRequest) -> "Future[SampleResult]": ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def close(self) -> None: ...
