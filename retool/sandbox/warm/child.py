"""One call, in a process forked for it: locks itself in, takes the code from its socket, runs it and reports its end.

`run`: all of that; never returns. The conversation on the socket: the child says READY once nothing of the sandbox's own
can fail any more (or FAILED and why); it gets a header and the code; it ends with DONE, the call's nonce, the exit code
and the CPU time used. Only what comes before READY can be the sandbox's fault. A forged DONE gains nothing: code may
end itself with any exit code, and whoever says DONE is killed soon after.
"""

import contextlib
import os
import resource
import signal
import socket
import struct
import sys

from retool.sandbox import program
from retool.sandbox.warm import kernel, landlock, launcher, rootfs, seccomp, settings
from retool.sandbox.warm.settings import Place, Settings

READY, FAILED, DONE = b"R", b"F", b"D"
HEADER = struct.Struct("<16sIII")
"""Nonce, length of the code in bytes, whether to show the last expression, and CPU seconds for the kernel's limit."""
END = struct.Struct("<c16sid")
"""DONE, nonce, exit code, CPU seconds."""
CHUNK = 65536
"""The largest message of code."""

_FAILED_EXIT = 250
_INTERRUPTED = 130


def run(
    given: Settings,
    place: Place,
    slot: int,
    number: int,
    link: socket.socket,
    streams: tuple[int, int],
    limits: "Limits",
) -> None:
    """Becomes the call `number` in `slot`, with `streams` as standard output and error."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        descriptor = _take_streams(link, streams, place)
        _isolate(given, place, slot, number, limits)
        kernel.close_from(descriptor + 1)
        for other in range(3, descriptor):
            _close(other)
        _lock(given, place, limits)
        connection = socket.socket(fileno=descriptor)
        _reseed()
        program.prepare_streams()
        connection.send(READY)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the trainer has to know)
        with contextlib.suppress(OSError):
            link.send(FAILED + f"{type(error).__name__}: {error}".encode())
        os._exit(_FAILED_EXIT)
    os._exit(_serve(connection))


class Limits:
    """What the fork server works out once for all children. `base_memory`: its own address space, in bytes."""

    def __init__(self, given: Settings) -> None:
        self.filter = seccomp.program(
            without_sessions=given.isolation == settings.LANDLOCK,
            without_signals=given.isolation == settings.LANDLOCK and landlock.abi() < landlock.SCOPES_SIGNALS_SINCE,
        )
        self.landlock = landlock.abi()
        self.base_memory = 0


def _take_streams(link: socket.socket, streams: tuple[int, int], place: Place) -> int:
    """Puts the descriptors in their places; returns that of the socket."""
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (streams[0], 1), (streams[1], 2)):
        os.dup2(source, target)
    os.set_inheritable(link.fileno(), False)
    return link.fileno()


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _isolate(given: Settings, place: Place, slot: int, number: int, limits: Limits) -> None:
    uid = place.base_uid + slot if given.isolation == settings.ROOT else place.base_uid
    if given.isolation == settings.LANDLOCK:
        scratch = f"{given.directory}/call-{number}"
        os.mkdir(scratch, 0o700)
        os.environ["HOME"], os.environ["TMPDIR"] = f"{scratch}/home", f"{scratch}/tmp"
        os.setsid()
    else:
        scratch = rootfs.SCRATCH
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if given.isolation == settings.USER:
            kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
            launcher.write_maps(place.procfs, inside=uid, uid=0, gid=0)
        else:
            kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        options = f"size={given.scratch},nr_inodes={given.scratch_inodes},mode=0700,uid={uid},gid={uid}"
        kernel.mount("tmpfs", scratch, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    _prefer_for_killing(place)
    if given.isolation == settings.ROOT:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.mkdir(f"{scratch}/home", 0o700)
    os.mkdir(f"{scratch}/tmp", 0o700)
    os.chdir(f"{scratch}/home")


def _prefer_for_killing(place: Place) -> None:
    """Out of memory, the kernel is to end model code before it ends anything else."""
    with contextlib.suppress(OSError):
        descriptor = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=place.procfs)
        os.write(descriptor, b"1000")
        os.close(descriptor)


def _lock(given: Settings, place: Place, limits: Limits) -> None:
    memory = limits.base_memory + given.memory
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: given.scratch,
        resource.RLIMIT_NOFILE: given.open_files,
        resource.RLIMIT_NPROC: given.processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(kind, (value, value))
    if given.isolation == settings.USER:
        kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if limits.landlock:
        scratch = rootfs.SCRATCH if given.isolation != settings.LANDLOCK else os.path.dirname(os.getcwd())
        landlock.restrict(limits.landlock, place.rules, [scratch])
    seccomp.install(limits.filter)


def _reseed() -> None:
    """Random numbers that no other call gets. `random` itself is seeded anew by every fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    sympy_random = sys.modules.get("sympy.core.random")
    if sympy_random is not None:
        sympy_random.rng.seed()


def _serve(connection: socket.socket) -> int:
    message = connection.recv(CHUNK)
    if len(message) < HEADER.size:
        return 0
    nonce, length, auto_print, cpu = HEADER.unpack_from(message)
    source = message[HEADER.size :]
    while len(source) < length:
        part = connection.recv(CHUNK)
        if not part:
            return 0
        source += part
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    code = _execute(source, bool(auto_print))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    # The connection may have been closed by the program.
    with contextlib.suppress(OSError):
        connection.send(END.pack(DONE, nonce, code, usage.ru_utime + usage.ru_stime))
    return code


def _execute(source: bytes, auto_print: bool) -> int:
    """Runs the program as an interpreter would, up to the end of its threads and exit functions; its exit code."""
    import atexit
    import threading

    namespace: dict[str, object] = {}
    code = 0
    try:
        parts, namespace = program.start(source, auto_print=auto_print)
        for part in parts:
            exec(part, namespace)
    except SystemExit as error:
        code = _exit_code(error)
    except KeyboardInterrupt:
        _report(*sys.exc_info())
        code = _INTERRUPTED
    except BaseException:  # noqa: BLE001 (the program's own)
        _report(*sys.exc_info())
        code = 1
    for finish in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)):
        try:
            if finish is not None:
                finish()
        except BaseException:  # noqa: BLE001 (the program's own)
            _report(*sys.exc_info())
    for name in [name for name in namespace if not name.startswith("__")]:
        # Finalisers of global objects run, as they do at an interpreter's end.
        namespace[name] = None
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(BaseException):
            stream.flush()  # type: ignore[union-attr]  # None, or whatever the program put there
    return code


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(BaseException):
        print(error.code, file=sys.stderr)
    return 1


def _report(kind: object, error: object, trace: object) -> None:
    try:
        sys.excepthook(kind, error, trace)  # type: ignore[arg-type]  # it is not None in an except clause
    except BaseException:  # noqa: BLE001 (the program's own hook)
        with contextlib.suppress(BaseException):
            program.show_exception(kind, error, trace)  # type: ignore[arg-type]
