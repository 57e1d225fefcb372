"""Landlock: what a process and its descendants may do to files, whatever their user may.

`abi`: the kernel's version of it. `restrict`: confines this process for good.
"""

import ctypes
import os
from collections.abc import Iterable

from retool.sandbox.warm import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_OF_ABI_1 = (1 << 13) - 1
_MAKE_DEVICES = 1 << 6 | 1 << 11
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_CONNECT_AND_BIND = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3

READ = _EXECUTE | _READ_FILE | _READ_DIR
"""Read and execute everything below."""
DEVICES = _READ_FILE | _READ_DIR | _WRITE_FILE
"""Read and write what is there."""

SCOPES_SIGNALS_SINCE = 6
"""The version from which signals cannot leave the confined processes."""


def abi() -> int:
    """The kernel's Landlock version, 0 if it has none."""
    try:
        return kernel.syscall(_CREATE_RULESET, 0, 0, 1)
    except OSError:
        return 0


class _Attributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _handled(version: int) -> int:
    access = _ALL_OF_ABI_1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version >= since:
            access |= right
    return access


def restrict(version: int, rules: Iterable[tuple[str, int]], writable: Iterable[str]) -> None:
    """Allows each path of `rules` its rights, everything but device nodes below `writable`, and nothing else.

    Paths that do not exist are left out. `version`: what `abi` said; the process must have no_new_privs already.
    """
    handled = _handled(version)
    attributes = _Attributes(
        handled, _CONNECT_AND_BIND if version >= 4 else 0, _ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = kernel.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    everything = handled & ~(_MAKE_DEVICES | _IOCTL_DEV)
    for path, access in (*rules, *((path, everything) for path in writable)):
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not os.path.isdir(path):
            access &= _FOR_FILES
        rule = _PathRule(access & handled, parent)
        kernel.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(parent)
    kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
