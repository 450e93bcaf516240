"""Reading in the background: what it sends, that a failure is said, and states beside what is damaged."""

from __future__ import annotations

import asyncio
import operator
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from metaquorum.console import event_reader, strip
from metaquorum.console.answers import AnswerTurns
from metaquorum.console.app import application
from metaquorum.console.event_reader import EventPiece, Piece, ReaderLostError, pieces, pieces_apart
from metaquorum.console.kept_states import KeptStates
from metaquorum.console.moments import Moments
from metaquorum.console.strip import Lines, Strip, _Events
from metaquorum.console.views import Views
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.timeline import SpanCounts
from metaquorum.metadata.inspect.walk.mentions import Mentions
from metaquorum.metadata.inspect.walk.states import state_at, states_along, with_quorum
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.console.asked import MEMORY_BYTES, PORT, TOKEN, AskedPage
from tests.unit.console.busy_log import busy_log
from tests.unit.console.test_event_reader import whole
from tests.unit.metadata.made_logs import (
    HOME,
    ORDERS,
    START_MS,
    STORY,
    Batch,
    add_snapshot,
    flip,
    make_node,
    memory_disk,
)

WAIT_S = 30.0


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> MetadataLog:
    return open_log(PosixDisk(), str(busy_log(tmp_path_factory.mktemp("busy"), 3, batches=150)))


class _Sent(list[Any]):
    """A pipe's end that keeps what is sent; it is closed after `limit` pieces."""

    limit = 1000

    def send(self, piece: object) -> None:
        if len(self) == self.limit:
            raise BrokenPipeError
        self.append(piece)


def send(monkeypatch: pytest.MonkeyPatch, log: MetadataLog, limit: int = 1000) -> _Sent:
    """What the other process sends; its work is done in this one."""
    monkeypatch.setattr(event_reader, "lower_priority", lambda steps: None)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    sent = _Sent()
    sent.limit = limit
    event_reader._send_pieces(log, sent)  # type: ignore[arg-type]
    return sent


