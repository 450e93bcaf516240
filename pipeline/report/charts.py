"""Charts as SVG: bars over time, strips of states, a heat map, a histogram, ticks.

Owns scales, axes and paths, and keeps each chart's size bounded: what is closer than a pixel is drawn once.
Colours are classes of the page's style. Every chart has a title and a description in words.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from zlib import crc32

import numpy as np

from pipeline.audit.facts import Floats

from .html import short

WIDTH = 1120
LEFT = 118
RIGHT = 12
PLOT = WIDTH - LEFT - RIGHT
ROW = 15
StateRow = tuple[str, str, list[tuple[str, float, float]]]
"""A label, what to say about the row, and its spans: (class, from ms, to ms)."""
_STEPS_MIN = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 43_200, 129_600, 525_600)


class TimeScale:
    """From times in ms to x."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self.start_ms, self.end_ms = start_ms, max(end_ms, start_ms + 1)

    def x(self, time_ms: float) -> float:
        share = (time_ms - self.start_ms) / (self.end_ms - self.start_ms)
        return LEFT + PLOT * min(1.0, max(0.0, share))

    def ticks(self) -> list[tuple[float, str]]:
        """(x, label): at most eight round times."""
        minutes = (self.end_ms - self.start_ms) / 60_000
        step = next((one for one in _STEPS_MIN if minutes / one <= 8), _STEPS_MIN[-1])
        step_ms = step * 60_000
        if minutes < 2:
            return [(self.x(at), _clock(at, True)) for at in (self.start_ms, self.end_ms)]
        first = -(-self.start_ms // step_ms) * step_ms
        return [(self.x(at), _clock(at, False, step)) for at in range(first, self.end_ms + 1, step_ms)]


def _clock(time_ms: float, seconds: bool, step: int = 0) -> str:
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, tz=datetime.UTC)
    if step >= 1440:
        return moment.strftime("%d %b")
    if moment.hour == 0 and moment.minute == 0 and not seconds:
        return moment.strftime("%d %b %H:%M")
    return moment.strftime("%H:%M:%S" if seconds else "%H:%M")


def _svg(height: int, title: str, description: str, body: str) -> str:
    number = crc32(title.encode())
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="c{number}t c{number}d">'
        f'<title id="c{number}t">{escape(title)}</title><desc id="c{number}d">{escape(description)}</desc>'
        f"{body}</svg>"
    )


def figure(caption: str, svg: str) -> str:
    """A chart with its caption."""
    return f'<figure class="wide"><figcaption>{escape(caption)}</figcaption>{svg}</figure>'


def _time_axis(scale: TimeScale, top: int, bottom: int) -> str:
    lines = "".join(f"M{x:.0f} {top}V{bottom}" for x, _ in scale.ticks())
    words = "".join(
        _word(min(max(x, LEFT + 14), WIDTH - 22), bottom + 15, label) for x, label in scale.ticks()
    )
    return f'<path class="grid" d="{lines}"/>{words}'


