"""`PolicyClient`: the policy on a service that speaks PyTRIO's protocol, the embedded engine or the cloud."""

import asyncio
import contextlib
import importlib
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from retool.errors import InfrastructureError, UserError
from retool.policy.credentials import resolve_credentials
from retool.policy.datums import to_sdk
from retool.policy.engine_process import EngineProcess
from retool.policy.sampler import ServiceSampler
from retool.policy.sdk import Connection, configure, load_sdk, sdk_errors, translate, user_home
from retool.policy.tokenizers import load_tokenizer
from retool.policy.types import ForwardOutput, Sampler, TokenDatum

if TYPE_CHECKING:
    from pytrio import SamplingClient, ServiceClient, TrainingClient  # type: ignore[import-untyped]
    from pytrio.types import ForwardBackwardOutput  # type: ignore[import-untyped]
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

_LORA_KEYS = ("rank", "train_mlp", "train_attn", "train_unembed")


class PolicyClient:
    """One base model, its training run and its samplers. Belongs to the event loop in which it was opened.

    Methods raise `InfrastructureError` when the service fails, within a second or two if the engine's process died,
    and `UserError` when it refuses what the configuration names. Use `open`, and `aclose` or `async with`.
    """

    def __init__(
        self,
        service: "ServiceClient",
        *,
        base_model: str,
        process: EngineProcess | None,
        resources: contextlib.AsyncExitStack,
    ) -> None:
        self.model_id = base_model
        self._base_model = base_model
        self._service = service
        self._process = process
        self._resources = resources
        self._training: TrainingClient | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None

    @classmethod
    async def open(
        cls,
        *,
        base_model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        engine: Mapping[str, object] | None = None,
        engine_dir: Path | None = None,
        max_in_flight: int = 64,
    ) -> "PolicyClient":
        """Connects to the service, or starts the embedded engine.

        `engine` holds the settings of `model.engine`; the engine keeps its weights under `engine_dir` (a temporary
        directory without one) and its process ends with this client, or with this process. Without `engine`,
        `base_url` is the server (`None`: as the SDK is configured), with a key that belongs to it. `max_in_flight`
        limits the sampling requests under way at one time.
        """
        async with contextlib.AsyncExitStack() as resources:
            process = None
            if engine is None:
                credentials = await asyncio.to_thread(resolve_credentials, base_url, api_key)
                connection = Connection(
                    credentials.base_url, credentials.api_key, user_home(), embedded=False, max_in_flight=max_in_flight
                )
            else:
                if engine_dir is None:
                    engine_dir = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="retool-engine-")))
                process = await _start_engine(engine, base_model, engine_dir.resolve())
                resources.push_async_callback(process.stop)
                url, key = f"http://127.0.0.1:{process.ready['port']}", str(process.ready["api_key"])
                connection = Connection(url, key, engine_dir.resolve(), embedded=True, max_in_flight=max_in_flight)
            service = await _connect(connection, process)
            resources.push_async_callback(_disconnect, service, process)
            client = cls(service, base_model=base_model, process=process, resources=resources)
            client.model_id = str(process.ready["model_id"]) if process else await client._find_model_id()
            client._resources = resources.pop_all()
        return client

    async def __aenter__(self) -> "PolicyClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the session on the service and, where there is one, the engine's process. May be called twice."""
        await self._resources.aclose()

    @property
    def engine_pid(self) -> int | None:
        """The process id of the embedded engine, if there is one."""
        return self._process.pid if self._process else None

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The base model's tokenizer, loaded once. Raises `UserError` if it cannot be had."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.model_id)
        return self._tokenizer

    async def create_training(
        self, *, lora: Mapping[str, object], seed: int, init_from: str | None = None, with_optimizer: bool = False
    ) -> None:
        """Starts a training run: a fresh adapter of the shape `lora`, or one from a checkpoint.

        `init_from` is a `trio://` address or, on the embedded engine, a checkpoint directory (which may be of another
        run). Raises `UserError` when the checkpoint's adapter is of another shape than `lora` says.
        """
        shape = {key: lora[key] for key in _LORA_KEYS}
        if init_from is None:
            call = self._service.create_lora_training_client_async(self._base_model, seed=seed, **shape)
        elif with_optimizer:
            call = self._service.create_training_client_from_state_with_optimizer_async(self._address(init_from))
        else:
            call = self._service.create_training_client_from_state_async(self._address(init_from))
        what = f"Starting a training run{'' if init_from is None else f' from {init_from}'}"
        training = await self._guard(what, call, named_by_user=True)
        found = {key: getattr(training.lora, key) for key in _LORA_KEYS}
        if found != shape:
            differing = ", ".join(f"{key}={found[key]}" for key in _LORA_KEYS if found[key] != shape[key])
            raise UserError(f"{init_from} holds an adapter with {differing}; set model.lora accordingly.")
        self._training = training
        self.model_id = training.model_id

    async def sampler(self) -> Sampler:
        """Samples from the training run's weights as they are now."""
        training = self._require_training()
        call = training.save_weights_and_get_sampling_client_async()
        return self._sampler(await self._guard("Taking over the trained weights for sampling", call))

    async def sampler_from(self, uri: str | None) -> ServiceSampler:
        """Samples from the base model (`None`) or a checkpoint, given as in `create_training`."""
        address = None if uri is None else self._address(uri)
        call = self._service.create_sampling_client_async(self._base_model, model_path=address)
        return self._sampler(await self._guard(f"Sampling from {uri or self._base_model}", call, named_by_user=True))

    async def forward(self, data: Sequence[TokenDatum], *, loss: str, config: Mapping[str, float]) -> ForwardOutput:
        """Loss and logprobs of a batch under the current weights."""
        training = self._require_training()
        call = _await_twice(training.forward_async(to_sdk(data), loss, dict(config)))
        return _forward_output(await self._guard("forward", call))

    async def forward_backward(
        self, data: Sequence[TokenDatum], *, loss: str, config: Mapping[str, float]
    ) -> ForwardOutput:
        """As `forward`, and gradients on top of those since the last optimizer step."""
        training = self._require_training()
        call = _await_twice(training.forward_backward_async(to_sdk(data), loss, dict(config)))
        return _forward_output(await self._guard("forward_backward", call))

    async def train_step(
        self, data: Sequence[TokenDatum], *, loss: str, config: Mapping[str, float], adam: Mapping[str, float]
    ) -> tuple[ForwardOutput, dict[str, float]]:
        """One `forward_backward` and one optimizer step, both submitted before either is awaited.

        Returns the batch's output under the weights before the step, and the optimizer's metrics. `adam` has the
        fields of the SDK's `AdamParams`.
        """
        training = self._require_training()
        sdk = load_sdk()
        datums = to_sdk(data)

        async def both() -> "tuple[ForwardBackwardOutput, dict[str, float]]":
            forward = await training.forward_backward_async(datums, loss, dict(config))
            optimizer = await training.optim_step_async(sdk.AdamParams(**adam))
            try:
                output = await forward
            except sdk_errors():
                # The next call must not meet a step that is still under way.
                with contextlib.suppress(*sdk_errors()):
                    await optimizer
                raise
            return output, dict((await optimizer).metrics)

        output, metrics = await self._guard("The training step", both())
        return _forward_output(output), metrics

    async def save_state(self, name: str) -> str:
        """Saves weights and optimizer, over an older state of the name; returns the checkpoint's address."""
        call = _await_twice(self._require_training().save_state_async(name, overwrite=True))
        return str((await self._guard(f"Saving state '{name}'", call)).path)

    async def save_weights(self, name: str) -> str:
        """Saves weights for sampling; returns the checkpoint's address."""
        call = _await_twice(self._require_training().save_weights_for_sampler_async(name))
        return str((await self._guard(f"Saving weights '{name}'", call)).path)

    def _require_training(self) -> "TrainingClient":
        if self._training is None:
            raise RuntimeError("create_training comes first")
        return self._training

    def _sampler(self, client: "SamplingClient") -> ServiceSampler:
        return ServiceSampler(client, self._guard)

    def _address(self, checkpoint: str) -> str:
        directory = Path(checkpoint).expanduser()
        if "://" in checkpoint or not directory.is_dir():
            return checkpoint
        if self._process is None:
            raise UserError(
                f"{checkpoint} is a local directory, which the service cannot read: give a trio:// address."
            )
        return directory.resolve().as_uri()

    async def _find_model_id(self) -> str:
        capabilities = await self._guard("Listing models", self._service.get_server_capabilities_async())
        offered = [str(model.model_name) for model in capabilities.supported_models]
        if self._base_model in offered:
            return self._base_model
        if len(offered) == 1 and _is_directory(offered[0]):
            return offered[0]  # a server of one local model, known by several names
        raise UserError(
            f"model.base_model: the service does not offer '{self._base_model}', only: {', '.join(offered)}."
        )

    async def _guard(self, what: str, call: Coroutine[object, object, T], *, named_by_user: bool = False) -> T:
        return await _guarded(self._process, what, call, named_by_user=named_by_user)


