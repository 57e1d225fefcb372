#!/usr/bin/env python3
"""Does the default run learn on held-out questions, whatever the seed? Runs it for several seeds and prints a table.

    python scripts/check_learning.py --seeds 1 2 3 [--output DIRECTORY] [override ...]

Exits with 1 unless every seed raises held-out accuracy by at least 0.25 to at least 0.85.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

GAIN, LEVEL = 0.25, 0.85


def run(seed: int, output: Path, overrides: list[str]) -> dict[str, object]:
    """One run, or the result of one that is finished."""
    directory = output / f"seed-{seed}"
    command = [sys.executable, "-m", "retool.train", f"seed={seed}", f"hydra.run.dir={directory.resolve()}", *overrides]
    subprocess.run(command, check=True)
    result: dict[str, object] = json.loads((directory / "result.json").read_text("utf-8"))
    return result


def show(name: str, figures: dict[str, float]) -> str:
    low, high = figures["eval/accuracy_low"], figures["eval/accuracy_high"]
    return f"{name} {figures['eval/accuracy']:.3f} [{low:.3f}, {high:.3f}] n={figures['eval/count']:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("outputs/check_learning"))
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    learned = True
    rows = []
    for seed in arguments.seeds:
        result = run(seed, arguments.output, arguments.overrides)
        before, after = result["eval"]["before"], result["eval"]["after"]
        gain = after["eval/accuracy"] - before["eval/accuracy"]
        learned &= gain >= GAIN and after["eval/accuracy"] >= LEVEL
        rows.append(f"seed {seed}: {show('before', before)}, {show('after', after)}, {result['seconds']} s")
    print("\n".join(rows))
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
