"""`python -m retool.engine`: the embedded engine as a process of its own, started by `retool.policy`.

One line of JSON on standard input configures it: `engine` (arguments of `EngineLoop`), `engine_dir`, `names`,
`parent_pid`. One line of JSON on standard output answers, once it serves or cannot: `{"ready": true, "port": …,
"api_key": …, …}` or `{"ready": false, "message": …}`. It listens on 127.0.0.1 only, ignores the signals that its job
receives (the parent decides what they mean), and ends when standard input does. Logs go to standard error.
"""

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retool.engine.model.registry import resolve
from retool.engine.types import EngineError
from retool.engine.wire.parent import tie_to_parent
from retool.engine.wire.server import EngineServer, bind, locked
from retool.engine.wire.service import Service, ServiceSettings
from retool.errors import UserError

logger = logging.getLogger("retool.engine")

_STOP_WITHIN_S = 4.0


def main() -> None:
    """Reads the configuration, serves, and leaves."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    answer = _answer_channel()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    config = json.loads(_read_line(0))
    closing = _Closing()
    tie_to_parent(config["parent_pid"], 0, closing)
    logger.info("Starting with %s in %s", config["engine"], config["engine_dir"])
    try:
        with locked(Path(config["engine_dir"])):
            closing.server = server = EngineServer(_service(config), bind("127.0.0.1", 0))
            asyncio.run(server.run(on_ready=lambda: answer({"ready": True, **server.description()})))
    except (UserError, EngineError) as error:
        answer({"ready": False, "message": str(error)})
        sys.exit(2)
    # The parent needs nothing more; an operation that still runs must not hold the process.
    os._exit(0)


class _Closing:
    """What happens when the parent closes the pipe: a graceful stop that cannot take long."""

    server: EngineServer | None = None

    def __call__(self) -> None:
        if self.server is None:
            os._exit(0)
        self.server.stop()
        timer = threading.Timer(_STOP_WITHIN_S, lambda: os._exit(0))
        timer.daemon = True
        timer.start()


def _service(config: Mapping[str, Any]) -> Service:
    resolve(config["engine"]["base_model"])  # a wrong name is known before torch is loaded
    from retool.engine.loop import EngineLoop

    settings = ServiceSettings(
        api_key=secrets.token_urlsafe(32),
        engine_dir=Path(config["engine_dir"]),
        names=tuple(config["names"]),
        allow_file_uris=True,
    )
    return Service(EngineLoop(**config["engine"]), settings)


def _answer_channel() -> Callable[[Mapping[str, object]], None]:
    """Takes standard output for answers alone: whatever a library prints goes to standard error."""
    channel = os.dup(1)
    os.dup2(2, 1)

    def answer(message: Mapping[str, object]) -> None:
        os.write(channel, json.dumps(message).encode() + b"\n")

    return answer


def _read_line(descriptor: int) -> bytes:
    """One line, unbuffered: what follows, which is only its end, belongs to the watch on the parent."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 65536)
        if not piece:
            os._exit(0)
        line += piece
    return line


if __name__ == "__main__":
    main()
