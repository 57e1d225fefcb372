"""`tie_to_parent`: a process that ends with the one that started it, whatever way that one goes.

Three watches, since each alone has a hole. The pipe on standard input ends when the parent does, unless a child that
the parent forked holds it too. The kernel's parent-death signal (Linux) is also sent when merely the thread that
started this process ends. The parent's process id changes when it dies, and is looked at every second.
"""

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 1.0


def tie_to_parent(parent_pid: int, stdin_fd: int, on_closed: Callable[[], None]) -> None:
    """Calls `on_closed` when the parent closes the pipe on purpose; ends the process at once when it is gone.

    To be called in the main thread. `parent_pid` is what the parent says its id is.
    """

    def orphaned() -> bool:
        return os.getppid() != parent_pid

    def leave_if_orphaned(*_: object) -> None:
        if orphaned():
            os._exit(1)

    signal.signal(signal.SIGHUP, leave_if_orphaned)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    leave_if_orphaned()

    def watch() -> None:
        while True:
            readable, _, _ = select.select([stdin_fd], [], [], _LOOK_EVERY_S)
            leave_if_orphaned()
            if readable and not os.read(stdin_fd, 4096):
                on_closed()
                return

    threading.Thread(target=watch, name="retool-engine-parent-watch", daemon=True).start()
