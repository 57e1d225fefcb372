"""The shipped micro model: its weights are those of its manifest, and it solves what the manifest says it solves."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from retool.config.paths import conf_dir
from retool.engine.model.registry import resolve
from retool.protocol.chat import ChatProtocol
from retool.protocol.types import ToolFormat

TINY = resolve("tiny")
MANIFEST = json.loads((TINY / "manifest.json").read_text("utf-8"))
TOKENIZER = AutoTokenizer.from_pretrained(str(TINY))


def test_weights_are_those_of_the_manifest_and_load() -> None:
    assert hashlib.sha256((TINY / "model.safetensors").read_bytes()).hexdigest() == MANIFEST["weights_sha256"]
    model = AutoModelForCausalLM.from_pretrained(str(TINY))
    assert sum(parameter.numel() for parameter in model.parameters()) == MANIFEST["parameters"]


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    decoded = TOKENIZER.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert decoded == text.encode("utf-8", "replace").decode()


def test_the_protocol_is_found_from_the_template() -> None:
    protocol = ChatProtocol(TOKENIZER, system_prompt="")
    assert protocol.tool_format is ToolFormat.QWEN_XML
    call = protocol.encode_turn(protocol.render_call("print(12*34)"))
    assert protocol.parse(protocol.decode(call)).code == "print(12*34)"


def test_held_out_accuracy_lies_in_the_band_of_the_manifest(tmp_path: Path) -> None:
    band = MANIFEST["evaluation"]["quick_check_band"]
    command = [sys.executable, "-m", "retool.eval", f"eval.limit={band['trajectories']}", "eval.samples=1"]
    command += ["eval.top_p=1.0", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, cwd=conf_dir().parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "summary.json").read_text("utf-8"))["eval"]
    assert figures["eval/count"] == band["trajectories"]
    assert band["low"] <= figures["eval/accuracy"] <= band["high"]
    assert figures["eval/accuracy"] == pytest.approx(figures["eval/tool_call_rate"], abs=0.05)
