"""The file system that model code sees: the system and the interpreter, read-only, at fixed paths, and nothing else.

`build`: makes it the root of this process's mount namespace. `Interpreter`: which files of which interpreter.
There is no `/proc`, no `/sys`, no home directory. The scratch directory of each call is mounted over `SCRATCH`.
"""

import errno
import os
import sys
from typing import NamedTuple

from retool.sandbox.warm import kernel

SCRATCH = "/scratch"
GUEST = "/opt/retool"
"""Holds the sandbox's own modules."""

_STAGE = "/tmp"
_HOST = "/host"
_NEW = "/new"
_BASE = "/opt/python"
_ENVIRONMENT = "/opt/env"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
_PASSWD = "root:x:0:0:::/usr/sbin/nologin\nmodel:x:{id}:{id}::/scratch/home:/bin/sh\n"
_GROUP = "root:x:0:\nmodel:x:{id}:\n"
_KEPT_FLAGS = (
    (os.ST_NODEV, kernel.MS_NODEV),
    (os.ST_NOEXEC, kernel.MS_NOEXEC),
    (os.ST_NOATIME, kernel.MS_NOATIME),
    (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
    (os.ST_RELATIME, kernel.MS_RELATIME),
)


class Interpreter(NamedTuple):
    """The running interpreter, by its own account: its installation and the directories of its packages."""

    base: str
    prefix: str
    executable: str
    packages: tuple[str, ...]
    virtual: bool

    @classmethod
    def this(cls) -> "Interpreter":
        """The interpreter that this is called in."""
        packages = [
            path
            for path in sys.path
            if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)
        ]
        base = os.path.realpath(sys.base_prefix)
        executable = os.path.realpath(sys.executable)
        return cls(base, sys.prefix, executable, tuple(packages), sys.prefix != sys.base_prefix)


class Inside(NamedTuple):
    """The interpreter's paths in the new root. `library_path`: where its shared library is, if it has one."""

    executable: str
    import_path: tuple[str, ...]
    library_path: str


def readable_on_host(interpreter: Interpreter) -> tuple[str, ...]:
    """What model code has to read where the root is not changed."""
    return (*_SYSTEM, *_ETC, interpreter.base, interpreter.prefix, *interpreter.packages)


def is_system(path: str) -> bool:
    """Whether `path` keeps its place in the new root."""
    return any(path == top or path.startswith(f"{top}/") for top in _SYSTEM)


def build(interpreter: Interpreter, guest: str, uid: int) -> Inside:
    """Replaces the root of this process, which must be in a mount namespace of its own. Raises `OSError`.

    `guest`: the directory of the package `retool.sandbox`. `uid`: whom `/etc/passwd` names.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
    os.chdir(_STAGE)
    os.mkdir(f".{_HOST}")
    os.mkdir(f".{_NEW}")
    kernel.pivot_root(".", f".{_HOST}")
    os.chdir("/")
    kernel.mount("tmpfs", _NEW, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
    _bind_system()
    _make_devices()
    _make_etc(uid)
    inside = _bind_interpreter(interpreter)
    _bind(guest, f"{GUEST}/sandbox")
    os.makedirs(_NEW + SCRATCH)
    os.symlink(f"{SCRATCH}/tmp", f"{_NEW}/tmp")
    os.chdir(_NEW)
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir("/")
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, flags)
    return inside


def _bind_system() -> None:
    for path in _SYSTEM:
        source = _HOST + path
        if os.path.islink(source):
            os.symlink(os.readlink(source), _NEW + path)
        elif os.path.isdir(source):
            _bind(path, path)


def _make_devices() -> None:
    os.makedirs(f"{_NEW}/dev")
    for name in DEVICES:
        _bind(f"/dev/{name}", f"/dev/{name}", device=True)
    os.symlink(f"{SCRATCH}/tmp", f"{_NEW}/dev/shm")


def _make_etc(uid: int) -> None:
    os.makedirs(f"{_NEW}/etc")
    for path in _ETC:
        if os.path.exists(_HOST + path):
            _bind(path, path)
    for name, content in (("passwd", _PASSWD), ("group", _GROUP)):
        with open(f"{_NEW}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(content.format(id=uid))


def _bind_interpreter(interpreter: Interpreter) -> Inside:
    if is_system(interpreter.base):
        base = interpreter.base
    else:
        base = _BASE
        _bind(interpreter.base, base)
    if is_system(interpreter.executable):
        binary = interpreter.executable
    elif interpreter.executable.startswith(f"{interpreter.base}/"):
        binary = base + interpreter.executable.removeprefix(interpreter.base)
    else:
        raise OSError(errno.ENOENT, f"{interpreter.executable} is not below its own prefix {interpreter.base}")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    paths = []
    for number, path in enumerate(interpreter.packages):
        if is_system(path):
            paths.append(path)
            continue
        if path.startswith(f"{interpreter.base}/"):
            paths.append(base + path.removeprefix(interpreter.base))
            continue
        target = f"{_ENVIRONMENT}/lib/{version}/site-packages" if number == 0 else f"/opt/packages/{number}"
        _bind(path, target)
        paths.append(target)
    shared = base == _BASE and any(name.startswith("libpython") for name in os.listdir(f"{_NEW}{base}/lib"))
    executable = _make_environment(binary, version) if interpreter.virtual else binary
    return Inside(executable, tuple(paths), f"{base}/lib" if shared else "")


def _make_environment(binary: str, version: str) -> str:
    """A virtual environment around the packages, so that programs that start Python themselves find them."""
    os.makedirs(f"{_NEW}{_ENVIRONMENT}/bin", exist_ok=True)
    os.makedirs(f"{_NEW}{_ENVIRONMENT}/lib/{version}", exist_ok=True)
    for name in ("python", "python3", version):
        os.symlink(binary, f"{_NEW}{_ENVIRONMENT}/bin/{name}")
    with open(f"{_NEW}{_ENVIRONMENT}/pyvenv.cfg", "w", encoding="utf-8") as file:
        file.write(f"home = {os.path.dirname(binary)}\ninclude-system-site-packages = false\n")
    return f"{_ENVIRONMENT}/bin/python"


def _bind(source: str, target: str, *, device: bool = False) -> None:
    """Shows the host's `source` at `target`, read-only. Mounts below it are left out where the kernel allows that."""
    source, target = _HOST + source, _NEW + target
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    try:
        kernel.mount(source, target, None, kernel.MS_BIND)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # In a user namespace the mounts below may not be split off.
        kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.make_tree_read_only(target)
    present = os.statvfs(target).f_flag
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_NOSUID | kernel.MS_RDONLY
    for status, flag in _KEPT_FLAGS:
        if present & status:
            flags |= flag
    kernel.mount("none", target, None, flags if device else flags | kernel.MS_NODEV)
