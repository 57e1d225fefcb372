"""Checkpoints on disk and weights in memory: addresses, overwriting, restarts, copies, expiry, bounded memory."""

import io
import shutil
import threading
import time
import zipfile
from datetime import timedelta

import pytest

from retool.engine.types import LoraSpec
from retool.engine.wire import checkpoints
from retool.engine.wire.checkpoints import CheckpointKind, CheckpointRegistry
from retool.engine.wire.errors import ApiError
from tests.engine.wire_client import ADAM, API, LORA, WireClient, batch


@pytest.fixture
def wire(tmp_path):
    client = WireClient(tmp_path / "engine", temporary_per_run=2)
    yield client
    client.close()


@pytest.fixture
def run(wire):
    run = wire.training_run()
    wire.init(run)
    return run


def uri_of(reply) -> str:
    assert reply["status"] == "succeeded", reply
    return reply["result"]["checkpoint"]["uri"]


def by_uri(wire, uri):
    return wire.http.get(f"{API}/training-runs/by-checkpoint-uri", params={"checkpoint_uri": uri})


def test_a_saved_state_is_a_directory_with_its_address(wire, run, tmp_path):
    reply = wire.save(run, 2)
    assert reply["result"]["checkpoint"] == {
        "uri": f"trio://{run}/weights/save-2",
        "model_id": "/models/fake",
        "size_bytes": 7,
    }
    directory = tmp_path / "engine" / "checkpoints" / run / "weights" / "save-2"
    assert sorted(path.name for path in directory.iterdir()) == ["checkpoint.json", "optimizer", "steps"]
    found = by_uri(wire, uri_of(reply)).json()
    assert found == {"base_model": "/models/fake", **LORA}


def test_state_and_weights_may_share_a_name(wire, run):
    state = uri_of(wire.save(run, 2, name="final"))
    weights = uri_of(wire.save(run, 3, "save_weights", name="final"))
    assert (state, weights) == (f"trio://{run}/weights/final", f"trio://{run}/sampler_weights/final")


def test_a_name_is_overwritten_only_on_request(wire, run):
    wire.save(run, 2, name="last")
    taken = wire.save(run, 3, name="last")
    assert taken["error"]["code"] == "checkpoint_exists"
    wire.event(run, 4, "forward_backward", batch())
    wire.event(run, 5, "optimize_step", ADAM)
    uri = uri_of(wire.save(run, 6, name="last", overwrite=True))
    assert (wire.service.checkpoints.resolve(uri).directory / "steps").read_text() == "1"


def test_a_failed_save_leaves_the_older_checkpoint_and_no_rubbish(wire, run, tmp_path):
    uri = uri_of(wire.save(run, 2, name="last"))
    wire.engine.failure = OSError(28, "No space left on device")
    reply = wire.save(run, 3, name="last", overwrite=True)
    assert (reply["status"], "No space left" in reply["error"]["message"]) == ("failed", True)
    assert by_uri(wire, uri).status_code == 200
    assert [path.name for path in (tmp_path / "engine/checkpoints" / run / "weights").iterdir()] == ["last"]


def test_a_copied_directory_resumes_in_another_server(wire, run, tmp_path):
    wire.event(run, 2, "forward_backward", batch())
    wire.event(run, 3, "optimize_step", ADAM)
    uri = uri_of(wire.save(run, 4))
    shutil.copytree(tmp_path / "engine", tmp_path / "copy")
    other = WireClient(tmp_path / "copy")
    try:
        resumed = other.training_run(base_model="", source_checkpoint_uri=uri, restore_optimizer=True)
        assert resumed != run
        assert other.init(resumed, uri)["status"] == "succeeded"
        ((_, lora, directory, load_optimizer),) = other.engine.named("create_run")
        assert lora == LoraSpec(rank=8, train_unembed=False, seed=3)
        assert directory == tmp_path / "copy" / "checkpoints" / run / "weights" / "save-4"
        assert load_optimizer
        other.event(resumed, 2, "forward_backward", batch())
        step = other.event(resumed, 3, "optimize_step", ADAM)
        assert step["result"]["metrics"]["steps"] == 2
    finally:
        other.close()


