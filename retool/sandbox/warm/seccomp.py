"""The filter of system calls: what mathematics in Python never needs is refused before the kernel looks at it.

`program`: the filter as BPF instructions, built once. `install`: applies it to this process for good.
"""

import ctypes
import errno
import struct

from retool.sandbox.warm import kernel

# Name: (number on x86_64, number on aarch64); -1 where the architecture has no such call.
_DENIED = {
    # Other processes' memory and descriptors
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Parts of the kernel with a history of holes
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "personality": (135, 92),
    # Memory that the limits do not count
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # The machine's own settings
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    # The network; socketpair, which asyncio needs, stays
    "socket": (41, 198),
    "listen": (50, 201),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "uselib": (134, -1),
}
_SIGNALS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_SESSIONS = {"setsid": (112, 157), "setpgid": (109, 154)}
_CLONE = (56, 220)
_CLONE3 = 435
_IOCTL = (16, 29)
_PRCTL = (157, 167)
_REFUSED_IOCTLS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into terminals
_ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_NAMESPACE_FLAGS = 0x7E02_0000  # mount, cgroup, uts, ipc, user, pid, net
_X32_BIT = 0x4000_0000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENT_0, _AT_ARGUMENT_1 = 0, 4, 16, 24
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_SET_SECCOMP, _MODE_FILTER = 22, 2


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def program(*, without_sessions: bool = False, without_signals: bool = False) -> bytes:
    """The filter for this machine's architecture. Raises `OSError` for one that it does not know.

    A refused call gives EPERM; one of another architecture or ABI ends the process. `without_sessions`: no process
    leaves its process group. `without_signals`: none sends a signal.
    """
    index, architecture = _ARCHITECTURES[kernel.machine()]
    table = list(_DENIED.values())
    if without_sessions:
        table += _SESSIONS.values()
    if without_signals:
        table += _SIGNALS.values()
    numbers = sorted(pair[index] for pair in table if pair[index] >= 0)
    refuse = _instruction(_RETURN, _ERROR | errno.EPERM)
    allow = _instruction(_RETURN, _ALLOW)
    checks = [
        _instruction(_EQUAL, _CLONE3, 0, 1),
        _instruction(_RETURN, _ERROR | errno.ENOSYS),
        _instruction(_EQUAL, _CLONE[index], 0, 4),
        _instruction(_LOAD, _AT_ARGUMENT_0),
        _instruction(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1),
        refuse,
        allow,
        _instruction(_EQUAL, _IOCTL[index], 0, 2 + len(_REFUSED_IOCTLS) * 2),
        _instruction(_LOAD, _AT_ARGUMENT_1),
        *(part for value in _REFUSED_IOCTLS for part in (_instruction(_EQUAL, value, 0, 1), refuse)),
        allow,
    ]
    listed = [_instruction(_EQUAL, number, len(numbers) - place, 0) for place, number in enumerate(numbers)]
    return b"".join(
        [
            _instruction(_LOAD, _AT_ARCHITECTURE),
            _instruction(_EQUAL, architecture, 1, 0),
            _instruction(_RETURN, _KILL),
            _instruction(_LOAD, _AT_NUMBER),
            *([_instruction(_AT_LEAST, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL)] if index == 0 else []),
            *checks,
            *listed,
            allow,
            refuse,
        ]
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(instructions: bytes) -> None:
    """Applies the filter to this process and all it starts. The process must have no_new_privs. Raises `OSError`."""
    filter_ = _Program(len(instructions) // 8, instructions)
    kernel.syscall(_PRCTL[_ARCHITECTURES[kernel.machine()][0]], _SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0)
