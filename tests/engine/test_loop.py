"""The engine against `transformers` on the same random weights, and its own promises about order and errors."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from retool.engine.loop import EngineLoop
from retool.engine.types import (
    AdamParams,
    BatchTotals,
    EngineError,
    LoraSpec,
    LossSpec,
    SampledSequence,
    SampleRequest,
    TrainingSample,
)

from .conftest import ARCHITECTURES, VOCAB_SIZE

Start = Callable[..., EngineLoop]
Models = dict[str, tuple[PreTrainedModel, Path]]
NO_TOTALS = BatchTotals(1, 1, 1)


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randrange(5, 50))] for _ in range(count)]


def policy_samples(count: int) -> list[TrainingSample]:
    rng = random.Random(5)
    samples = []
    for tokens in random_prompts(count):
        advantages = [rng.choice([0.0, 1.0, -0.5]) for _ in tokens[1:]]
        old = [-rng.random() * 5 for _ in tokens[1:]]
        samples.append(TrainingSample(tokens[:-1], tokens[1:], logprobs=old, advantages=advantages))
    return samples


def gradients(engine: EngineLoop, run: str) -> dict[str, torch.Tensor]:
    pairs = engine._compute.run(run).adapter.pairs
    named = {f"{name}.{kind}": getattr(pair, kind) for name, pair in pairs.items() for kind in ("a", "b")}
    return {name: tensor.grad.clone() for name, tensor in named.items() if tensor.grad is not None}


def train_a_little(engine: EngineLoop, run: str) -> None:
    """A few steps, so that B is no longer zero and every gradient counts."""
    engine.create_run(run, LoraSpec(4, seed=3)).result()
    for _ in range(3):
        engine.forward(run, policy_samples(6), LossSpec("ppo"), BatchTotals(6, 1, 1), backward=True)
        engine.optim_step(run, AdamParams(1e-2)).result()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_and_logprobs_equal_transformers(
    architecture: str, start_engine: Start, reference_models: Models
) -> None:
    engine, model = start_engine(architecture), reference_models[architecture][0]
    prompts = random_prompts(12)
    requests = [SampleRequest(prompt=prompt, adapter=None, max_tokens=20, temperature=0) for prompt in prompts]
    futures = [engine.sample(request) for request in requests]
    for prompt, future in zip(prompts, futures, strict=True):
        sequence = future.result().sequences[0]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + sequence.tokens])).logits[0, len(prompt) - 1 : -1]
        assert sequence.tokens == logits.argmax(-1).tolist()
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(sequence.tokens)[:, None])[:, 0]
        np.testing.assert_allclose(sequence.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_trainer_and_sampler_agree_after_training(architecture: str, start_engine: Start) -> None:
    engine = start_engine(architecture)
    train_a_little(engine, "run")
    engine.snapshot("run", "weights").result()
    prompts = random_prompts(8)
    futures = [engine.sample(SampleRequest(prompt=p, adapter="weights", max_tokens=20, seed=1)) for p in prompts]
    sequences = [future.result().sequences[0] for future in futures]
    samples = [
        TrainingSample([*p, *s.tokens[:-1]], [*p[1:], *s.tokens]) for p, s in zip(prompts, sequences, strict=True)
    ]
    result = engine.forward("run", samples, LossSpec("cross_entropy"), NO_TOTALS, backward=False).result()
    for prompt, sequence, logprobs in zip(prompts, sequences, result.logprobs, strict=True):
        np.testing.assert_allclose(logprobs[len(prompt) - 1 :], sequence.logprobs, atol=1e-4)


def test_gradients_equal_peft(start_engine: Start, reference_models: Models, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    engine = start_engine("qwen2")
    train_a_little(engine, "run")
    engine.save("run", tmp_path / "adapter", optimizer=False).result()
    samples = policy_samples(5)
    engine.forward("run", samples, LossSpec("importance_sampling"), BatchTotals(5, 1, 1), backward=True).result()
    base = type(reference_models["qwen2"][0]).from_pretrained(reference_models["qwen2"][1])
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    for sample in samples:
        logprobs = torch.log_softmax(model(torch.tensor([list(sample.tokens)])).logits[0], -1)
        new = logprobs.gather(1, torch.tensor(list(sample.target_ids))[:, None])[:, 0]
        ratio = torch.exp(new - torch.tensor(sample.logprobs))
        (-(ratio * torch.tensor(sample.advantages)).sum() / 5).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    mine = gradients(engine, "run")
    assert len(mine) == len(expected)
    for name, gradient in mine.items():
        linear, kind = name.rsplit(".", 1)
        theirs = expected[f"base_model.model.{linear}.lora_{kind.upper()}.default.weight"]
        np.testing.assert_allclose(gradient, theirs, rtol=2e-3, atol=2e-4)


def two_turns(engine: EngineLoop, prompts: list[list[int]], order: list[int]) -> dict[object, SampledSequence]:
    """A group of samples for each prompt, then a second turn that continues each sample, submitted in `order`."""
    firsts = {
        i: engine.sample(SampleRequest(prompt=prompts[i], adapter=None, max_tokens=24, num_samples=3, seed=i))
        for i in order
    }
    results: dict[object, SampledSequence] = {}
    seconds = {}
    for i in order:
        for s, sequence in enumerate(firsts[i].result().sequences):
            results[i, s, "first"] = sequence
            prompt = [*prompts[i], *sequence.tokens, 7, 8, 9]
            seconds[i, s] = engine.sample(SampleRequest(prompt=prompt, adapter=None, max_tokens=12, seed=100 + s))
    return {**results, **{(*key, "second"): future.result().sequences[0] for key, future in seconds.items()}}


def test_same_bits_in_any_order_of_arrival_with_and_without_prefix_reuse(start_engine: Start) -> None:
    prompts = random_prompts(12)
    order = list(range(12))
    engine = start_engine()
    expected = two_turns(engine, prompts, order)
    random.Random(1).shuffle(order)
    assert two_turns(engine, prompts, order) == expected
    # Other batch compositions (7 rows instead of 64), nothing remembered from before.
    assert two_turns(start_engine(max_batch_rows=7), prompts, order) == expected
    engine._compute.sampler._prefixes.drop("")
    assert two_turns(engine, prompts, order[::-1]) == expected


def test_split_batches_add_up_to_the_whole(start_engine: Start) -> None:
    engine = start_engine(micro_batch_tokens=64)
    train_a_little(engine, "run")
    samples, totals = policy_samples(9), BatchTotals(9, 1, 1)
    engine.forward("run", samples, LossSpec("ppo"), totals, backward=True).result()
    whole = gradients(engine, "run")
    engine._compute.run("run").optimizer.zero_grad()
    for part in (samples[:2], samples[2:3], samples[3:]):
        engine.forward("run", part, LossSpec("ppo"), totals, backward=True).result()
    for name, gradient in gradients(engine, "run").items():
        np.testing.assert_allclose(gradient, whole[name], rtol=1e-3, atol=1e-5)


def test_the_order_of_datums_changes_no_bit(start_engine: Start) -> None:
    engine = start_engine()
    train_a_little(engine, "run")
    samples, totals = policy_samples(9), BatchTotals(9, 1, 1)
    found = []
    for batch in (samples, samples[::-1]):
        engine.forward("run", batch, LossSpec("ppo"), totals, backward=True).result()
        found.append(gradients(engine, "run"))
        engine._compute.run("run").optimizer.zero_grad()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_ignored_targets_change_nothing_but_the_count(start_engine: Start) -> None:
    engine = start_engine()
    train_a_little(engine, "run")
    samples = policy_samples(4)
    ignoring = [
        TrainingSample(
            s.tokens,
            [t if a else -100 for t, a in zip(s.target_ids, s.advantages or (), strict=True)],
            logprobs=s.logprobs,
            advantages=s.advantages,
        )
        for s in samples
    ]
    results = [
        engine.forward("run", batch, LossSpec("ppo"), BatchTotals(4, 1, 1), backward=False).result()
        for batch in (samples, ignoring)
    ]
    assert results[0].loss_sum == pytest.approx(results[1].loss_sum, rel=1e-5)
    assert results[1].token_count == sum(a != 0 for s in samples for a in s.advantages or ())


def test_a_checkpoint_with_optimizer_continues_to_the_bit(start_engine: Start, tmp_path: Path) -> None:
    engine = start_engine()
    train_a_little(engine, "run")
    engine.save("run", tmp_path / "state", optimizer=True).result()
    engine.create_run("copy", LoraSpec(4), tmp_path / "state", True).result()
    for run in ("run", "copy"):
        engine.forward(run, policy_samples(4), LossSpec("ppo"), BatchTotals(4, 1, 1), backward=True)
        engine.optim_step(run, AdamParams(1e-2)).result()
    pairs = [engine._compute.run(run).adapter.parameters() for run in ("run", "copy")]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*pairs, strict=True))


def test_prompt_logprobs(start_engine: Start, reference_models: Models) -> None:
    engine, prompt = start_engine(), random_prompts(1)[0]
    request = SampleRequest(prompt=prompt, adapter=None, max_tokens=1, prompt_logprobs=True, topk_prompt_logprobs=2)
    result = engine.sample(request).result()
    with torch.no_grad():
        logprobs = torch.log_softmax(reference_models["qwen3"][0](torch.tensor([prompt])).logits[0], -1)
    expected = logprobs[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert result.prompt_logprobs is not None and result.topk_prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None and result.topk_prompt_logprobs[0] is None
    np.testing.assert_allclose(result.prompt_logprobs[1:], expected, atol=1e-4)
    best = [row[0][0] for row in result.topk_prompt_logprobs[1:] if row is not None]
    assert best == logprobs[:-1].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"adapter": "nowhere"}, "weights_not_found"),
        ({"prompt": [VOCAB_SIZE]}, "invalid_request"),
        ({"prompt": []}, "invalid_request"),
        ({"max_tokens": 10_000}, "sequence_too_long"),
        ({"temperature": -1.0}, "invalid_request"),
    ],
)
def test_requests_that_cannot_be_served(start_engine: Start, change: dict[str, object], code: str) -> None:
    engine = start_engine()
    arguments = {"prompt": [2, 3], "adapter": None, "max_tokens": 4, **change}
    with pytest.raises(EngineError) as caught:
        engine.sample(SampleRequest(**arguments)).result()
    assert caught.value.code == code
    assert engine.sample(SampleRequest(prompt=[2, 3], adapter=None, max_tokens=4)).result().sequences


@pytest.mark.parametrize(
    ("sample", "code"),
    [
        (TrainingSample([2, 3], [3, 999], logprobs=[0, 0], advantages=[1, 1]), "invalid_batch"),
        (TrainingSample([2, 3], [3], logprobs=[0, 0], advantages=[1, 1]), "invalid_batch"),
        (TrainingSample([2, 3], [3, 4]), "invalid_batch"),
        (TrainingSample([], []), "invalid_batch"),
    ],
)
def test_batches_that_cannot_be_trained_on(start_engine: Start, sample: TrainingSample, code: str) -> None:
    engine = start_engine()
    engine.create_run("run", LoraSpec(4)).result()
    with pytest.raises(EngineError) as caught:
        engine.forward("run", [sample], LossSpec("ppo"), NO_TOTALS, backward=True).result()
    assert caught.value.code == code


def test_a_step_without_gradient_changes_nothing(start_engine: Start) -> None:
    engine = start_engine()
    train_a_little(engine, "run")
    before = [tensor.detach().clone() for tensor in engine._compute.run("run").adapter.parameters()]
    assert engine.optim_step("run", AdamParams(1.0)).result()["skipped"] == 1
    after = engine._compute.run("run").adapter.parameters()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_closing_fails_what_is_queued(start_engine: Start) -> None:
    engine = start_engine()
    future = engine.sample(SampleRequest(prompt=[2, 3], adapter=None, max_tokens=200, num_samples=64))
    engine.close()
    with pytest.raises(EngineError, match="shutting down"):
        future.result()
    with pytest.raises(EngineError, match="shutting down"):
        engine.sample(SampleRequest(prompt=[2], adapter=None, max_tokens=1)).result()


def test_a_cancelled_request_frees_its_rows(start_engine: Start) -> None:
    engine = start_engine(max_batch_rows=4)
    long = engine.sample(SampleRequest(prompt=[2, 3], adapter=None, max_tokens=250, num_samples=64))
    long.cancel()
    assert engine.sample(SampleRequest(prompt=[4, 5], adapter=None, max_tokens=3)).result().sequences
