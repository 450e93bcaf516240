"""Charts as SVG: bars over time, strips of states, a heat map, a histogram, ticks.

Scales, axes and paths, and limits each chart's size: what is closer than a pixel is drawn once. Colors are
classes of the page's style (`style`). Every chart has a title and a description.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from zlib import crc32

import numpy as np

from metaquorum.pipeline.audit.facts import Floats
from metaquorum.pipeline.report.html import short, words

WIDTH = 1120
LEFT = 118
RIGHT = 12
PLOT = WIDTH - LEFT - RIGHT
ROW = 15
StateRow = tuple[str, str, list[tuple[str, float, float]]]
"""A label, a description of the row, and its spans: (class, from ms, to ms)."""
Marks = Sequence[tuple[str, float, float]]
"""Stretches of time to draw over everything: (UNSEEN or OFF, from ms, to ms)."""
UNSEEN, OFF = "unseen", "off"
_STEPS_MIN = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 10_080, 20_160)
_STEPS_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200)
_TICKS = 8
_DAY_MIN = 1440


class TimeScale:
    """Maps times in ms to x."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self.start_ms, self.end_ms = start_ms, max(end_ms, start_ms + 1)

    def x(self, time_ms: float) -> float:
        share = (time_ms - self.start_ms) / (self.end_ms - self.start_ms)
        return LEFT + PLOT * min(1.0, max(0.0, share))

    def ticks(self) -> list[tuple[float, str]]:
        """(x, label): at most eight round times. The first label has the date, and each has its
        year if there are several."""
        minutes = (self.end_ms - self.start_ms) / 60_000
        if minutes < 2:
            ends = ((self.start_ms, "%d %b %Y %H:%M:%S"), (self.end_ms, "%H:%M:%S"))
            return [(self.x(at), _label_of(at, form)) for at, form in ends]
        step = next((one for one in _STEPS_MIN if minutes / one <= _TICKS), None)
        if step is None:
            return [(self.x(at), _label_of(at, "%b %Y")) for at in self._months()]
        step_ms = step * 60_000
        first = -(-self.start_ms // step_ms) * step_ms
        times = range(first, self.end_ms + 1, step_ms)
        years = len({_moment(at).year for at in (self.start_ms, self.end_ms)}) > 1
        day = "%d %b %Y" if years else "%d %b"
        if step >= _DAY_MIN:
            return [
                (self.x(at), _label_of(at, day if number else "%d %b %Y")) for number, at in enumerate(times)
            ]
        return [
            (self.x(at), _clock(at, "%d %b %Y" if not number else day, not number))
            for number, at in enumerate(times)
        ]

    def _months(self) -> list[int]:
        """The starts of months, at most eight, at equal distances."""
        first, last = (_moment(at).year * 12 + _moment(at).month - 1 for at in (self.start_ms, self.end_ms))
        step = next((one for one in _STEPS_MONTHS if (last - first) / one <= _TICKS), _STEPS_MONTHS[-1])
        begins = [
            datetime.datetime(month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC)
            for month in range(-(-first // step) * step, last + 1, step)
        ]
        times = [int(at.timestamp() * 1000) for at in begins]
        return [at for at in times if self.start_ms <= at <= self.end_ms]


def _moment(time_ms: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ms / 1000, tz=datetime.UTC)


def _label_of(time_ms: float, form: str) -> str:
    return _moment(time_ms).strftime(form)


def _clock(time_ms: float, day: str, dated: bool) -> str:
    moment = _moment(time_ms)
    midnight = moment.hour == 0 and moment.minute == 0
    return moment.strftime(f"{day} %H:%M" if dated or midnight else "%H:%M")


def _svg(height: int, title: str, description: str, body: str) -> str:
    number = crc32(title.encode())
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="c{number}t c{number}d">'
        f'<title id="c{number}t">{escape(title)}</title><desc id="c{number}d">{escape(description)}</desc>'
        f"{body}</svg>"
    )


def figure(caption: str, svg: str) -> str:
    """A chart with its caption."""
    return f'<figure class="wide"><figcaption>{words(caption)}</figcaption>{svg}</figure>'


def _time_axis(scale: TimeScale, top: int, bottom: int) -> str:
    lines = "".join(f"M{x:.0f} {top}V{bottom}" for x, _ in scale.ticks())
    words = "".join(_word(_inside(x, label), bottom + 15, label) for x, label in scale.ticks())
    return f'<path class="grid" d="{lines}"/>{words}'


def _inside(x: float, label: str) -> float:
    """The middle of a label near x that stays inside the drawing."""
    half = 3.1 * len(label)
    return min(max(x, LEFT - 30 + half), WIDTH - half)


def _marked(scale: TimeScale, marks: Marks, top: float, height: float) -> str:
    """Unobserved time hatched, switched-off time pale."""
    drawn = []
    for kind, start, end in marks:
        x, width = scale.x(start), max(1.5, scale.x(end) - scale.x(start))
        drawn.append(f'<path class="{kind}" d="{_rect(x, top, width, height)}"/>')
        if kind == UNSEEN and width > 3:
            # One thick dashed line, as steep as the hatching: its size does not grow with the stretch.
            for row in np.arange(top, top + height - 1, ROW).tolist():
                tall = min(ROW, top + height - row)
                place = f"translate({x + tall / 2:.1f} {row + tall / 2:.1f}) skewX(-45)"
                length = max(1.5, width - tall)
                line = f'stroke-width="{tall:.0f}" transform="{place}" d="M0 0h{length:.1f}"'
                drawn.append(f'<path class="hatch" {line}/>')
    return "".join(drawn)


def _word(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{escape(words)}</text>'


def _label(y: float, words: str) -> str:
    return f'<text class="label" x="0" y="{y:.0f}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def bars(
    title: str, scale: TimeScale, series: Sequence[tuple[str, str, Floats]], unit: str, marks: Marks = ()
) -> str:
    """Values over time, one strip per series with its own scale: (class, label, values)."""
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
                LEFT + index * width,
                base - height_of * value / most,
                max(1, width - 0.6),
                height_of * value / most,
            )
            for index, value in enumerate(values.tolist())
            if value > 0
        )
        shown = number_text(most)
        body.append(f'<path class="axis" d="M{LEFT} {base}h{PLOT}"/><path class="{kind}" d="{path}"/>')
        body.append(_label(base - height_of + 12, label))
        body.append(f'<text x="0" y="{base - height_of + 27}">up to {shown}</text>')
        if unit:
            body.append(f'<text x="0" y="{base - height_of + 42}">{escape(unit.strip())}</text>')
        described.append(f"{label}: at most {shown}{unit}")
    body.append(_marked(scale, marks, top, bottom - top))
    return _svg(bottom + 20, title, "; ".join(described), "".join(body))


