"""Starts a fork server in isolation: namespaces, a root of its own, then the interpreter again, inside.

It runs with an empty environment, as a process of its own, and stays as the fork server's parent: when the trainer
ends, however that happens, it ends the fork server and removes its cgroup.
"""

import os
import signal
import sys

from retool.sandbox.warm import cgroup, kernel, landlock, rootfs, settings
from retool.sandbox.warm.settings import Place, Settings

_UIDS_FROM = 2_000_000_000
"""Users without a name in any account database, a thousand for each launcher."""
_LAUNCHERS = 2_000_000
_NAMESPACES = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_USER_INSIDE = 1000
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def main(arguments: list[str]) -> None:
    """`arguments`: the bootstrap's text, the directory of the package `retool`, and the settings."""
    bootstrap, root, text = arguments
    given = settings.decode_settings(text)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != given.owner:
        sys.exit("the trainer has ended")
    os.umask(0o022)
    launcher = os.getpid()
    group = cgroup.create(given.total_memory)
    procfs = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if given.isolation == settings.ROOT:
            kernel.unshare(_NAMESPACES)
        elif given.isolation == settings.USER:
            _enter_user_namespace(procfs)
            kernel.unshare(_NAMESPACES)
        server = os.fork()
        if server == 0:
            _become_server(given, bootstrap, root, launcher, procfs, group)
        sys.exit(_attend(server, given))
    finally:
        if group is not None and os.getpid() == launcher:
            group.remove()


def _enter_user_namespace(procfs: int) -> None:
    """A user namespace in which the present user is root."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    write_maps(procfs, inside=0, uid=uid, gid=gid)


def write_maps(procfs: int, *, inside: int, uid: int, gid: int) -> None:
    """In a fresh user namespace: shows the parent namespace's `uid` and `gid` as `inside`, and no others."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=procfs)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _become_server(
    given: Settings, bootstrap: str, root: str, launcher: int, procfs: int, group: cgroup.Cgroup | None
) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM if given.isolation == settings.LANDLOCK else signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    events = -1
    if group is not None:
        group.join()
        events = os.open(group.events, os.O_RDONLY)
    namespace = -1 if given.isolation == settings.LANDLOCK else os.open("self/ns/pid", os.O_RDONLY, dir_fd=procfs)
    base_uid = _UIDS_FROM + launcher % _LAUNCHERS * 1000 if given.isolation == settings.ROOT else _USER_INSIDE
    inside, guest, rules = _change_root(given, root, base_uid)
    place = Place(inside.executable, inside.import_path, base_uid, procfs, namespace, events, rules)
    for descriptor in (given.control, procfs, namespace, events):
        if descriptor >= 0:
            os.set_inheritable(descriptor, True)
    command = [inside.executable, "-S", "-s", "-B", "-c", bootstrap, guest, "retool.sandbox.warm.zygote"]
    os.execve(
        inside.executable, [*command, settings.encode(given), settings.encode(place)], _environment(given, inside)
    )


def _change_root(given: Settings, root: str, uid: int) -> tuple[rootfs.Inside, str, tuple[tuple[str, int], ...]]:
    """The interpreter's new place, the guest modules', and what Landlock is to allow."""
    interpreter = rootfs.Interpreter.this()
    if given.isolation == settings.LANDLOCK:
        readable = rootfs.readable_on_host(interpreter)
        rules = [(path, landlock.READ) for path in readable]
        devices = [(f"/dev/{name}", landlock.DEVICES) for name in rootfs.DEVICES]
        return rootfs.Inside(sys.executable, interpreter.packages, ""), root, (*rules, *devices)
    kernel.unshare(kernel.CLONE_NEWNS)
    inside = rootfs.build(interpreter, os.path.join(root, "sandbox"), uid)
    return inside, rootfs.GUEST, (("/", landlock.READ), ("/dev", landlock.DEVICES))


def _environment(given: Settings, inside: rootfs.Inside) -> dict[str, str]:
    """All that model code finds in its environment. One thread a call in numerical libraries; fixed hash seed."""
    scratch = given.directory if given.isolation == settings.LANDLOCK else rootfs.SCRATCH
    environment = {
        "PATH": f"{os.path.dirname(inside.executable)}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": f"{scratch}/home",
        "TMPDIR": f"{scratch}/tmp",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    if inside.library_path:
        environment["LD_LIBRARY_PATH"] = inside.library_path
    return environment


def _attend(server: int, given: Settings) -> int:
    """Waits for the fork server's end, and brings it about when the trainer has ended. Returns its exit code."""
    os.close(given.control)
    while True:
        pid, status = os.waitpid(server, os.WNOHANG)
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        # Without a pid namespace the server has to end its children itself; it sees that the trainer is gone.
        if signal.sigwait(_AWAITED) == signal.SIGTERM and given.isolation != settings.LANDLOCK:
            os.kill(server, signal.SIGKILL)
