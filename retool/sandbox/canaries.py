"""Attacks that a tier of the sandbox has to hold against before it is used.

`run_canaries`: tries them all and says for each whether it held.
"""

import asyncio
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retool.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox

_HELD = "held"
_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """`name`: what was tried. `problem`: empty if the sandbox held."""

    name: str
    problem: str

    @property
    def held(self) -> bool:
        return not self.problem


# Each program prints "held" unless it gets what it must not get. Names in capitals are set in front of it.
_ATTACKS = {
    "read the user's files": """
try:
    print(open(SECRET_FILE).read())
except OSError:
    print("held")
""",
    "change the user's files": """
try:
    open(DIRECTORY + "/planted", "w").write("x")
    print("written")
except OSError:
    print("held")
""",
    "read the trainer's environment": """
import os
try:
    print(len(open(f"/proc/{PID}/environ", "rb").read()), "bytes read")
except OSError:
    print("found" if ENVIRONMENT_NAME in os.environ else "held")
""",
    "signal the trainer": """
import os
try:
    os.kill(PID, 0)
    print("sent")
except OSError:
    print("held")
""",
    "connect to the network": """
import ctypes
libc = ctypes.CDLL(None)
import socket
try:
    s = socket.create_connection(("127.0.0.1", PORT), 2)
    print("connected")
except OSError:
    print("held" if libc.socket(2, 1, 0) < 0 else "a socket was made")
""",
    "connect to local services": """
import socket
try:
    s = socket.socket(socket.AF_UNIX)
    s.connect("\\0" + ABSTRACT)
    print("connected")
except OSError:
    print("held")
""",
    "start processes without limit": """
import os, time
started = 0
try:
    while started < PROCESSES:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
    print(started, "processes started")
except OSError:
    print("held")
""",
    "use memory without limit": """
try:
    block = bytearray(MEMORY)
    print(len(block), "bytes taken")
except MemoryError:
    print("held")
""",
    "gain privileges": """
import ctypes, os
libc = ctypes.CDLL(None)
gained = []
if libc.unshare(0x10000000) == 0: gained.append("a user namespace")
if libc.mount(b"none", b"/", b"tmpfs", 0, None) == 0: gained.append("a mount")
if libc.memfd_create(b"m", 0) >= 0: gained.append("memory that is not counted")
try:
    if os.getuid():
        os.setuid(0)
        gained.append("root")
except OSError:
    pass
print(", ".join(gained) or "held")
""",
}


async def run_canaries(sandbox: Sandbox, *, memory_mb: int, processes: int) -> list[CanaryResult]:
    """Tries every attack on `sandbox`. `memory_mb`, `processes`: more of each than a call may have."""
    with _bait(memory_mb, processes) as (preamble, directory):
        trials = {"run a program": "print('held')", **{name: preamble + code for name, code in _ATTACKS.items()}}
        results = await asyncio.gather(
            *(sandbox.run(code, cpu_time_s=_LIMIT_S, wall_time_s=_LIMIT_S) for code in trials.values())
        )
        found = [CanaryResult(name, _problem(result)) for name, result in zip(trials, results, strict=True)]
        if (directory / "planted").exists():
            found.append(CanaryResult("leave files behind", "a file was written outside of the sandbox"))
    return found


def _problem(result: ExecutionResult) -> str:
    if result.status is ExecutionStatus.OK and result.stdout.strip() == _HELD:
        return ""
    return (result.stdout or result.stderr or result.text).strip()[-200:] or str(result.status)


@contextmanager
def _bait(memory_mb: int, processes: int) -> Iterator[tuple[str, Path]]:
    """What the attacks go for, as the first lines of their programs, and the directory that holds it."""
    name = "RETOOL_" + secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="retool-bait-") as path,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        directory = Path(path)
        directory.chmod(0o777)
        secret = directory / "secret"
        secret.write_text("a secret", encoding="utf-8")
        secret.chmod(0o644)
        local.bind("\0" + name)
        local.listen()
        values = {
            "SECRET_FILE": str(secret),
            "DIRECTORY": path,
            "ENVIRONMENT_NAME": name,
            "PID": os.getpid(),
            "PORT": server.getsockname()[1],
            "ABSTRACT": name,
            "PROCESSES": processes,
            "MEMORY": memory_mb << 20,
        }
        os.environ[name] = "a secret"
        try:
            yield "".join(f"{key} = {value!r}\n" for key, value in values.items()), directory
        finally:
            del os.environ[name]
