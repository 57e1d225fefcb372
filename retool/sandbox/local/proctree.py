"""The processes below a process, read from `/proc`. Standard library only: it also runs inside the sandbox.

`Task`: one process with its CPU time. `descendants`: all of them below a pid. `kill_descendants`: SIGKILL to all.
"""
# Each import here is paid by every call of the sandbox: no pathlib, no typing, and `_signal`, which is `signal`
# without its enums.
# ruff: noqa: PTH123, PTH208

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Task:
    """A process as `/proc/<pid>/stat` shows it. `cpu_seconds` includes the children that it has waited for."""

    __slots__ = ("alive", "cpu_seconds", "group", "parent", "pid", "threads")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.alive = fields[0] not in (b"Z", b"X")
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.cpu_seconds = sum(int(field) for field in fields[11:15]) / _TICKS_PER_SECOND
        self.threads = int(fields[17])


def read_task(pid: int) -> Task | None:
    """The process `pid`, or None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses itself.
    return Task(pid, stat[stat.rindex(b")") + 2 :].split())


def descendants(pid: int) -> list[Task]:
    """All processes below `pid`, without `pid` itself. Zombies are included."""
    children: dict[int, list[Task]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            task = read_task(int(name))
            if task is not None:
                children.setdefault(task.parent, []).append(task)
    found: list[Task] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.extend(below)
        waiting.extend(task.pid for task in below)
    return found


def count_own_threads() -> int:
    """Threads of this user on the machine: the kernel counts them all against a process limit."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                # The process ended while it was looked at.
                continue
    return total


def kill_descendants(pid: int) -> int:
    """Sends SIGKILL to everything below `pid` and returns how many were alive. Whole process groups go first, at once.

    Processes that fork faster than this kills may leave new ones: call it until it returns 0.
    """
    alive = [task for task in descendants(pid) if task.alive]
    top = read_task(pid)
    spared = {os.getpgid(0)} | ({top.group} if top is not None else set())
    for group in {task.group for task in alive} - spared:
        _kill(-group)
    for task in alive:
        _kill(task.pid)
    return len(alive)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # Gone already, or a set-uid program that is not ours to end.
        return
