"""Events of training runs over the bare protocol: order, idempotency, long polling, failures, memory."""

import threading
import time

import msgpack
import numpy as np
import pytest

from retool.engine.types import EngineError
from retool.engine.wire.events import Event
from retool.engine.wire.protocol import EventType
from tests.engine.wire_client import ADAM, WireClient, batch, event_id


@pytest.fixture
def wire(tmp_path):
    client = WireClient(tmp_path)
    yield client
    client.close()


@pytest.fixture
def run(wire):
    run = wire.training_run()
    assert wire.init(run)["status"] == "succeeded"
    return run


def test_forward_returns_tensors_and_exactly_three_metrics(wire, run):
    reply = wire.event(run, 2, "forward_backward", batch())
    assert reply["status"] == "succeeded"
    # Targets 2, 3, 4 of the fake engine have logprobs -0.2, -0.3, -0.4.
    assert reply["result"]["metrics"] == pytest.approx({"loss_sum": 0.9, "loss_mean": 0.3, "token_count": 3})
    tensor = reply["result"]["loss_fn_outputs"][0]["logprobs"]
    assert (tensor["dtype"], tensor["shape"], tensor["encoding"]) == ("<f4", [3], "raw_le")
    np.testing.assert_allclose(np.frombuffer(tensor["data"], "<f4"), [-0.2, -0.3, -0.4])
    assert reply["usage"] == {"input_tokens": 3, "output_tokens": 0, "train_tokens": 3}


def test_auto_shift_predicts_the_next_label(wire, run):
    datum = batch(targets=(1, 2, 3))["data"][0] | {"weights": [1.0, 1.0, 0.5]}
    reply = wire.event(run, 2, "forward", batch(data=[datum], auto_shift=True))
    sample = wire.engine.named("forward")[0][1][0]
    # Labels 1, 2, 3 of tokens 1, 2, 3: token 1 predicts label 2, token 2 predicts 3, token 3 predicts nothing.
    assert (sample.target_ids, sample.weights) == ([2, 3, -100], [1.0, 0.5, 0.0])
    tensor = reply["result"]["loss_fn_outputs"][0]["logprobs"]
    # Returned per label: the first has no prediction.
    np.testing.assert_allclose(np.frombuffer(tensor["data"], "<f4"), [0, -0.2, -0.3])


def test_events_run_in_the_order_of_their_index(wire, run):
    late, early = event_id(), event_id()
    assert wire.submit(run, 3, "optimize_step", ADAM, late).status_code == 200
    assert wire.poll(late, wait=0)["status"] == "accepted"
    wire.submit(run, 2, "forward_backward", batch(), early)
    assert wire.poll(late)["status"] == "succeeded"
    assert [call[0] for call in wire.engine.calls] == ["create_run", "forward", "optim_step"]


def test_an_event_whose_predecessor_never_comes_fails(wire, run):
    wire.service.store.training_run(run).queue._gap_timeout_s = 0.05
    name = event_id()
    wire.submit(run, 5, "optimize_step", ADAM, name)
    reply = wire.poll(name)
    assert (reply["status"], reply["error"]["code"]) == ("failed", "event_missing")


def test_a_repeated_submission_is_recognised(wire, run):
    name = event_id()
    assert wire.submit(run, 2, "optimize_step", ADAM, name).status_code == 200
    repeated = wire.submit(run, 2, "optimize_step", ADAM, name)
    assert (repeated.status_code, repeated.json()["code"]) == (409, "event_exists")
    other = wire.submit(run, 2, "optimize_step", ADAM)
    assert (other.status_code, other.json()["code"]) == (409, "event_index_taken")
    wire.poll(name)
    assert len(wire.engine.named("optim_step")) == 1


def test_a_question_is_held_until_the_event_ends(wire, run):
    name = event_id()
    wire.engine.gate.clear()
    wire.submit(run, 2, "optimize_step", ADAM, name)
    assert wire.poll(name, wait=0)["status"] == "running"
    threading.Timer(0.2, wire.engine.gate.set).start()
    assert wire.poll(name, wait=20)["status"] == "succeeded"


def test_engine_errors_become_failed_events(wire, run):
    wire.engine.failure = EngineError("out_of_memory", "too large")
    reply = wire.event(run, 2, "forward", batch())
    assert reply["status"] == "failed"
    assert reply["error"] == {"code": "out_of_memory", "message": "too large"}
    wire.engine.failure = ZeroDivisionError("bug")
    reply = wire.event(run, 3, "forward", batch())
    assert reply["error"] == {"code": "engine_fault", "message": "ZeroDivisionError: bug"}


def test_a_refused_batch_costs_one_step(wire, run):
    assert wire.event(run, 2, "forward_backward", batch(data=[]))["status"] == "failed"
    reply = wire.event(run, 3, "optimize_step", ADAM)
    assert (reply["status"], reply["error"]["code"]) == ("failed", "gradients_incomplete")
    assert "at least 1 item" in reply["error"]["message"]
    assert wire.engine.named("optim_step") == []
    assert wire.event(run, 4, "forward_backward", batch())["status"] == "succeeded"
    assert wire.event(run, 5, "optimize_step", ADAM)["status"] == "succeeded"


