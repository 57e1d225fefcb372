"""Architectures that the engine's own forward passes do not cover, small and random, against `transformers` itself."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel

from retool.engine.loop import EngineLoop
from retool.engine.types import AdamParams, BatchTotals, EngineError, LoraSpec, LossSpec, SampleRequest, TrainingSample

from .conftest import EOS, VOCAB_SIZE
from .test_loop import policy_samples, random_prompts, train_a_little

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "initializer_range": 0.2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "gpt_neox": ("GPTNeoX", SIZES),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 16}),
    "phi": ("Phi", GROUPED),
    "gemma2": ("Gemma2", {**GROUPED, "head_dim": 16, "sliding_window": 16, "final_logit_softcapping": 3.0}),
    "llama_scaled": (
        "Llama",
        {**GROUPED, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "gpt2": (
        "GPT2",
        {"vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "eos_token_id": EOS}
        | {"bos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2},
    ),
    "qwen3_5": (
        "Qwen3_5",
        {**GROUPED, "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "tie_word_embeddings": True},
    ),
}
CLASSES = {"GPT2": ("GPT2Config", "GPT2LMHeadModel"), "Qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM")}


def build(family: str, directory: Path) -> PreTrainedModel:
    stem, sizes = FAMILIES[family]
    config, model = CLASSES.get(stem, (f"{stem}Config", f"{stem}ForCausalLM"))
    if not hasattr(transformers, model):
        pytest.skip(f"the installed transformers has no {model}")
    torch.manual_seed(1)
    built: PreTrainedModel = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
    built.save_pretrained(directory)
    words = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(directory / "tokenizer.json"))
    return built


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    directory = tmp_path_factory.mktemp(request.param)
    return build(request.param, directory), directory


@pytest.fixture
def engine(family: tuple[PreTrainedModel, Path]) -> Iterator[EngineLoop]:
    engine = EngineLoop(base_model=str(family[1]), deterministic=False, threads=1)
    yield engine
    engine.close()


def test_greedy_tokens_and_logprobs_equal_transformers(
    engine: EngineLoop, family: tuple[PreTrainedModel, Path]
) -> None:
    model = family[0]
    prompts = random_prompts(6)
    futures = [engine.sample(SampleRequest(prompt=p, adapter=None, max_tokens=24, temperature=0)) for p in prompts]
    for prompt, future in zip(prompts, futures, strict=True):
        sequence = future.result().sequences[0]
        generated = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=24, do_sample=False
        )
        assert sequence.tokens == generated[0, len(prompt) :].tolist()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + sequence.tokens])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(sequence.tokens)[:, None])[:, 0]
        np.testing.assert_allclose(sequence.logprobs, expected, atol=2e-4)


def test_trainer_and_sampler_agree_after_training(engine: EngineLoop) -> None:
    train_a_little(engine, "run")
    engine.snapshot("run", "weights").result()
    prompts = random_prompts(5)
    futures = [
        engine.sample(SampleRequest(prompt=p, adapter="weights", max_tokens=16, num_samples=2, seed=1)) for p in prompts
    ]
    pairs = [(p, s) for p, future in zip(prompts, futures, strict=True) for s in future.result().sequences]
    samples = [TrainingSample([*p, *s.tokens[:-1]], [*p[1:], *s.tokens]) for p, s in pairs]
    result = engine.forward("run", samples, LossSpec("cross_entropy"), BatchTotals(1, 1, 1), backward=False).result()
    for (prompt, sequence), logprobs in zip(pairs, result.logprobs, strict=True):
        np.testing.assert_allclose(logprobs[len(prompt) - 1 :], sequence.logprobs, atol=2e-4)
    scored = engine.sample(SampleRequest(prompt=prompts[0], adapter="weights", max_tokens=1, prompt_logprobs=True))
    np.testing.assert_allclose(
        scored.result().prompt_logprobs[1:], result.logprobs[0][: len(prompts[0]) - 1], atol=2e-4
    )


def test_gradients_and_saved_adapter_equal_peft(
    engine: EngineLoop, family: tuple[PreTrainedModel, Path], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    train_a_little(engine, "run")
    engine.save("run", tmp_path / "adapter", optimizer=True).result()
    samples = policy_samples(4)
    loss, totals = LossSpec("importance_sampling"), BatchTotals(4, 1, 1)
    engine.forward("run", samples, loss, totals, backward=True).result()
    base = type(family[0]).from_pretrained(family[1])
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    for sample in samples:
        logprobs = torch.log_softmax(model(torch.tensor([list(sample.tokens)])).logits[0], -1)
        new = logprobs.gather(1, torch.tensor(list(sample.target_ids))[:, None])[:, 0]
        ratio = torch.exp(new - torch.tensor(sample.logprobs))
        (-(ratio * torch.tensor(sample.advantages)).sum() / 4).backward()
    theirs = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    pairs = engine._compute.run("run").adapter.pairs
    assert len(theirs) == 2 * len(pairs) > 8
    for name, pair in pairs.items():
        for kind, mine in (("A", pair.a.grad), ("B", pair.b.grad)):
            expected = theirs[f"base_model.model.{name}.lora_{kind}.default.weight"]
            # Largest entries matter: random weights this large make rounding differ in the last of four digits.
            np.testing.assert_allclose(mine, expected, rtol=5e-3, atol=2e-3 * float(expected.abs().max()))
    engine.create_run("copy", LoraSpec(4), tmp_path / "adapter", True).result()
    for run in ("run", "copy"):
        engine.drop_gradients(run)
        engine.forward(run, samples, loss, totals, backward=True)
        engine.optim_step(run, AdamParams(1e-2)).result()
    restored = engine._compute.run("copy").adapter.pairs
    assert all(torch.equal(pair.a, restored[name].a) for name, pair in pairs.items())


def test_a_seed_draws_the_same_whatever_shares_the_batch(engine: EngineLoop) -> None:
    request = SampleRequest(prompt=random_prompts(1)[0], adapter=None, max_tokens=10, num_samples=3, seed=11)
    alone = engine.sample(request).result()
    others = [engine.sample(SampleRequest(prompt=p, adapter=None, max_tokens=20)) for p in random_prompts(7)[1:]]
    together = engine.sample(request).result()
    assert [s.tokens for s in together.sequences] == [s.tokens for s in alone.sequences]
    assert all(future.result().sequences for future in others)


def test_parts_of_the_model_can_be_left_out(engine: EngineLoop) -> None:
    counts = []
    for flags in ((True, False, False), (False, True, False), (False, False, True), (True, True, True)):
        engine.create_run("run", LoraSpec(4, *flags)).result()
        counts.append(len(engine._compute.run("run").adapter.pairs))
    assert counts[3] == sum(counts[:3]) and min(counts) > 0 and counts[2] == 1


Start = Callable[..., EngineLoop]


def test_what_is_asked_for_and_cannot_be(tmp_path: Path) -> None:
    build("gpt_neox", tmp_path)
    with pytest.raises(EngineError, match="deterministic=false"):
        EngineLoop(base_model=str(tmp_path))
    with pytest.raises(EngineError, match="sampling_dtype"):
        EngineLoop(base_model=str(tmp_path), deterministic=False, sampling_dtype="bfloat16")
    with pytest.raises(EngineError, match="no language model"):
        (tmp_path / "config.json").write_text('{"model_type": "vit"}')
        EngineLoop(base_model=str(tmp_path), deterministic=False)
    with pytest.raises(EngineError, match="cannot load"):
        (tmp_path / "config.json").write_text('{"model_type": "no_such_type", "vocab_size": 10}')
        EngineLoop(base_model=str(tmp_path), deterministic=False)
