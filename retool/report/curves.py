"""Learning curves as inline SVG: `Series`, `line_chart`.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart; text and axes take the page's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_WIDTH, _HEIGHT = 460, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 38


@dataclass(frozen=True, slots=True)
class Series:
    """One line: (step, value) points; `intervals` (step, low, high) are drawn as bars with the points marked."""

    label: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float, float]] = ()


def line_chart(title: str, series: Sequence[Series]) -> str:
    """An SVG element with axes, a legend and each point's value as its tooltip; "" without a finite point."""
    shown = [_finite(line) for line in series]
    shown = [line for line in shown if line.points]
    if not shown:
        return ""
    steps = [step for line in shown for step, _ in line.points]
    values = [value for line in shown for _, value in line.points]
    values += [bound for line in shown for _, low, high in line.intervals for bound in (low, high)]
    scale = _Scale(min(steps), max(steps), *_nice_bounds(min(values), max(values)))
    body = [_axes(scale)]
    for index, line in enumerate(shown):
        body.append(_line(line, scale, COLOURS[index % len(COLOURS)]))
    legend = " ".join(
        f'<span><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{escape(line.label)}</span>'
        for i, line in enumerate(shown)
    )
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    return f'<figure><figcaption>{escape(title)}</figcaption>{svg}<div class="legend">{legend}</div></figure>'


@dataclass(frozen=True, slots=True)
class _Scale:
    first: float
    last: float
    low: float
    high: float

    def x(self, step: float) -> float:
        span = (self.last - self.first) or 1
        return round(_LEFT + (step - self.first) / span * (_WIDTH - _LEFT - _RIGHT), 2)

    def y(self, value: float) -> float:
        return round(_TOP + (self.high - value) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM), 2)


def _finite(line: Series) -> Series:
    points = [(step, value) for step, value in line.points if math.isfinite(value)]
    return Series(line.label, points, line.intervals)


def _nice_bounds(low: float, high: float) -> tuple[float, float]:
    """Bounds on multiples of a round step, at least a little apart."""
    least = 0.02 * max(abs(low), abs(high), 0.5)
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    step = _tick_step(low, high)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _tick_step(low: float, high: float) -> float:
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    return float(next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough))


def _axes(scale: _Scale) -> str:
    step = _tick_step(scale.low, scale.high)
    parts = []
    for index in range(round((scale.high - scale.low) / step) + 1):
        value = scale.low + index * step
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    ticks = sorted({scale.first, round((scale.first + scale.last) / 2), scale.last})
    parts += [f'<text x="{scale.x(tick)}" y="{_HEIGHT - 20}" text-anchor="middle">{tick:g}</text>' for tick in ticks]
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">step</text>')
    return "".join(parts)


def _line(line: Series, scale: _Scale, colour: str) -> str:
    path = " ".join(f"{scale.x(step)},{scale.y(value)}" for step, value in line.points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for step, low, high in line.intervals:
        x = scale.x(step)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{scale.y(low)}" y2="{scale.y(high)}" stroke="{colour}"/>')
    for step, value in line.points:
        label = f"{line.label}: {value:.4g} at step {step:g}"
        parts.append(
            f'<circle cx="{scale.x(step)}" cy="{scale.y(value)}" r="3" fill="{colour}">'
            f"<title>{escape(label)}</title></circle>"
        )
    return "".join(parts)