def test_the_other_process_sends_every_piece_and_ends_with_its_console(
    busy: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole(send(monkeypatch, busy)) == whole(pieces(busy))
    (first,) = send(monkeypatch, busy, limit=1)
    assert isinstance(first, Mentions)


@pytest.mark.parametrize("error", [InspectError("two\nlines"), OSError("gone"), ValueError("a bug")])
def test_a_failure_of_the_other_process_is_sent_as_what_it_is(
    busy: MetadataLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(log: MetadataLog) -> Iterator[Piece]:
        raise error
        yield

    monkeypatch.setattr(event_reader, "pieces", fail)
    (failed,) = send(monkeypatch, busy)
    is_users = not isinstance(error, ValueError)
    assert failed.is_users == is_users
    assert failed.text in ("two lines", "gone") if is_users else "ValueError: a bug" in failed.text


def test_a_log_that_another_process_cannot_read_is_said_by_this_one(tmp_path: Path) -> None:
    make_node(PosixDisk(), STORY, home=str(tmp_path))
    log = open_log(PosixDisk(), str(tmp_path))
    shutil.rmtree(tmp_path)
    with pytest.raises(InspectError, match="was deleted while the log was read"):
        list(pieces_apart(log, lambda: False))


def failing(error: Exception, after: int) -> Callable[..., Iterator[Piece]]:
    def read(log: MetadataLog, *more: object) -> Iterator[Piece]:
        for number, piece in enumerate(pieces(log)):
            if number == after:
                raise error
            yield piece

    return read


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("error", [InspectError("the disk is full"), ReaderLostError("gone")])
def test_a_reading_that_fails_is_said_until_one_succeeds(
    busy: MetadataLog, monkeypatch: pytest.MonkeyPatch, is_apart: bool, after: int, error: Exception
) -> None:
    monkeypatch.setattr(event_reader, "_EVENTS_AT_ONCE", 20)
    made = Strip(Moments(busy, MEMORY_BYTES))
    page = AskedPage(application(Views(made, ("log",)), token=TOKEN, port=PORT))
    monkeypatch.setattr(strip, "APART_FROM_BYTES", busy.size_bytes() + (0 if is_apart else 1))
    monkeypatch.setattr(strip, "pieces_apart" if is_apart else "pieces", failing(error, after))
    if isinstance(error, ReaderLostError) and not is_apart:
        return  # only another process can be lost
    made.follow(None)
    answer = page.view("log")
    if isinstance(error, ReaderLostError) and after == 0:
        assert answer["trouble"] == "" and answer["progress"] == 1.0, "it is read here instead"
        return
    expected = "process that reads the events ended" if isinstance(error, ReaderLostError) else str(error)
    assert expected in answer["trouble"] and answer["progress"] < 1.0 and not made.is_complete
    assert page.view("overview")["numbers"] and page.view("strip")["progress"] < 1.0
    monkeypatch.undo()
    made.follow(None)
    answer = page.view("log")
    assert (answer["trouble"], answer["progress"]) == ("", 1.0)
    assert made.events == whole(pieces(busy))[0]
    version = made.version
    made.follow(None)
    assert made.version == version, "nothing is read twice"


def test_a_bug_of_the_reading_is_not_called_the_user_s(
    busy: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strip, "pieces", failing(ValueError("a bug"), 1))
    with pytest.raises(ValueError, match="a bug"):
        Strip(Moments(busy, MEMORY_BYTES)).follow(None)


def test_a_cluster_that_takes_long_to_answer_is_said(
    busy: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = Strip(Moments(busy, MEMORY_BYTES)), []
    for slow_s in (1000.0, -1.0):
        monkeypatch.setattr(strip, "SLOW_S", slow_s)
        made.follow(lambda: said.append(made.trouble))
        assert made.trouble == ""
    assert said[0] == "" and said[1].startswith("the cluster does not answer")


def test_an_answer_that_takes_long_does_not_hold_up_the_end() -> None:
    is_over, has_begun = threading.Event(), threading.Event()

    def view(request: Request) -> dict[str, Any]:
        has_begun.set()
        is_over.wait(WAIT_S)
        return {}

    async def cut_off() -> None:
        request = Request({"type": "http", "headers": []}, receive=asyncio.Event().wait)
        asking = asyncio.ensure_future(AnswerTurns(1).handler(view)(request))
        await asyncio.to_thread(has_begun.wait, WAIT_S)
        asking.cancel()

    began_s = time.monotonic()
    asyncio.run(cut_off())
    took_s = time.monotonic() - began_s
    is_over.set()
    assert took_s < WAIT_S / 2


def test_events_are_sent_in_large_pieces_while_time_is_short(
    busy: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    assert len(list(pieces(busy))) == 3


@pytest.mark.parametrize("snapshot", [None, 3, 11])
@pytest.mark.parametrize("damaged", [0, 1, 3, 4, 10, 13])
def test_moments_of_a_damaged_log_are_those_of_the_tools_in_any_order(
    damaged: int, snapshot: int | None
) -> None:
    disk = memory_disk()
    node = make_node(disk, STORY)
    if snapshot is not None:
        add_snapshot(node, snapshot)
    flip(node, damaged)
    log = open_log(disk, HOME)
    moments = Moments(log, MEMORY_BYTES)
    draw = random.Random(damaged)
    for _ in range(2):
        for offset in draw.sample(range(16), 8):
            expected = state_at(log, Point(offset=offset), past_corruption=True)
            state = moments.state(Point(offset=offset))
            assert (state.image, state.end_offset) == (expected.image, expected.end_offset)
            assert state.problems == expected.problems
        kept = list(moments.fill())
        assert not any(state.problems for state in kept)
        assert all(state.end_offset <= damaged or (snapshot or 0) > damaged for state in kept)
    if snapshot is None:
        found = Mentions(starts=[0], named=[], changed=[], partitions=[], brokers=[], end_offset=15)
        moments.use_mentions(found)
        assert moments.parts_about("topic/orders", changes=True) is None


def test_behind_a_record_is_the_moment_that_the_tools_say_also_in_a_transaction() -> None:
    inside: list[Batch] = [
        (2, [r.BeginTransactionRecord("t")]),
        (2, [r.PartitionChangeRecord(0, ORDERS, leader=2), r.PartitionChangeRecord(1, ORDERS, leader=1)]),
        (2, [r.EndTransactionRecord()]),
        (2, [r.NoOpRecord()]),
    ]
    disk = memory_disk()
    make_node(disk, [*STORY, *inside])
    log = open_log(disk, HOME)
    moments = Moments(log, MEMORY_BYTES)
    for offset in range(20):
        for place in (
            Point(offset=offset, after=True),
            Point(offset=offset),
            Point(time_ms=START_MS + 1000 * offset + 1),
        ):
            expected, state = state_at(log, place, past_corruption=True), moments.state(place)
            assert (state.end_offset, state.image) == (expected.end_offset, expected.image), place
            assert state.shown == expected.shown
    for read in (lambda place: state_at(log, place, past_corruption=True), moments.state):
        with pytest.raises(InspectError, match="begins at"):
            read(Point(time_ms=START_MS - 1))


def test_what_each_kept_state_costs_and_frees_is_true_whatever_was_kept_and_dropped(
    busy: MetadataLog,
) -> None:
    draw = random.Random(8)
    kept = KeptStates(1 << 30)
    begun = state_at(busy, Point(offset=40), past_corruption=True)
    states = list(states_along(busy, begun, range(41, 80)))  # of which some share partitions
    states = draw.sample(states, len(states))
    for number, made in enumerate(states):
        kept.add(made)
        if number % 5 == 4:
            kept.reserve((1 << 30) - kept.cost_bytes + 1)  # one has to go
            kept.reserve(0)
        for index, state in enumerate(kept._states):
            before = kept._states[index - 1] if index else None
            assert state.cost_bytes == state.bytes_beside(before)
            if 0 < index < len(kept._states) - 1:
                behind = kept._states[index + 1]
                kept._loss(index)
                assert state.frees_bytes == state.cost_bytes + behind.cost_bytes - behind.bytes_beside(before)
    assert 2 < len(kept) < len(states)


def events_of(made: Strip, severity: str) -> list[TimelineEvent]:
    return [event for event in made.events if event.severity in at_least(severity)]


def test_a_window_of_the_strip_shows_what_the_whole_strip_shows_there(busy: MetadataLog) -> None:
    """Every value in force at any moment of the window, and every warning on one of its marks."""
    made = Strip(Moments(busy, MEMORY_BYTES))
    made.follow(None)
    full, draw = made.cut(None, None, 8000), random.Random(4)
    warnings = events_of(made, "warning")
    times = sorted({event.time_ms for event in made.events})
    assert (full["fromMs"], full["toMs"]) == (full["firstMs"], full["lastMs"])
    for width in (8000, 40, 20, 10, 6, 4, 3, 2, 1):
        low, high = sorted(draw.sample([event.time_ms for event in warnings], 2))
        high = max(high, low + 1)
        part = made.cut(low, high, width)
        assert (part["fromMs"], part["toMs"]) == (low, high)

        def pixel(time_ms: int, low: int = low, high: int = high, width: int = width) -> int:
            return (time_ms - low) * width // (high - low)

        inside = [event for event in warnings if low <= event.time_ms <= high]
        groups: dict[int, list[TimelineEvent]] = {}
        for event in inside:
            groups.setdefault(pixel(event.time_ms) // 6, []).append(event)
        assert [(mark[2], mark[3]) for mark in part["marks"]] == [
            (max((event.severity for event in group), key=["warning", "critical"].index), len(group))
            for group in groups.values()
        ]
        shown = {(event.time_ms, event.offset, event.severity, event.kind, event.text) for event in inside}
        assert {(*mark[:3], *mark[4:]) for mark in part["marks"]} <= shown
        for time_ms in times if width == 8000 else ():
            if not low <= time_ms <= high:
                continue
            for lines in ("leaders", "area"):
                at = 1 if lines == "leaders" else 0
                assert last(part[lines], time_ms, at) == last(full[lines], time_ms, at)
            for one, other in zip(part["brokers"], full["brokers"], strict=True):
                assert one["id"] == other["id"]
                assert last(one["turns"], time_ms, 1) == last(other["turns"], time_ms, 1)
        for point in full["area"]:  # of a pixel the worst stays
            if low <= point[0] <= high:
                same = [row for row in part["area"] if pixel(row[0]) == pixel(point[0])]
                before = [row for row in part["area"] if pixel(row[0]) < pixel(point[0])][-1:]
                assert max(row[1:] for row in before + same) >= point[1:]
        assert all(one[1:] != other[1:] for one, other in pairwise(part["area"]))
        bases, clock = made.moments.clock().series()
        pairs = [[int(time_ms), int(base)] for base, time_ms in zip(bases, clock, strict=True)]
        start = max(0, sum(time_ms < low for time_ms, _ in pairs) - 1)
        until = sum(time_ms <= high for time_ms, _ in pairs) + 1
        end = [[full["lastMs"], full["endOffset"]]] if until >= len(pairs) else []
        assert part["axis"] == pairs[start:until] + end


def last(rows: list[list[Any]], time_ms: int, at: int) -> list[Any]:
    """What a line says for a moment."""
    before = [row for row in rows if row[at] <= time_ms]
    return before[-1][at + 1 :] if before else []


def test_of_a_pixel_the_worst_and_the_last_stay() -> None:
    values = [(1, 0), (1, 3), (0, 9), (1, 2)]
    points = [SpanCounts(at, at, *each) for at, each in enumerate(values)]
    assert strip._Pixels(0, 100, 1).area(points) == [[1, 1, 3], [3, 1, 2]]


def test_what_stays_the_same_from_one_state_to_the_next_is_one_turn() -> None:
    disk = memory_disk()
    make_node(disk, STORY)
    log, lines = open_log(disk, HOME), Lines()
    for offset in range(1, 16):
        lines.state(with_quorum(log, state_at(log, Point(offset=offset))))
    assert len(lines.leaders) > 1
    for turns in (lines.leaders, *lines.brokers.values()):
        assert all(one.value != following.value for one, following in pairwise(turns))


def test_what_events_are_about_is_kept_once_and_counts_to_the_memory_limit() -> None:
    """As they come from another process, each with its own copy of every path."""
    paths = tuple(f"topic/orders/{number}" for number in range(1000))
    event = TimelineEvent(
        offset=1, epoch=1, time_ms=1, kind="fenced", entity=paths[0], text="", entities=paths
    )
    made = _Events()
    sizes = []
    for _ in range(3):
        copied = msgspec.json.decode(msgspec.json.encode(event), type=TimelineEvent)
        assert copied.entities[7] is not event.entities[7]
        made.take(EventPiece(events=[copied], counts=[], problems=[]))
        sizes.append(made.size_bytes)
    first, second, third = made.events
    assert first == third == event
    assert all(map(operator.is_, first.entities, second.entities))
    assert all(map(operator.is_, second.entities, third.entities))
    traced = sum(sys.getsizeof(path) for path in paths) + 3 * sys.getsizeof(paths)
    assert 0.5 * traced < sizes[-1] < 3 * traced


def test_states_give_way_to_events(busy: MetadataLog) -> None:
    """With events that fill the limit, the first and the last state along the log stay."""
    moments = Moments(busy, 8 << 20)
    list(moments.fill())
    before = len(moments._kept)
    moments.make_room(8 << 20)
    assert before > 2 == len(moments._kept)
    read = Strip(Moments(busy, 8 << 20))
    read.build()
    assert read.moments._beside_bytes == read._fine.size_bytes > 0
