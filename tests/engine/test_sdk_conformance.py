"""Every public method of the installed SDK, unmodified, against a running server; and a training script's calls.

The methods are found by introspection: one that a newer SDK adds fails here until it has a scenario.
"""

import asyncio
import inspect

import numpy as np
import pytest
import pytrio as trio

from tests.engine.sdk_scenarios import ASYNC, CLIENTS, SCENARIOS, World, public_methods
from tests.engine.wire_model import END, KEY, build_model, running_server

METHODS = [(client, method) for client in CLIENTS for method in public_methods(client)]


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def world(engine_dir, tmp_path_factory):
    model, home = build_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("home")
    with running_server(model, engine_dir) as url:
        trio.configure_observability(enabled=False)
        trio.configure(home=str(home), base_url=url, api_key=KEY, control_retry_timeout_seconds=2, log_level="ERROR")
        service = trio.ServiceClient()
        yield World(service, model, engine_dir, home)
        service._runtime.shutdown()


def test_every_method_has_a_scenario_and_every_scenario_a_method() -> None:
    public = {
        value
        for name, value in vars(trio).items()
        if inspect.isclass(value) and name.endswith("Client") and value.__module__.startswith("pytrio.")
    }
    assert public == set(CLIENTS) == set(SCENARIOS)
    for client in CLIENTS:
        methods = {method.removesuffix(ASYNC) for method in public_methods(client)}
        assert methods == set(SCENARIOS[client]), client.__name__


@pytest.mark.parametrize(("client", "method"), METHODS, ids=[f"{c.__name__}.{m}" for c, m in METHODS])
async def test_method(client: type, method: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    original = getattr(client, method)

    def spy(self, *arguments, **keywords):
        called.append(method)
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(client, method, spy)
    world.method = method
    await SCENARIOS[client][method.removesuffix(ASYNC)](world)
    assert called, f"the scenario does not call {method}"


def policy_datum(prompt: list[int], tokens: list[int], logprobs: list[float], advantage: float) -> trio.Datum:
    blank = [0.0] * (len(prompt) - 1)
    whole = [*prompt, *tokens]
    return trio.Datum(
        model_input=trio.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": whole[1:],
            "logprobs": [*blank, *logprobs],
            "advantages": [*blank, *[advantage] * len(tokens)],
        },
    )


async def test_the_calls_of_a_training_script(world: World, engine_dir) -> None:
    """Per step: new sampler, concurrent groups, a forward_backward a micro-batch, one optim_step; at the end, saves."""
    training = await world.service.create_lora_training_client_async("small", rank=8, seed=4)
    prompts = [[3, 4], [5, 6, 7], [9], [11, 12]]
    group, clip = 8, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
    means = []
    for number in range(10):
        sampler = await training.save_weights_and_get_sampling_client_async()
        params = [trio.SamplingParams(max_tokens=6, temperature=1.0, seed=100 * number + i) for i in range(4)]
        responses = await asyncio.gather(
            *(
                sampler.sample_async(trio.ModelInput.from_ints(prompt), num_samples=group, sampling_params=params[i])
                for i, prompt in enumerate(prompts)
            )
        )
        data = []
        for prompt, response in zip(prompts, responses, strict=True):
            rewards = np.array([np.mean([token < 32 for token in s.tokens]) for s in response.sequences])
            means.append(rewards.mean())
            data += [
                policy_datum(prompt, s.tokens, s.logprobs, float(advantage) * 8 / 32)
                for s, advantage in zip(response.sequences, rewards - rewards.mean(), strict=True)
            ]
        for start in range(0, len(data), 8):
            result = await (await training.forward_backward_async(data[start : start + 8], "ppo", clip))
            assert result.metrics["token_count"] > 0
        metrics = (await (await training.optim_step_async(trio.AdamParams(learning_rate=0.02)))).metrics
        assert (metrics["grad_norm"] > 0) is any(any(d.loss_fn_inputs["advantages"].data) for d in data)
    assert np.mean(means[-12:]) > np.mean(means[:12]) + 0.1
    state = training.save_state("final").result()
    weights = training.save_weights_for_sampler("final").result()
    saved = sorted(path.name for path in (engine_dir / "checkpoints" / training.training_run_cuid).glob("*/*"))
    assert saved == ["final", "final"], "temporary weights never reach the disk"
    response = training.create_sampling_client(weights.path).sample(
        trio.ModelInput.from_ints([3, 4]), 2, trio.SamplingParams(max_tokens=4, stop=[END])
    )
    assert len(response.result().sequences) == 2
    assert world.service.create_training_client_from_state_with_optimizer(state.path).lora.rank == 8
