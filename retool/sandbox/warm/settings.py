"""What the trainer tells the launcher and the launcher the fork server, as command line arguments.

Contents: `Settings`, `Place`, `encode`, `decode_settings`, `decode_place`, and the three kinds of isolation.

Standard library only; both sides import it.
"""

import json
from typing import NamedTuple

ROOT = "root"
"""Namespaces made by root; model code runs as a user of its own."""
USER = "user"
"""Namespaces made by an ordinary user, within user namespaces."""
LANDLOCK = "landlock"
"""No namespaces: Landlock and seccomp alone."""


class Settings(NamedTuple):
    """Limits and wiring of a fork server. Times in seconds, sizes in bytes.

    `control`: the descriptor of the socket to the trainer. `owner`: the trainer's pid. `memory`: of a process above the
    interpreter's own, and of all processes of a call together. `total_memory`: of all calls together, where a cgroup
    can be had. `directory`: where scratch directories are made without namespaces. `idle`: how many forked children
    wait for code.
    """

    isolation: str
    control: int
    owner: int
    memory: int
    total_memory: int
    scratch: int
    scratch_inodes: int
    processes: int
    open_files: int
    idle: int
    auto_print: bool
    preload: tuple[str, ...]
    warm_up: bool
    directory: str


class Place(NamedTuple):
    """What the launcher made. `rules`: paths and their Landlock rights. Descriptors are -1 where there is none.

    `procfs`: the host's `/proc`, for the fork server alone. `oom_events`: the cgroup's count of processes killed.
    """

    executable: str
    import_path: tuple[str, ...]
    base_uid: int
    procfs: int
    pid_namespace: int
    oom_events: int
    rules: tuple[tuple[str, int], ...]


def encode(value: Settings | Place) -> str:
    """`value` as one command line argument."""
    return json.dumps(value._asdict())


def decode_settings(text: str) -> Settings:
    """The inverse of `encode`."""
    fields = json.loads(text)
    fields["preload"] = tuple(fields["preload"])
    return Settings(**fields)


def decode_place(text: str) -> Place:
    """The inverse of `encode`."""
    fields = json.loads(text)
    fields["import_path"] = tuple(fields["import_path"])
    fields["rules"] = tuple((path, access) for path, access in fields["rules"])
    return Place(**fields)
