"""The server around the handlers: keys, limits, faults, control plane, sampling."""

import threading

import pytest

from retool.engine.types import EngineError
from tests.engine.wire_client import API, KEY, LORA, WireClient


@pytest.fixture
def wire(tmp_path):
    client = WireClient(tmp_path)
    yield client
    client.close()


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "é"}])
@pytest.mark.parametrize("path", ["/", f"{API}/api-key/verify", "/v1/events/x", "/api/telemetry/event", "/nowhere"])
def test_everything_but_health_wants_the_key(wire, headers, path):
    wire.http.headers.pop("X-API-Key")
    reply = wire.http.get(path, headers={name: value.encode("latin-1") for name, value in headers.items()})
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized")
    assert KEY not in reply.text
    assert wire.http.get("/health").json() == {"status": "ok"}


def test_the_key_is_taken_from_either_header(wire):
    wire.http.headers.pop("X-API-Key")
    for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        assert wire.http.get(f"{API}/api-key/verify", headers=headers).status_code == 200


def test_a_forged_run_token_is_refused(wire):
    wire.http.headers.pop("X-API-Key")
    token = wire.service.keyring.issue("train-1")
    assert wire.service.keyring.subject(token) == "train-1"
    forged = token.replace("train-1", "train-2")
    reply = wire.http.post("/v1/client/heartbeat", json={}, headers={"Authorization": f"Bearer {forged}"})
    assert reply.status_code == 401


def test_large_bodies_are_refused(tmp_path):
    client = WireClient(tmp_path, max_body_bytes=1000)
    try:
        reply = client.http.post("/v1/events", content=b"x" * 1001)
        assert (reply.status_code, reply.json()["code"]) == (413, "body_too_large")
        chunked = client.http.post("/v1/events", content=iter([b"x" * 600, b"x" * 600]))
        assert (chunked.status_code, chunked.json()["code"]) == (413, "body_too_large")
    finally:
        client.close()


def test_faults_are_never_5xx(wire, monkeypatch, caplog):
    def broken(_session):
        raise RuntimeError("bug")

    monkeypatch.setattr(wire.service.store, "session", broken)
    reply = wire.http.get(f"{API}/service-sessions/x")
    assert (reply.status_code, reply.json()) == (400, {"code": "engine_fault", "message": "RuntimeError: bug"})
    assert "Traceback" in caplog.text


def test_unknown_paths_are_named(wire):
    reply = wire.http.get("/api/nothing")
    assert (reply.status_code, reply.json()["code"]) == (404, "unsupported_request")
    assert "/api/nothing" in reply.json()["message"]


def test_models_lists_alias_and_limits(wire):
    (model,) = wire.http.get("/api/models", params={"limit": 100, "offset": 0}).json()["items"]
    assert (model["alias"], model["model_id"]) == ("tiny", "/models/fake")
    assert model["trainer"]["max_seq_len"] == 64


@pytest.mark.parametrize("name", ["tiny", "fake", "/models/fake"])
def test_the_base_model_is_known_by_its_names(wire, name):
    assert wire.training_run(base_model=name).startswith("train-")


def test_an_unknown_base_model_names_those_served(wire):
    body = {"base_model": "Qwen/Other", **LORA}
    reply = wire.http.post(f"{API}/service-sessions/{wire.session}/training-runs", json=body)
    assert (reply.status_code, reply.json()["code"]) == (404, "model_not_found")
    assert "tiny" in reply.json()["message"]


def test_sessions_and_runs_can_be_looked_up(wire):
    run = wire.training_run()
    sampler = wire.sampling_run().json()["sampling_run_cuid"]
    session = wire.http.get(f"{API}/service-sessions/{wire.session}").json()
    assert (session["training_run_cuids"], session["sampling_run_cuids"]) == ([run], [sampler])
    assert wire.http.get(f"{API}/training-runs/{run}").json()["lora_rank"] == 8
    assert wire.http.get(f"{API}/sampling-runs/{sampler}").json()["source_checkpoint_uri"] is None
    page = wire.http.get(f"{API}/training-runs", params={"limit": 1, "offset": 0}).json()
    assert (len(page["training_runs"]), page["cursor"]["total"]) == (1, 1)
    assert wire.http.get(f"{API}/service-sessions").json()["cursor"]["total"] == 1
    for kind, name in (("training-runs", run), ("sampling-runs", sampler)):
        assert wire.post(f"{API}/{kind}/{name}/renew", {})["actor_jwt"]["token"].startswith(name)
    assert wire.http.get(f"{API}/training-runs/nope").status_code == 404
    assert wire.http.get(f"{API}/training-runs", params={"limit": "x"}).status_code == 422


def test_a_closed_session_takes_no_new_runs(wire):
    wire.post(f"{API}/service-sessions/{wire.session}/close", {"status": "CANCELLED"})
    reply = wire.sampling_run()
    assert (reply.status_code, reply.json()["code"]) == (409, "service_session_closed")


def test_sampling_the_base_model(wire):
    run = wire.sampling_run().json()["sampling_run_cuid"]
    reply = wire.sample(run, seed=11, stop_token_ids=[3], temperature=0.5, top_k=4, top_p=0.9).json()
    # The sampled stop token 3 stays among the tokens and is left out of the text: 5, 6 are "f", "g".
    assert reply["sequences"] == [
        {"tokens": [5, 6, 3], "text": "fg", "logprobs": [-0.5, -0.25, -0.125], "stop_reason": "stop"}
    ]
    assert reply["usage"] == {"input_tokens": 2, "output_tokens": 3}
    request = wire.engine.named("sample")[0][1]
    assert (request.seed, request.stop_token_ids, request.temperature) == (11, [3], 0.5)
    assert (request.top_k, request.top_p, request.adapter) == (4, 0.9, None)


def test_text_of_cut_and_string_stopped_samples(wire):
    run = wire.sampling_run().json()["sampling_run_cuid"]
    assert wire.sample(run, max_tokens=2).json()["sequences"][0]["text"] == "fg"
    assert wire.sample(run, stop=["g"]).json()["sequences"][0]["text"] == "f"


def test_sample_failures_are_4xx_with_code(wire):
    run = wire.sampling_run().json()["sampling_run_cuid"]
    assert wire.sample("sample-x").json()["code"] == "sampling_run_not_found"
    assert wire.sample(run, max_tokens=0).status_code == 422
    assert wire.sample(run, top_p=0).status_code == 422

    def refuse(_request):
        raise EngineError("sequence_too_long", "too long")

    wire.engine.sample = refuse
    reply = wire.sample(run)
    assert (reply.status_code, reply.json()) == (400, {"code": "sequence_too_long", "message": "too long"})


def test_samples_are_concurrent(wire):
    run = wire.sampling_run().json()["sampling_run_cuid"]
    wire.engine.sample_gate.clear()
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(wire.sample(run).status_code)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert wire.http.get("/health").status_code == 200
    wire.engine.sample_gate.set()
    for thread in threads:
        thread.join(20)
    assert replies == [200] * 8
