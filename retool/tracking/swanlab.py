"""A mirror of the run's figures in SwanLab. The record is `metrics.jsonl`; nothing that happens here ends a run.

Whatever fails becomes one warning, and the mirror stops; that is why `Exception` is caught here. SwanLab is imported
when a mirror is opened, never before.

Contents: `SwanlabMode` (the modes), `SwanlabMirror`.
"""

import importlib.util
import logging
import signal
import socket
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from retool.tracking.base import FinishState

if TYPE_CHECKING:
    import swanlab

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3.0


class SwanlabMode(StrEnum):
    """Where SwanLab keeps the run."""

    DISABLED = "disabled"
    """Nowhere; SwanLab is not even imported."""
    OFFLINE = "offline"
    """In the run directory, to be sent later with `swanlab sync`. Points of a killed run are lost."""
    LOCAL = "local"
    """In the run directory, for `swanlab watch`. Needs the `dashboard` extra."""
    ONLINE = "online"
    """On the SwanLab service. Needs an API key (`swanlab login` or SWANLAB_API_KEY); offline without one."""


@dataclass(frozen=True, slots=True)
class SwanlabRun:
    """How the run is named and filed. `run_id` continues an earlier run; `None` starts a new one."""

    project: str = "retool"
    workspace: str | None = None
    name: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    run_id: str | None = None


class SwanlabMirror:
    """A tracker that repeats everything in SwanLab.

    `config` is a plain nested mapping. `directory` takes SwanLab's files.
    """

    def __init__(self, *, mode: SwanlabMode, directory: Path, run: SwanlabRun, config: Mapping[str, object]) -> None:
        self._run: swanlab.Run | None = None
        self._stopped = False
        self.run_id = run.run_id
        self.mode = SwanlabMode.DISABLED
        if mode is SwanlabMode.DISABLED:
            return
        try:
            self.mode = _possible_mode(mode)
            self._run = self._open(directory, run, config)
        except Exception as failure:  # noqa: BLE001
            self._warn("could not be started; metrics.jsonl goes on alone", failure)
        if self._run is None:
            self.mode = SwanlabMode.DISABLED
        else:
            self.run_id = self._run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._guarded("did not take the figures", lambda run: run.log(dict(metrics), step=step))

    def log_text(self, step: int, name: str, text: str) -> None:
        def send(run: "swanlab.Run") -> None:
            import swanlab

            run.log({name: swanlab.Text(text)}, step=step)

        self._guarded("did not take a text", send)

    def finish(self, state: FinishState, error: str | None = None) -> None:
        """Ends the SwanLab run as success, crashed (with the error) or aborted (to be continued)."""
        outcome = {
            FinishState.DONE: "success",
            FinishState.FAILED: "crashed",
            FinishState.REQUEUED: "aborted",
        }[state]
        reason = (error or "unknown") if state is FinishState.FAILED else None
        try:
            if self._run is not None:
                self._run.finish(state=outcome, error=reason)
        except Exception as failure:  # noqa: BLE001
            if not self._stopped:
                self._warn("could not be finished", failure)
        finally:
            self._run = None

    def _open(self, directory: Path, run: SwanlabRun, config: Mapping[str, object]) -> "swanlab.Run":
        try:
            return _start(self.mode, directory, run, config)
        except Exception as failure:
            if self.mode is not SwanlabMode.ONLINE:
                raise
            self._warn("could not be reached, so the mirror is kept offline", failure)
            self.mode = SwanlabMode.OFFLINE
            return _start(self.mode, directory, run, config)

    def _guarded(self, what: str, action: "Callable[[swanlab.Run], object]") -> None:
        if self._run is None or self._stopped:
            return
        try:
            action(self._run)
        except Exception as failure:  # noqa: BLE001
            self._warn(f"{what}; the mirror stops here, metrics.jsonl goes on", failure)
            self._stopped = True

    @staticmethod
    def _warn(what: str, failure: Exception) -> None:
        logger.warning("SwanLab %s: %s: %s", what, type(failure).__name__, failure)
        logger.debug("SwanLab's traceback", exc_info=failure)


def _start(mode: SwanlabMode, directory: Path, run: SwanlabRun, config: Mapping[str, object]) -> "swanlab.Run":
    import swanlab

    directory.mkdir(parents=True, exist_ok=True)
    settings = swanlab.Settings(
        interactive=False,
        probe=swanlab.Settings.Probe(monitor=False, requirements=False, conda=False),
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
    )
    hooks = (sys.excepthook, signal.getsignal(signal.SIGINT))
    try:
        return swanlab.init(
            reinit=True,
            mode=mode.value,
            log_dir=str(directory),
            project=run.project,
            workspace=run.workspace,
            name=run.name,
            group=run.group,
            tags=list(run.tags) or None,
            id=run.run_id,
            resume="allow" if run.run_id else "never",
            config=dict(config),
            settings=settings,
        )
    except Exception:
        if swanlab.has_run():  # half started, it would be in the way of every later run of this process
            swanlab.finish(state="crashed", error="not started")
        raise
    finally:
        # SwanLab takes over Ctrl-C and uncaught exceptions; the run handles both itself and then calls `finish`.
        sys.excepthook = hooks[0]
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, hooks[1])


def _possible_mode(mode: SwanlabMode) -> SwanlabMode:
    """The mode asked for, or offline with a warning where SwanLab would prompt, hang or show nothing."""
    if mode is SwanlabMode.LOCAL and importlib.util.find_spec("swanboard") is None:
        logger.warning(
            "tracker.swanlab.mode=local needs SwanLab's dashboard, which is not installed "
            "(pip install 'retool[dashboard]'). The mirror is kept offline instead."
        )
        return SwanlabMode.OFFLINE
    if mode is SwanlabMode.ONLINE and (obstacle := _online_obstacle()):
        message = "tracker.swanlab.mode=online: %s. The mirror is kept offline; `swanlab sync` sends it later."
        logger.warning(message, obstacle)
        return SwanlabMode.OFFLINE
    return mode


def _online_obstacle() -> str | None:
    import swanlab

    settings = swanlab.Settings()
    if not settings.api_key:
        return "there is no API key (`swanlab login`, or the variable SWANLAB_API_KEY)"
    host = urllib.parse.urlsplit(settings.api_host)
    if host.hostname is None or urllib.request.getproxies():
        return None  # behind a proxy only SwanLab's own request can tell
    port = host.port or (80 if host.scheme == "http" else 443)
    try:
        socket.create_connection((host.hostname, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{settings.api_host} cannot be reached ({error})"
    return None
