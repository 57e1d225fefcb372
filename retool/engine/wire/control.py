"""`ControlPlane`: the JSON interface for accounts, models, sessions, runs and checkpoints (`/api/…`)."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from retool.engine.wire import views
from retool.engine.wire.errors import ApiError
from retool.engine.wire.protocol import (
    SamplingRunCreate,
    SessionClose,
    SessionCreate,
    TrainingRunCreate,
    TrainingRunUpdate,
)
from retool.engine.wire.runs import Status
from retool.engine.wire.service import Service

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=BaseModel)

_DOWNLOAD_LIFETIME_S = 3600.0
_MAX_PAGE = 1000


class ControlPlane:
    """Handlers, one a route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Paths as the SDK 0.2.9 calls them."""
        session, training, sampling = (
            "/api/openapi/v1/service-sessions",
            "/api/openapi/v1/training-runs",
            "/api/openapi/v1/sampling-runs",
        )
        checkpoint = "/api/openapi/v1/checkpoints"
        return [
            Route("/api/openapi/v1/api-key/verify", self.verify_key),
            Route("/api/sdk/bootstrap", self.bootstrap),
            Route("/api/models", self.models),
            Route("/api/telemetry/event", self.telemetry, methods=["POST"]),
            Route(session, self.create_session, methods=["POST"]),
            Route(session, self.list_sessions),
            Route(f"{session}/{{session_id}}", self.get_session),
            Route(f"{session}/{{session_id}}/renew", self.renew_session, methods=["POST"]),
            Route(f"{session}/{{session_id}}/close", self.close_session, methods=["POST"]),
            Route(f"{session}/{{session_id}}/training-runs", self.create_training_run, methods=["POST"]),
            Route(f"{session}/{{session_id}}/training-runs/{{run_id}}", self.update_training_run, methods=["PATCH"]),
            Route(f"{session}/{{session_id}}/sampling-runs", self.create_sampling_run, methods=["POST"]),
            Route(training, self.list_training_runs),
            Route(f"{training}/by-checkpoint-uri", self.find_by_checkpoint),
            Route(f"{training}/{{run_id}}", self.get_training_run),
            Route(f"{training}/{{run_id}}/renew", self.renew_training_run, methods=["POST"]),
            Route(f"{training}/{{run_id}}/checkpoints", self.list_run_checkpoints),
            Route(f"{sampling}/{{run_id}}", self.get_sampling_run),
            Route(f"{sampling}/{{run_id}}/renew", self.renew_sampling_run, methods=["POST"]),
            Route(checkpoint, self.list_checkpoints),
            Route(f"{checkpoint}/{{checkpoint_id}}", self.delete_checkpoint, methods=["DELETE"]),
            Route(f"{checkpoint}/{{checkpoint_id}}/download-url", self.download_url),
            Route(f"{checkpoint}/{{checkpoint_id}}/archive", self.download),
        ]

    async def verify_key(self, _request: Request) -> Response:
        """Who the key belongs to; a server has one user."""
        return JSONResponse(views.ACCOUNT)

    async def bootstrap(self, request: Request) -> Response:
        """Every SDK version is let in; one that speaks otherwise fails on its first request."""
        version = request.query_params.get("sdk_version", "")
        return JSONResponse({"compatibility": {"status": "compatible", "sdk_version": version}, "notices": []})

    async def models(self, request: Request) -> Response:
        """The one base model."""
        page, cursor = _page(request, [views.model(self._service)])
        return JSONResponse({"items": page, **cursor})

    async def telemetry(self, _request: Request) -> Response:
        """Accepts the SDK's diagnostics and keeps none of them."""
        return JSONResponse({})

    async def create_session(self, request: Request) -> Response:
        """Registers a client process."""
        body = await _body(request, SessionCreate)
        return JSONResponse(views.session(self._service.open_session(body.sdk_version)))

    async def list_sessions(self, request: Request) -> Response:
        """Sessions, newest first."""
        sessions = [views.session(session) for session in reversed(self._service.store.sessions.values())]
        page, cursor = _page(request, sessions)
        return JSONResponse({"service_sessions": page, "cursor": cursor})

    async def get_session(self, request: Request) -> Response:
        """One session with its runs."""
        return JSONResponse(views.session(self._service.store.session(request.path_params["session_id"])))

    async def renew_session(self, request: Request) -> Response:
        """Notes that a client is alive."""
        session = self._service.store.open_session(request.path_params["session_id"])
        session.updated_at = datetime.now(UTC)
        return JSONResponse(views.session(session))

    async def close_session(self, request: Request) -> Response:
        """Ends a session and frees its runs."""
        session = self._service.store.session(request.path_params["session_id"])
        body = await _body(request, SessionClose)
        self._service.close_session(session, Status(body.status))
        return JSONResponse(views.session(session))

    async def create_training_run(self, request: Request) -> Response:
        """Registers a LoRA run, fresh or from a checkpoint."""
        body = await _body(request, TrainingRunCreate)
        run = self._service.create_training_run(request.path_params["session_id"], body)
        return JSONResponse(views.training_run(self._service, run) | views.access(request, self._service, run.id))

    async def update_training_run(self, request: Request) -> Response:
        """Makes a fresh run start from a checkpoint (`load_state`)."""
        body = await _body(request, TrainingRunUpdate)
        run = self._service.rebind_training_run(
            request.path_params["session_id"],
            request.path_params["run_id"],
            body.source_checkpoint_uri,
            restore_optimizer=body.restore_optimizer,
        )
        return JSONResponse(views.training_run(self._service, run) | views.access(request, self._service, run.id))

    async def create_sampling_run(self, request: Request) -> Response:
        """Registers weights to sample from."""
        body = await _body(request, SamplingRunCreate)
        run = self._service.create_sampling_run(request.path_params["session_id"], body)
        return JSONResponse(views.sampling_run(self._service, run) | views.access(request, self._service, run.id))

    async def list_training_runs(self, request: Request) -> Response:
        """Training runs of this server's life, newest first."""
        runs = [views.training_run(self._service, run) for run in reversed(self._service.store.training_runs.values())]
        page, cursor = _page(request, runs)
        return JSONResponse({"training_runs": page, "cursor": cursor})

    async def find_by_checkpoint(self, request: Request) -> Response:
        """The LoRA configuration behind a checkpoint, also one of an earlier server."""
        checkpoint = self._service.checkpoint(request.query_params.get("checkpoint_uri", ""))
        return JSONResponse({"base_model": self._service.engine.model_id, **views.lora(checkpoint.lora)})

    async def get_training_run(self, request: Request) -> Response:
        """One training run."""
        return JSONResponse(
            views.training_run(self._service, self._service.store.training_run(request.path_params["run_id"]))
        )

    async def renew_training_run(self, request: Request) -> Response:
        """New credentials for a run."""
        run = self._service.store.training_run(request.path_params["run_id"])
        return JSONResponse(views.training_run(self._service, run) | views.access(request, self._service, run.id))

    async def list_run_checkpoints(self, request: Request) -> Response:
        """Checkpoints of one run, also one of an earlier server."""
        run_id = request.path_params["run_id"]
        if not self._service.checkpoints.knows_run(run_id):
            self._service.store.training_run(run_id)
            return self._checkpoint_page(request, [])
        return self._checkpoint_page(
            request, [views.checkpoint(self._service, c) for c in self._service.checkpoints.all(run_id)]
        )

    async def get_sampling_run(self, request: Request) -> Response:
        """One sampling run."""
        return JSONResponse(
            views.sampling_run(self._service, self._service.store.sampling_run(request.path_params["run_id"]))
        )

    async def renew_sampling_run(self, request: Request) -> Response:
        """New credentials for a run."""
        run = self._service.store.sampling_run(request.path_params["run_id"])
        return JSONResponse(views.sampling_run(self._service, run) | views.access(request, self._service, run.id))

    async def list_checkpoints(self, request: Request) -> Response:
        """All checkpoints, oldest first."""
        return self._checkpoint_page(
            request, [views.checkpoint(self._service, c) for c in self._service.checkpoints.all()]
        )

    async def delete_checkpoint(self, request: Request) -> Response:
        """Removes a checkpoint from disk. Samplers that hold it in the engine keep working until it is evicted."""
        self._service.checkpoints.delete(self._service.checkpoints.by_id(request.path_params["checkpoint_id"]))
        return JSONResponse({})

    async def download_url(self, request: Request) -> Response:
        """An address that needs no header, for an hour."""
        checkpoint = self._service.checkpoints.by_id(request.path_params["checkpoint_id"])
        path = f"/api/openapi/v1/checkpoints/{checkpoint.id}/archive"
        query = self._service.keyring.issue_download(path, _DOWNLOAD_LIFETIME_S)
        return JSONResponse(views.download(f"{views.server_url(request)}{path}?{query}", _DOWNLOAD_LIFETIME_S))

    async def download(self, request: Request) -> Response:
        """A checkpoint as a zip file; byte ranges are served."""
        checkpoint = self._service.checkpoints.by_id(request.path_params["checkpoint_id"])
        path = await self._service.archives.path(checkpoint)
        return FileResponse(path, media_type="application/zip", filename=f"{checkpoint.name}.zip")

    def _checkpoint_page(self, request: Request, checkpoints: list[dict[str, object]]) -> Response:
        page, cursor = _page(request, checkpoints)
        return JSONResponse({"checkpoints": page, "cursor": cursor})


async def _body(request: Request, model: type[BodyT]) -> BodyT:
    return model.model_validate_json(await request.body())


def _page(request: Request, items: Sequence[T]) -> tuple[list[T], dict[str, int]]:
    """The part of `items` that `limit` and `offset` ask for, and the cursor that describes it."""
    raw = {"limit": request.query_params.get("limit", "100"), "offset": request.query_params.get("offset", "0")}
    if not all(value.isdecimal() for value in raw.values()):
        raise ApiError(422, "invalid_request", "limit and offset must be whole numbers.")
    limit, offset = min(int(raw["limit"]), _MAX_PAGE), int(raw["offset"])
    return list(items[offset : offset + limit]), {"limit": limit, "offset": offset, "total": len(items)}
