"""Line and bar charts as SVG text, for the few places where a picture says more than a table.

Not matplotlib: a chart here is the same bytes on every machine, so its stored output can be
compared to the letter, it needs no font to be measured and no compiled package to be there. In
return it can do two things only. Both axes begin at 0, so that twice as much looks twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 360
# The plot, between its axes. To its right is room for the names of the lines.
LEFT, RIGHT, TOP, BOTTOM = 80.0, 440.0, 48.0, 300.0
INK, GRID = "#1a1a1a", "#dddddd"
# A line is told apart by its dashes, its marks and its name; the colour comes on top.
COLOURS = ("#0072b2", "#b34700", "#006b4f", "#7a3e78")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "M-4-4h8v8h-8z",
    "M0-5l5 9h-10z",
    "M0-5l5 5l-5 5l-5-5z",
)
MARKS_PER_LINE = 10
MAX_NAME = 26  # characters: no more than this fits beside a line or a bar
LABEL_GAP, BAR_ROW = 16.0, 36.0


@dataclass(frozen=True)
class Drawing:
    """A picture, and the sentence that says what it shows where no picture can be seen."""

    svg: str
    alt: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": self.alt}


def line_chart(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    alt: str,
) -> Drawing:
    """Up to four named lines through points (x, y).

    Raises ValueError for no line or too many, a line without points, a number below 0, and a name
    that does not fit.
    """
    if not 1 <= len(series) <= len(MARKS):
        raise ValueError(f"a line chart takes 1 to {len(MARKS)} lines, not {len(series)}")
    _check_names(series)
    for name, points in series.items():
        if not points:
            raise ValueError(f"the line {name!r} has no points")
    x_ticks = _ticks([x for points in series.values() for x, _ in points])
    y_ticks = _ticks([y for points in series.values() for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / x_ticks[-1][0], y / y_ticks[-1][0]
        return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)

    parts = []
    for tick, label in y_ticks:
        y = place(0, tick)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 8, y + 4, label, "end"))
    for tick, label in x_ticks:
        parts.append(_text(place(tick, 0)[0], BOTTOM + 20, label, "middle"))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 44, x_label, "middle"))
    parts.append(_text(LEFT, TOP - 10, y_label, "start"))
    placed = [[place(x, y) for x, y in points] for points in series.values()]
    for number, points in enumerate(placed):
        parts.append(_curve(points, number))
    # A name stands beside the end of its line, or below it where other lines go on.
    furthest = max(points[-1][0] for points in placed)
    ends = [
        y if x == furthest else min(y + LABEL_GAP, BOTTOM - 8)
        for x, y in (points[-1] for points in placed)
    ]
    heights = _apart(ends)
    for number, (name, height) in enumerate(zip(series, heights, strict=True)):
        parts.append(_text(placed[number][-1][0] + 10, height + 4, name, "start", COLOURS[number]))
    return _drawing(title, alt, HEIGHT, parts)


def bar_chart(
    title: str, bars: Mapping[str, float], *, unit: str, alt: str, decimals: int = 0
) -> Drawing:
    """Named bars, one below the other, each with its value; a unit of "$" stands before it.

    Raises ValueError for no bar, a number below 0, and a name that does not fit.
    """
    _check_names(bars)
    top = _ticks(list(bars.values()))[-1][0]
    left, right = 190.0, 520.0
    parts = []
    for row, (name, value) in enumerate(bars.items()):
        y = BAR_ROW * (row + 1)
        length = value / top * (right - left)
        written = f"{value:,.{decimals}f}"
        written = f"${written}" if unit == "$" else f"{written} {unit}"
        parts.append(_text(left - 10, y + 17, name, "end"))
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{length:.1f}" height="24" '
            f'fill="{COLOURS[0]}"/>'
        )
        parts.append(_text(left + length + 8, y + 17, written, "start"))
    return _drawing(title, alt, BAR_ROW * (len(bars) + 1) + 4, parts)


# --- numbers ------------------------------------------------------------------------------------


def _ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """An axis from 0 to above every value, in round steps (1, 2 or 5 times a power of ten)."""
    if not values:
        raise ValueError("a chart needs at least one number")
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a chart takes finite numbers from 0 up, not {value}")
    top = max(values) or 1.0
    power = math.floor(math.log10(top / 5))
    step = next(s for f in (1, 2, 5, 10) if (s := f * 10.0**power) * 5 >= top * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    count = math.ceil(top / step - 1e-9)
    return [(step * n, f"{step * n:,.{decimals}f}") for n in range(count + 1)]


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if len(name) > MAX_NAME:
            raise ValueError(f"{name!r} is longer than {MAX_NAME} characters: it would be cut off")


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights of labels, each pushed down far enough not to cover the one above it."""
    moved, last = list(heights), -math.inf
    for index in sorted(range(len(moved)), key=moved.__getitem__):
        last = moved[index] = max(moved[index], last + LABEL_GAP)
    return moved


# --- marks on paper -----------------------------------------------------------------------------


def _drawing(title: str, alt: str, height: float, parts: Sequence[str]) -> Drawing:
    if not alt.strip():
        raise ValueError("alt must say in a sentence what the drawing shows")
    body = "\n".join(parts)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="13">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(alt)}</desc>\n"
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>\n'
        f'<g font-weight="bold">{_text(12, 20, title, "start")}</g>\n'
        f"{body}\n</svg>"
    )
    return Drawing(svg, alt)


def _curve(points: Sequence[tuple[float, float]], number: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    every = max(1, math.ceil(len(points) / MARKS_PER_LINE))
    marked = dict.fromkeys([*points[::every], points[-1]])
    marks = "".join(
        f'<path d="{MARKS[number]}" transform="translate({x:.1f} {y:.1f})"/>' for x, y in marked
    )
    colour = COLOURS[number]
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[number]}"/><g fill="{colour}">{marks}</g>'
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = INK) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"
