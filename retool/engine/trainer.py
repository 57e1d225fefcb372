"""Training of one adapter: forward and backward over micro-batches of tokens, gradients kept until the AdamW step.

Memory stays bounded whatever the request: a micro-batch holds at most `micro_batch_tokens` padded tokens (one longer
sequence is a micro-batch of its own), and the vocabulary-sized logits exist for one slice of tokens at a time.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retool.engine.losses import Normalisation, TokenInputs, TokenLoss, gradient_scale, needs_policy_inputs, token_loss
from retool.engine.model.base import TrainingModel
from retool.engine.model.lora import Adapter
from retool.engine.model.training_forward import target_logprobs
from retool.engine.types import AdamParams, BatchTotals, EngineError, ForwardResult, LossSpec, TrainingSample

FloatColumns = npt.NDArray[np.float64]

IGNORED_TARGET = -100
_LOGIT_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Flat tensors over the (sample, position) pairs whose target counts; `active` marks those with a gradient."""

    sample: Tensor
    position: Tensor
    targets: Tensor
    weights: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    active: Tensor


class Trainer:
    """One training run: an adapter, its gradients and its optimizer."""

    def __init__(
        self,
        model: TrainingModel,
        adapter: Adapter,
        *,
        normalisation: Normalisation,
        micro_batch_tokens: int,
    ) -> None:
        self.adapter = adapter
        self._model = model
        self._normalisation = normalisation
        self._micro_batch_tokens = micro_batch_tokens
        self.optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.0, foreach=True)

    def forward(
        self, samples: Sequence[TrainingSample], loss: LossSpec, totals: BatchTotals, *, backward: bool
    ) -> ForwardResult:
        """Target logprobs and summed loss; with `backward`, adds the scaled gradients to those already there.

        Whole or not at all: when it fails, whatever the reason, the gradients are what they were before. Raises
        `EngineError` for a batch that cannot be used and for a loss that is not finite.
        """
        with self._all_or_nothing():
            return self._forward(samples, loss, totals, backward=backward)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Gradients made inside are added to those from before, or forgotten if it fails."""
        parameters = self.adapter.parameters()
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        completed = False
        try:
            yield
            completed = True
        finally:
            for parameter, old in zip(parameters, before, strict=True):
                new = parameter.grad if completed else None
                parameter.grad = new if old is None else old if new is None else old.add_(new)

    def _forward(
        self, samples: Sequence[TrainingSample], loss: LossSpec, totals: BatchTotals, *, backward: bool
    ) -> ForwardResult:
        function, settings = token_loss(loss)
        for sample in samples:
            _check_sample(sample, loss, self._model.vocab_size)
        scale = gradient_scale(loss, totals, self._normalisation)
        logprobs = [np.zeros(len(sample.tokens), dtype=np.float32) for sample in samples]
        loss_sum, token_count = 0.0, 0
        for indices in self._micro_batches(samples):
            batch = [samples[index] for index in indices]
            flat, flat_loss = self._run_micro_batch(batch, function, settings, scale, loss, backward)
            loss_sum += flat_loss
            values = flat[0].numpy(force=True)
            token_count += len(values)
            row, position = flat[1].numpy(force=True), flat[2].numpy(force=True)
            for within, index in enumerate(indices):
                mine = row == within
                logprobs[index][position[mine]] = values[mine]
        if not math.isfinite(loss_sum):
            raise EngineError("loss_not_finite", f"The loss is {loss_sum}; lower the learning rate or check the data.")
        return ForwardResult(logprobs, loss_sum, token_count)

    def drop_gradients(self) -> None:
        """Forgets what was accumulated since the last step."""
        self.optimizer.zero_grad(set_to_none=True)

    def _micro_batches(self, samples: Sequence[TrainingSample]) -> list[list[int]]:
        """Indices sorted by length and content, so that the order of arrival changes nothing, cut by padded size."""
        order = sorted(
            range(len(samples)),
            key=lambda i: (len(samples[i].tokens), tuple(samples[i].tokens), tuple(samples[i].advantages or ())),
        )
        batches: list[list[int]] = []
        current: list[int] = []
        for index in order:
            if current and len(samples[index].tokens) * (len(current) + 1) > self._micro_batch_tokens:
                batches.append(current)
                current = []
            current.append(index)
        return [*batches, current] if current else batches

    def _run_micro_batch(
        self,
        batch: list[TrainingSample],
        function: TokenLoss,
        settings: dict[str, float],
        scale: float,
        loss: LossSpec,
        backward: bool,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
        device = self._model.device
        flat = _flatten(batch, loss, device)
        tokens = torch.zeros((len(batch), max(len(sample.tokens) for sample in batch)), dtype=torch.long, device=device)
        for index, sample in enumerate(batch):
            tokens[index, : len(sample.tokens)] = torch.tensor(list(sample.tokens))
        logprobs = torch.zeros(len(flat.targets), device=device)
        loss_sum = 0.0
        with torch.set_grad_enabled(backward and bool(flat.active.any())):
            hidden = self._model.hidden(self.adapter, tokens)[flat.sample, flat.position]
            leaf = hidden.detach().requires_grad_(hidden.requires_grad)
            for part in self._logit_slices(flat.active):
                loss_sum += self._slice_loss(leaf, part, flat, function, settings, scale, logprobs)
            if hidden.requires_grad:
                torch.autograd.backward(hidden, leaf.grad)
        return (logprobs, flat.sample, flat.position), loss_sum

    def _logit_slices(self, active: Tensor) -> list[Tensor]:
        """Index slices of bounded logits size; those with a gradient apart from those without."""
        size = max(1, _LOGIT_ELEMENTS // self._model.vocab_size)
        return [
            part
            for group in (active.nonzero()[:, 0], (~active).nonzero()[:, 0])
            for part in torch.split(group, size)
            if len(part)
        ]

    def _slice_loss(
        self,
        hidden: Tensor,
        part: Tensor,
        flat: _MicroBatch,
        function: TokenLoss,
        settings: dict[str, float],
        scale: float,
        logprobs: Tensor,
    ) -> float:
        """Loss of the tokens in `part`; its gradient reaches `hidden` and the unembedding's adapter at once."""
        with torch.set_grad_enabled(hidden.requires_grad and bool(flat.active[part[0]])):
            logits = self._model.logits(self.adapter, hidden[part])
            new = target_logprobs(logits, flat.targets[part])
            inputs = TokenInputs(new, flat.weights[part], flat.old_logprobs[part], flat.advantages[part])
            loss = function(inputs, settings).sum()
            if loss.requires_grad:
                torch.autograd.backward(loss * scale)
        logprobs[part] = new.detach()
        return float(loss.detach())

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """One AdamW step (Loshchilov & Hutter 2017, arXiv 1711.05101) on the gradients so far, which are then cleared.

        Returns `grad_norm` (before clipping), `learning_rate` and `skipped` (1 where there was no gradient).
        Raises `EngineError` for a gradient that is not finite; the weights stay as they were.
        """
        parameters = self.adapter.parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return {"grad_norm": 0.0, "learning_rate": adam.learning_rate, "skipped": 1.0}
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in gradients])))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise EngineError("gradient_not_finite", f"The gradient norm is {norm}; the step was not made.")
        if 0 < adam.grad_clip_norm < norm:
            torch._foreach_mul_(gradients, adam.grad_clip_norm / norm)
        for group in self.optimizer.param_groups:
            group.update(
                lr=adam.learning_rate,
                betas=(adam.beta1, adam.beta2),
                eps=adam.eps,
                weight_decay=adam.weight_decay,
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm, "learning_rate": adam.learning_rate, "skipped": 0.0}

    def release(self) -> None:
        """Frees gradients and moments at once; the optimizer itself is part of reference cycles."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        self.optimizer.param_groups.clear()


def _check_sample(sample: TrainingSample, loss: LossSpec, vocab_size: int) -> None:
    length = len(sample.tokens)
    required = ("logprobs", "advantages") if needs_policy_inputs(loss) else ()
    fields = {"target_ids": sample.target_ids, "logprobs": sample.logprobs, "advantages": sample.advantages}
    for name, values in {**fields, "weights": sample.weights}.items():
        if values is None and name in required:
            raise EngineError("invalid_batch", f"Loss '{loss.type}' needs '{name}'.")
        if values is not None and len(values) != length:
            raise EngineError("invalid_batch", f"'{name}' has {len(values)} entries for {length} tokens.")
    targets = [target for target in sample.target_ids if target != IGNORED_TARGET]
    out_of_range = [token for token in (*sample.tokens, *targets) if not 0 <= token < vocab_size]
    if not length or out_of_range:
        problem = f"token {out_of_range[0]} is outside the vocabulary of {vocab_size}" if out_of_range else "no tokens"
        raise EngineError("invalid_batch", f"A sample cannot be used: {problem}.")


def _flatten(batch: list[TrainingSample], loss: LossSpec, device: torch.device) -> _MicroBatch:
    columns: list[FloatColumns] = []
    for index, sample in enumerate(batch):
        targets = np.asarray(sample.target_ids, dtype=np.int64)
        kept = np.nonzero(targets != IGNORED_TARGET)[0]

        def column(values: Sequence[float] | None, default: float, kept: npt.NDArray[np.intp] = kept) -> FloatColumns:
            if values is None:
                return np.full(len(kept), default)
            return np.take(np.asarray(values, dtype=np.float64), kept)

        columns.append(
            np.stack(
                [
                    np.full(len(kept), index),
                    kept,
                    targets[kept],
                    column(sample.weights, 1.0),
                    column(sample.logprobs, 0.0),
                    column(sample.advantages, 0.0),
                ]
            ).astype(np.float64)
        )
    table = np.concatenate(columns, axis=1)

    def integers(row: int) -> Tensor:
        return torch.from_numpy(table[row].astype(np.int64)).to(device)

    def floats(row: int) -> Tensor:
        return torch.from_numpy(table[row].astype(np.float32)).to(device)

    weights, old_logprobs, advantages = floats(3), floats(4), floats(5)
    if not needs_policy_inputs(loss):
        active = weights != 0
    elif loss.type == "dro":
        active = torch.ones_like(advantages, dtype=torch.bool)
    else:
        active = advantages != 0
    return _MicroBatch(integers(0), integers(1), integers(2), weights, old_logprobs, advantages, active)
