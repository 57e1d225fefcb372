"""`EngineLoop`: the one compute thread of the engine, and the futures through which others use it.

Operations on runs and adapters are done in the order in which they were submitted, each between two decode steps, so
that training is not starved while sampling is busy. Samples join the running batch.
"""

import queue
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer

from retool.engine.backend import ComputeSettings
from retool.engine.compute import Compute, guarded
from retool.engine.losses import Normalisation
from retool.engine.model.config import ModelConfig, ModelSizes, own_config
from retool.engine.model.registry import resolve
from retool.engine.types import (
    AdamParams,
    BatchTotals,
    EngineError,
    ForwardResult,
    LoraSpec,
    LossSpec,
    SampleRequest,
    SampleResult,
    TrainingSample,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """Something for the compute thread; an `operation` may take long, the queueing of a sample does not."""

    run: Callable[[], None]
    operation: bool


class EngineLoop:
    """Serves one base model. All methods may be called from any thread.

    Futures fail with `EngineError` for requests that cannot be served. `deterministic` means one compute thread, with
    which a sample's bits depend on its own request alone (see `model/cached_forward.py`).
    """

    def __init__(
        self,
        *,
        base_model: str,
        device: str = "cpu",
        dtype: str = "float32",
        sampling_dtype: str | None = None,
        deterministic: bool = True,
        normalisation: str = "total_samples",
        threads: int | None = None,
        max_batch_rows: int = 64,
        max_seq_len: int | None = None,
        gather_window_s: float = 0.01,
        micro_batch_tokens: int = 4096,
        memory_limit_gb: float | None = None,
    ) -> None:
        """The arguments are the keys of `model.engine`. Raises `EngineError` for what cannot be had.

        `memory_limit_gb` bounds this process (on the CPU) or its share of the GPU: beyond it an operation fails with
        `out_of_memory`, where otherwise the system might kill the process.
        """
        if deterministic and threads not in (None, 1):
            raise EngineError("invalid_config", "A deterministic engine computes with one thread; leave threads unset.")
        self._threads = 1 if deterministic else threads
        directory = resolve(base_model)
        sizes, config = ModelSizes.from_directory(directory), own_config(directory)
        if config is None and deterministic:
            raise EngineError(
                "invalid_config",
                "The same bits twice are promised for the engine's own forward passes only, which do not cover "
                f"{directory}: set model.engine.deterministic=false.",
            )
        if config is None and sampling_dtype not in (None, dtype):
            raise EngineError(
                "invalid_config",
                "This architecture samples and trains with the same matrices: leave model.engine.sampling_dtype unset.",
            )
        self.model_id = str(directory)
        self.model_alias = base_model
        self.vocab_size = sizes.vocab_size
        self.max_seq_len = min(max_seq_len or sizes.max_position_embeddings, sizes.max_position_embeddings)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._settings = ComputeSettings(
            device=device,
            dtype=_dtype(dtype),
            sampling_dtype=_dtype(sampling_dtype or dtype),
            normalisation=Normalisation(normalisation),
            max_batch_rows=max_batch_rows,
            max_seq_len=self.max_seq_len,
            gather_window_s=gather_window_s,
            micro_batch_tokens=micro_batch_tokens,
        )
        if memory_limit_gb is not None:
            limit_memory(device, int(memory_limit_gb * 2**30))
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(directory, config, sizes), name="retool-engine-compute", daemon=True
        )
        self._thread.start()
        self._ready.result()
        self._submit(lambda compute: compute.warm_up())

    def create_run(
        self, run_id: str, lora: LoraSpec, checkpoint: Path | None = None, load_optimizer: bool = False
    ) -> "Future[None]":
        """Starts a training run, from scratch or from a checkpoint directory."""
        return self._submit(lambda compute: compute.create_run(run_id, lora, checkpoint, load_optimizer))

    def forward(
        self,
        run_id: str,
        samples: Sequence[TrainingSample],
        loss: LossSpec,
        totals: BatchTotals,
        *,
        backward: bool,
    ) -> "Future[ForwardResult]":
        """Loss and logprobs of a batch; with `backward`, gradients are added up until `optim_step`."""
        return self._submit(lambda compute: compute.run(run_id).forward(samples, loss, totals, backward=backward))

    def optim_step(self, run_id: str, adam: AdamParams) -> "Future[dict[str, float]]":
        """One AdamW step; resolves to metrics."""
        return self._submit(lambda compute: compute.run(run_id).optim_step(adam))

    def drop_gradients(self, run_id: str) -> "Future[None]":
        """Forgets the gradients since the last step."""
        return self._submit(lambda compute: compute.run(run_id).drop_gradients())

    def save(self, run_id: str, directory: Path, *, optimizer: bool) -> "Future[int]":
        """Writes a checkpoint in PEFT layout, whole or not at all; resolves to its size in bytes."""
        return self._submit(lambda compute: compute.save(run_id, directory, optimizer=optimizer))

    def snapshot(self, run_id: str, adapter: str) -> "Future[None]":
        """Keeps the run's current weights in memory for sampling under the name `adapter`."""
        return self._submit(lambda compute: compute.snapshot(run_id, adapter))

    def load_adapter(self, adapter: str, directory: Path) -> "Future[None]":
        """Loads a checkpoint for sampling under the name `adapter`."""
        return self._submit(lambda compute: compute.load_adapter(adapter, directory))

    def drop_adapter(self, adapter: str) -> "Future[None]":
        """Frees sampling weights."""
        return self._submit(lambda compute: compute.drop_adapter(adapter))

    def drop_run(self, run_id: str) -> "Future[None]":
        """Frees a training run."""
        return self._submit(lambda compute: compute.drop_run(run_id))

    def sample(self, request: SampleRequest) -> "Future[SampleResult]":
        """Samples; cancelling the future frees its rows."""
        future: Future[SampleResult] = Future()

        def job(compute: Compute) -> None:
            try:
                guarded(lambda: compute.enqueue(request, future))
            except (EngineError, RuntimeError) as error:
                future.set_exception(error)

        self._put(job, future, operation=False)
        return future

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens included."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def close(self) -> None:
        """Stops after the current operation; what is still queued fails."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _submit(self, operation: Callable[[Compute], T]) -> "Future[T]":
        future: Future[T] = Future()

        def job(compute: Compute) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(guarded(lambda: operation(compute)))
            except (EngineError, RuntimeError, ValueError, OSError, KeyError) as error:
                future.set_exception(error)

        self._put(job, future, operation=True)
        return future

    def _put(self, job: Callable[[Compute], None], future: "Future[T]", *, operation: bool) -> None:
        if self._closed:
            future.set_exception(EngineError("shutting_down", "The engine is shutting down."))
            return
        self._jobs.put(_Job(lambda: job(self._compute), operation))

    def _run(self, directory: Path, config: ModelConfig | None, sizes: ModelSizes) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            self._compute = guarded(lambda: Compute(directory, config, sizes, self._tokenizer, self._settings))
        except (EngineError, RuntimeError, OSError) as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        while self._run_one_round():
            pass
        self._compute.sampler.fail_all(EngineError("shutting_down", "The engine is shutting down."))

    def _run_one_round(self) -> bool:
        """Takes what is waiting, at most one operation among it, then samples a token. False when the engine closes."""
        sampler = self._compute.sampler
        operated = False
        while not operated:
            wait = sampler.seconds_until_work()
            try:
                job = self._jobs.get_nowait() if wait == 0 else self._jobs.get(timeout=wait)
            except queue.Empty:
                break
            if job is None:
                return False
            job.run()
            operated = job.operation
        if sampler.seconds_until_work() == 0:
            sampler.step()
        return True


def limit_memory(device: str, limit_bytes: int) -> None:
    """Bounds the memory of this process, or its share of the GPU's."""
    if torch.device(device).type == "cuda":
        present = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / present), device)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def _dtype(name: str) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in dtypes:
        raise EngineError("invalid_config", f"Unknown dtype '{name}'; use one of {', '.join(dtypes)}.")
    return dtypes[name]
