"""The strip of time: what the page shows of a whole log along one axis, computed once and while it grows.

First a coarse strip from the states that are kept along the log, then one from the events of the timeline,
from the log's beginning on. What a record means is decided there; here it is only put on an axis.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from metaquorum.console.event_reader import (
    APART_FROM_BYTES,
    EventPiece,
    EventsEnd,
    Piece,
    ReaderLostError,
    is_users,
    pieces,
    pieces_apart,
)
from metaquorum.console.moments import Moments
from metaquorum.lines import one_line
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.causes.rule import CRITICAL, SEVERITIES
from metaquorum.metadata.inspect.log.coverage import Uncovered
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.event_groups import WAS_UNFENCED
from metaquorum.metadata.inspect.timeline.spans import under_min_isr_rows
from metaquorum.metadata.inspect.timeline.timeline import SpanCounts
from metaquorum.metadata.inspect.walk.mentions import Mentions
from metaquorum.metadata.inspect.walk.states import FoundState

BROKER_REGISTERED = "broker registered"
ACTIVE, FENCED, SHUTDOWN, GONE = "active", "fenced", "shutdown", "gone"
_STATE_AFTER = {
    BROKER_REGISTERED: FENCED,
    "broker fenced": FENCED,
    "already fenced": FENCED,
    "broker unfenced": ACTIVE,
    "no longer fenced": ACTIVE,
    "broker in controlled shutdown": SHUTDOWN,
    "broker unregistered": GONE,
}
"""The state of a broker after an event of the timeline."""
_OPEN_AT_THE_END = "still "
"""The kinds of events at the log's end, about what has not ended, begin with it."""
AXIS_POINTS = 512
_EVENT_BYTES, _PATH_BYTES, _COUNTS_BYTES = 600, 150, 200
"""What an event, a path of one and a point of the area take in memory, besides their characters."""
SLOW_S = 5.0
"""A running cluster without an answer for this time counts as gone."""
_MARKED = at_least("warning")
_DOUBTS = ("gap in time", "clock jumped")
UNCLEAN_ELECTION, TOPIC_DELETED = "unclean election", "topic deleted"
DIRECTORY_FAILED = "directory failed"
_LOSSES = (UNCLEAN_ELECTION, TOPIC_DELETED, DIRECTORY_FAILED)


class StripTurn(msgspec.Struct, frozen=True):
    """The value from `offset` (at `time_ms`) on: a broker's state, or the quorum's leader and epoch."""

    offset: int
    time_ms: int
    value: Any


class Lines(msgspec.Struct):
    """What changes along the log: the leader, each broker's state, partitions in trouble."""

    leaders: list[StripTurn] = msgspec.field(default_factory=list)
    brokers: dict[int, list[StripTurn]] = msgspec.field(default_factory=dict)
    area: list[SpanCounts] = msgspec.field(default_factory=list)

    def broker(self, broker_id: int, turn: StripTurn) -> None:
        turns = self.brokers.setdefault(broker_id, [])
        if not turns or turns[-1].value != turn.value:
            turns.append(turn)

    def state(self, state: FoundState) -> None:
        """Takes what a state along the log shows."""
        provenance = state.image.provenance
        quorum = state.quorum
        turn = StripTurn(quorum.offset, quorum.time_ms, (quorum.leader_id, quorum.epoch))
        if quorum.has_leader and (not self.leaders or self.leaders[-1].value != turn.value):
            self.leaders.append(turn)
        present = broker_states(state.image)
        for broker_id in [*present, *(self.brokers.keys() - present.keys())]:
            value = present.get(broker_id, GONE)
            self.broker(broker_id, StripTurn(provenance.offset, provenance.timestamp_ms, value))
        topics = state.image.topics
        leaderless = len(topics.rows_without_leader())
        under = len(under_min_isr_rows(state.image))
        self.area.append(SpanCounts(provenance.offset, provenance.timestamp_ms, leaderless, under))

    def event(self, event: TimelineEvent) -> None:
        """Takes what an event says."""
        if event.kind == "election":
            leader = int(event.entity.rpartition("/")[2])
            self.leaders.append(StripTurn(event.offset, event.time_ms, (leader, event.epoch)))
        after = _STATE_AFTER.get(event.kind)
        number = event.entity.partition("/")[2]
        if after is None or not number.isdigit():
            return
        before = self.brokers.get(int(number), [])[-1:]
        is_same = event.kind == BROKER_REGISTERED and not event.text.endswith(WAS_UNFENCED)
        if is_same and before and before[0].value != GONE:
            after = before[0].value  # the same process registered again, or one that was fenced anyway
        if after == SHUTDOWN and before and before[0].value == FENCED:
            after = FENCED  # in Kafka, a broker that is fenced has left controlled shutdown
        self.broker(int(number), StripTurn(event.offset, event.time_ms, after))


