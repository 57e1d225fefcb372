"""Which isolation this machine offers: each tier is opened, runs a program, and is attacked.

`Trial`: what came of one tier. `probe`: opens a tier and tries it. `refusal`: why nothing holds, and what would help.
"""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from retool.errors import InfrastructureError
from retool.sandbox.canaries import CanaryResult, run_canaries
from retool.sandbox.config import Backend, SandboxConfig
from retool.sandbox.warm.pool import WarmSandbox

_TIERS = {
    Backend.NAMESPACE: ("namespace-root", "namespace-user"),
    Backend.LANDLOCK: ("landlock",),
}
_MORE_THAN_ALLOWED_MB = 256


@dataclass(frozen=True, slots=True)
class Trial:
    """A tier on this machine. `problem`: why it cannot be used; empty if it holds. `canaries`: empty if none was tried."""

    tier: str
    problem: str
    canaries: tuple[CanaryResult, ...] = ()


def tiers_of(backend: str) -> tuple[str, ...]:
    """The tiers of a backend, best first."""
    backends = list(_TIERS) if backend == Backend.AUTO else [Backend(backend)]
    return tuple(tier for each in backends for tier in _TIERS[each])


@asynccontextmanager
async def probe(config: SandboxConfig, tier: str) -> AsyncIterator[tuple[Trial, "WarmSandbox | None"]]:
    """Opens `tier` and attacks it. Yields the sandbox for as long as the context lasts, or None if it does not hold."""
    reason = _impossible(tier)
    if reason:
        yield Trial(tier, reason), None
        return
    sandbox = WarmSandbox(config, tier)
    try:
        await sandbox.__aenter__()
    except InfrastructureError as error:
        yield Trial(tier, _last_line(str(error))), None
        return
    try:
        trial = await _attack(config, sandbox)
        sandbox.metrics()  # the canaries' calls are nobody's figures
        yield trial, sandbox if not trial.problem else None
    finally:
        await sandbox.aclose()


async def _attack(config: SandboxConfig, sandbox: WarmSandbox) -> Trial:
    results = await run_canaries(
        sandbox, memory_mb=config.memory_mb + _MORE_THAN_ALLOWED_MB, processes=sandbox.process_limit + 1
    )
    heavy = await sandbox.run("try:\n    import numpy, sympy\nexcept ImportError:\n    pass\nprint('held')")
    if heavy.stdout != "held\n":
        results.append(CanaryResult("import the mathematical packages", heavy.text[-200:] or heavy.stderr))
    failed = [f"it could {result.name} ({result.problem})" for result in results[1:] if not result.held]
    if not results[0].held:
        failed = [f"it cannot run a program: {results[0].problem}"]
    return Trial(sandbox.tier, "; ".join(failed), tuple(results))


def _impossible(tier: str) -> str:
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, this is {sys.platform}"
    if tier == "namespace-root" and os.geteuid() != 0:
        return "it needs root"
    return ""


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]


def refusal(trials: Sequence[Trial]) -> str:
    """What to tell a user on whose machine no tier holds."""
    lines = ["No isolation for model-written code holds on this machine:"]
    lines += [f"  {trial.tier}: {trial.problem}" for trial in trials]
    lines.append("What would help, any one of these:")
    lines += [f"  - {advice}" for advice in _advice()]
    return "\n".join(lines)


def _advice() -> list[str]:
    if not sys.platform.startswith("linux"):
        return [
            "run it on Linux: in a virtual machine, or on a rented one",
            _REMOTE,
            _UNSAFE,
        ]
    advice = []
    if _setting("/proc/sys/user/max_user_namespaces") == "0":
        advice.append("allow user namespaces: sysctl -w user.max_user_namespaces=10000")
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        advice.append("allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1")
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        advice.append("allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        advice.append("start the container with --security-opt seccomp=unconfined, or with --cap-add SYS_ADMIN as root")
    advice += ["use a kernel of version 6.12 or later with Landlock (lsm=landlock,... on its command line)"]
    return [*advice, _REMOTE, _UNSAFE]


_REMOTE = "run a SandboxFusion server and set sandbox=sandbox_fusion sandbox.url=http://HOST:PORT"
_UNSAFE = "accept that model code can do whatever you can: sandbox.allow_unsafe=true (in a machine without secrets)"


def _setting(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
