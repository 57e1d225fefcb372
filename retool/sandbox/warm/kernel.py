"""The system calls that isolation needs and Python has no function for. Linux on x86_64 and aarch64 alone.

Every function raises `OSError` where the kernel refuses.
"""

import ctypes
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_MADV_COLLAPSE = 25
_CAPABILITY_VERSION_3 = 0x20080522
_CLOSE_RANGE = 436
_MOUNT_SETATTR = 442
_MOUNT_READ_ONLY_NOSUID_NODEV = 7
_RECURSIVE = 0x8000
_NUMBERS = {"x86_64": {"pivot_root": 155, "capset": 126}, "aarch64": {"pivot_root": 41, "capset": 91}}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.syscall.restype = ctypes.c_long


def machine() -> str:
    """The architecture by the kernel's name. Raises `OSError` for one without a table of system calls."""
    name = os.uname().machine
    if name not in _NUMBERS:
        raise OSError(f"there is no table of system calls for the architecture {name}")
    return name


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """Makes system call `number`; integers are passed as 64-bit values."""
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *converted), f"system call {number}")


def unshare(flags: int) -> None:
    """Moves this process (for pid namespaces: its next child) into new namespaces."""
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    """Enters the namespace behind `descriptor`."""
    _checked(_libc.setns(descriptor, kind), "setns")


def prctl(option: int, argument: int) -> None:
    """`prctl(option, argument, 0, 0, 0)`."""
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero), f"prctl({option})")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """`mount(2)`."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind is not None else None, flags, data.encode()
    )
    _checked(result, f"mount {kind or source} on {target}")


def make_tree_read_only(target: str) -> None:
    """Makes the mount at `target` and all below it read-only, without devices and set-uid programs (kernel 5.12)."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_READ_ONLY_NOSUID_NODEV, 0, 0, 0)
    path = ctypes.c_char_p(target.encode())
    syscall(_MOUNT_SETATTR, -1, path, _RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes))


def unmount(target: str) -> None:
    """Detaches the mount at `target`."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Makes the mount at `new` the root, and moves the present one to `old`."""
    syscall(_NUMBERS[machine()]["pivot_root"], ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def close_from(lowest: int) -> None:
    """Closes all descriptors from `lowest` on."""
    try:
        syscall(_CLOSE_RANGE, lowest, 0xFFFF_FFFF, 0)
    except OSError:
        # A kernel before 5.9.
        os.closerange(lowest, 65536)


def drop_capabilities() -> None:
    """Gives up all capabilities, those that an executed program could regain included."""
    capability = 0
    while True:
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    syscall(_NUMBERS[machine()]["capset"], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def collapse_huge_pages(maps: str) -> int:
    """Gathers this process's private memory in huge pages, so that a fork copies fewer page tables; returns how many.

    `maps`: the content of `/proc/self/maps`. Does nothing on kernels before 6.1.
    """
    huge = 2 << 20
    collapsed = 0
    for line in maps.splitlines():
        span, mode, *_, inode = line.split()[:5]
        if inode != "0" or not mode.startswith("rw-p"):
            continue
        begin, end = (int(bound, 16) for bound in span.split("-"))
        for address in range(-(-begin // huge) * huge, end - huge + 1, huge):
            if _libc.madvise(address, huge, _MADV_COLLAPSE) == 0:
                collapsed += 1
    return collapsed
