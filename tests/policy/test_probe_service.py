"""The probe finds out how a server normalises its losses."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.engine.wire_model import KEY, running_server

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "probe_service.py"


@pytest.fixture(scope="module")
def probe():
    spec = importlib.util.spec_from_file_location("probe_service", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("normalisation", "ignore"), [("total_samples", "false"), ("active_tokens", "true"), ("none", "false")]
)
def test_the_denominator_is_recovered(probe, model, tmp_path, isolated_home, capsys, normalisation, ignore):
    figures = tmp_path / "figures.json"
    with running_server(model, tmp_path / "engine", normalisation=normalisation) as url:
        command = ["--base-model", "small", "--base-url", url, "--api-key", KEY, "--json", str(figures)]
        assert probe.main([*command, "--losses", "ppo"]) == 0
    printed = capsys.readouterr().out
    assert f"model.engine.normalisation={normalisation}\n" in printed
    assert f"ppo.ignore_unsampled_targets={ignore} " in printed
    report = json.loads(figures.read_text())
    assert report["outputs"] == {
        "names": ["logprobs"],
        "logprobs_per_target": True,
        "logprob_of_ignored_targets": 0.0,
    }
    assert all(report["sampling"].values())


def test_logprobs_serve_where_no_gradient_norm_is_returned(probe, model, tmp_path, isolated_home, monkeypatch):
    from retool.engine.trainer import Trainer

    step = Trainer.optim_step
    monkeypatch.setattr(Trainer, "optim_step", lambda self, adam: {"skipped": step(self, adam)["skipped"]})
    with running_server(model, tmp_path / "engine") as url:
        command = ["--base-model", "small", "--base-url", url, "--api-key", KEY, "--losses", "importance_sampling"]
        figures = tmp_path / "figures.json"
        assert probe.main([*command, "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())["losses"]["importance_sampling"]
    assert found["denominator"] == "mean over samples"
    assert "shift" in found["gradient_from"]


def test_without_a_key_it_says_so(probe, isolated_home, capsys):
    assert probe.main(["--base-model", "m", "--base-url", "http://127.0.0.1:9"]) == 1
    assert "no API key" in capsys.readouterr().err


def test_ratios_that_fit_nothing_are_unknown(probe):
    ratios = {"twice": 1.5, "blank": 1.0, "blank_ignored": 1.0, "tail": 1.0, "tail_ignored": 1.0}
    assert probe.classify(ratios) == "unknown"