def states(title: str, scale: TimeScale, rows: Iterable[StateRow], marks: Marks = ()) -> str:
    """One strip per row: (label, description, [(class, from ms, to ms)]). `marks` apply to all rows."""
    body, top, row = [], 4, 0
    for row, (label, description, spans) in enumerate(rows, 1):
        y = top + (row - 1) * ROW
        paths: dict[str, list[str]] = {}
        own = [span for span in spans if span[0] in (UNSEEN, OFF)]
        for kind, spans_of in _by_kind([span for span in spans if span[0] not in (UNSEEN, OFF)]).items():
            for x, width in _merged(scale, spans_of):
                paths.setdefault(kind, []).append(_rect(x, y + 2, width, ROW - 4))
        drawn = "".join(f'<path class="{kind}" d="{"".join(path)}"/>' for kind, path in sorted(paths.items()))
        body.append(
            f"<g><title>{escape(description)}</title>"
            f'<text class="label" x="0" y="{y + 11}">{escape(label)}</text>'
        )
        body.append(f"{_marked(scale, own, y + 2, ROW - 4)}{drawn}</g>")
    bottom = top + row * ROW
    body.append(_marked(scale, marks, top, bottom - top))
    body.insert(0, _time_axis(scale, top, bottom))
    return _svg(bottom + 20, title, f"{row} rows, one per broker or cluster", "".join(body))


def _by_kind(spans: list[tuple[str, float, float]]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for kind, start, end in spans:
        found.setdefault(kind, []).append((start, end))
    return found


def _merged(scale: TimeScale, spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(x, width) of spans. Those less than a pixel apart are joined; the least width is 1.5 pixels."""
    merged: list[list[float]] = []
    for start, end in sorted(spans):
        low, high = scale.x(start), scale.x(end)
        if merged and low - merged[-1][1] < 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return [(low, max(1.5, high - low)) for low, high in merged]


def number_text(value: float) -> str:
    """At least one digit that is not 0: "0.004", "0.3", "7.5", "12", "1.2 k"."""
    if value == 0 or value >= 9.95:
        return short(value)
    return f"{value:.1f}" if value >= 0.95 else f"{value:.1g}"


HeatRow = tuple[str, str, Floats, Marks, tuple[float, float]]
"""A label, a description, the values, the marks, and the time in ms for which there are values."""


def heat(title: str, scale: TimeScale, rows: Sequence[HeatRow]) -> str:
    """One strip per row, darker for higher values. Nothing is drawn where there is no log."""
    body, top = [], 4
    most = max((float(values.max()) for _, _, values, _, _ in rows), default=0.0)
    bottom = top + len(rows) * ROW
    for at, (label, description, values, marks, (start_ms, end_ms)) in enumerate(rows):
        y = top + at * ROW
        width = PLOT / len(values)
        begin, long = scale.x(start_ms), max(1.5, scale.x(end_ms) - scale.x(start_ms))
        levels = np.zeros(len(values), dtype=int)
        if most > 0:
            # By square root, so that a few partitions are visible beside a storm. Any value above 0 is at
            # least level 1.
            levels = np.ceil(4 * np.sqrt(np.clip(values, 0, None) / most)).astype(int)
        drawn = [f'<path class="heat0" d="{_rect(begin, y + 1, long, ROW - 2)}"/>']
        for level in range(1, 5):
            path = "".join(
                _rect(LEFT + place * width, y + 1, width, ROW - 2)
                for place in np.flatnonzero(levels == level)
            )
            if path:
                drawn.append(f'<path class="heat" opacity="{0.1 + 0.225 * level:.2f}" d="{path}"/>')
        drawn.append(_marked(scale, marks, y + 1, ROW - 2))
        body.append(f"<g><title>{escape(description)}</title>")
        body.append(f"{_label(y + 11, label)}{''.join(drawn)}</g>")
    body.insert(0, _time_axis(scale, top, bottom))
    highest = number_text(most)
    return _svg(bottom + 20, title, f"{len(rows)} rows; the highest value is {highest}", "".join(body))


def columns(title: str, values: Sequence[tuple[str, int]]) -> str:
    """A histogram: (label, count)."""
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


def ticks(title: str, scale: TimeScale, rows: Sequence[tuple[str, str, Sequence[int], Marks]]) -> str:
    """Moments: (label, description, times in ms, marks)."""
    listed = [
        (label, description, [*(("tick", float(at), float(at)) for at in times), *marks])
        for label, description, times, marks in rows
    ]
    return states(title, scale, listed)
