"""Tokens a second over the hit rate as an SVG: measured points, and the line of the formula.

Knows shapes on a page; knows no measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 56, 56
TICKS = 5
COLORS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626")


@dataclass(frozen=True)
class Point:
    """One cache size."""

    hit_rate: float  # 0 to 1
    measured: float  # tokens a second
    lowest: float
    highest: float


@dataclass(frozen=True)
class Line:
    """The cache sizes of one number of conversations."""

    name: str
    points: tuple[Point, ...]
    limit: tuple[tuple[float, float], ...]  # hit rate and tokens a second by the formula, rising; may be empty


def draw(title: str, lines: Sequence[Line]) -> str:
    """The picture; at least one line with one point. As high as what was measured: limits end at its upper edge."""
    most = _round_up(max(point.highest for line in lines for point in line.points))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<clipPath id="page"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>',
        _text(LEFT, 22, title, size=15),
        *_axes(most),
    ]
    for index, line in enumerate(lines):
        parts += _line(line, COLORS[index % len(COLORS)], most)
        parts += _legend(index, line.name, COLORS[index % len(COLORS)])
    return "\n".join([*parts, "</svg>", ""])


def _axes(most: float) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        rate, speed = tick / TICKS, most * tick / TICKS
        x, y = _x(rate), _y(speed, most)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{speed:,.0f}", anchor="end"))
        parts.append(_text(x, HEIGHT - BOTTOM + 20, f"{100 * rate:.0f} %", anchor="middle"))
    parts.append(_text(_x(0.5), HEIGHT - 12, "experts found on the card", anchor="middle"))
    parts.append(_text(LEFT - 8, TOP - 12, "tokens/s", anchor="end"))
    return parts


def _line(line: Line, color: str, most: float) -> list[str]:
    points = sorted(line.points, key=lambda point: point.hit_rate)
    found = [f"{_x(point.hit_rate):.1f},{_y(point.measured, most):.1f}" for point in points]
    parts = [f'<polyline points="{" ".join(found)}" fill="none" stroke="{color}" stroke-width="2"/>']
    if line.limit:
        limit = [f"{_x(rate):.1f},{_y(speed, most):.1f}" for rate, speed in line.limit]
        parts.append(
            f'<polyline points="{" ".join(limit)}" fill="none" stroke="{color}" stroke-dasharray="6 4" '
            'clip-path="url(#page)"/>'
        )
    for point in points:
        x = _x(point.hit_rate)
        low, high = _y(point.lowest, most), _y(point.highest, most)
        parts.append(f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{color}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{_y(point.measured, most):.1f}" r="4" fill="{color}"/>')
    return parts


def _legend(index: int, name: str, color: str) -> list[str]:
    x, y = LEFT + 12, TOP + 10 + 18 * index
    return [
        f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{color}" stroke-width="2"/>',
        _text(x + 32, y + 4, name),
    ]


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _x(rate: float) -> float:
    return LEFT + rate * (WIDTH - LEFT - RIGHT)


def _y(speed: float, most: float) -> float:
    return HEIGHT - BOTTOM - speed / most * (HEIGHT - TOP - BOTTOM)


def _round_up(value: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** (len(str(int(value))) - 1)
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)
