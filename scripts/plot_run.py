#!/usr/bin/env python3
"""Draws the learning curve of a training run as an SVG, from its metrics.jsonl: the picture in the README.

    python scripts/plot_run.py RUN_DIRECTORY docs/images/quickstart.svg

A line each for the share of right answers and of trajectories that called the interpreter, step by step, and the
held-out evaluations as points with their 95 % intervals. The page's colours, light or dark, are those of the viewer.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 64, 46
CURVES = (("rollout/tool_call_rate", "called the interpreter", "tool"), ("reward/correct", "right answers", "right"))
STYLE = """
text { font: 13px sans-serif; fill: #24292f } .quiet { fill: #57606a } .grid { stroke: #d0d7de; stroke-width: 1 }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
.right { stroke: #0969da } .tool { stroke: #bf8700; stroke-dasharray: 6 4 }
.point { fill: #cf222e } .interval { stroke: #cf222e; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9da7b3 } .grid { stroke: #3d444d }
  .right { stroke: #58a6ff } .tool { stroke: #d29922 } .point { fill: #ff7b72 } .interval { stroke: #ff7b72 }
}
"""
Row = dict[str, float]


class Axes:
    """From steps 0..last and rates 0..1 to positions."""

    def __init__(self, last: float) -> None:
        self._last = max(last, 1.0)

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self._last

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate


def grid(axes: Axes, last: int) -> list[str]:
    parts = []
    for tenth in range(0, 11, 2):
        y = axes.y(tenth / 10)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="quiet" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    every = max(1, -(-last // 10))
    for step in range(0, last + 1, every):
        x = axes.x(step)
        parts.append(f'<text class="quiet" x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{step}</text>')
    return [*parts, f'<text class="quiet" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">training step</text>']


def curve(axes: Axes, rows: Sequence[Row], key: str, style: str) -> str:
    points = " ".join(f"{axes.x(row['step']):.1f},{axes.y(row[key]):.1f}" for row in rows if key in row)
    return f'<polyline class="line {style}" points="{points}"/>'


def evaluation(axes: Axes, row: Row) -> list[str]:
    x = axes.x(row["step"])
    low, high = axes.y(row["eval/accuracy_low"]), axes.y(row["eval/accuracy_high"])
    return [
        f'<line class="interval" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>',
        f'<circle class="point" cx="{x:.1f}" cy="{axes.y(row["eval/accuracy"]):.1f}" r="4.5"/>',
    ]


def legend(evaluations: Sequence[Row]) -> list[str]:
    parts, x = [], float(LEFT)
    for _, label, style in reversed(CURVES):
        parts.append(f'<line class="line {style}" x1="{x}" x2="{x + 26}" y1="44" y2="44"/>')
        parts.append(f'<text x="{x + 33}" y="48">{escape(label)}</text>')
        x += 170
    counts = sorted({round(row["eval/count"]) for row in evaluations})
    label = f"right on {', '.join(map(str, counts))} held-out problems, 95 % interval"
    return [
        *parts,
        f'<circle class="point" cx="{x + 6}" cy="44" r="4.5"/>',
        f'<text x="{x + 18}" y="48">{label}</text>',
    ]


def draw(rows: Sequence[Row], title: str) -> str:
    """The picture of a run with the given rows of metrics."""
    evaluations = [row for row in rows if "eval/accuracy" in row]
    last = round(max(row["step"] for row in rows))
    axes = Axes(last)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="22" style="font-weight: bold">{escape(title)}</text>',
        *grid(axes, last),
        *(curve(axes, rows, key, style) for key, _, style in CURVES),
        *(part for row in evaluations for part in evaluation(axes, row)),
        *(legend(evaluations) if evaluations else []),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--title", default="python -m retool.train")
    arguments = parser.parse_args()
    lines = (arguments.run / "metrics.jsonl").read_text("utf-8").splitlines()
    arguments.output.write_text(draw([json.loads(line) for line in lines], arguments.title), encoding="utf-8")


if __name__ == "__main__":
    main()
