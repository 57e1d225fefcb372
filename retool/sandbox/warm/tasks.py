"""What the processes of a call use, read from the host's `/proc`, which the fork server alone has open.

`Usage`, `usage`: of a process and all below it. `host_pid`: a child's number in the host's `/proc`.
"""

import os
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGESIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Of a tree of processes: CPU seconds, bytes of memory beyond `base` bytes a process, and the number of threads."""

    cpu_seconds: float
    memory: int
    threads: int


def read(procfs: int, path: str) -> bytes:
    """The file `path` below `/proc`; empty if its process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=procfs)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def depth(procfs: int) -> int:
    """How many pid namespaces lie between `/proc`'s and this process's own."""
    for line in read(procfs, "self/status").splitlines():
        if line.startswith(b"NSpid:"):
            return len(line.split()) - 2
    return 0


def host_pid(procfs: int, pid: int, depth: int) -> int:
    """The number in `/proc` of this process's child `pid`; 0 if it is gone. `depth`: what the function of that name says."""
    for found in children(procfs, "self"):
        for line in read(procfs, f"{found}/status").splitlines():
            if line.startswith(b"NSpid:"):
                numbers = line.split()[1:]
                if len(numbers) > depth and int(numbers[depth]) == pid:
                    return found
    return 0


def children(procfs: int, pid: int | str) -> list[int]:
    """The children of all threads of `pid`."""
    try:
        descriptor = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=procfs)
    except OSError:
        return []
    try:
        threads = os.listdir(descriptor)
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [int(child) for thread in threads for child in read(procfs, f"{pid}/task/{thread}/children").split()]


def resident(procfs: int) -> int:
    """Bytes of memory in use by this process."""
    return int(read(procfs, "self/statm").split()[1]) * _PAGE


def address_space(procfs: int) -> int:
    """Bytes of address space of this process."""
    return int(read(procfs, "self/statm").split()[0]) * _PAGE


def orphans(procfs: int, group: int) -> list[int]:
    """This process's children that belong to the process group `group` and did not make it."""
    found = []
    for pid in children(procfs, "self"):
        stat = read(procfs, f"{pid}/stat")
        if pid != group and stat and int(stat[stat.rindex(b")") + 2 :].split()[2]) == group:
            found.append(pid)
    return found


def usage(procfs: int, roots: list[int], base: int) -> Usage:
    """What `roots` and everything below them use. `base`: resident bytes that every process starts with."""
    ticks = pages = threads = 0
    waiting = list(roots)
    while waiting:
        current = waiting.pop()
        stat = read(procfs, f"{current}/stat")
        if not stat:
            continue
        fields = stat[stat.rindex(b")") + 2 :].split()
        ticks += sum(int(field) for field in fields[11:15])
        threads += int(fields[17])
        pages += max(0, int(fields[21]) - base // _PAGE)
        waiting.extend(children(procfs, current))
    return Usage(ticks / _TICKS_PER_SECOND, pages * _PAGE, threads)
