"""An engine without a model: fast, predictable, and stoppable, for tests of the wire layer."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from retool.engine.types import (
    AdamParams,
    BatchTotals,
    EngineError,
    ForwardResult,
    LoraSpec,
    LossSpec,
    SampledSequence,
    SampleRequest,
    SampleResult,
    TrainingSample,
)

T = TypeVar("T")
END = 3


class FakeEngine:
    """Logprob of a target t is -t/10; a sample is 5, 6, … and ends with `END`. `gate` holds operations back."""

    def __init__(self, model_id: str = "/models/fake") -> None:
        self.model_id = model_id
        self.model_alias = "fake"
        self.vocab_size = 50
        self.max_seq_len = 64
        self.calls: list[tuple[object, ...]] = []
        self.runs: dict[str, int] = {}
        self.adapters: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.sample_gate = threading.Event()
        self.sample_gate.set()
        self.failure: Exception | None = None
        self._pool = ThreadPoolExecutor(1)
        self._sampling = ThreadPoolExecutor(64)

    def create_run(
        self, run_id: str, lora: LoraSpec, checkpoint: Path | None = None, load_optimizer: bool = False
    ) -> "Future[None]":
        def work() -> None:
            steps = int((checkpoint / "steps").read_text()) if checkpoint else 0
            self.calls.append(("create_run", lora, checkpoint, load_optimizer))
            self.runs[run_id] = steps

        return self._do(work)

    def forward(
        self, run_id: str, samples: Sequence[TrainingSample], loss: LossSpec, totals: BatchTotals, *, backward: bool
    ) -> "Future[ForwardResult]":
        def work() -> ForwardResult:
            self._require(run_id)
            self.calls.append(("forward", list(samples), loss, totals, backward))
            logprobs = [np.array([-t / 10 if t >= 0 else 0 for t in s.target_ids], np.float32) for s in samples]
            count = sum(t >= 0 for s in samples for t in s.target_ids)
            return ForwardResult(logprobs, -float(sum(values.sum() for values in logprobs)), count)

        return self._do(work)

    def optim_step(self, run_id: str, adam: AdamParams) -> "Future[dict[str, float]]":
        def work() -> dict[str, float]:
            self._require(run_id)
            self.runs[run_id] += 1
            self.calls.append(("optim_step", adam))
            return {"grad_norm": 1.5, "steps": float(self.runs[run_id])}

        return self._do(work)

    def drop_gradients(self, run_id: str) -> "Future[None]":
        return self._do(lambda: self.calls.append(("drop_gradients", run_id)))

    def save(self, run_id: str, directory: Path, *, optimizer: bool) -> "Future[int]":
        def work() -> int:
            self._require(run_id)
            directory.mkdir(parents=True)
            (directory / "steps").write_text(str(self.runs[run_id]))
            (directory / "optimizer").write_text(str(optimizer))
            return 7

        return self._do(work)

    def snapshot(self, run_id: str, adapter: str) -> "Future[None]":
        def work() -> None:
            self._require(run_id)
            self.adapters.add(adapter)

        return self._do(work)

    def load_adapter(self, adapter: str, directory: Path) -> "Future[None]":
        def work() -> None:
            self.calls.append(("load_adapter", directory))
            self.adapters.add(adapter)

        return self._do(work)

    def drop_adapter(self, adapter: str) -> object:
        return self._do(lambda: self.adapters.discard(adapter))

    def drop_run(self, run_id: str) -> object:
        return self._do(lambda: self.runs.pop(run_id))

    def sample(self, request: SampleRequest) -> "Future[SampleResult]":
        def work() -> SampleResult:
            self.sample_gate.wait(20)
            self.calls.append(("sample", request))
            if request.adapter is not None and request.adapter not in self.adapters:
                raise EngineError("weights_not_found", f"no weights {request.adapter}")
            ends = request.max_tokens > 3
            tokens = [5, 6, END] if ends else [5, 6, 7][: request.max_tokens]
            logprobs = [-0.5, -0.25, -0.125][: len(tokens)]
            sequence = SampledSequence(tokens, logprobs, "stop" if ends else "length")
            prompt_logprobs = [None, *[-1.0] * (len(request.prompt) - 1)] if request.prompt_logprobs else None
            return SampleResult([sequence] * request.num_samples, prompt_logprobs)

        return self._sampling.submit(work)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join("<end>" if token == END else chr(ord("a") + token) for token in tokens)

    def close(self) -> None:
        self.gate.set()
        self.sample_gate.set()
        self._pool.shutdown()
        self._sampling.shutdown()

    def settle(self) -> None:
        """Returns when everything submitted so far is done."""
        self._do(lambda: None).result(20)

    def named(self, name: str) -> list[tuple[object, ...]]:
        """The recorded calls of one method."""
        return [call for call in self.calls if call[0] == name]

    def _do(self, work: Callable[[], T]) -> "Future[T]":
        def guarded() -> T:
            self.gate.wait(20)
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            return work()

        return self._pool.submit(guarded)

    def _require(self, run_id: str) -> None:
        if run_id not in self.runs:
            raise EngineError("run_not_found", f"no run {run_id}")
