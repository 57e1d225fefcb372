"""One execution in a forked child, seen from the trainer: code in, output out, and how it ended.

`Child`: what a fork server hands over. `Ending`: how a call ended. `WarmCall`: the execution, on the event loop alone.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from retool.sandbox.capture import StreamCapture

_READ_SIZE = 65536
_HEADER = struct.Struct("<16sIII")
_END = struct.Struct("<c16sid")
_CHUNK = 60000
_KERNEL_CPU_MARGIN_S = 2


@dataclass(frozen=True, slots=True)
class Child:
    """A process that waits for code. `number`: its name at the fork server. Owned by whoever holds it."""

    number: int
    link: socket.socket
    stdout: int
    stderr: int

    def close(self) -> None:
        """Lets go of it, which ends it."""
        self.link.close()
        os.close(self.stdout)
        os.close(self.stderr)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended.

    `kind`: `exit`, a limit (`cpu`, `wall`, `memory`), `stopped`, or `lost` where the fork server is gone. `status`: as
    `os.wait` gives it. `failure`: why the child could not be set up; nothing of the code has run then.
    """

    kind: str
    status: int
    cpu_seconds: float
    wall_seconds: float
    failure: str = ""


class WarmCall:
    """Runs code in `child`. After `finish`, no descriptor of it is left."""

    def __init__(self, child: Child, *, output_chars: int, output_hard_bytes: int, stop: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self.ready = False
        self.overflowed = False
        self.begun = 0.0
        self._child = child
        self._stop = stop
        self._nonce = secrets.token_bytes(16)
        self._hard_bytes = output_hard_bytes
        self._output_bytes = 0
        self._captures = {child.stdout: StreamCapture(output_chars), child.stderr: StreamCapture(output_chars)}
        self._watched: set[int] = set()

    async def send(self, source: bytes, *, auto_print: bool, cpu_time_s: float) -> None:
        """Hands the code over. A child that has ended meanwhile is no error here: its end is reported."""
        link = self._child.link
        for descriptor, handler in (
            (link.fileno(), self._hear),
            (self._child.stdout, self._read_stdout),
            (self._child.stderr, self._read_stderr),
        ):
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, handler)
            self._watched.add(descriptor)
        header = _HEADER.pack(self._nonce, len(source), auto_print, int(cpu_time_s) + _KERNEL_CPU_MARGIN_S)
        first = header + source[:_CHUNK]
        with contextlib.suppress(ConnectionError):
            await self._send(first)
            for start in range(_CHUNK, len(source), _CHUNK):
                await self._send(source[start : start + _CHUNK])

    async def _send(self, message: bytes) -> None:
        try:
            self._child.link.send(message)
        except BlockingIOError:
            send = asyncio.ensure_future(self._loop.sock_sendall(self._child.link, message))
            # A child that is killed in the middle of its code never reads the rest.
            await asyncio.wait((send, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not send.done():
                send.cancel()
                raise ConnectionAbortedError from None
            send.result()

    def end(self, ending: Ending) -> None:
        """The fork server says how it ended. What the child itself has said before counts first."""
        while self._child.link.fileno() in self._watched and self._hear():
            pass
        if not self.ready and not ending.failure and ending.kind == "exit":
            ending = dataclasses.replace(ending, failure="the child ended while it was set up")
        self._settle(ending)

    def _settle(self, ending: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)

    def finish(self) -> tuple[str, str]:
        """Takes what is left in the pipes, closes everything, and returns standard output and error."""
        for descriptor in list(self._watched):
            self._unwatch(descriptor)
        for descriptor in self._captures:
            if not self.overflowed:
                self._drain(descriptor)
            self._captures[descriptor].feed(b"", final=True)
        self._child.close()
        stdout, stderr = (capture.text for capture in self._captures.values())
        return stdout, stderr

    def _unwatch(self, descriptor: int) -> None:
        self._watched.discard(descriptor)
        self._loop.remove_reader(descriptor)

    def _hear(self) -> bool:
        """Takes one message; whether there was one."""
        link = self._child.link
        try:
            message = link.recv(_READ_SIZE)
        except BlockingIOError:
            return False
        except ConnectionError:
            message = b""
        if not self.ready and message == b"R":
            self.ready = True
        elif not self.ready and message[:1] == b"F":
            self._settle(Ending("exit", 0, 0.0, 0.0, failure=message[1:].decode("utf-8", "replace")))
        else:
            # Whatever comes now is the last that is listened to: a program may write here what it likes.
            self._unwatch(link.fileno())
            if self.ready and len(message) == _END.size:
                _, nonce, code, cpu = _END.unpack(message)
                if nonce == self._nonce and 0 <= code < 256:
                    self._settle(Ending("exit", code << 8, cpu, self._loop.time() - self.begun))
        return True

    def _read_stdout(self) -> None:
        self._read(self._child.stdout)

    def _read_stderr(self) -> None:
        self._read(self._child.stderr)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._unwatch(descriptor)
            return
        self._take(descriptor, data)
        if self.overflowed:
            for pipe in self._captures:
                self._unwatch(pipe)
            self._stop()

    def _take(self, descriptor: int, data: bytes) -> None:
        self._captures[descriptor].feed(data)
        self._output_bytes += len(data)
        self.overflowed = self._output_bytes > self._hard_bytes

    def _drain(self, descriptor: int) -> None:
        while not self.overflowed:
            try:
                data = os.read(descriptor, _READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                return
            self._take(descriptor, data)
