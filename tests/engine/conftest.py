"""Small random models in the Hugging Face layout, one of each architecture that the engine runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from retool.engine.loop import EngineLoop

VOCAB_SIZE = 160
EOS = 1
ARCHITECTURES = ("llama", "qwen2", "qwen3")


def build_model(architecture: str, directory: Path) -> PreTrainedModel:
    """Writes a random model and a word-level tokenizer (`t0` to `t159`) to `directory`."""
    torch.manual_seed(1)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": EOS,
        "initializer_range": 0.2,
    }
    model: PreTrainedModel
    if architecture == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    elif architecture == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=32, tie_word_embeddings=True))
    model.eval().save_pretrained(directory)
    words = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(directory / "tokenizer.json"))
    return model


@pytest.fixture(scope="session")
def reference_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PreTrainedModel, Path]]:
    """The transformers model and its directory, by architecture."""
    built = {}
    for architecture in ARCHITECTURES:
        directory = tmp_path_factory.mktemp(architecture)
        built[architecture] = (build_model(architecture, directory), directory)
    return built


@pytest.fixture
def start_engine(reference_models: dict[str, tuple[PreTrainedModel, Path]]) -> Iterator[Callable[..., EngineLoop]]:
    """Starts engines on a random model (qwen3 unless named) and closes them after the test."""
    started: list[EngineLoop] = []

    def start(architecture: str = "qwen3", **settings: object) -> EngineLoop:
        engine = EngineLoop(base_model=str(reference_models[architecture][1]), **settings)
        started.append(engine)
        return engine

    yield start
    for engine in started:
        engine.close()
