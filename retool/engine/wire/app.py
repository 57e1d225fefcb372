"""`build_app`: the ASGI application of a service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retool.engine.types import EngineError
from retool.engine.wire.actor import ActorPlane
from retool.engine.wire.control import ControlPlane
from retool.engine.wire.errors import ApiError, as_api_error
from retool.engine.wire.security import FaultGuard, KeyGuard, SizeGuard
from retool.engine.wire.service import Service


def build_app(service: Service) -> Starlette:
    """Both planes behind the key, with a reply below 500 to every failure; `/health` is open."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(service.sweep_forever())
        try:
            yield
        finally:
            sweeper.cancel()
            service.archives.close()

    return Starlette(
        routes=[
            *ActorPlane(service).routes(),
            *ControlPlane(service).routes(),
            Route("/health", _health),
        ],
        middleware=[
            Middleware(FaultGuard),
            Middleware(KeyGuard, keyring=service.keyring),
            Middleware(SizeGuard, limit_bytes=service.settings.max_body_bytes),
        ],
        exception_handlers={
            ApiError: _reply_to_failure,
            EngineError: _reply_to_failure,
            ValidationError: _reply_to_failure,
            HTTPException: _reply_to_http_failure,
        },
        lifespan=lifespan,
    )


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _reply_to_failure(_request: Request, error: Exception) -> Response:
    api_error = as_api_error(error)
    return JSONResponse(api_error.body(), status_code=api_error.status)


async def _reply_to_http_failure(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 400
    message = f"{request.method} {request.url.path}: not part of the protocol that this server speaks."
    return JSONResponse({"code": "unsupported_request", "message": message}, status_code=status)