def test_no_step_is_made_on_the_gradients_of_half_a_batch(wire, run):
    assert wire.event(run, 2, "forward_backward", batch())["status"] == "succeeded"
    wire.engine.failure = EngineError("out_of_memory", "too large")
    assert wire.event(run, 3, "forward_backward", batch())["error"] == {"code": "out_of_memory", "message": "too large"}
    reply = wire.event(run, 4, "optimize_step", ADAM)
    assert (reply["status"], reply["error"]["code"]) == ("failed", "gradients_incomplete")
    assert "too large" in reply["error"]["message"]
    assert wire.engine.named("optim_step") == []
    assert wire.engine.named("drop_gradients") == [("drop_gradients", run)]
    assert wire.event(run, 5, "forward_backward", batch())["status"] == "succeeded"
    assert wire.event(run, 6, "optimize_step", ADAM)["status"] == "succeeded"


@pytest.mark.parametrize(
    ("kind", "payload", "code"),
    [
        ("forward", batch(loss={"type": "hinge", "config": {}}), "invalid_request"),
        ("forward", batch(data=[]), "invalid_request"),
        ("forward", {"unknown": 1}, "invalid_request"),
        ("optimize_step", {"adam_params": ADAM["adam_params"] | {"learning_rate": float("nan")}}, "invalid_request"),
        ("save_state", {"name": "../../etc"}, "invalid_request"),
        ("init_run", {}, "invalid_request"),
    ],
)
def test_what_a_client_gets_wrong_is_a_failed_event_that_says_so(wire, run, kind, payload, code):
    reply = wire.event(run, 2, kind, payload)
    assert (reply["status"], reply["error"]["code"]) == ("failed", code)


def test_images_are_refused(wire, run):
    image = {"type": "image", "data": b"x", "format": "png"}
    datum = {"model_input": {"chunks": [image]}, "target_ids": [1]}
    assert wire.event(run, 2, "forward", batch(data=[datum]))["error"]["code"] == "images_not_supported"


def test_the_first_event_must_initialise(wire):
    run = wire.training_run()
    assert wire.event(run, 1, "optimize_step", ADAM)["error"]["code"] == "run_not_initialised"


def test_events_of_unknown_runs_and_garbage_are_4xx(wire):
    unknown = wire.submit("train-x", 1, "optimize_step", ADAM)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "training_run_not_found")
    assert "last checkpoint" in unknown.json()["message"]
    garbage = wire.http.post("/v1/events", content=b"\xc1garbage")
    assert garbage.status_code == 400
    missing = wire.http.post("/v1/events", content=msgpack.packb({"version": 1}))
    assert (missing.status_code, missing.json()["code"]) == (422, "invalid_request")
    assert wire.http.get(f"/v1/events/{event_id()}").status_code == 404


def test_results_are_dropped_after_they_were_fetched(wire, run):
    name = event_id()
    wire.submit(run, 2, "forward", batch(), name)
    assert wire.poll(name)["status"] == "succeeded"
    assert wire.poll(name)["status"] == "succeeded", "a lost reply can be fetched again"
    wire.service.ledger._keep_fetched_s = 0
    time.sleep(0.01)
    wire.service.ledger.sweep()
    gone = wire.http.get(f"/v1/events/{name}")
    assert (gone.status_code, gone.json()["code"]) == (410, "event_result_expired")
    assert wire.submit(run, 2, "forward", batch(), name).json()["code"] == "event_exists"


def test_closing_the_session_frees_runs_weights_and_queued_events(wire, run):
    wire.save(run, 2, "save_weights", visibility="TEMPORARY", ttl_seconds=60)
    wire.engine.gate.clear()
    running, queued = event_id(), event_id()
    wire.submit(run, 3, "optimize_step", ADAM, running)
    wire.submit(run, 4, "optimize_step", ADAM, queued)
    wire.post(f"/api/openapi/v1/service-sessions/{wire.session}/close", {"status": "ENDED"})
    assert wire.poll(queued)["error"]["code"] == "run_ended"
    assert run in wire.engine.runs, "not while an event of it is running"
    wire.engine.gate.set()
    assert wire.poll(running)["status"] == "succeeded"
    wire.http.get("/health")
    wire.engine.settle()
    assert (wire.engine.runs, wire.engine.adapters) == ({}, set())
    assert wire.submit(run, 5, "optimize_step", ADAM).json()["code"] == "run_ended"


def test_a_silent_session_is_freed_and_later_forgotten(wire, run):
    session = wire.service.store.session(wire.session)
    session.seen -= wire.service.settings.idle_session_s + 1
    wire.http.portal.call(wire.service.sweep)
    wire.http.get("/health")
    wire.engine.settle()
    assert (session.status, wire.engine.runs) == ("ENDED", {})
    wire.http.portal.call(wire.service.sweep)
    assert wire.session not in wire.service.store.sessions
    assert run not in wire.service.store.training_runs


def test_heartbeats_keep_a_session_alive(wire, run):
    session = wire.service.store.session(wire.session)
    session.seen -= 1000
    token = wire.service.keyring.issue(run)
    wire.http.headers.pop("X-API-Key")
    reply = wire.http.post("/v1/client/heartbeat", json={}, headers={"Authorization": f"Bearer {token}"})
    assert reply.json()["heartbeat_ms"] > 0
    assert time.monotonic() - session.seen < 900


async def test_a_stopping_server_answers_those_who_wait():
    from retool.engine.wire.events import EventLedger

    ledger = EventLedger()
    event = Event(event_id(), EventType.OPTIMIZE_STEP, "train-1", 1)
    ledger.add(event)
    ledger.close()
    assert msgpack.unpackb(await ledger.wait(event, 100))["status"] == "accepted"
