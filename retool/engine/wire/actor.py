"""`ActorPlane`: events, samples and heartbeats (`/v1/…`)."""

import json
import re
from collections.abc import Sequence

import msgpack
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retool.engine.types import SampledSequence, SampleResult
from retool.engine.wire.errors import ApiError
from retool.engine.wire.events import Event
from retool.engine.wire.futures import settle
from retool.engine.wire.protocol import EventEnvelope, Sample
from retool.engine.wire.service import Service

_MSGPACK = "application/msgpack"
_WAIT = re.compile(r"wait=(\d{1,6})")
_HEARTBEAT_MS = 60_000


class ActorPlane:
    """Handlers, one a route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Paths as the SDK 0.2.9 calls them."""
        return [
            Route("/v1/sampling-runs/{run_id}/sample", self.sample, methods=["POST"]),
            Route("/v1/events/{event_id}", self.get_event),
            Route("/v1/events", self.submit_event, methods=["POST"]),
            Route("/v1/client/heartbeat", self.heartbeat, methods=["POST"]),
        ]

    async def submit_event(self, request: Request) -> Response:
        """Queues an event of a training run."""
        envelope = EventEnvelope.model_validate(_unpack(await request.body()))
        metadata = envelope.metadata
        run = self._service.store.training_run(metadata.run_id)
        self._service.store.touch(run.id)
        event = Event(envelope.event_id, envelope.type, run.id, metadata.index)
        self._service.ledger.require_new(event.event_id)
        run.queue.check(event.index)
        self._service.ledger.add(event)
        reply = event.current_reply()
        run.queue.submit(event, envelope)
        return Response(reply, media_type=_MSGPACK)

    async def get_event(self, request: Request) -> Response:
        """The state of an event; held back, if the client prefers to wait, until it ends."""
        event = self._service.ledger.get(request.path_params["event_id"])
        self._service.store.touch(event.run_id)
        preferred = _WAIT.search(request.headers.get("prefer", ""))
        wait_s = min(float(preferred[1]) if preferred else 0.0, self._service.settings.poll_wait_s)
        return Response(await self._service.ledger.wait(event, wait_s), media_type=_MSGPACK)

    async def sample(self, request: Request) -> Response:
        """Draws completions of one prompt from a sampling run's weights."""
        run = self._service.store.sampling_run(request.path_params["run_id"])
        self._service.store.touch(run.id)
        body = Sample.model_validate_json(await request.body())
        async with self._service.adapters.use(run.weights) as adapter:
            result = await settle(self._service.engine.sample(body.request(adapter)))
        return Response(self._encode(run.id, body, result), media_type="application/json")

    async def heartbeat(self, request: Request) -> Response:
        """Notes that the client of a run is alive."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self._service.store.touch(self._service.keyring.subject(token) or "")
        return JSONResponse({"heartbeat_ms": _HEARTBEAT_MS})

    def _encode(self, run_id: str, body: Sample, result: SampleResult) -> bytes:
        stops = body.sampling_params.stop
        sequences = [
            {
                "tokens": sequence.tokens,
                "text": self._text(sequence, stops) if body.return_text else None,
                "logprobs": sequence.logprobs if body.return_token_logprobs else [],
                "stop_reason": sequence.stop_reason,
            }
            for sequence in result.sequences
        ]
        usage = {
            "input_tokens": len(body.prompt.tokens()),
            "output_tokens": sum(len(sequence.tokens) for sequence in result.sequences),
        }
        reply = {
            "request_id": body.request_id,
            "sampling_run": run_id,
            "sequences": sequences,
            "prompt_logprobs": result.prompt_logprobs,
            "topk_prompt_logprobs": result.topk_prompt_logprobs,
            "usage": usage,
        }
        return json.dumps(reply, separators=(",", ":")).encode()

    def _text(self, sequence: SampledSequence, stops: Sequence[str]) -> str:
        """Decoded tokens up to, and without, the stop string or the stop token that ended them."""
        text = self._service.engine.decode(sequence.tokens)
        if sequence.stop_reason != "stop":
            return text
        ends = [text.index(stop) for stop in stops if stop and stop in text]
        return text[: min(ends)] if ends else self._service.engine.decode(sequence.tokens[:-1])


def _unpack(body: bytes) -> object:
    try:
        return msgpack.unpackb(body, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ApiError(400, "invalid_request", f"The body is not MessagePack: {error}") from None
