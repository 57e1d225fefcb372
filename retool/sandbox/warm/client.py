"""One fork server, seen from the trainer. `ForkServer`: starts it, takes children from it, and watches it."""

import asyncio
import collections
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import retool
from retool.errors import InfrastructureError
from retool.sandbox.bootstrap import BOOTSTRAP
from retool.sandbox.warm import settings
from retool.sandbox.warm.call import Child, Ending, WarmCall
from retool.sandbox.warm.settings import Settings

_START_LIMIT_S = 60.0
_CLOSE_LIMIT_S = 5.0
_CHILD_LIMIT_S = 30.0
_LAUNCHER = "retool.sandbox.warm.launcher"
_LAST_WORDS = 2000


class ForkServer:
    """Start it with `start`; a server that has ended (`alive` is false) is closed and replaced by a new one."""

    def __init__(self, python: str, given: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._python = python
        self._given = given
        self._hello: asyncio.Future[frozenset[str]] = self._loop.create_future()
        self._children: collections.deque[Child] = collections.deque()
        self._waiters: collections.deque[asyncio.Future[Child]] = collections.deque()
        self._calls: dict[int, WarmCall] = {}
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = -1
        self.alive = False
        self.busy: set[int] = set()

    async def start(self) -> frozenset[str]:
        """Starts it and returns which modules it has imported. Raises `InfrastructureError` with its last words."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._errors, errors = os.pipe()
        given = self._given._replace(control=theirs.fileno(), owner=os.getpid())
        root = str(Path(retool.__file__).parent)
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        try:
            with theirs, _closing(errors):
                self._process = subprocess.Popen(
                    [self._python, "-s", "-c", BOOTSTRAP, root, _LAUNCHER, BOOTSTRAP, root, settings.encode(given)],
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                )
            ours.setblocking(False)
            self.alive = True
            self._loop.add_reader(ours.fileno(), self._hear)
            async with asyncio.timeout(_START_LIMIT_S):
                return await self._hello
        except (OSError, InfrastructureError) as error:
            # What a fork server prints, it prints when it fails.
            words = self._last_words()
            await self.aclose()
            raise InfrastructureError(words or f"cannot start {self._python}: {error}") from error
        except BaseException:
            await self.aclose()
            raise

    async def take(self) -> Child:
        """A child that waits for code: one that is ready, or one that is forked now. Raises `InfrastructureError`."""
        if self._children:
            return self._children.popleft()
        waiter: asyncio.Future[Child] = self._loop.create_future()
        self._waiters.append(waiter)
        self.tell("want 1")
        try:
            async with asyncio.timeout(_CHILD_LIMIT_S):
                return await waiter
        except TimeoutError:
            raise InfrastructureError("the fork server gives no child") from None
        finally:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None and _is_cancelling():
                self._children.append(waiter.result())

    def begin(self, call: WarmCall, child: Child, cpu_time_s: float, wall_time_s: float) -> None:
        """Tells the server that `child` runs from now on, under these limits; its end goes to `call`."""
        call.begun = time.monotonic()
        self._calls[child.number] = call
        self.busy.add(child.number)
        self.tell(f"start {child.number} {cpu_time_s} {wall_time_s} {call.begun}")

    def tell(self, message: str) -> None:
        """Sends `message`; a server that no longer listens is found dead."""
        if self._control is None or not self.alive:
            self._lose()
            return
        try:
            self._control.send(message.encode())
        except OSError:
            # It is gone, or so stuck that its buffer is full.
            self._lose()

    def _hear(self) -> None:
        assert self._control is not None
        while self.alive:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, 65536, 3)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._lose()
                return
            self._obey(message.decode("utf-8", "replace"), descriptors)

    def _obey(self, message: str, descriptors: list[int]) -> None:
        verb, _, rest = message.partition(" ")
        if verb == "child":
            child = Child(int(rest), socket.socket(fileno=descriptors[0]), descriptors[1], descriptors[2])
            self._hand_over(child)
        elif verb == "end":
            number, kind, status, cpu, wall = rest.split()
            self.busy.discard(int(number))
            self._forget_idle(int(number))
            call = self._calls.pop(int(number), None)
            if call is not None:
                call.end(Ending(kind, int(status), float(cpu), float(wall)))
        elif verb == "failed":
            if self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(InfrastructureError(f"the fork server cannot fork: {rest}"))
        elif verb == "hello" and not self._hello.done():
            self._hello.set_result(frozenset(rest.split()))

    def _hand_over(self, child: Child) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._children.append(child)

    def _forget_idle(self, number: int) -> None:
        """A child that ended before it had code: its set-up failed, or something killed it."""
        for child in self._children:
            if child.number == number:
                self._children.remove(child)
                child.close()
                return

    def _lose(self) -> None:
        """The server has ended. What it was doing ends as lost; everybody who waits is told."""
        self.alive = False
        problem = InfrastructureError("the fork server has ended")
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
        if not self._hello.done():
            self._hello.set_exception(problem)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(problem)
        calls, self._calls = self._calls, {}
        self.busy.clear()
        for call in calls.values():
            call.end(Ending("lost", 0, 0.0, 0.0))

    def _last_words(self) -> str:
        if self._errors < 0:
            return ""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        os.set_blocking(self._errors, False)
        try:
            return os.read(self._errors, 1 << 16).decode("utf-8", "replace").strip()[-_LAST_WORDS:]
        except BlockingIOError:
            return ""

    async def aclose(self) -> None:
        """Ends the server and everything it runs, and waits until it is gone."""
        self._lose()
        while self._children:
            self._children.popleft().close()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            await asyncio.shield(asyncio.to_thread(self._wait, self._process))
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        try:
            process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_CLOSE_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
