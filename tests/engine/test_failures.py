"""What a failed batch leaves behind: nothing. Gradients, the next batch and memory are as if it had not been sent."""

from collections.abc import Callable

import pytest
import torch

from retool.engine.loop import EngineLoop
from retool.engine.model.training_forward import FusedModel
from retool.engine.types import BatchTotals, EngineError, LoraSpec, LossSpec, TrainingSample

from .test_loop import NO_TOTALS, gradients, policy_samples, train_a_little

Start = Callable[..., EngineLoop]
PPO = LossSpec("ppo")


def fail_in_micro_batch(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    """Makes the forward pass of the given micro-batch raise."""
    original, calls = FusedModel.hidden, []

    def failing(*arguments: object) -> torch.Tensor:
        calls.append(None)
        if len(calls) == number:
            raise error
        return original(*arguments)

    monkeypatch.setattr(FusedModel, "hidden", failing)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate"), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (EngineError("some_code", "some reason"), "some_code"),
    ],
)
@pytest.mark.parametrize("accumulated", [False, True])
def test_a_batch_that_fails_midway_leaves_no_gradient(
    start_engine: Start, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, accumulated: bool
) -> None:
    engine = start_engine(micro_batch_tokens=64)
    train_a_little(engine, "run")
    samples, totals = policy_samples(9), BatchTotals(9, 1, 1)
    if accumulated:
        engine.forward("run", samples[:3], PPO, totals, backward=True).result()
    before = gradients(engine, "run")
    assert bool(before) is accumulated
    with monkeypatch.context() as patch:
        fail_in_micro_batch(patch, 3, error)
        with pytest.raises(EngineError) as caught:
            engine.forward("run", samples, PPO, totals, backward=True).result()
    assert caught.value.code == code
    if code == "out_of_memory":
        assert "micro_batch_tokens" in str(caught.value)
    after = gradients(engine, "run")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert engine.forward("run", samples, PPO, totals, backward=True).result().token_count > 0


def test_a_loss_that_is_not_finite_leaves_no_gradient(start_engine: Start) -> None:
    engine = start_engine()
    engine.create_run("run", LoraSpec(4)).result()
    sample = TrainingSample([2, 3], [3, 4], logprobs=[-1000.0, 0.0], advantages=[-1.0, 1.0])
    with pytest.raises(EngineError) as caught:
        engine.forward("run", [*policy_samples(3), sample], PPO, NO_TOTALS, backward=True).result()
    assert caught.value.code == "loss_not_finite"
    assert gradients(engine, "run") == {}


def test_dropped_gradients_are_gone(start_engine: Start) -> None:
    engine = start_engine()
    train_a_little(engine, "run")
    engine.forward("run", policy_samples(3), PPO, BatchTotals(3, 1, 1), backward=True).result()
    engine.drop_gradients("run").result()
    assert gradients(engine, "run") == {}
