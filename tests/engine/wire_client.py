"""A bare client of the wire protocol, in process: what the SDK sends, and what it would never send."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import msgpack
from starlette.testclient import TestClient

from retool.engine.wire.app import build_app
from retool.engine.wire.service import Service, ServiceSettings
from tests.engine.fake_engine import FakeEngine

KEY = "secret-key"
API = "/api/openapi/v1"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LORA = {"lora_rank": 8, "train_mlp": True, "train_attn": True, "train_unembed": False, "seed": 3}


def event_id() -> str:
    return "event_" + "".join(secrets.choice(_ALPHABET) for _ in range(12))


class WireClient:
    """One session with one server; `engine` and `service` are open for inspection."""

    def __init__(self, engine_dir: Path, engine: FakeEngine | None = None, **settings: object) -> None:
        self.engine = engine or FakeEngine()
        options = {"api_key": KEY, "engine_dir": engine_dir, "names": ("tiny",), **settings}
        self.service = Service(self.engine, ServiceSettings(**options))
        self.http = TestClient(build_app(self.service), headers={"X-API-Key": KEY})
        self.http.__enter__()
        self.session = self.post(f"{API}/service-sessions", {"sdk_version": "0.2.9"})["service_session_cuid"]

    def close(self) -> None:
        self.engine.gate.set()
        self.engine.sample_gate.set()
        self.http.__exit__(None, None, None)
        self.engine.close()

    def post(self, path: str, body: Mapping[str, object]) -> dict:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def training_run(self, **fields: object) -> str:
        body = {"base_model": "tiny", **LORA, **fields}
        return self.post(f"{API}/service-sessions/{self.session}/training-runs", body)["training_run_cuid"]

    def sampling_run(self, uri: str = "") -> httpx.Response:
        body = {"base_model": "tiny", "source_checkpoint_uri": uri}
        return self.http.post(f"{API}/service-sessions/{self.session}/sampling-runs", json=body)

    def submit(self, run: str, index: int, kind: str, payload: Mapping[str, object], name: str = "") -> httpx.Response:
        metadata = {"index": index, "step": 0, "timestamp": 0, "sdk": "t", "sdk_version": "0", "run_id": run}
        envelope = {
            "version": 1,
            "event_id": name or event_id(),
            "type": f"trainer.{kind}",
            "metadata": metadata,
            "payload": payload,
        }
        return self.http.post("/v1/events", content=msgpack.packb(envelope))

    def poll(self, name: str, wait: int = 20) -> dict:
        response = self.http.get(f"/v1/events/{name}", headers={"Prefer": f"wait={wait}"})
        assert response.status_code == 200, response.text
        return msgpack.unpackb(response.content)

    def event(self, run: str, index: int, kind: str, payload: Mapping[str, object]) -> dict:
        """Submits an event and waits for its end."""
        name = event_id()
        response = self.submit(run, index, kind, payload, name)
        assert response.status_code == 200, response.text
        return self.poll(name)

    def init(self, run: str, uri: str | None = None) -> dict:
        lora = {"rank": 8, "train_mlp": True, "train_attn": True, "train_unembed": False, "seed": 3}
        payload = {"base_model": "tiny", "lora_config": lora, "load_optimizer": False}
        return self.event(run, 1, "init_run", payload | ({"checkpoint_uri": uri} if uri else {}))

    def save(self, run: str, index: int, kind: str = "save_state", **fields: object) -> dict:
        return self.event(run, index, kind, {"name": f"save-{index}", **fields})

    def sample(self, run: str, prompt: Sequence[int] = (1, 2), **params: object) -> httpx.Response:
        body = {
            "request_id": "r",
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
            "sampling_params": {"max_tokens": 8, **params},
        }
        return self.http.post(f"/v1/sampling-runs/{run}/sample", json=body)


def batch(tokens: Sequence[int] = (1, 2, 3), targets: Sequence[int] = (2, 3, 4), **fields: object) -> dict[str, object]:
    """Payload of a cross-entropy forward."""
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": list(tokens)}]}, "target_ids": list(targets)}
    return {
        "data": [datum],
        "auto_shift": False,
        "loss": {"type": "cross_entropy", "config": {}},
        "gradient_accumulation": {"total_samples": 1, "total_active_tokens": 3, "total_advantage_tokens": 0},
        **fields,
    }


ADAM = {
    "adam_params": {
        "learning_rate": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    }
}
