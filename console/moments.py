"""The state at any moment of a log, quickly: states along the log are kept within a memory limit.

A state between two of them is replayed from the nearest earlier one. Where records are lost or do not apply,
the answer depends on the snapshot it begins with: there `log state --past-corruption` is the way, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

from metaquorum.console.kept_states import SMALL_BYTES, KeptStates
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image.packed import loaded_bytes
from metaquorum.metadata.inspect.log.clock import LogClock, clock_of
from metaquorum.metadata.inspect.log.coverage import ShownAs, behind_batch, known_from
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point, parse_point
from metaquorum.metadata.inspect.walk.mentions import BrokerMention, Mentions
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    LogPart,
    inside_transaction,
    settle,
    state_at,
    states_along,
    with_quorum,
)

KEPT_STATES = 256
"""Into how many parts of equal length a log is divided."""
PART_RECORDS = 20_000
"""Parts are not longer, however long the log is."""
PASSED_STEPS = 8
"""A replay that a view waits for keeps one state in so many parts; `fill` keeps the others."""
TRIED_PARTS = 1, 2, 8, 32
"""How many parts that mention something are read for its newest records, before all of the log is."""
FAR = 0.25
"""They are not tried if they begin further back than this part of how far the first record is: trying then
costs more than it saves."""
RECENT_STATES = 16
"""How many of the states that were asked for last are kept besides; fewer if they are large."""
_RECENT_SHARE = 2
"""They take at most one in so many bytes of the memory limit."""
_PAUSE_S = 0.005
_GIVES_WAY_S = 0.2
"""How long work in the background waits for views before it goes on by a piece."""


class Moments:
    """States of one log. Every method may be called from several threads."""

    def __init__(self, log: MetadataLog, memory_bytes: int) -> None:
        self.log = log
        self._kept = KeptStates(memory_bytes)
        self._recent_limit_bytes = memory_bytes // _RECENT_SHARE
        self._mentions: Mentions | None = None
        self._beside_bytes = 0
        self._filled: FoundState | None = None
        """How far `fill` has come."""
        self._recent: OrderedDict[int, FoundState] = OrderedDict()
        self._sound_end: int | None = None
        """Below this offset, a state may be replayed from an earlier one; None: everywhere."""
        self._lock = threading.Lock()
        self._replaying = threading.Lock()
        self._reading = threading.Lock()
        self._asked = 0
        """How many views are being made."""

    def clock(self) -> LogClock:
        """The log's clock, which is read once as long as the log does not grow."""
        with self._reading:
            return clock_of(self.log)

    def give_way(self) -> None:
        """For work in the background: returns once no view is being made, or after a while, so that pages
        which always ask for something do not stop it."""
        ends_s = time.monotonic() + _GIVES_WAY_S
        while self._asked and time.monotonic() < ends_s:
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """For a view that a person waits for: work in the background gives way meanwhile."""
        with self._lock:
            self._asked += 1
        try:
            yield
        finally:
            with self._lock:
                self._asked -= 1

    def fill(self) -> Iterator[FoundState]:
        """Replays the log once from where the last call ended, keeps states along it and yields them."""
        log = self.log
        if log.is_checkpoint or self._sound_end is not None:
            return
        end = self.clock().end_offset
        first = known_from(log)
        if first is None or first > end:
            self._sound_end = 0
            return
        last = self._filled
        if last is None:
            last = with_quorum(log, state_at(log, Point(offset=first), past_corruption=True))
            if not self._keep(last):
                return
            yield last
        step = _step(first, end)
        reached = last.end_offset
        for state in states_along(log, last, (*range(reached + step, end, step), end)):
            if state.end_offset == reached and not state.problems:
                continue  # a batch is larger than the step
            reached = state.end_offset
            state.unknown += last.unknown
            if not self._keep(state):
                return
            yield state

    def _keep(self, state: FoundState) -> bool:
        """Keeps a state that `fill` has reached. False where the log is not sound."""
        if state.problems:
            self._sound_end = self._filled.end_offset + 1 if self._filled is not None else 0
            return False
        self._kept.add(state)
        self._filled = state
        return True

    def state(self, point: Point = END) -> FoundState:
        """The state at a place, as `log state --past-corruption` shows it. Raises InspectError for a place
        that the log does not reach."""
        log = self.log
        if log.is_checkpoint:
            return state_at(log, END)
        with self.first():
            offset, shown = self._place(point)
            state = self._recently(offset)
        return FoundState(
            state=state.state,
            snapshot=state.snapshot,
            problems=state.problems,
            notes=state.notes,
            unknown=state.unknown,
            stopped=state.stopped,
            quorum=state.quorum,
            coverage=state.coverage,
            shown=inside_transaction(state.state) or shown,
        )

    def _recently(self, offset: int) -> FoundState:
        with self._replaying:  # a second question about the same moment waits for the first answer
            state = self._recent.get(offset)
            if state is None:
                state = self._recent[offset] = self._at(offset)
                self._fit()
            self._recent.move_to_end(offset)
            return state

    def _fit(self) -> None:
        """Drops recent states that are too many, and leaves to those along the log what the others need."""
        while True:
            recent_bytes = len(self._recent) * SMALL_BYTES
            recent_bytes += loaded_bytes(state.state.newest for state in self._recent.values())
            is_much = len(self._recent) > RECENT_STATES or recent_bytes > self._recent_limit_bytes
            if len(self._recent) < 2 or not is_much:
                break
            self._recent.popitem(last=False)
        index_bytes = 0 if self._mentions is None else self._mentions.size_bytes
        self._kept.reserve(recent_bytes + index_bytes + self._beside_bytes)

    def use_mentions(self, mentions: Mentions) -> None:
        """Takes what says where the log mentions what; it may end before the log does."""
        with self._replaying:
            self._mentions = mentions
            self._fit()

    def make_room(self, size_bytes: int) -> None:
        """Leaves so much of the memory limit to what is kept of the log besides states."""
        with self._replaying:
            self._beside_bytes = size_bytes
            self._fit()

    def parts_about(
        self, entity: str, end_offset: int | None = None, *, changes: bool, beside_ms: int = 0
    ) -> list[LogPart] | None:
        """The parts of the log of `ranges_about`, each with the state before it, and with what was written
        `beside_ms` before and after it."""
        ranges = self.ranges_about(entity, end_offset, changes=changes)
        if ranges is None:
            return None
        if beside_ms:
            end = self.clock().end_offset if end_offset is None else end_offset
            wider = (self.clock().around(*part, beside_ms) for part in ranges)
            ranges = [(start, min(until, end)) for start, until in wider]
        return self._kept.parts(ranges)

    @property
    def brokers(self) -> list[BrokerMention]:
        """The records about brokers, as far as that is known."""
        return [] if self._mentions is None else self._mentions.brokers

    def parts_behind(self, entity: str, begun: FoundState) -> list[LogPart]:
        """Of the parts that hold all records about a topic or broker, those behind a state."""
        ranges = self.ranges_about(entity, changes=True) or []
        first = begun.end_offset
        return self._kept.parts([(max(start, first), end) for start, end in ranges if end > first])

    def ranges_about(
        self, entity: str, end_offset: int | None = None, *, changes: bool
    ) -> list[tuple[int, int]] | None:
        """From and up to which offsets the log, up to an offset (None: its end), holds all records about a
        topic or broker; without `changes`, those that only change a topic's partitions may be elsewhere. None
        while that is not known."""
        mentions, log = self._mentions, self.log
        if mentions is None or self._filled is None or self._sound_end is not None:
            return None
        ranges = mentions.parts_about(entity, changes=changes)
        if ranges is None or known_from(log) != log.start_offset:
            return None
        end = self.clock().end_offset if end_offset is None else end_offset
        ranges = [(start, min(until, end)) for start, until in ranges if start < end]
        return [*ranges, (min(mentions.end_offset, end), end)]

    def states_before(self, entity: str, end_offset: int | None = None) -> Iterator[FoundState]:
        """States before the last records up to an offset (None: the log's end) that may be about a topic or
        broker, the newest first, and that before the first record; none while that is not known."""
        ranges = self.ranges_about(entity, end_offset, changes=True)
        if ranges is None:
            return
        end_offset = self.clock().end_offset if end_offset is None else end_offset
        starts = [
            max(start, until - length)
            for start, until in reversed(ranges)
            for length in range(PART_RECORDS, until - start + PART_RECORDS, PART_RECORDS)
        ]
        far = FAR * (end_offset - starts[-1]) if starts else 0
        near = [starts[number - 1] for number in TRIED_PARTS if number <= len(starts)]
        tried = [start for start in near if end_offset - start <= far]
        for start in (*tried, *(starts[-1:] if starts[-1:] > [self.log.start_offset] else ())):
            for part in self._kept.parts([(start, end_offset)]):
                yield part.begun()

    def _place(self, point: Point) -> tuple[int, ShownAs | None]:
        if point.after and (behind := self._behind(point)) is not None:
            return behind, None
        settled, shown = settle(self.log, point)
        if settled.offset is not None:
            return settled.offset, shown
        clock = self.clock()
        if settled.time_ms is None:
            return max(clock.end_offset, self.log.start_offset), shown
        if clock.first_ms is not None and settled.time_ms < clock.first_ms:
            state = state_at(self.log, settled, past_corruption=True)  # a snapshot may be that old
            return state.end_offset, shown
        return clock.place(settled.time_ms)[0].offset or 0, shown

    def _behind(self, point: Point) -> int | None:
        """The end of the batch that holds an offset, by the states that are at hand; None if a transaction
        is open there, or nothing known, which `settle` decides."""
        offset, known = behind_batch(self.log, point), known_from(self.log)
        if known is None or offset < known:
            return None
        return offset if self._recently(offset).state.transaction is None else None

    def _at(self, offset: int) -> FoundState:
        near = self._near(offset)
        is_sound = self._sound_end is None or offset < self._sound_end
        if near is not None and is_sound:
            found = self._replayed(near, offset)
            if not found.problems:
                return found
        first_known = self._first_known()
        is_known = offset >= first_known  # elsewhere, state_at says what is needed
        return with_quorum(self.log, state_at(self.log, Point(offset=offset), past_corruption=is_known))

    def _first_known(self) -> int:
        """From which offset on the log has states. Raises InspectError for one that has none."""
        offset = known_from(self.log)
        if offset is None:
            raise InspectError(
                f"{self.log.path} begins at offset {self.log.start_offset}, and no snapshot beside it reaches"
                " that offset: no state is known. Events and Records show what the records alone say; for the"
                " rest, start metaquorum console with a directory that has the snapshot"
            )
        return offset

    def _near(self, offset: int) -> FoundState | None:
        """The newest state up to an offset that is at hand, or that a snapshot holds; None without any."""
        near: FoundState | None = None
        with self._lock:
            recent = list(self._recent.values())
        for state in recent:
            if state.end_offset <= offset and not state.problems:
                near = state if near is None or near.end_offset < state.end_offset else near
        near = self._kept.up_to(offset, -1 if near is None else near.end_offset) or near
        # Until the whole log was replayed once, a snapshot may be nearer.
        reached = -1 if near is None else near.end_offset
        nearer = [at.offset for at in self.log.snapshots() if reached < at.offset <= offset]
        if not nearer:
            return near
        begun = with_quorum(self.log, state_at(self.log, Point(offset=nearer[-1]), past_corruption=True))
        if begun.problems:
            return None
        self._kept.add(begun)
        return begun

    def _replayed(self, start: FoundState, offset: int) -> FoundState:
        """The state at an offset. What is passed on the way is kept for the next moment until `fill` has."""
        if start.end_offset == offset:
            return start
        filled = 0 if self._filled is None else self._filled.end_offset
        end = self.clock().end_offset
        step = PASSED_STEPS * _step(known_from(self.log) or 0, end)
        between = range(max(start.end_offset, filled) + step, min(offset, end), step)
        state = start
        for state in states_along(self.log, start, (*between, offset)):
            state.unknown += start.unknown
            if state.problems:
                break
            if state.end_offset < offset:
                self._kept.add(state)
        return state


def _step(first: int, end: int) -> int:
    """How far the states are apart that are kept, in records."""
    return max(1, min(PART_RECORDS, (end - first) // KEPT_STATES))


def place_of(text: str | None) -> Point:
    """The place that a request names, in the words of the log tools. Raises InspectError."""
    try:
        return parse_point(text)
    except ValueError as error:
        raise InspectError(str(error)) from None