def test_load_state_rebinds_a_run_before_it_begins(wire, run):
    uri = uri_of(wire.save(run, 2))
    fresh = wire.training_run()
    path = f"{API}/service-sessions/{wire.session}/training-runs"
    body = {"source_checkpoint_uri": uri, "restore_optimizer": False}
    assert wire.http.patch(f"{path}/{fresh}", json=body).json()["source_checkpoint_uri"] == uri
    assert wire.init(fresh)["error"]["code"] == "run_mismatch", "the event must name the same checkpoint"
    begun = wire.http.patch(f"{path}/{run}", json=body)
    assert (begun.status_code, begun.json()["code"]) == (409, "training_run_started")
    other_shape = wire.training_run(lora_rank=16)
    assert wire.http.patch(f"{path}/{other_shape}", json=body).json()["code"] == "checkpoint_mismatch"


def test_optimizer_state_is_not_sought_in_sampler_weights(wire, run):
    uri = uri_of(wire.save(run, 2, "save_weights"))
    body = {"base_model": "", **LORA, "source_checkpoint_uri": uri, "restore_optimizer": True}
    reply = wire.http.post(f"{API}/service-sessions/{wire.session}/training-runs", json=body)
    assert (reply.status_code, reply.json()["code"]) == (409, "checkpoint_without_optimizer")


@pytest.mark.parametrize(
    "uri",
    [
        "trio://x/weights/y",
        "trio://../weights/y",
        "trio://x/weights/..",
        "trio://x/other/y",
        "s3://x",
        "file:///etc",
        "",
    ],
)
def test_addresses_that_lead_nowhere(wire, uri):
    reply = by_uri(wire, uri)
    assert reply.status_code in (400, 404)
    assert reply.json()["code"] in ("checkpoint_not_found", "invalid_checkpoint_uri")


def test_file_addresses_where_allowed(wire, run, tmp_path):
    uri_of(wire.save(run, 2, name="final"))
    directory = tmp_path / "engine" / "checkpoints" / run / "weights" / "final"
    other = WireClient(tmp_path / "other", allow_file_uris=True)
    try:
        assert by_uri(other, directory.as_uri()).json()["lora_rank"] == 8
        assert by_uri(other, tmp_path.as_uri()).json()["code"] == "checkpoint_not_found"
    finally:
        other.close()


def test_weights_of_another_base_model_are_refused(wire, run, tmp_path):
    wire.engine.model_alias = "renamed"
    uri = uri_of(wire.save(run, 2))
    other = WireClient(tmp_path / "engine", names=("another",))
    try:
        other.service.names = ("another",)
        assert by_uri(other, uri).json()["code"] == "checkpoint_mismatch"
    finally:
        other.close()


def test_saved_weights_are_loaded_by_the_first_sample_and_stay_what_they_were(wire, run):
    uri = uri_of(wire.save(run, 2, "save_weights", name="w"))
    sampler = wire.sampling_run(uri).json()["sampling_run_cuid"]
    assert wire.engine.named("load_adapter") == []
    assert wire.sample(sampler).status_code == 200
    wire.save(run, 3, "save_weights", name="w", overwrite=True)
    newer = wire.sampling_run(uri).json()["sampling_run_cuid"]
    wire.sample(newer)
    wire.sample(sampler)
    adapters = [request.adapter for _, request in wire.engine.named("sample")]
    assert adapters[0] == adapters[2] != adapters[1]
    assert len(wire.engine.named("load_adapter")) == 2


def test_only_a_few_saved_weights_stay_loaded_and_others_come_back(wire, run):
    samplers = []
    for index in range(6):
        uri = uri_of(wire.save(run, 2 + index, "save_weights"))
        samplers.append(wire.sampling_run(uri).json()["sampling_run_cuid"])
        assert wire.sample(samplers[-1]).status_code == 200
    wire.engine.settle()
    assert len(wire.engine.adapters) == 4
    assert wire.sample(samplers[0]).status_code == 200
    assert len(wire.engine.named("load_adapter")) == 7


def test_temporary_weights_are_in_memory_and_few(wire, run, tmp_path):
    samplers = []
    for index in range(4):
        uri = uri_of(wire.save(run, 2 + index, "save_weights", visibility="TEMPORARY", ttl_seconds=60))
        samplers.append(wire.sampling_run(uri).json()["sampling_run_cuid"])
    wire.engine.settle()
    assert len(wire.engine.adapters) == 2
    assert not (tmp_path / "engine" / "checkpoints" / run).exists()
    assert [wire.sample(sampler).status_code for sampler in samplers] == [404, 404, 200, 200]
    assert wire.sample(samplers[0]).json()["code"] == "weights_not_found"
    assert wire.sampling_run(f"trio://{run}/temporary/save-2").json()["code"] == "weights_not_found"


