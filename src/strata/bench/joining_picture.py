"""Every stream's gaps over time as an SVG: a part of the page a read mode, in it a lane a stream, time to the right.

Knows shapes on a page; a gap is as wide as it lasts and as high as the logarithm of that.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from strata.bench.joining import PAUSE, Joined

WIDTH, LEFT, RIGHT, TOP = 900, 130, 20, 64
LANE, READ_LANE, HEAD, FOOT = 34, 16, 26, 34
LEAST, MOST = 0.001, 30.0  # seconds: the foot and the top of a lane
SHORT = 0.1
PLACE = 2  # as wide as a gap is at least
COLORS = {"short": "#059669", "long": "#d97706", "pause": "#dc2626"}
READ_COLOR = "#2563eb"


@dataclass(frozen=True)
class Panel:
    """One mode: what ran, seconds counted from the moment at which every stream decoded."""

    name: str
    joined: Joined

    @property
    def seconds(self) -> float:
        """To the end of the last client."""
        return self.joined.ended - self.joined.began

    @property
    def height(self) -> int:
        """On the page."""
        return HEAD + READ_LANE * len(self.joined.scenario.joiners) + LANE * self.joined.scenario.streams + FOOT


def draw_gaps(title: str, panels: Sequence[Panel]) -> str:
    """The picture; all parts have the same scale of time. At least one panel."""
    seconds = max(panel.seconds for panel in panels)
    height = TOP + sum(panel.height for panel in panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(16, 22, title, size=15),
        *_legend(),
    ]
    top = TOP
    for panel in panels:
        parts += _panel(panel, top, seconds)
        top += panel.height
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    words = {"short": f"gap up to {SHORT:g} s", "long": f"up to {PAUSE:g} s", "pause": f"over {PAUSE:g} s"}
    parts = []
    for place, (kind, text) in enumerate(words.items()):
        x = 16 + 150 * place
        parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{COLORS[kind]}"/>')
        parts.append(_text(x + 18, 44, text))
    parts.append(f'<rect x="466" y="38" width="24" height="5" fill="{READ_COLOR}"/>')
    return [*parts, _text(496, 44, "a joining prompt, from its arrival to its first token")]


def _panel(panel: Panel, top: int, seconds: float) -> list[str]:
    parts = [_text(16, top + 16, panel.name, size=14)]
    y = top + HEAD
    for client in panel.joined.scenario.joiners:
        seen = panel.joined.seen[client.name]
        begin, end = (_x(at - panel.joined.began, seconds) for at in (seen.sent, seen.at[0]))
        parts.append(_text(LEFT - 8, y + 10, client.name, anchor="end"))
        parts.append(
            f'<rect x="{begin:.1f}" y="{y + 4}" width="{max(1.0, end - begin):.1f}" height="5" fill="{READ_COLOR}"/>'
        )
        y += READ_LANE
    for name, stream in panel.joined.streams.items():
        parts.append(_text(LEFT - 8, y + LANE - 8, name, anchor="end"))
        parts.append(f'<line x1="{LEFT}" y1="{y + LANE}" x2="{WIDTH - RIGHT}" y2="{y + LANE}" stroke="#e5e7eb"/>')
        parts += _lane([at - panel.joined.began for at in stream.at], y, seconds)
        y += LANE
    step = tick_step(seconds)
    for tick in range(int(seconds / step) + 1):
        parts.append(_text(_x(tick * step, seconds), y + 16, f"{tick * step:g} s", anchor="middle"))
    return parts


def _lane(arrivals: Sequence[float], y: int, seconds: float) -> list[str]:
    """Of gaps that begin at the same place of the page the longest is drawn."""
    longest: dict[int, tuple[float, float]] = {}
    for before, after in itertools.pairwise(arrivals):
        place = int(_x(before, seconds) / PLACE)
        if after >= 0 and after - before > (longest[place][1] - longest[place][0] if place in longest else 0.0):
            longest[place] = (max(0.0, before), after)
    parts = []
    for before, after in longest.values():
        x, width = _x(before, seconds), max(PLACE, _x(after, seconds) - _x(before, seconds))
        high = LANE * _height(after - before)
        color = COLORS[kind_of(after - before)]
        parts.append(
            f'<rect x="{x:.1f}" y="{y + LANE - high:.1f}" width="{width:.1f}" height="{high:.1f}" fill="{color}"/>'
        )
    return parts


def tick_step(seconds: float) -> float:
    """Between two numbers below a lane: 1, 2 or 5 times a power of ten, so that there are up to ten."""
    power = 10.0 ** math.floor(math.log10(seconds / 10))
    return next(step * power for step in (1, 2, 5, 10) if 10 * step * power >= seconds)


def kind_of(gap: float) -> str:
    """Which colour a gap has: short, long or pause."""
    return "short" if gap <= SHORT else "long" if gap <= PAUSE else "pause"


def _height(gap: float) -> float:
    """Of a lane, 0 to 1."""
    return min(1.0, max(0.05, math.log(max(gap, LEAST) / LEAST) / math.log(MOST / LEAST)))


def _x(at: float, seconds: float) -> float:
    return LEFT + at / seconds * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
