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
import sys
from io import TextIOWrapper
from types import FrameType, ModuleType, TracebackType

from retool.sandbox import autoprint

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from retool.sandbox.local.supervisor import Settings
else:
    import _signal as signal

EXIT_AT_LIMIT = 152
"""Exit code of a child that was asked to end at a limit and could still write out what it had printed."""
FILENAME = "program.py"
"""The name of the model's code in tracebacks."""

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
    sys.set_int_max_str_digits(0)
    _prepare_streams()
    text = source.decode("utf-8", "surrogatepass")
    code = autoprint.unwrap(text)
    sys.excepthook = _show_exception
    sys.displayhook = autoprint.display
    main = _fresh_main(code)
    for part in autoprint.compile_program(code, filename=FILENAME, auto_print=settings.auto_print):
        exec(part, main.__dict__)


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


def _prepare_streams() -> None:
    """Output in UTF-8 that cannot fail, written line by line, and also at a limit while Python code is running."""
    streams = [sys.stdout, sys.stderr]
    for stream in streams:
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def end_at_limit(signum: int, frame: FrameType | None) -> None:
        try:
            for stream in streams:
                stream.flush()
        finally:
            os._exit(EXIT_AT_LIMIT)

    signal.signal(signal.SIGXCPU, end_at_limit)


class _Source:
    """A module loader that knows the source, for tracebacks and `inspect`, without an import of `linecache`."""

    def __init__(self, code: str) -> None:
        self._code = code

    def get_source(self, name: str) -> str:
        return self._code


def _fresh_main(code: str) -> ModuleType:
    """An empty `__main__`, and no trace of the sandbox's own modules."""
    for name in [name for name in sys.modules if name == "retool" or name.startswith("retool.")]:
        del sys.modules[name]
    sys.argv[:] = [""]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__loader__"] = _Source(code)
    return main


def _show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the traceback with the code's own frames alone, straight to the descriptor: the streams may be broken."""
    try:
        shown = _render(error)
    except (MemoryError, RecursionError):
        shown = f"{kind.__name__}\n"
    data = shown.encode("utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(2, data) :]
        except OSError:
            return


def _render(error: BaseException) -> str:
    import linecache
    import traceback

    # A program that does not compile has no frame whose module could be asked for the source.
    linecache.lazycache(FILENAME, sys.modules["__main__"].__dict__)
    rendered = traceback.TracebackException.from_exception(error, compact=True)
    waiting = [rendered]
    while waiting:
        part = waiting.pop()
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if frame.filename == FILENAME])
        waiting.extend(link for link in (part.__cause__, part.__context__) if link is not None)
        waiting.extend(getattr(part, "exceptions", None) or ())
    return "".join(rendered.format())