def broker_states(image: MetadataImage) -> dict[int, str]:
    """Each registered broker's state, as the strip and the table of brokers name it."""
    return {
        broker_id: FENCED if known.fenced else SHUTDOWN if known.in_controlled_shutdown else ACTIVE
        for broker_id, known in image.brokers.items()
    }


class _Events:
    """The events of a log as far as they were read, and the lines that they draw."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.events: list[TimelineEvent] = []
        self.marked: list[TimelineEvent] = []
        """Warnings and critical events."""
        self.doubts: list[TimelineEvent] = []
        """Those about time of which the log says nothing, or whose clock is not certain."""
        self.losses: list[TimelineEvent] = []
        """Those after which records may be lost, those that delete a topic with its records, and log
        directories that failed."""
        self.problems: list[str] = []
        self._paths: dict[str, str] = {}
        """Each path once: an event may be about thousands of partitions, and others are about the same."""
        self.size_bytes = 0
        """What the events and the area take in memory, roughly."""

    def take(self, piece: EventPiece) -> None:
        events = [self._lean(event) for event in piece.events]
        for event in events:
            self.lines.event(event)
        self.events += events
        self.marked += [event for event in events if event.severity in _MARKED]
        self.doubts += [event for event in events if event.kind in _DOUBTS]
        self.losses += [event for event in events if event.kind in _LOSSES]
        self.lines.area += piece.counts
        self.problems += piece.problems
        self.size_bytes += _COUNTS_BYTES * len(piece.counts)

    def _lean(self, event: TimelineEvent) -> TimelineEvent:
        """The event with paths that it shares with others."""
        paths = self._paths
        for path in event.entities:
            if path not in paths:
                paths[path] = path
                self.size_bytes += _PATH_BYTES + len(path)
        self.size_bytes += _EVENT_BYTES + len(event.text) + 8 * len(event.entities)
        return msgspec.structs.replace(event, entities=tuple(map(paths.__getitem__, event.entities)))


class _Reading(threading.Thread):
    """Reads the events; its result is awaited with `result`."""

    def __init__(self, read: Callable[[], bool]) -> None:
        super().__init__(name="events", daemon=True)
        self._read = read
        self._is_whole = False
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._is_whole = self._read()
        except Exception as error:
            self._error = error

    def result(self) -> bool:
        """What it returned, once it has ended. Raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._is_whole


