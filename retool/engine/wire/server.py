"""Running the application: `bind`, `locked`, `EngineServer`.

`EngineServer.run` returns when it was told to stop. A stop answers those who wait for an event, lets requests in
flight end for a few seconds, and closes the engine.
"""

import asyncio
import contextlib
import fcntl
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import uvicorn

from retool.engine.wire.app import build_app
from retool.engine.wire.service import Service
from retool.errors import UserError

_GRACE_S = 10
_KEEP_ALIVE_S = 300
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises `UserError` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Naming the protocol makes asyncio set TCP_NODELAY on accepted connections; replies take 40 ms without it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another port.") from error
    listener.listen(_BACKLOG)
    return listener


@contextlib.contextmanager
def locked(engine_dir: Path) -> Generator[None, None, None]:
    """Holds an engine directory. Raises `UserError` while another process does: two would undo each other's saves."""
    engine_dir.mkdir(parents=True, exist_ok=True)
    with (engine_dir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another engine is using {engine_dir}. Stop it, or choose another directory.") from None
        yield


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves signals to `EngineServer`."""
        yield


class EngineServer:
    """One service on one socket."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        self._service = service
        self._listener = listener
        # The client drops idle connections after 5 s; a server that did so first would make it meet dead ones.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            build_app(service),
            access_log=False,
            log_config=None,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
            lifespan="on",
            server_header=False,
            ws="none",
        )
        self._uvicorn = _Uvicorn(config)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.getsockname()[1])

    def description(self) -> dict[str, object]:
        """What a client needs to use the server."""
        engine = self._service.engine
        return {
            "port": self.port,
            "api_key": self._service.settings.api_key,
            "model_id": engine.model_id,
            "model_alias": self._service.names[0],
            "max_seq_len": engine.max_seq_len,
        }

    async def run(
        self, *, stop_signals: Sequence[signal.Signals] = (), on_ready: Callable[[], None] | None = None
    ) -> None:
        """Serves until `stop` is called or one of `stop_signals` arrives."""
        self._loop = asyncio.get_running_loop()
        for number in stop_signals:
            self._loop.add_signal_handler(number, self._stop)
        if on_ready is not None:
            on_ready()
        try:
            await self._uvicorn.serve(sockets=[self._listener])
        finally:
            for number in stop_signals:
                self._loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Asks `run` to return; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed already
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._uvicorn.should_exit:
            self._uvicorn.force_exit = True
        self._service.ledger.close()
        self._uvicorn.should_exit = True
