"""`python -m retool.sandbox --check`: which sandbox this machine gets, and what that is worth."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from statistics import median

from rich.console import Console

from retool.errors import InfrastructureError, UserError
from retool.sandbox.local.process import EXPOSES, PROTECTS
from retool.sandbox.opening import open_sandbox

_TRIALS = 5
_IMPORTS = "import numpy, sympy\nprint('numpy', numpy.__version__, 'and sympy', sympy.__version__)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check and prints its result; returns the exit code: 0 where the sandbox works, else 1."""
    parser = argparse.ArgumentParser(prog="python -m retool.sandbox", description=__doc__)
    parser.add_argument("--check", action="store_true", help="open a sandbox and say what it protects from (default)")
    parser.add_argument("--backend", default="auto", help="the backend to check (default: auto)")
    parser.add_argument("--python", default=None, help="the interpreter for model code (default: this one)")
    given = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    try:
        asyncio.run(_check(console, given.backend, given.python))
    except (InfrastructureError, UserError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    return 0


async def _check(console: Console, backend: str, python: str | None) -> None:
    async with open_sandbox(backend=backend, python=python, workers=1, allow_unsafe=True) as sandbox:
        latencies = []
        for _ in range(_TRIALS):
            start = time.perf_counter()
            await sandbox.run("print(sum(range(100)))")
            latencies.append(time.perf_counter() - start)
        found = await sandbox.run(
            "import numpy, sympy\nprint('numpy', numpy.__version__, 'and sympy', sympy.__version__)"
        )
        console.print(f"tier: {sandbox.tier}", markup=False)
        console.print(f"interpreter: {python or sys.executable}", markup=False)
        packages = found.stdout.strip() if found.ok else "numpy and sympy cannot both be imported there"
        console.print(f"packages: {packages}", markup=False)
        console.print(f"latency: {1000 * median(latencies):.0f} ms (median of {_TRIALS} small calls)", markup=False)
    for title, points in (("It keeps from model code:", PROTECTS), ("It does not keep from model code:", EXPOSES)):
        console.print(title, markup=False)
        for point in points:
            console.print(f"  - {point}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
