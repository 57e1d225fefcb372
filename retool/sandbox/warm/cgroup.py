"""One memory limit for everything that a fork server runs, where this process may make cgroups.

`create`: a cgroup below this process's own, of version 1 or 2.
"""

import contextlib
import os
from typing import NamedTuple

_PREFIX = "retool-"
_V1 = "/sys/fs/cgroup/memory"
_V2 = "/sys/fs/cgroup"


class Cgroup(NamedTuple):
    """An own cgroup. `events`: the file that counts processes killed for want of memory."""

    directory: str
    events: str

    def join(self) -> None:
        """Moves this process in. Raises `OSError`."""
        _write(f"{self.directory}/cgroup.procs", "0")

    def remove(self) -> None:
        """Removes it once its processes are gone. One that is still busy is left for the next start to remove."""
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)


def create(limit: int) -> Cgroup | None:
    """A cgroup whose processes may use `limit` bytes together; None where the machine gives this process none."""
    for root, parent, limit_file, events in _candidates():
        directory = f"{root}{parent.rstrip('/')}/{_PREFIX}{os.getpid()}"
        try:
            _remove_abandoned(os.path.dirname(directory))
            os.mkdir(directory)
        except OSError:
            continue
        try:
            _write(f"{directory}/{limit_file}", str(limit))
        except OSError:
            os.rmdir(directory)
            continue
        return Cgroup(directory, f"{directory}/{events}")
    return None


def _candidates() -> list[tuple[str, str, str, str]]:
    found = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append((_V1, path, "memory.limit_in_bytes", "memory.oom_control"))
        elif not controllers:
            found.append((_V2, path, "memory.max", "memory.events"))
    return found


def _remove_abandoned(parent: str) -> None:
    for name in os.listdir(parent):
        number = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and number.isdigit() and not os.path.exists(f"/proc/{number}"):
            with contextlib.suppress(OSError):
                os.rmdir(f"{parent}/{name}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
