"""The parent of model code: starts it in a child, enforces its limits, ends all it started and reports.

It runs in the sandbox's own interpreter, one process a call, with the standard library only. It is started by
`retool.sandbox.local.call` with the code on standard input, `key=value` arguments, and the scratch directory as working
directory. `Settings`: those arguments. `main`: the whole life of a call.

Report, on the descriptor `report`: the line `started` before the code runs, then one line
`ended <kind> <wait status> <CPU seconds> <wall seconds>` with kind `exit`, `cpu`, `wall` or `stopped`.
"""
# Each import here is paid by every call of the sandbox: no pathlib, no typing, and `_signal`, which is `signal`
# without its enums.
# ruff: noqa: PTH106, PTH109, PTH120

import os
import resource
import sys
import time

from retool.sandbox import program
from retool.sandbox.local import guest, proctree

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_AWAITED = (signal.SIGCHLD, signal.SIGTERM)
_FLUSH_GRACE_S = 0.1
_SWEEP_LIMIT_S = 2.0
_SHORTEST_CHECK_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Settings:
    """Limits and wiring of one call. Times in seconds, sizes in bytes; `processes` 0 means no limit."""

    def __init__(self, arguments: list[str]) -> None:
        given = dict(argument.split("=", 1) for argument in arguments)
        self.owner = int(given["owner"])
        self.report = int(given["report"])
        self.cpu = float(given["cpu"])
        self.wall = float(given["wall"])
        self.memory = int(given["memory"])
        self.file = int(given["file"])
        self.processes = int(given["processes"])
        self.auto_print = given["auto_print"] == "1"


class _Ending:
    def __init__(self, kind: str, status: int) -> None:
        self.kind = kind
        self.status = status


def main(arguments: list[str]) -> None:
    """Runs the call that `arguments` and standard input describe. Returns in the child alone, at the code's end."""
    settings = Settings(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    guest.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    guest.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != settings.owner:
        os._exit(1)
    scratch = os.getcwd()
    source = _read_all(0)
    os.write(settings.report, b"started\n")
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        guest.run(source, settings)
        return
    _let_go()
    ending = _watch(child, settings, started)
    wall = time.monotonic() - started
    _sweep()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _remove(scratch)
    if os.getppid() != settings.owner:
        _remove(os.path.dirname(scratch))
    line = f"ended {ending.kind} {ending.status} {usage.ru_utime + usage.ru_stime:.6f} {wall:.6f}\n"
    os.write(settings.report, line.encode())
    os._exit(0)


def _read_all(descriptor: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def _let_go() -> None:
    """Closes the output pipes, which belong to the model's processes alone, and leaves the scratch directory."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")
    sys.path.clear()


def _watch(child: int, settings: Settings, started: float) -> _Ending:
    """Waits for the child's end, a limit, or SIGTERM. Sleeps until the earliest moment a limit can be reached."""
    wall_deadline = started + settings.wall
    next_check = started + settings.cpu / _most_cpus(1)
    while True:
        status = _reap(child)
        if status is not None:
            return _classify_exit(status, settings)
        now = time.monotonic()
        if now >= wall_deadline:
            return _Ending("wall", _end(child, graceful=True))
        if now >= next_check:
            used, threads = _cpu_used()
            if used >= settings.cpu:
                return _Ending("cpu", _end(child, graceful=True))
            next_check = now + max((settings.cpu - used) / _most_cpus(threads), _SHORTEST_CHECK_S)
        event = signal.sigtimedwait(_AWAITED, min(wall_deadline, next_check) - now)
        if event is not None and event.si_signo == signal.SIGTERM:
            return _Ending("stopped", _end(child, graceful=False))


def _classify_exit(status: int, settings: Settings) -> _Ending:
    """The kernel's own CPU limit may end the child before this process looks at the clock."""
    exit_code = os.waitstatus_to_exitcode(status)
    ended_by_limit = exit_code in (-signal.SIGXCPU, -signal.SIGKILL, program.EXIT_AT_LIMIT)
    if ended_by_limit and _cpu_used()[0] >= settings.cpu:
        return _Ending("cpu", status)
    return _Ending("exit", status)


def _cpu_used() -> tuple[float, int]:
    """CPU seconds of everything below this process, ended or alive, and the number of its threads now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    tasks = proctree.descendants(os.getpid())
    seconds = ended.ru_utime + ended.ru_stime + sum(task.cpu_seconds for task in tasks)
    return seconds, sum(task.threads for task in tasks)


def _most_cpus(threads: int) -> int:
    """How fast CPU time can pass, in CPU seconds a second, until the next check. Allows for twice the threads."""
    return max(1, min(2 * threads, len(os.sched_getaffinity(0))))


def _reap(child: int) -> int | None:
    """Takes the status of ended processes; returns the child's wait status once it has ended."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            return status


def _end(child: int, *, graceful: bool) -> int:
    """Ends the child and returns its wait status. `graceful` gives it a moment to write out what it has printed."""
    if graceful:
        os.kill(child, signal.SIGXCPU)
        deadline = time.monotonic() + _FLUSH_GRACE_S
        while (remaining := deadline - time.monotonic()) > 0:
            status = _reap(child)
            if status is not None:
                return status
            signal.sigtimedwait(_AWAITED, remaining)
    os.kill(child, signal.SIGKILL)
    while (status := _reap(child)) is None:
        signal.sigwaitinfo((signal.SIGCHLD,))
    return status


def _sweep() -> None:
    """Ends what the code left behind, wherever it moved itself: orphans become children of this process."""
    deadline = time.monotonic() + _SWEEP_LIMIT_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        proctree.kill_descendants(os.getpid())
        signal.sigtimedwait((signal.SIGCHLD,), 0.02)


def _remove(directory: str) -> None:
    """Removes a directory tree and follows no link. What resists stays, for the owner to remove with its directory."""
    try:
        os.rmdir(directory)
        return
    except OSError:
        pass
    try:
        for _, directories, files, parent in os.fwalk(directory, topdown=False, follow_symlinks=False):
            for name in files:
                os.unlink(name, dir_fd=parent)
            for name in directories:
                try:
                    os.rmdir(name, dir_fd=parent)
                except NotADirectoryError:
                    os.unlink(name, dir_fd=parent)
        os.rmdir(directory)
    except OSError:
        return