async def _guarded(
    process: EngineProcess | None, what: str, call: Coroutine[object, object, T], *, named_by_user: bool = False
) -> T:
    """Awaits a call of the SDK, but not for longer than the engine lives, and translates its failures."""
    try:
        return await (call if process is None else process.guard(call))
    except sdk_errors() as error:
        # A connection that broke may be the first sign of a death that is noticed a moment later.
        if process is not None and await process.notice_end():
            raise InfrastructureError(process.describe_end()) from error
        raise translate(error, what, named_by_user=named_by_user) from error


async def _start_engine(engine: Mapping[str, object], base_model: str, engine_dir: Path) -> EngineProcess:
    """Starts the engine and meanwhile, on another core, imports what the SDK will need."""
    warming = asyncio.create_task(asyncio.to_thread(_warm_up))
    try:
        return await EngineProcess.start(
            engine={"base_model": base_model, **engine}, engine_dir=engine_dir, names=[base_model]
        )
    finally:
        await warming


def _warm_up() -> None:
    load_sdk()
    for backend in ("modelscope", "transformers"):
        with contextlib.suppress(ImportError):
            _ = importlib.import_module(backend).AutoTokenizer


async def _connect(connection: Connection, process: EngineProcess | None) -> "ServiceClient":
    def connect() -> "ServiceClient":
        configure(connection)
        return load_sdk().ServiceClient(api_key=connection.api_key)

    call = asyncio.to_thread(connect)
    return await _guarded(process, f"Connecting to {connection.base_url}", call, named_by_user=True)


async def _disconnect(service: "ServiceClient", process: EngineProcess | None) -> None:
    """Ends the service session; the SDK has no public way to do so but garbage collection."""
    if process is not None and process.ended:
        service._runtime.configuration.control_retry_timeout_seconds = 0.0
    await asyncio.to_thread(service._runtime.shutdown)


async def _await_twice(submission: Coroutine[object, object, Coroutine[object, object, T]]) -> T:
    """Submits, then waits for the result."""
    return await (await submission)


def _is_directory(name: str) -> bool:
    return Path(name).is_dir()


def _forward_output(output: "ForwardBackwardOutput") -> ForwardOutput:
    missing = [index for index, outputs in enumerate(output.loss_fn_outputs) if "logprobs" not in outputs]
    if missing:
        raise InfrastructureError(f"The service returned no logprobs for {len(missing)} of the sequences.")
    return ForwardOutput([outputs["logprobs"].data for outputs in output.loss_fn_outputs], dict(output.metrics))