class Strip:
    """The strip of one log. `build` runs in one thread; `cut` may be called from others meanwhile."""

    def __init__(self, moments: Moments) -> None:
        self.moments = moments
        self._log: MetadataLog = moments.log
        self._coarse, self._fine = Lines(), _Events()
        self._fine_end = -1
        """Up to this offset the fine lines are complete."""
        self.uncovered: list[Uncovered] = []
        self.unknown = 0
        self.is_complete = False
        self.version = 0
        """Grows with everything that `cut` would show."""
        self._problem = ""
        self._refreshing_since_s: float | None = None
        self._built_bytes = -1
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends `build` soon."""
        self._stopped.set()

    @property
    def trouble(self) -> str:
        """Why the log cannot be read or followed now; empty if it can."""
        since_s = self._refreshing_since_s
        if since_s is not None and time.monotonic() - since_s > SLOW_S:
            return (
                self._problem or "the cluster does not answer; what was read is shown, and it is asked again"
            )
        return self._problem

    def follow(self, refresh: Callable[[], object] | None) -> None:
        """Brings the log up to date with `refresh`, if it is a copy, and the strip with the log. What
        prevents that is in `trouble`."""
        try:
            if refresh is not None:
                self._refreshing_since_s = time.monotonic()
                refresh()
            self.build()
            self._problem = ""
        except Exception as error:
            if not is_users(error):
                raise
            self._problem = one_line(error)
        self._refreshing_since_s = None

    def build(self) -> None:
        """Computes the strip of what the log holds now; does nothing if that was done."""
        size_bytes = self._log.size_bytes()
        if size_bytes == self._built_bytes:
            return
        self._read_end()
        states = self.moments.fill()
        self._take_states(islice(states, 1))  # the lanes begin with it
        reading = _Reading(self._read_events)
        is_apart = size_bytes >= APART_FROM_BYTES
        if is_apart:
            reading.start()
        self._take_states(states)
        if not is_apart:
            reading.start()
        if reading.result():
            self._built_bytes = size_bytes
            self.is_complete = True
            self.version += 1

    def _take_states(self, states: Iterable[FoundState]) -> None:
        for state in states:
            self._coarse.state(state)
            self.version += 1
            self.moments.give_way()
            if self._stopped.is_set():
                return

    def _read_end(self) -> None:
        """The newest state first: it is what a page asks for, too."""
        with contextlib.suppress(InspectError):  # its beginning is gone: there are events, but no state
            self.moments.state()

    def _pieces(self) -> Iterator[Piece]:
        if self._log.size_bytes() >= APART_FROM_BYTES:
            has_begun = False
            try:
                for piece in pieces_apart(self._log, self._stopped.is_set):
                    has_begun = True
                    yield piece
                return
            except ReaderLostError:
                if has_begun:
                    raise InspectError(
                        "the process that reads the events ended; they are read again"
                    ) from None
        yield from pieces(self._log)

    def _read_events(self) -> bool:
        """Reads the timeline. False if it was stopped."""
        made = _Events()
        is_first = not self.is_complete  # later, the old strip is shown until the new one is complete
        for broker_id, turns in self._coarse.brokers.items():
            if turns[0].offset == self._coarse.area[0].offset:
                made.lines.broker(broker_id, turns[0])
        if is_first:
            self._fine = made
        for piece in self._pieces():
            if isinstance(piece, EventsEnd):
                self._fine, self._fine_end = made, piece.end_offset
                self.moments.make_room(made.size_bytes)
                self.uncovered, self.unknown = piece.uncovered, piece.unknown
                return True
            if isinstance(piece, Mentions):
                self.moments.use_mentions(piece)
                continue
            made.take(piece)
            self.moments.make_room(made.size_bytes if is_first else made.size_bytes + self._fine.size_bytes)
            if is_first and piece.events:
                self._fine_end = piece.events[-1].offset
            self.version += is_first
            self.moments.give_way()
            if self._stopped.is_set():
                break
        return False

    @property
    def events(self) -> list[TimelineEvent]:
        """The events from `info` on, as far as the log was read."""
        return self._fine.events

    @property
    def marked(self) -> list[TimelineEvent]:
        """Of the events, warnings and critical ones."""
        return self._fine.marked

    @property
    def losses(self) -> list[TimelineEvent]:
        """The events after which records may be lost, those that delete topics, and log directories that
        failed."""
        return self._fine.losses

    @property
    def problems(self) -> list[str]:
        """Lines about what could not be read."""
        return self._fine.problems

    @property
    def progress(self) -> float:
        """From 0 to 1: how much of the log the fine strip covers."""
        if self.is_complete:
            return 1.0
        start = self._log.start_offset
        length = max(1, self.moments.clock().end_offset - start)
        return max(0.0, min(1.0, (self._fine_end - start) / length))

    def cut(self, from_ms: int | None, to_ms: int | None, width: int) -> dict[str, Any]:
        """The strip between two times (Unix ms; None: the log's ends), for `width` pixels."""
        bases, times = self.moments.clock().series()
        first_ms, last_ms = (int(times[0]), int(times[-1])) if len(times) else (0, 0)
        low = first_ms if from_ms is None else from_ms
        high = max(low + 1, last_ms if to_ms is None else to_ms)
        pixels = _Pixels(low, high, width)
        end = self.moments.clock().end_offset
        return {
            "firstMs": first_ms,
            "lastMs": last_ms,
            "fromMs": low,
            "toMs": high,
            "startOffset": self._log.start_offset,
            "endOffset": end,
            "readMs": self._read_ms(bases, times),
            "progress": self.progress,
            "version": self.version,
            "axis": _axis(bases, times, pixels, end),
            "leaders": [
                [turn.offset, turn.time_ms, *turn.value]
                for turn in pixels.turns(self._joined(self._coarse.leaders, self._fine.lines.leaders))
            ],
            "brokers": [
                {"id": broker_id, "turns": [[turn.offset, turn.time_ms, turn.value] for turn in turns]}
                for broker_id, turns in self._lanes(pixels)
            ],
            "area": pixels.area(self._joined(self._coarse.area, self._fine.lines.area)),
            "marks": pixels.marks(self._fine.marked),
            "gaps": [self._gap(bases, times, missing) for missing in self.uncovered]
            + [gap for event in self._fine.doubts if (gap := _doubt(event)) is not None],
        }

    def _read_ms(self, bases: Any, times: Any) -> int | None:
        """Up to when the lanes and the area are known; None for the log's end."""
        if self.is_complete or not len(bases):
            return None
        last = self._coarse.area[-1].offset if self._coarse.area else self._log.start_offset
        return _time_at(bases, times, max(last - 1, self._fine_end))

    def _joined(self, coarse: list[Any], fine: list[Any]) -> list[Any]:
        """The fine line as far as it reaches, then the coarse one."""
        return [*fine, *(turn for turn in coarse if turn.offset > self._fine_end)]

    def _lanes(self, pixels: _Pixels) -> Iterable[tuple[int, list[StripTurn]]]:
        numbers = sorted(self._coarse.brokers.keys() | self._fine.lines.brokers.keys())
        for broker_id in numbers:
            coarse, fine = (
                self._coarse.brokers.get(broker_id, []),
                self._fine.lines.brokers.get(broker_id, []),
            )
            yield broker_id, pixels.turns(self._joined(coarse, fine))

    def _gap(self, bases: Any, times: Any, missing: Uncovered) -> dict[str, Any]:
        return {
            "fromMs": _time_at(bases, times, missing.from_offset),
            "toMs": None if missing.to_offset is None else _time_at(bases, times, missing.to_offset),
            "text": missing.line,
            "reason": missing.reason,
            "offset": missing.from_offset,
        }

    def last_change(self, severity: str = CRITICAL) -> TimelineEvent | None:
        """The newest event of at least this severity, for a notice."""
        wanted = at_least(severity)
        return next(
            (
                event
                for event in reversed(self._fine.marked)
                if event.severity in wanted and not event.kind.startswith(_OPEN_AT_THE_END)
            ),
            None,
        )


def _time_at(bases: Any, times: Any, offset: int) -> int:
    """The time of the batch that holds an offset, or of the nearest one."""
    if not len(times):
        return 0
    number = int(np.searchsorted(bases, offset, side="right")) - 1
    return int(times[max(0, number)])


def _axis(bases: Any, times: Any, pixels: _Pixels, end: int) -> list[list[int]]:
    """Pairs of time and offset, dense enough to find the offset for a pixel. The last pair of the log is its
    end: the moment after its last record."""
    low = max(0, int(np.searchsorted(times, pixels.low)) - 1)
    high = min(len(bases), int(np.searchsorted(times, pixels.high, side="right")) + 1)
    numbers = range(low, high, max(1, (high - low) // AXIS_POINTS))
    pairs = [[int(times[number]), int(bases[number])] for number in numbers]
    if len(bases) and high == len(bases):
        pairs.append([int(times[-1]), end])
    return pairs


def _doubt(event: TimelineEvent) -> dict[str, Any] | None:
    """A stretch of time about which the log says nothing, or whose clock is not certain."""
    if event.kind == "gap in time" and event.span_ms is not None:
        start = event.time_ms - event.span_ms
    elif event.kind == "clock jumped":
        start = event.time_ms
    else:
        return None
    return {
        "fromMs": start,
        "toMs": event.time_ms,
        "text": event.text,
        "reason": event.kind,
        "offset": event.offset,
    }


class _Pixels:
    """A window of time on a number of pixels: nothing is sent that would share a pixel with the same."""

    def __init__(self, low: int, high: int, width: int) -> None:
        self.low, self.high = low, high
        self._width = max(1, min(width, 8192))

    def _of(self, time_ms: int) -> int:
        return (time_ms - self.low) * self._width // (self.high - self.low)

    def turns(self, turns: list[StripTurn]) -> list[StripTurn]:
        """The turns in the window and the one in force at its start; of those in a pixel, the last few."""
        first = max(0, bisect_right(turns, self.low, key=lambda turn: turn.time_ms) - 1)
        inside = turns[first : bisect_right(turns, self.high, key=lambda turn: turn.time_ms)]
        if len(inside) <= 2 * self._width:
            return inside
        last: dict[int, StripTurn] = {self._of(turn.time_ms): turn for turn in inside}
        return list(last.values())

    def area(self, area: list[SpanCounts]) -> list[list[int | None]]:
        """Time, leaderless, under min ISR: of each pixel the worst and the last."""
        first = max(0, bisect_right(area, self.low, key=lambda point: point.time_ms) - 1)
        shown: dict[int, list[SpanCounts]] = {}
        for point in area[first : bisect_right(area, self.high, key=lambda point: point.time_ms)]:
            of_pixel = shown.setdefault(self._of(point.time_ms), [point, point])
            of_pixel[0] = max(of_pixel[0], point, key=_trouble)
            of_pixel[1] = point
        rows: list[list[int | None]] = []
        for worst, last in shown.values():
            for point in sorted(
                {worst.time_ms: worst, last.time_ms: last}.values(), key=lambda point: point.time_ms
            ):
                row = [point.time_ms, point.leaderless, point.under_min_isr]
                if not rows or rows[-1][1:] != row[1:]:
                    rows.append(row)
        return rows

    def marks(self, made: list[TimelineEvent]) -> list[list[Any]]:
        """Time, offset, severity, how many, kind, text: of the events in a few pixels, the most severe."""
        shown: dict[int, list[Any]] = {}
        for event in made:
            if not self.low <= event.time_ms <= self.high:
                continue
            pixel = self._of(event.time_ms) // 6
            mark = shown.get(pixel)
            row = [event.time_ms, event.offset, event.severity, 1, event.kind, event.text]
            if mark is None:
                shown[pixel] = row
            elif SEVERITIES.index(event.severity) > SEVERITIES.index(mark[2]):
                row[3] = mark[3] + 1
                shown[pixel] = row
            else:
                mark[3] += 1
        return list(shown.values())


def _trouble(point: SpanCounts) -> tuple[int, int]:
    return point.leaderless or 0, point.under_min_isr or 0
