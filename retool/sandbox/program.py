"""Executing a text as the program `__main__`: streams that cannot fail, a clean namespace, clean tracebacks.

Standard library only; it runs inside the sandbox's interpreter. `prepare_streams`: before anything is printed.
`start`: from the source to what is to be executed. `show_exception`: what an uncaught exception leaves on stderr.
"""
# Each import here may be paid by every call of a sandbox: no pathlib, no typing, and `_signal`, which is `signal`
# without its enums.

import os
import sys
from io import TextIOWrapper
from types import CodeType, FrameType, ModuleType, TracebackType

from retool.sandbox import autoprint

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

EXIT_AT_LIMIT = 152
"""Exit code of a child that was asked to end at a limit and could still write out what it had printed."""
FILENAME = "program.py"
"""The name of the model's code in tracebacks."""


def start(source: bytes, *, auto_print: bool) -> tuple[tuple[CodeType, ...], dict[str, object]]:
    """The code objects of `source`, to execute in order, and their namespace, that of a fresh `__main__`.

    Raises what a program that does not compile raises.
    """
    code = autoprint.unwrap(source.decode("utf-8", "surrogatepass"))
    sys.set_int_max_str_digits(0)
    sys.excepthook = show_exception
    sys.displayhook = autoprint.display
    main = _fresh_main(code)
    return autoprint.compile_program(code, filename=FILENAME, auto_print=auto_print), main.__dict__


def prepare_streams() -> None:
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


def show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
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
