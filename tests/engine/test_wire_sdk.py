"""The unmodified SDK against a server with a real engine on a small random model."""

import zipfile

import numpy as np
import pytest
import pytrio as trio
from pytrio.errors.base import PyTrioError

from tests.engine.wire_model import END, KEY, build_model, running_server

LEARN = trio.AdamParams(learning_rate=0.02)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with running_server(model, tmp_path_factory.mktemp("engine")) as url:
        yield url


def connect(url, home, key=KEY):
    trio.configure_observability(enabled=False)
    trio.configure(home=str(home), base_url=url, api_key=key, control_retry_timeout_seconds=2, log_level="ERROR")
    return trio.ServiceClient()


@pytest.fixture
def service(server, tmp_path):
    service = connect(server, tmp_path)
    yield service
    service._runtime.shutdown()


def supervised(prompt, completion):
    """All tokens but the last predict the next; only the completion counts."""
    tokens = [*prompt, *completion]
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(completion)
    return trio.Datum(
        model_input=trio.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


def test_quickstart_train_then_sample(service):
    training = service.create_lora_training_client("small", rank=8, seed=1)
    datum = supervised([5, 6, 7], [8, 9, END])
    losses = []
    for _ in range(12):
        forward = training.forward_backward([datum], "cross_entropy")
        step = training.optim_step(LEARN)
        result = forward.result()
        losses.append(result.metrics["loss_sum"])
        assert step.result().metrics["grad_norm"] > 0
    assert result.metrics["token_count"] == 5
    assert len(result.loss_fn_outputs[0]["logprobs"].data) == 5
    assert losses[-1] < 0.5 < losses[0]
    sampler = training.save_weights_and_get_sampling_client()
    params = trio.SamplingParams(max_tokens=8, temperature=0.0, seed=1)
    (sequence,) = sampler.sample(trio.ModelInput.from_ints([5, 6, 7]), sampling_params=params).result().sequences
    # Greedy decoding gives what was trained; the end token stays among the tokens and is left out of the text.
    assert (sequence.tokens, sequence.stop_reason) == ([8, 9, END], "stop")
    assert sequence.text == "t8 t9"
    assert len(sequence.logprobs) == 3
    assert training.get_tokenizer().decode([8]) == "t8"


async def test_rollouts_in_policy_update_out(service):
    training = await service.create_lora_training_client_async("small", rank=8, seed=2)
    prompt = [3, 4]
    params = trio.SamplingParams(max_tokens=6, temperature=1.0, seed=3, stop=[END])

    async def rollouts():
        sampler = await training.save_weights_and_get_sampling_client_async()
        response = await sampler.sample_async(trio.ModelInput.from_ints(prompt), 16, params)
        return response.sequences

    def reward(sequence):
        return sum(token < 32 for token in sequence.tokens) / len(sequence.tokens)

    rewards = []
    for _ in range(12):
        sequences = await rollouts()
        values = np.array([reward(sequence) for sequence in sequences])
        rewards.append(values.mean())
        data = []
        for sequence, advantage in zip(sequences, values - values.mean(), strict=True):
            tokens = [*prompt, *sequence.tokens]
            blank = [0.0] * (len(prompt) - 1)
            inputs = {
                "target_tokens": tokens[1:],
                "logprobs": [*blank, *sequence.logprobs],
                "advantages": [*blank, *[float(advantage)] * len(sequence.tokens)],
            }
            data.append(trio.Datum(model_input=trio.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
        forward = await training.forward_backward_async(data, "importance_sampling")
        step = await training.optim_step_async(trio.AdamParams(learning_rate=0.02))
        output = await forward
        await step
        # On policy: the trainer's logprobs are the sampler's.
        new = np.concatenate([out["logprobs"].data[len(prompt) - 1 :] for out in output.loss_fn_outputs])
        old = np.concatenate([sequence.logprobs for sequence in sequences])
        np.testing.assert_allclose(new, old, atol=1e-4)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1


def test_a_split_batch_gives_the_same_update(model, tmp_path):
    data = [supervised([5, 6, 7 + i], [8 + i] * (i + 1)) for i in range(5)]
    results = []
    for limit in (262_144, 12):
        with running_server(model, tmp_path / str(limit), max_tokens_per_request=limit) as url:
            service = connect(url, tmp_path)
            # The SDK splits by these limits; sequences here have at most 256 tokens, so lower them for the test alone.
            training = service.create_lora_training_client("small", rank=8, seed=1)
            training._limits = type(training._limits)(None, limit, 256)
            metrics = training.forward_backward(data, "cross_entropy").result().metrics
            norm = training.optim_step(LEARN).result().metrics["grad_norm"]
            results.append((metrics["loss_sum"], metrics["token_count"], norm))
            service._runtime.shutdown()
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_custom_loss(service):
    training = service.create_lora_training_client("small", rank=8, seed=1)
    datum = supervised([5, 6], [7, 8])

    def loss(data, logprobs):
        total = -sum(values[-2:].sum() for values in logprobs)
        return total, {"mine": total.item()}

    first = training.forward_backward_custom([datum], loss).result().metrics["mine"]
    training.optim_step(LEARN).result()
    assert training.forward_backward_custom([datum], loss).result().metrics["mine"] < first


def test_restart_and_resume_equal_an_uninterrupted_run(model, tmp_path):
    datum = supervised([5, 6, 7], [8, 9, END])

    def steps(training, count):
        losses = []
        for _ in range(count):
            forward = training.forward_backward([datum], "cross_entropy")
            training.optim_step(LEARN).result()
            losses.append(forward.result().metrics["loss_sum"])
        return losses

    with running_server(model, tmp_path / "engine") as url:
        service = connect(url, tmp_path)
        training = service.create_lora_training_client("small", rank=8, seed=1)
        steps(training, 3)
        saved = training.save_state("step-3").result()
        assert saved.size > 0
        expected = steps(training, 3)
        service._runtime.shutdown()
    with running_server(model, tmp_path / "engine") as url:
        service = connect(url, tmp_path)
        resumed = service.create_training_client_from_state_with_optimizer(saved.path)
        assert steps(resumed, 3) == expected
        assert resumed.training_run_cuid != training.training_run_cuid
        weights_only = service.create_lora_training_client("small", rank=8, seed=9)
        weights_only.load_state(saved.path).result()
        first, *rest = steps(weights_only, 3)
        assert first == expected[0]
        assert rest != expected[1:], "without its moments the optimizer goes another way"
        service._runtime.shutdown()


def test_checkpoints_are_listed_sampled_downloaded_and_deleted(service, tmp_path):
    training = service.create_lora_training_client("small", rank=4, seed=1)
    training.forward_backward([supervised([5], [6])], "cross_entropy").result()
    training.optim_step(LEARN).result()
    saved = training.save_weights_for_sampler("final").result()
    sampler = service.create_sampling_client("small", model_path=saved.path)
    prompt = trio.ModelInput.from_ints([5, 6, 7])
    base = service.create_sampling_client("small")
    adapted, original = (client.compute_logprobs(prompt).result() for client in (sampler, base))
    assert adapted[0] is None and adapted[1:] != original[1:]
    rest = service.create_rest_client()
    (listed,) = rest.list_checkpoints(training.training_run_cuid).result().checkpoints
    assert (listed.path, listed.checkpoint_type) == (saved.path, "sampler")
    target = tmp_path / "final.zip"
    rest.download_checkpoint(listed.checkpoint_id, target).result()
    with zipfile.ZipFile(target) as archive:
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(archive.namelist())
    assert rest.download_checkpoint(listed.checkpoint_id, target).result().bytes_written == 0
    rest.delete_checkpoint(training.training_run_cuid, listed.checkpoint_id).result()
    assert rest.list_checkpoints(training.training_run_cuid).result().checkpoints == []
    assert rest.get_training_run(training.training_run_cuid).result().lora_rank == 4
    session = rest.get_session(service.service_session_cuid).result()
    assert training.training_run_cuid in session.training_run_ids
    assert len(session.sampler_ids) == 2


def test_what_is_served(service, model):
    assert service.get_supported_models() == [str(model)]


def test_a_wrong_key_is_refused_at_once(server, tmp_path):
    with pytest.raises(PyTrioError, match="API key") as caught:
        connect(server, tmp_path, key="wrong")
    assert (caught.value.status_code, caught.value.code) == (401, "unauthorized")


def test_refusals_reach_the_user(service):
    with pytest.raises(PyTrioError, match=r"does not serve 'Other'.*small"):
        service.create_lora_training_client("Other", rank=8)
    with pytest.raises(PyTrioError, match="no checkpoint trio://x/weights/y"):
        service.create_training_client_from_state("trio://x/weights/y")
    sampler = service.create_sampling_client("small")
    with pytest.raises(PyTrioError, match="300 to sample") as caught:
        params = trio.SamplingParams(max_tokens=300)
        sampler.sample(trio.ModelInput.from_ints([1]), sampling_params=params).result()
    assert caught.value.code == "sequence_too_long"
    training = service.create_lora_training_client("small", rank=8)
    with pytest.raises(PyTrioError) as caught:
        training.forward_backward([supervised([5], [6])], "cross_entropy", {"no_such_setting": 1.0}).result()
    assert caught.value.code != "engine_fault"