def test_weights_in_use_are_kept_whatever_comes(wire, run):
    uri = uri_of(wire.save(run, 2, "save_weights", visibility="TEMPORARY"))
    sampler = wire.sampling_run(uri).json()["sampling_run_cuid"]
    wire.engine.sample_gate.clear()
    replies = []
    thread = threading.Thread(target=lambda: replies.append(wire.sample(sampler).status_code))
    thread.start()
    while not wire.service.adapters._temporary[uri].in_flight:
        time.sleep(0.01)
    for index in range(5):
        wire.save(run, 3 + index, "save_weights", visibility="TEMPORARY")
    wire.engine.settle()
    assert uri in wire.engine.adapters
    wire.engine.sample_gate.set()
    thread.join(20)
    assert replies == [200]


def test_temporary_weights_expire(wire, run):
    uri = uri_of(wire.save(run, 2, "save_weights", visibility="TEMPORARY", ttl_seconds=60))
    wire.service.adapters._temporary[uri].expires_at = time.monotonic()
    wire.http.portal.call(wire.service.sweep)
    wire.engine.settle()
    assert wire.engine.adapters == set()
    assert wire.sampling_run(uri).status_code == 404


def test_checkpoints_with_a_time_to_live_expire(wire, run, tmp_path, monkeypatch):
    uri = uri_of(wire.save(run, 2, ttl_seconds=60))
    keep = uri_of(wire.save(run, 3))

    class Later(checkpoints.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(seconds=61)

    monkeypatch.setattr(checkpoints, "datetime", Later)
    assert by_uri(wire, uri).status_code == 404
    wire.http.portal.call(wire.service.sweep)
    assert [path.name for path in (tmp_path / "engine/checkpoints" / run / "weights").iterdir()] == ["save-3"]
    assert by_uri(wire, keep).status_code == 200


def test_listing_deleting_and_downloading(wire, run):
    wire.save(run, 2)
    wire.save(run, 3, "save_weights")
    listed = wire.http.get(f"{API}/checkpoints", params={"limit": 10, "offset": 0}).json()["checkpoints"]
    assert [item["checkpoint_type"] for item in listed] == ["TRAINING", "SAMPLER"]
    of_run = wire.http.get(f"{API}/training-runs/{run}/checkpoints").json()
    assert of_run["cursor"]["total"] == 2
    identifier = listed[0]["checkpoint_cuid"]
    url = wire.http.get(f"{API}/checkpoints/{identifier}/download-url").json()["url"]
    wire.http.headers.pop("X-API-Key")
    whole = wire.http.get(url)
    with zipfile.ZipFile(io.BytesIO(whole.content)) as archive:
        assert sorted(archive.namelist()) == ["checkpoint.json", "optimizer", "steps"]
    part = wire.http.get(url, headers={"Range": "bytes=10-"})
    assert (part.status_code, part.content) == (206, whole.content[10:])
    assert part.headers["content-range"] == f"bytes 10-{len(whole.content) - 1}/{len(whole.content)}"
    beyond = wire.http.get(url, headers={"Range": f"bytes={len(whole.content)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(whole.content)}")
    assert wire.http.get(url.replace("signature=", "signature=0")).status_code == 401
    assert wire.http.get(url.replace(identifier, listed[1]["checkpoint_cuid"])).status_code == 401
    wire.http.headers["X-API-Key"] = "secret-key"
    assert wire.http.delete(f"{API}/checkpoints/{identifier}").status_code == 200
    assert wire.http.delete(f"{API}/checkpoints/{identifier}").status_code == 404
    assert wire.http.get(f"{API}/training-runs/{run}/checkpoints").json()["cursor"]["total"] == 1


def test_a_start_clears_what_a_crash_left(tmp_path):
    registry = CheckpointRegistry(tmp_path)
    for name in ("kept", "half-replaced"):
        draft = registry.draft("train-1", CheckpointKind.STATE, name, overwrite=False)
        draft.staging.mkdir()
        registry.publish(draft, base_model="m", lora=LoraSpec(4), size_bytes=1, ttl_seconds=None)
    kind = tmp_path / "checkpoints" / "train-1" / "weights"
    (kind / "half-replaced").rename(kind / ".replaced-half-replaced")
    (kind / ".staging-abc").mkdir()
    (kind / "no-description").mkdir()
    registry = CheckpointRegistry(tmp_path)
    assert [checkpoint.name for checkpoint in registry.all()] == ["kept", "half-replaced"]
    assert not (kind / ".staging-abc").exists()
    with pytest.raises(ApiError, match="no checkpoint"):
        registry.resolve("trio://train-1/weights/no-description")
