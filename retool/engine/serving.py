"""`serve`: the engine as a server for others, in this process, until it is told to stop."""

import asyncio
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retool.engine.types import EngineError
from retool.engine.wire.server import EngineServer, bind, locked
from retool.engine.wire.service import Service, ServiceSettings
from retool.errors import UserError

logger = logging.getLogger("retool.serve")

_CLOSE_WITHIN_S = 10.0


def serve(
    *,
    base_model: str,
    engine: Mapping[str, Any],
    names: tuple[str, ...],
    engine_dir: Path,
    host: str,
    port: int,
    key: str | None,
) -> None:
    """Serves `base_model` under `names` until SIGINT or SIGTERM; prints how to reach it.

    `engine` holds the arguments of `EngineLoop`; a `key` of `None` is drawn. Must run in the main thread. Raises
    `UserError` when the model cannot be loaded or the address not be had.
    """
    from retool.engine.loop import EngineLoop

    with locked(engine_dir):
        listener = bind(host, port)
        try:
            loop = EngineLoop(base_model=base_model, **engine)
        except EngineError as error:
            listener.close()
            raise UserError(f"model.base_model: {error}") from error
        settings = ServiceSettings(api_key=key or secrets.token_urlsafe(32), engine_dir=engine_dir, names=names)
        server = EngineServer(Service(loop, settings), listener)
        lines = [
            f"Serving {', '.join(names)} from {loop.model_id}; checkpoints in {engine_dir}",
            f"export PYTRIO_BASE_URL=http://{_reachable(host)}:{server.port}",
            f"export PYTRIO_API_KEY={settings.api_key}",
        ]
        asyncio.run(
            server.run(
                stop_signals=(signal.SIGINT, signal.SIGTERM),
                on_ready=lambda: print("\n".join(lines), flush=True),
            )
        )
        _close(loop.close)


def _reachable(host: str) -> str:
    """An address for clients on this machine."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _close(close: Callable[[], None]) -> None:
    """Lets the operation under way end, but not for ever: nothing on disk is half written by it."""
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(_CLOSE_WITHIN_S)
    if closing.is_alive():
        logger.warning("An operation did not end in time; leaving without it")
        os._exit(0)
