"""A small random model with a tokenizer, and a server for it in this process."""

import asyncio
import threading
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from retool.engine.loop import EngineLoop
from retool.engine.wire.server import EngineServer, bind, locked
from retool.engine.wire.service import Service, ServiceSettings

END = 62
KEY = "engine-test-key"


def build_model(directory: Path) -> Path:
    """Writes a model of two layers over the words `t0` to `t61`, `<end>` (62) and `<pad>` (63)."""
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        eos_token_id=END,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    words = {f"t{index}": index for index in range(62)} | {"<end>": END, "<pad>": 63}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(directory)
    return directory


@contextmanager
def running_server(model: Path, engine_dir: Path, normalisation: str = "total_samples", **settings: object):
    """Yields the address of a server with a real engine, and stops both."""
    engine = EngineLoop(base_model=str(model), max_batch_rows=8, normalisation=normalisation)
    with locked(engine_dir):
        options = {"api_key": KEY, "engine_dir": engine_dir, "names": ("small",), **settings}
        server = EngineServer(Service(engine, ServiceSettings(**options)), bind("127.0.0.1", 0))
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(server.run(on_ready=ready.set)))
        thread.start()
        ready.wait(20)
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.stop()
            thread.join(20)
            engine.close()
            assert not thread.is_alive()
