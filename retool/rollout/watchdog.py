"""Makes a rollout that hangs visible: what it waits for, and for how long.

Contents: `Watchdog`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOG = logging.getLogger(__name__)


class Watchdog:
    """Keeps a list of open waits and logs the oldest as long as it is older than `patience_s` seconds.

    It never ends a wait: the components have their own limits, and a slow service is not a failed one.
    """

    def __init__(self, *, patience_s: float = 120.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._open: dict[object, tuple[float, str]] = {}

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Marks the time in which the caller waits for `what`."""
        key = object()
        self._open[key] = (self._clock(), what)
        try:
            yield
        finally:
            del self._open[key]

    def report(self) -> str | None:
        """One sentence on the waits older than the patience, or `None` if there is none."""
        now = self._clock()
        late = sorted((since, what) for since, what in self._open.values() if now - since >= self._patience_s)
        if not late:
            return None
        since, what = late[0]
        return f"{len(late)} of {len(self._open)} waits are long; the oldest, {what}, takes {now - since:.0f} s so far."

    async def run(self) -> None:
        """Logs the report as a warning once in each period of `patience_s`, until cancelled."""
        while True:
            await asyncio.sleep(self._patience_s)
            report = self.report()
            if report is not None:
                _LOG.warning(report)
