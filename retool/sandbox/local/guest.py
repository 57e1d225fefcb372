"""The child that model code runs in: takes its limits, then executes the code as the program `__main__`.

Standard library only; it runs inside the sandbox's interpreter, below `retool.sandbox.local.supervisor`.
`run`: everything between the fork and the end of the code. `prctl`: the system call of that name.
"""
# Each import here is paid by every call of the sandbox: no pathlib, no typing, and `_signal`, which is `signal`
# without its enums.
# ruff: noqa: PTH123

import ctypes
import os
import resource

from retool.sandbox import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from retool.sandbox.local.supervisor import Settings
else:
    import _signal as signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_OPEN_FILES = 128
_KERNEL_CPU_MARGIN_S = 1


def prctl(option: int, argument: int) -> None:
    """Calls `prctl(option, argument, 0, 0, 0)`. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def run(source: bytes, settings: "Settings") -> None:
    """Executes `source` under `settings`. Returns at its end; raises what it raises, for the interpreter to handle."""
    _detach(settings)
    _limit(settings)
    program.prepare_streams()
    parts, namespace = program.start(source, auto_print=settings.auto_print)
    for part in parts:
        exec(part, namespace)


def _detach(settings: "Settings") -> None:
    """A session and process group of its own, no standard input, no other descriptor, default signals."""
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.close(settings.report)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit(settings: "Settings") -> None:
    """Resource limits, hard ones too, so that the code cannot raise them. Memory counts from what is in use now."""
    with open("/proc/self/statm", "rb") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    cpu = int(settings.cpu) + 1 + _KERNEL_CPU_MARGIN_S
    wanted = {
        resource.RLIMIT_AS: (in_use + settings.memory, in_use + settings.memory),
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_FSIZE: (settings.file, settings.file),
        resource.RLIMIT_NOFILE: (_OPEN_FILES, _OPEN_FILES),
        resource.RLIMIT_CORE: (0, 0),
    }
    if settings.processes:
        wanted[resource.RLIMIT_NPROC] = (settings.processes, settings.processes)
    for kind, (soft, hard) in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))
