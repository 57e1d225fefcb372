"""What each public method of the SDK must do against a server: `World`, `SCENARIOS`, `public_methods`.

A scenario is named after its method and covers the synchronous and the `_async` form, which `World.call` chooses.
"""

import asyncio
import inspect
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import pytrio as trio
import torch
from pytrio.errors.base import PyTrioError, ValidationError
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from tests.engine.wire_model import END

CLIENTS = (trio.ServiceClient, trio.TrainingClient, trio.SamplingClient, trio.RestClient)
ADAM = trio.AdamParams(learning_rate=0.02)
PROMPT = trio.ModelInput.from_ints([5, 6, 7])
ASYNC = "_async"


def public_methods(client: type) -> list[str]:
    """Names of the methods that the installed SDK offers on a client."""
    return [name for name, _ in inspect.getmembers(client, callable) if not name.startswith("_")]


def supervised(prompt: list[int], completion: list[int]) -> trio.Datum:
    """All tokens but the last predict the next; only the completion counts."""
    tokens = [*prompt, *completion]
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(completion)
    return trio.Datum(
        model_input=trio.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


DATUM = supervised([5, 6, 7], [8, 9, END])


async def settled(value: object) -> object:
    """What a method finally gives, whether it returned a value, a future or a coroutine for either."""
    while inspect.isawaitable(value) or isinstance(value, Future):
        value = await (asyncio.wrap_future(value) if isinstance(value, Future) else value)
    return value


@dataclass
class World:
    """A server and a session with it; `method` is the one under test, in its synchronous or asynchronous form."""

    service: trio.ServiceClient
    model: Path
    engine_dir: Path
    tmp_path: Path
    method: str = ""

    @property
    def rest(self) -> trio.RestClient:
        return self.service.create_rest_client()

    async def call(self, client: object, *arguments: object, **keywords: object) -> object:
        """Calls the method under test on `client`, to its final value."""
        return await settled(getattr(client, self.method)(*arguments, **keywords))

    def training(self, steps: int = 0, **shape: object) -> trio.TrainingClient:
        """A run of its own after some steps."""
        client = self.service.create_lora_training_client("small", **{"rank": 8, "seed": 1, **shape})
        for _ in range(steps):
            step(client)
        return client

    def saved(self, training: trio.TrainingClient, name: str = "final") -> tuple[str, str]:
        """Saves sampler weights; their address and identifier."""
        path = training.save_weights_for_sampler(name).result().path
        listed = self.rest.list_checkpoints(training.training_run_cuid).result().checkpoints
        return path, next(checkpoint.checkpoint_id for checkpoint in listed if checkpoint.path == path)


def step(client: trio.TrainingClient) -> float:
    """One step on `DATUM`; its loss before."""
    loss = client.forward_backward([DATUM]).result().metrics["loss_sum"]
    client.optim_step(ADAM).result()
    return loss


def greedy(sampler: trio.SamplingClient) -> list[int]:
    params = trio.SamplingParams(max_tokens=6, temperature=0.0)
    return sampler.sample(PROMPT, sampling_params=params).result().sequences[0].tokens


# ServiceClient


async def create_lora_training_client(world: World) -> None:
    client = await world.call(world.service, "small", 4, seed=3, train_mlp=False, train_unembed=False)
    run = world.rest.get_training_run(client.training_run_cuid).result()
    assert (run.lora_rank, run.is_lora, run.corrupted) == (4, True, False)
    state = client.save_state("start").result().path
    tensors = load_file(world.engine_dir / "checkpoints" / state.removeprefix("trio://") / "adapter_model.safetensors")
    assert {name.split(".")[6] for name in tensors} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert all(min(tensor.shape) == 4 for tensor in tensors.values())
    with pytest.raises(PyTrioError, match="does not serve 'Other'"):
        await world.call(world.service, "Other")


async def create_rest_client(world: World) -> None:
    assert world.service.service_session_cuid in world.rest.list_sessions().result().sessions


async def create_sampling_client(world: World) -> None:
    base = await world.call(world.service, "small")
    training = world.training(6)
    path, _ = world.saved(training)
    adapted = await world.call(world.service, "small", model_path=path)
    assert greedy(adapted)[:3] == [8, 9, END] != greedy(base)
    with pytest.raises(PyTrioError, match="no checkpoint"):
        await world.call(world.service, "small", model_path="trio://nobody/sampler_weights/nothing")


async def create_training_client_from_state(world: World) -> None:
    await _resumes(world, with_optimizer=False)


async def create_training_client_from_state_with_optimizer(world: World) -> None:
    await _resumes(world, with_optimizer=True)


async def _resumes(world: World, *, with_optimizer: bool) -> None:
    training = world.training(3)
    state = training.save_state("three").result().path
    expected = [step(training) for _ in range(3)]
    client = await world.call(world.service, state)
    assert client.lora.rank == 8
    first, *rest = [step(client) for _ in range(3)]
    assert first == expected[0], "the weights are those of the state"
    assert (rest == expected[1:]) is with_optimizer


async def get_server_capabilities(world: World) -> None:
    (model,) = (await world.call(world.service)).supported_models
    assert (model.model_name, model.max_context_length) == (str(world.model), 256)
    for operation in (model.training, model.sampling):
        assert operation.available and operation.max_seq_len == 256 and operation.max_tokens_per_request >= 256


async def get_supported_models(world: World) -> None:
    (name,) = await world.call(world.service)
    assert await settled(world.service.create_lora_training_client(name, rank=4).forward([DATUM]))


# TrainingClient


async def create_sampling_client_of_run(world: World) -> None:
    training = world.training(6)
    path, _ = world.saved(training)
    assert greedy(await world.call(training, path))[:3] == [8, 9, END]


async def forward(world: World) -> None:
    training = world.training()
    base = Qwen3ForCausalLM.from_pretrained(world.model)
    tokens, targets = DATUM.model_input.to_ints(), DATUM.loss_fn_inputs["target_tokens"].data
    with torch.no_grad():
        table = torch.log_softmax(base(torch.tensor([tokens])).logits[0], -1)
    expected = table.gather(1, torch.tensor(targets)[:, None])[:, 0]
    result = await world.call(training, [DATUM])
    output = result.loss_fn_outputs[0]["logprobs"]
    np.testing.assert_allclose(output.data, expected, atol=1e-4)
    assert result.metrics["loss_sum"] == pytest.approx(-float(expected[2:].sum()), abs=1e-3)
    assert training.optim_step(ADAM).result().metrics["skipped"] == 1, "forward leaves no gradient"


async def forward_backward(world: World) -> None:
    training = world.training()
    result = await world.call(training, [DATUM, supervised([5], [6])], "cross_entropy")
    assert [len(output["logprobs"].data) for output in result.loss_fn_outputs] == [5, 1]
    assert result.metrics["token_count"] == 6
    assert training.optim_step(ADAM).result().metrics["grad_norm"] > 0
    assert step(training) < result.metrics["loss_sum"]


async def forward_backward_custom(world: World) -> None:
    """A custom loss that is cross entropy makes the step that cross entropy makes."""

    def loss(data: list[trio.Datum], logprobs: list[torch.Tensor], config: dict[str, object]) -> tuple:
        total = -sum(values[-3:].sum() for values in logprobs) * config["factor"]
        return total, {"mine": total.item()}

    custom, plain = world.training(), world.training()
    result = await world.call(custom, [DATUM], loss, {"factor": 1.0})
    custom.optim_step(ADAM).result()
    assert result.metrics["mine"] == pytest.approx(step(plain), rel=1e-5)
    assert step(custom) == pytest.approx(step(plain), rel=1e-4)


async def get_tokenizer(world: World) -> None:
    for client in (world.training(), world.service.create_sampling_client("small")):
        assert (await world.call(client)).decode([8, 9]) == "t8 t9"


async def load_state(world: World) -> None:
    await _loads(world, with_optimizer=False)


async def load_state_with_optimizer(world: World) -> None:
    await _loads(world, with_optimizer=True)


async def _loads(world: World, *, with_optimizer: bool) -> None:
    training = world.training(3)
    state = training.save_state("three").result().path
    expected = [step(training) for _ in range(3)]
    client = world.training(seed=9)
    await world.call(client, state)
    first, *rest = [step(client) for _ in range(3)]
    assert first == expected[0]
    assert (rest == expected[1:]) is with_optimizer
    with pytest.raises(ValidationError, match="after training has started"):
        await world.call(client, state)
    with pytest.raises(ValidationError, match="lora_rank"):
        await world.call(world.training(rank=4), state)


async def optim_step(world: World) -> None:
    training = world.training()
    first = training.forward_backward([DATUM]).result().metrics["loss_sum"]
    response = await world.call(training, trio.AdamParams(learning_rate=0.02, grad_clip_norm=0.1))
    assert response.metrics["grad_norm"] > 0.1
    assert response.metrics["learning_rate"] == 0.02
    assert step(training) < first


async def save_state(world: World) -> None:
    training = world.training(1)
    saved = await world.call(training, "state", ttl_seconds=600)
    (listed,) = world.rest.list_checkpoints(training.training_run_cuid).result().checkpoints
    assert (listed.path, listed.checkpoint_type, listed.size_bytes) == (saved.path, "training", saved.size)
    assert 500 < (listed.expires_at - listed.time).total_seconds() <= 600
    with pytest.raises(PyTrioError, match="already has a checkpoint 'state'"):
        await world.call(training, "state")
    assert (await world.call(world.training(1), "state")).path != saved.path, "a name belongs to a run"
    other = world.training(1)
    first = await world.call(other, "state")
    step(other)
    assert (await world.call(other, "state", overwrite=True)).path == first.path
    assert step(world.service.create_training_client_from_state(first.path)) == step(other)


async def save_weights_for_sampler(world: World) -> None:
    training = world.training(6)
    saved = await world.call(training, "weights", ttl_seconds=600)
    (listed,) = world.rest.list_checkpoints(training.training_run_cuid).result().checkpoints
    assert (listed.path, listed.checkpoint_type, listed.expires_at is None) == (saved.path, "sampler", False)
    sampler = training.create_sampling_client(saved.path)
    before = greedy(sampler)
    for _ in range(3):
        training.forward_backward([supervised([5, 6, 7], [20, 21])]).result()
        training.optim_step(trio.AdamParams(learning_rate=0.1)).result()
    assert greedy(sampler) == before, "saved weights stay what they were"
    with pytest.raises(PyTrioError, match="holds weights only"):
        world.service.create_training_client_from_state_with_optimizer(saved.path)


async def save_weights_and_get_sampling_client(world: World) -> None:
    training = world.training(6)
    sampler = await world.call(training)
    assert greedy(sampler)[:3] == [8, 9, END]
    assert world.rest.list_checkpoints(training.training_run_cuid).result().checkpoints == []
    assert not (world.engine_dir / "checkpoints" / training.training_run_cuid).exists(), "they are in memory only"


# SamplingClient


async def sample(world: World) -> None:
    sampler = world.service.create_sampling_client("small")
    params = trio.SamplingParams(max_tokens=5, seed=3, temperature=1.0)
    response = await world.call(sampler, PROMPT, 4, params, include_prompt_logprobs=True, topk_prompt_logprobs=2)
    assert len({tuple(sequence.tokens) for sequence in response.sequences}) > 1
    for sequence in response.sequences:
        assert len(sequence.tokens) == len(sequence.logprobs) <= 5
        assert sequence.stop_reason == ("stop" if sequence.tokens[-1] == END else "length")
    assert response.prompt_logprobs[0] is None and all(value < 0 for value in response.prompt_logprobs[1:])
    assert [len(row or ()) for row in response.topk_prompt_logprobs] == [0, 2, 2]
    assert response.input_tokens == 3
    assert response.output_tokens == sum(len(sequence.tokens) for sequence in response.sequences)
    again = await world.call(sampler, PROMPT, 4, params)
    assert [s.tokens for s in again.sequences] == [s.tokens for s in response.sequences]
    assert again.prompt_logprobs == again.topk_prompt_logprobs == []
    await _stops(world, sampler)


async def _stops(world: World, sampler: trio.SamplingClient) -> None:
    free = await world.call(sampler, PROMPT, 1, trio.SamplingParams(max_tokens=12, seed=5))
    tokens = free.sequences[0].tokens
    third = tokens.index(tokens[2])
    for stop in ([tokens[2]], f"t{tokens[2]}", [f"t{tokens[2]}"]):
        params = trio.SamplingParams(max_tokens=12, seed=5, stop=stop)
        (cut,) = (await world.call(sampler, PROMPT, 1, params)).sequences
        assert cut.stop_reason == "stop"
        assert len(cut.tokens) <= third + 1 and cut.tokens == tokens[: len(cut.tokens)]
        assert f"t{tokens[2]}" not in (cut.text or "").split()
    silent = await world.call(sampler, PROMPT, 1, trio.SamplingParams(max_tokens=2), return_text=False)
    assert silent.sequences[0].text is None


async def compute_logprobs(world: World) -> None:
    sampler = world.service.create_sampling_client("small")
    first, *others = await world.call(sampler, PROMPT)
    shifted = world.training().forward([supervised([5], [6, 7])]).result().loss_fn_outputs[0]["logprobs"].data
    assert first is None
    np.testing.assert_allclose(others, shifted, atol=1e-4)


# RestClient


async def delete_checkpoint(world: World) -> None:
    training = world.training(1)
    path, identifier = world.saved(training)
    await world.call(world.rest, training.training_run_cuid, identifier)
    assert world.rest.list_checkpoints(training.training_run_cuid).result().checkpoints == []
    assert not (world.engine_dir / "checkpoints" / path.removeprefix("trio://")).exists()
    with pytest.raises(PyTrioError, match="no checkpoint"):
        await world.call(world.rest, training.training_run_cuid, identifier)


async def download_checkpoint(world: World) -> None:
    """The archive is a PEFT adapter with the logprobs of the run it was saved from."""
    peft = pytest.importorskip("peft")
    training = world.training(3)
    _, identifier = world.saved(training)
    target = world.tmp_path / f"{world.method}.zip"
    result = await world.call(world.rest, identifier, target)
    assert (result.bytes_written, result.resumed) == (target.stat().st_size, False)
    whole = target.read_bytes()
    target.write_bytes(whole[:1000])
    result = await world.call(world.rest, identifier, target)
    assert (result.bytes_written, result.resumed) == (len(whole) - 1000, True)
    assert target.read_bytes() == whole
    with zipfile.ZipFile(target) as archive:
        archive.extractall(world.tmp_path / world.method)
    base = Qwen3ForCausalLM.from_pretrained(world.model)
    adapted = peft.PeftModel.from_pretrained(base, world.tmp_path / world.method)
    with torch.no_grad():
        table = torch.log_softmax(adapted(torch.tensor([DATUM.model_input.to_ints()])).logits[0], -1)
    expected = table.gather(1, torch.tensor(DATUM.loss_fn_inputs["target_tokens"].data)[:, None])[:, 0]
    mine = training.forward([DATUM]).result().loss_fn_outputs[0]["logprobs"].data
    np.testing.assert_allclose(mine, expected, atol=1e-4)


async def get_checkpoint_archive_url(world: World) -> None:
    await _has_url(world)


async def get_checkpoint_download_url(world: World) -> None:
    source = await _has_url(world)
    assert (source.source, source.checkpoint_status, source.tls_cert_pem) == ("actor", "LOCAL", None)


async def _has_url(world: World) -> object:
    _, identifier = world.saved(world.training(1))
    source = await world.call(world.rest, identifier)
    async with httpx.AsyncClient() as http:
        reply = await http.get(source.url)
        forged = await http.get(source.url[:-1] + ("0" if source.url[-1] != "0" else "1"))
    assert (reply.status_code, reply.content[:2], forged.status_code) == (200, b"PK", 401)
    with pytest.raises(PyTrioError, match="no checkpoint"):
        await world.call(world.rest, "ckpt_nothing")
    return source


async def get_sampler(world: World) -> None:
    training = world.training(1)
    path, _ = world.saved(training)
    for sampler, expected in ((training.create_sampling_client(path), path), (_base(world), None)):
        found = await world.call(world.rest, sampler.sampling_run_cuid)
        assert (found.sampler_id, found.model_path) == (sampler.sampling_run_cuid, expected)
        assert found.base_model == str(world.model)


def _base(world: World) -> trio.SamplingClient:
    return world.service.create_sampling_client("small")


async def get_session(world: World) -> None:
    training, sampler = world.training(), _base(world)
    found = await world.call(world.rest, world.service.service_session_cuid)
    assert training.training_run_cuid in found.training_run_ids
    assert sampler.sampling_run_cuid in found.sampler_ids
    assert await world.call(world.rest, world.service.service_session_cuid, "accessible") == found
    with pytest.raises(PyTrioError, match="no session"):
        await world.call(world.rest, "nothing")


async def get_training_run(world: World) -> None:
    training = world.training(1, rank=16)
    found = await world.call(world.rest, training.training_run_cuid)
    assert (found.training_run_id, found.lora_rank) == (training.training_run_cuid, 16)
    assert found.base_model == training.model_id == str(world.model)
    with pytest.raises(PyTrioError, match="no training run"):
        await world.call(world.rest, "nothing")


async def list_checkpoints(world: World) -> None:
    training = world.training(1)
    assert (await world.call(world.rest, training.training_run_cuid)).checkpoints == []
    paths = [training.save_state("a").result().path, training.save_weights_for_sampler("b").result().path]
    listed = (await world.call(world.rest, training.training_run_cuid)).checkpoints
    assert [checkpoint.path for checkpoint in listed] == paths


async def list_sessions(world: World) -> None:
    sessions = (await world.call(world.rest)).sessions
    assert world.service.service_session_cuid in sessions
    assert (await world.call(world.rest, limit=1, offset=len(sessions))).sessions == []


async def list_training_runs(world: World) -> None:
    newer = [world.training().training_run_cuid for _ in range(2)][::-1]
    pages = [await world.call(world.rest, limit=1, offset=offset) for offset in (0, 1)]
    assert [page.training_runs[0].training_run_id for page in pages] == newer
    assert pages[0].cursor.total_count >= 2


async def list_user_checkpoints(world: World) -> None:
    path, _ = world.saved(world.training(1))
    whole = await world.call(world.rest, limit=1000)
    assert path in [checkpoint.path for checkpoint in whole.checkpoints]
    page = await world.call(world.rest, limit=1, offset=whole.cursor.total_count - 1)
    assert [checkpoint.path for checkpoint in page.checkpoints] == [path]


Scenario = Callable[[World], Awaitable[None]]

SCENARIOS: Mapping[type, Mapping[str, Scenario]] = {
    trio.ServiceClient: {
        scenario.__name__: scenario
        for scenario in (
            create_lora_training_client,
            create_rest_client,
            create_sampling_client,
            create_training_client_from_state,
            create_training_client_from_state_with_optimizer,
            get_server_capabilities,
            get_supported_models,
        )
    },
    trio.TrainingClient: {
        "create_sampling_client": create_sampling_client_of_run,
        **{
            scenario.__name__: scenario
            for scenario in (
                forward,
                forward_backward,
                forward_backward_custom,
                get_tokenizer,
                load_state,
                load_state_with_optimizer,
                optim_step,
                save_state,
                save_weights_and_get_sampling_client,
                save_weights_for_sampler,
            )
        },
    },
    trio.SamplingClient: {scenario.__name__: scenario for scenario in (compute_logprobs, get_tokenizer, sample)},
    trio.RestClient: {
        scenario.__name__: scenario
        for scenario in (
            delete_checkpoint,
            download_checkpoint,
            get_checkpoint_archive_url,
            get_checkpoint_download_url,
            get_sampler,
            get_session,
            get_training_run,
            list_checkpoints,
            list_sessions,
            list_training_runs,
            list_user_checkpoints,
        )
    },
}
"""The scenario of every method, without `_async`."""
