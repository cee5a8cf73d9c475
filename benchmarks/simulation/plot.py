"""Lines on logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.protocol.picture import picture

# Visible on white and on black, since the documentation has both.
_COLORS = ("#3b82c4", "#d1495b", "#4c9a57", "#a06cad", "#c98b1b")
_WIDTH, _HEIGHT = 380, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 44
_COLUMNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One of a panel.

    Attributes:
        name: For the legend.
        points: Its numbers, all positive.
        dashed: Whether it is drawn so.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines on the same axes."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]


def svg(panels: Sequence[Panel]) -> str:
    """Panels, two in a row.

    >>> drawing = svg([Panel(title="a < b", x="x", y="y", lines=[Line(name="one", points=[(1, 10), (100, 1000)])])])
    >>> drawing.count("<polyline"), "a &lt; b" in drawing
    (1, True)
    """
    width, height = _WIDTH * min(len(panels), _COLUMNS), _HEIGHT * -(-len(panels) // _COLUMNS)
    parts = [
        f'<g transform="translate({index % _COLUMNS * _WIDTH} {index // _COLUMNS * _HEIGHT})">\n{_panel(one)}\n</g>'
        for index, one in enumerate(panels)
    ]
    described = "; ".join(f"{panel.title}: {panel.y} by {panel.x}" for panel in panels)
    return picture(parts, width, height, described, font_px=10.5)


class _Axis:
    """Powers of ten around some numbers, from one pixel to another."""

    def __init__(self, numbers: Sequence[float], first: float, last: float) -> None:
        low, high = math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)) - 1e-9)
        self.low, self.high = low, max(high, low + 1)
        self._first, self._last = first, last

    def __call__(self, number: float) -> float:
        share = (math.log10(number) - self.low) / (self.high - self.low)
        return round(self._first + share * (self._last - self._first), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Where each power of ten is, and what it is called."""
        return [(self(10.0**power), f"{10.0**power:,.0f}") for power in range(self.low, self.high + 1)]


def _panel(panel: Panel) -> str:
    xs, ys = zip(*(point for line in panel.lines for point in line.points), strict=True)
    x, y = _Axis(xs, _LEFT, _WIDTH - _RIGHT), _Axis(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(panel.title, (_LEFT + _WIDTH - _RIGHT) / 2, 18, "middle", ' class="title"')]
    for at, name in x.ticks():
        parts += [_grid(at, _TOP, at, _HEIGHT - _BOTTOM), _text(name, at, _HEIGHT - _BOTTOM + 15, "middle")]
    for at, name in y.ticks():
        parts += [_grid(_LEFT, at, _WIDTH - _RIGHT, at), _text(name, _LEFT - 6, at + 4, "end")]
    parts.append(_text(panel.x, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, "middle"))
    parts.append(_text(panel.y, _LEFT, _TOP - 4, "start"))
    for index, line in enumerate(panel.lines):
        color = _COLORS[index % len(_COLORS)]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        points = " ".join(f"{x(across)},{y(up)}" for across, up in line.points)
        style = f'fill="none" stroke="{color}" stroke-width="2"{dash}'
        parts.append(f'<polyline points="{points}" {style}/>')
        down = _TOP + 14 + 15 * index
        parts.append(f'<line x1="{_LEFT + 8}" y1="{down - 4}" x2="{_LEFT + 30}" y2="{down - 4}" {style}/>')
        parts.append(_text(line.name, _LEFT + 36, down, "start"))
    return "\n".join(parts)


def _text(text: str, x: float, y: float, anchor: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="grid"/>'