def _word(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{escape(words)}</text>'


def _label(y: float, words: str) -> str:
    return f'<text class="label" x="0" y="{y:.0f}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _bar(x: float, base: float, width: float, height: float) -> str:
    return _rect(x, base - height, width, height)


def bars(title: str, scale: TimeScale, series: Sequence[tuple[str, str, Floats]], unit: str) -> str:
    """Values over time, a strip a series with its own scale: (class, label, values)."""
    height_of, gap, top = 62, 16, 6
    body, described = [], []
    bottom = top + len(series) * (height_of + gap) - gap
    body.append(_time_axis(scale, top, bottom))
    for at, (kind, label, values) in enumerate(series):
        base = top + at * (height_of + gap) + height_of
        most = float(values.max()) if len(values) else 0.0
        width = PLOT / max(1, len(values))
        path = "".join(
            _rect(
                LEFT + place * width,
                base - height_of * value / most,
                max(1, width - 0.6),
                height_of * value / most,
            )
            for place, value in enumerate(values.tolist())
            if value > 0
        )
        shown = f"{most:.1f}" if 0 < most < 10 else short(most)
        body.append(f'<path class="axis" d="M{LEFT} {base}h{PLOT}"/><path class="{kind}" d="{path}"/>')
        body.append(_label(base - height_of + 12, label))
        body.append(f'<text x="0" y="{base - height_of + 27}">up to {shown}{escape(unit)}</text>')
        described.append(f"{label}: at most {shown}{unit}")
    return _svg(bottom + 20, title, "; ".join(described), "".join(body))


def states(
    title: str, scale: TimeScale, rows: Iterable[tuple[str, str, list[tuple[str, float, float]]]]
) -> str:
    """A strip a row: (label, what to say about it, [(class, from ms, to ms)])."""
    body, top, at = [], 4, 0
    for at, (label, told, spans) in enumerate(rows, 1):
        y = top + (at - 1) * ROW
        paths: dict[str, list[str]] = {}
        for kind, spans_of in _by_kind(spans).items():
            for x, width in _merged(scale, spans_of):
                paths.setdefault(kind, []).append(_rect(x, y + 2, width, ROW - 4))
        drawn = "".join(f'<path class="{kind}" d="{"".join(path)}"/>' for kind, path in sorted(paths.items()))
        body.append(
            f'<g><title>{escape(told)}</title><text class="label" x="0" y="{y + 11}">{escape(label)}</text>'
        )
        body.append(f"{drawn}</g>")
    bottom = top + at * ROW
    body.insert(0, _time_axis(scale, top, bottom))
    return _svg(bottom + 20, title, f"{at} rows, one a broker or cluster", "".join(body))


def _drawn_last(at: tuple[str, str]) -> tuple[bool, str]:
    return at[0] == "controlled_shutdown", at[0]


def _by_kind(spans: list[tuple[str, float, float]]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for kind, start, end in spans:
        found.setdefault(kind, []).append((start, end))
    return found


def _merged(scale: TimeScale, spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(x, width) of spans, those less than a pixel apart joined; none is narrower than a pixel and a half."""
    merged: list[list[float]] = []
    for start, end in sorted(spans):
        low, high = scale.x(start), scale.x(end)
        if merged and low - merged[-1][1] < 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return [(low, max(1.5, high - low)) for low, high in merged]


def heat(title: str, scale: TimeScale, rows: Sequence[tuple[str, str, Floats]]) -> str:
    """A strip a row, darker where the values are higher: (label, what to say about it, values)."""
    body, top = [], 4
    most = max((float(values.max()) for _, _, values in rows), default=0.0)
    bottom = top + len(rows) * ROW
    for at, (label, told, values) in enumerate(rows):
        y = top + at * ROW
        width = PLOT / len(values)
        levels = np.zeros(len(values), dtype=int)
        if most > 0:
            # By square root, so that a few partitions are seen beside a storm; any at all is level 1.
            levels = np.ceil(4 * np.sqrt(np.clip(values, 0, None) / most)).astype(int)
        drawn = [f'<path class="heat0" d="{_rect(LEFT, y + 1, PLOT, ROW - 2)}"/>']
        for level in range(1, 5):
            path = "".join(
                _rect(LEFT + place * width, y + 1, width, ROW - 2)
                for place in np.flatnonzero(levels == level)
            )
            if path:
                drawn.append(f'<path class="heat" opacity="{0.1 + 0.225 * level:.2f}" d="{path}"/>')
        body.append(f"<g><title>{escape(told)}</title>")
        body.append(f"{_label(y + 11, label)}{''.join(drawn)}</g>")
    body.append(_time_axis(scale, top, bottom))
    return _svg(bottom + 20, title, f"{len(rows)} rows; the highest value is {most:.1f}", "".join(body))


def columns(title: str, values: Sequence[tuple[str, int]]) -> str:
    """A histogram: (label, how many)."""
    height_of, top = 110, 16
    most = max((value for _, value in values), default=0) or 1
    width = WIDTH / max(1, len(values))
    body = [f'<path class="axis" d="M0 {top + height_of}h{WIDTH}"/>']
    for at, (label, value) in enumerate(values):
        middle, tall = (at + 0.5) * width, height_of * value / most
        tall = max(tall, 1.5) if value else 0
        if value:
            path = _rect(middle - width * 0.36, top + height_of - tall, width * 0.72, tall)
            body.append(f'<path class="s1" d="{path}"><title>{escape(label)}: {value}</title></path>')
        words = short(value) if value else "0"
        body.append(
            f'<text x="{middle:.0f}" y="{top + height_of - tall - 4:.0f}" text-anchor="middle">{words}</text>'
        )
        body.append(
            f'<text x="{middle:.0f}" y="{top + height_of + 15}" text-anchor="middle">{escape(label)}</text>'
        )
    described = "; ".join(f"{label}: {value}" for label, value in values)
    return _svg(top + height_of + 22, title, described, "".join(body))


def ticks(title: str, scale: TimeScale, rows: Sequence[tuple[str, str, Sequence[int]]]) -> str:
    """Moments: (label, what to say about them, times in ms)."""
    listed = [(label, told, [("tick", float(at), float(at)) for at in times]) for label, told, times in rows]
    return states(title, scale, listed)
