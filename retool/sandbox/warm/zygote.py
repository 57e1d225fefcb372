"""The fork server: keeps children ready for the trainer, enforces the limits of their calls, and reaps them.

`main`: its whole life, inside the isolation that the launcher made. It never reads the model's code.

Messages on the control socket, from the trainer: `want N`, `start ID CPU WALL BEGUN`, `done ID`, `kill ID`; to the
trainer: `hello MODULES`, `child ID` with three descriptors (socket, output, errors), `failed REASON`, and
`end ID KIND STATUS CPU WALL` with kind `exit`, `cpu`, `wall`, `memory` or `stopped`. Times in seconds; BEGUN by the
monotonic clock. Only this process says how a call ended, other than by its own exit.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time

from retool.sandbox.warm import child, kernel, preload, settings, tasks
from retool.sandbox.warm.settings import Place, Settings

_QUIET_MS = 4
_CHECK_EVERY_S = 0.1
_SHORTEST_CHECK_S = 0.02
_FLUSH_GRACE_S = 0.1
_EXIT_GRACE_S = 0.25
_RETRY_FORK_MS = 200


class _Call:
    """A forked child. `started` is None while it waits for code."""

    def __init__(self, number: int, slot: int, pid: int) -> None:
        self.number = number
        self.slot = slot
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.host_pid = 0
        self.started: float | None = None
        self.cpu = self.wall = 0.0
        self.next_check = float("inf")
        self.kill_at = float("inf")
        self.kind = "exit"


class Server:
    """The loop over the control socket, the children's ends and their limits."""

    def __init__(self, given: Settings, place: Place) -> None:
        self._given = given
        self._place = place
        self._control = socket.socket(fileno=given.control)
        self._poller = select.poll()
        self._poller.register(self._control, select.POLLIN)
        self._calls: dict[int, _Call] = {}
        self._by_pidfd: dict[int, _Call] = {}
        self._waiting = 0
        self._numbers = 0
        self._slots: list[int] = []
        self._next_slot = 0
        self._depth = tasks.depth(place.procfs)
        self._limits = child.Limits(given)
        self._limits.base_memory = tasks.address_space(place.procfs)
        self._resident = tasks.resident(place.procfs)
        self._oom_count = self._read_oom_count()
        self._fork_failed = False

    def serve(self, greeting: str) -> None:
        """Runs until the trainer closes the socket."""
        self._control.send(greeting.encode())
        while True:
            events = self._poller.poll(self._timeout_ms())
            if not events and self._waiting < self._given.idle:
                self._fork()
            for descriptor, _ in events:
                if descriptor == self._given.control:
                    if not self._obey():
                        return
                else:
                    self._reap(self._by_pidfd[descriptor])
            self._enforce()

    def _timeout_ms(self) -> float | None:
        due = min((min(call.next_check, call.kill_at) for call in self._calls.values()), default=float("inf"))
        limit = None if due == float("inf") else max(0.0, (due - time.monotonic()) * 1000)
        if self._waiting < self._given.idle:
            quiet = _RETRY_FORK_MS if self._fork_failed else _QUIET_MS
            return quiet if limit is None else min(quiet, limit)
        return limit

    def _obey(self) -> bool:
        message = self._control.recv(4096)
        if not message:
            return False
        verb, *words = message.decode("ascii").split()
        if verb == "want":
            for _ in range(int(words[0])):
                self._fork()
            return True
        call = self._calls.get(int(words[0]))
        if call is None:
            return True
        now = time.monotonic()
        if verb == "start":
            call.cpu, call.wall, call.started = float(words[1]), float(words[2]), float(words[3])
            call.next_check = call.started + min(call.cpu, call.wall, _CHECK_EVERY_S)
            self._waiting -= 1
        elif verb == "done":
            call.next_check, call.kill_at = float("inf"), now + _EXIT_GRACE_S
        elif verb == "kill":
            call.kind = "stopped"
            self._kill(call, signal.SIGKILL)
        return True

    def _fork(self) -> None:
        try:
            self._try_to_fork()
            self._fork_failed = False
        except OSError as error:
            self._fork_failed = True
            self._control.send(f"failed {error}".encode())

    def _try_to_fork(self) -> None:
        self._numbers += 1
        slot = self._slots.pop() if self._slots else self._next_slot
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, errors = os.pipe(), os.pipe()
        try:
            if self._place.pid_namespace >= 0:
                # Entering its own namespace again lets a process make another one below it.
                kernel.setns(self._place.pid_namespace, kernel.CLONE_NEWPID)
                kernel.unshare(kernel.CLONE_NEWPID)
            pid = os.fork()
            if pid == 0:
                streams = (output[1], errors[1])
                child.run(self._given, self._place, slot, self._numbers, theirs, streams, self._limits)
            if slot == self._next_slot:
                self._next_slot += 1
            call = _Call(self._numbers, slot, pid)
            self._calls[call.number] = self._by_pidfd[call.pidfd] = call
            self._poller.register(call.pidfd, select.POLLIN)
            self._waiting += 1
            descriptors = [ours.fileno(), output[0], errors[0]]
            socket.send_fds(self._control, [f"child {call.number}".encode()], descriptors)
        finally:
            ours.close()
            theirs.close()
            for descriptor in (*output, *errors):
                os.close(descriptor)

    def _kill(self, call: _Call, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._place.pid_namespace >= 0 or number != signal.SIGKILL:
                os.kill(call.pid, number)
            else:
                os.kill(call.pid, number)
                os.killpg(call.pid, number)

    def _reap(self, call: _Call) -> None:
        _, status, usage = os.wait4(call.pid, 0)
        self._poller.unregister(call.pidfd)
        os.close(call.pidfd)
        del self._calls[call.number], self._by_pidfd[call.pidfd]
        self._slots.append(call.slot)
        if self._given.isolation == settings.LANDLOCK:
            self._sweep(call)
        if call.started is None:
            self._waiting -= 1
        now = time.monotonic()
        cpu = usage.ru_utime + usage.ru_stime
        if call.kind == "exit" and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            count = self._read_oom_count()
            if count != self._oom_count:
                self._oom_count, call.kind = count, "memory"
            elif call.started is not None and cpu >= call.cpu:
                call.kind = "cpu"
        wall = now - call.started if call.started is not None else 0.0
        self._control.send(f"end {call.number} {call.kind} {status} {cpu:.6f} {wall:.6f}".encode())

    def _sweep(self, call: _Call) -> None:
        """Ends what is left of a call that had no pid namespace: no process can have left its group."""
        while True:
            try:
                os.killpg(call.pid, signal.SIGKILL)
                os.waitpid(-call.pid, 0)
            except ProcessLookupError:
                break
            except ChildProcessError:
                time.sleep(0.001)
        shutil.rmtree(f"{self._given.directory}/call-{call.number}", ignore_errors=True)

    def _enforce(self) -> None:
        now = time.monotonic()
        for call in list(self._calls.values()):
            if now >= call.kill_at:
                call.kill_at = now + _EXIT_GRACE_S
                self._kill(call, signal.SIGKILL)
            elif now >= call.next_check:
                self._check(call, now)

    def _check(self, call: _Call, now: float) -> None:
        assert call.started is not None
        if now - call.started >= call.wall:
            self._end(call, "wall", now)
            return
        usage = self._usage(call)
        if usage.memory > self._given.memory:
            self._end(call, "memory", now)
        elif usage.cpu_seconds >= call.cpu:
            self._end(call, "cpu", now)
        else:
            speed = max(1, min(2 * usage.threads, os.cpu_count() or 1))
            pause = max((call.cpu - usage.cpu_seconds) / speed, _SHORTEST_CHECK_S)
            call.next_check = min(now + min(pause, _CHECK_EVERY_S), call.started + call.wall)

    def _usage(self, call: _Call) -> tasks.Usage:
        procfs = self._place.procfs
        call.host_pid = call.host_pid or tasks.host_pid(procfs, call.pid, self._depth)
        roots = [call.host_pid] if call.host_pid else []
        if self._given.isolation == settings.LANDLOCK:
            roots += tasks.orphans(procfs, call.pid)
        return tasks.usage(procfs, roots, self._resident)

    def _end(self, call: _Call, kind: str, now: float) -> None:
        """Ends a call at a limit. At one of time, the program gets a moment to write out what it has printed."""
        call.kind = kind
        call.next_check, call.kill_at = float("inf"), now + _FLUSH_GRACE_S
        self._kill(call, signal.SIGKILL if kind == "memory" else signal.SIGXCPU)

    def _read_oom_count(self) -> int:
        if self._place.oom_events < 0:
            return 0
        for line in os.pread(self._place.oom_events, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def end_everything(self) -> None:
        """Ends all children and waits until they are gone."""
        for call in list(self._calls.values()):
            self._kill(call, signal.SIGKILL)
        for call in list(self._calls.values()):
            with contextlib.suppress(ConnectionError):
                self._reap(call)


def main(arguments: list[str]) -> None:
    """`arguments`: the settings and the place, encoded."""
    given, place = settings.decode_settings(arguments[0]), settings.decode_place(arguments[1])
    if given.isolation == settings.LANDLOCK:
        # The children have to be ended one by one: this process must outlive the trainer and the launcher for that.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path += place.import_path
    # The first entry stands for the directory of the program: the scratch directory of each call.
    sys.path[0] = ""
    found = preload.warm_up(given.preload, run_programs=given.warm_up, procfs=place.procfs)
    server = Server(given, place)
    try:
        server.serve(" ".join(["hello", *found]))
    except ConnectionError:
        # The trainer has gone.
        return
    finally:
        server.end_everything()
