"""Plots as SVG, without a library: bars beside their bounds, lines on logarithmic axes, and panels
of one line each over the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

WIDTH = 760
GOOD, BAD, GREY = "#2a7f62", "#c0392b", "#888"
COLORS = ("#2a7f62", "#2e6da4", "#c0392b", "#8e5ea2", "#d98e04")
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bars:
    """One row of :func:`bar_plot`: a value as a share of its bound, and the text beside it."""

    label: str
    share: float
    text: str


def _text(at: Point, text: str, anchor: str = "start", size: int = 12) -> str:
    x, y = at
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"


def _line(start: Point, end: Point, color: str = GREY, dash: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dashed}/>'
    )


def _document(height: int, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def bar_plot(title: str, rows: Sequence[Bars]) -> str:
    """Return horizontal bars; the dashed line is the bound, and longer bars are cut."""
    left, unit, step, top = 330, 200, 24, 40
    parts = [_text((10, 20), title, size=14)]
    for number, row in enumerate(rows):
        y = top + number * step
        length = min(row.share, 1.75) * unit
        color = GOOD if row.share <= 1 else BAD
        parts.append(_text((left - 8, y + 12), row.label, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="16" fill="{color}"/>')
        parts.append(_text((left + length + 5, y + 12), row.text, size=11))
    bottom = top + len(rows) * step
    parts.append(_line((left + unit, top - 6), (left + unit, bottom), dash="4 3"))
    return _document(bottom + 10, parts)


def line_plot(title: str, across: str, up: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """Return lines through points, both axes logarithmic to the base ten."""
    left, top, width, height = 70, 40, 520, 340
    logs = {n: [(log10(x), log10(y)) for x, y in points] for n, points in lines.items()}
    every = [point for points in logs.values() for point in points]
    (x0, x1), (y0, y1) = (
        (floor(min(p[axis] for p in every)), ceil(max(p[axis] for p in every))) for axis in (0, 1)
    )

    def place(point: Point) -> Point:
        x = left + (point[0] - x0) / max(1, x1 - x0) * width
        return x, top + height - (point[1] - y0) / max(1, y1 - y0) * height

    parts = [_text((10, 20), title, size=14)]
    for x in range(x0, x1 + 1):
        parts.append(_line(place((x, y0)), place((x, y1)), "#ddd"))
        parts.append(_text((place((x, y0))[0], top + height + 16), f"{10.0**x:g}", "middle", 11))
    for y in range(y0, y1 + 1):
        parts.append(_line(place((x0, y)), place((x1, y)), "#ddd"))
        parts.append(_text((left - 6, place((x0, y))[1] + 4), f"{10.0**y:g}", "end", 11))
    for number, (name, points) in enumerate(logs.items()):
        color = COLORS[number % len(COLORS)]
        track = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
        parts.append(f'<polyline points="{track}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
                  for x, y in map(place, points)]  # fmt: skip
        y = top + 14 + number * 18
        parts.append(_line((left + width + 14, y - 4), (left + width + 34, y - 4), color))
        parts.append(_text((left + width + 40, y), name))
    parts.append(_text((left + width / 2, top + height + 36), across, "middle"))
    parts.append(_text((10, top - 8), up, size=11))
    return _document(top + height + 48, parts)


def time_plot(title: str, across: str, panels: Mapping[str, Sequence[Point]]) -> str:
    """Return a panel for each line, three in a row, from zero to a little above its highest point;
    all have the same axis across."""
    width, height, top, gap = 200.0, 90.0, 60.0, 50.0
    end = max(x for points in panels.values() for x, _ in points) or 1.0
    parts = [_text((10, 20), title, size=14)]
    for number, (name, points) in enumerate(panels.items()):
        left = 40 + number % 3 * (width + gap / 1.2)
        bottom = top + height + number // 3 * (height + gap)
        highest = 1.1 * max(y for _, y in points) or 1.0
        track = " ".join(
            f"{left + x / end * width:.1f},{bottom - y / highest * height:.1f}" for x, y in points
        )
        parts += [
            _text((left, bottom - height - 6), name, size=11),
            _line((left, bottom), (left + width, bottom)),
            _line((left, bottom - height), (left, bottom)),
            f'<polyline points="{track}" fill="none" stroke="{GOOD}" stroke-width="1.2"/>',
            _text((left - 4, bottom + 4), "0", "end", 10),
            _text((left - 4, bottom - height + 8), f"{highest:.3g}", "end", 10),
            _text((left + width, bottom + 13), f"{end:.3g} {across}", "end", 10),
        ]
    rows = -(-len(panels) // 3)
    return _document(round(top + rows * (height + gap)), parts)
