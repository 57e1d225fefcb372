"""A small random model and a client of an engine that serves it from a process of its own."""

import pytest

from tests.engine.wire_model import build_model

ENGINE = {"device": "cpu", "max_batch_rows": 8}
LORA = {"rank": 8, "train_mlp": True, "train_attn": True, "train_unembed": True}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("policy-model"))


@pytest.fixture
def isolated_home(tmp_path, monkeypatch):
    """A user without credentials, whose environment says nothing about the service."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("PYTRIO_API_KEY", "PYTRIO_BASE_URL", "PYTRIO_ENV", "PYTRIO_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    return home
