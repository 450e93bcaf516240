"""The events of a log are the same in pieces, read here or in a process of their own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from metaquorum.cli.local.demo_checks import KAFKA_DATA
from metaquorum.console.event_reader import (
    EventPiece,
    EventsEnd,
    Piece,
    ReaderLostError,
    pieces,
    pieces_apart,
)
from metaquorum.console.strip import Strip
from metaquorum.metadata.inspect.causes.rule import INFO
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.timeline.timeline import SpanCounts
from metaquorum.metadata.inspect.walk.mentions import Mentions
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.console.asked import Asked


def whole(told: Iterable[Piece]) -> tuple[list[TimelineEvent], list[SpanCounts], EventsEnd]:
    mentions, *parts, end = told
    assert isinstance(mentions, Mentions)
    assert isinstance(end, EventsEnd)
    told_parts = [part for part in parts if isinstance(part, EventPiece)]
    assert len(told_parts) == len(parts)
    return (
        [event for part in told_parts for event in part.events],
        [point for part in told_parts for point in part.counts],
        end,
    )


def test_another_process_tells_what_this_one_does() -> None:
    log = open_log(PosixDisk(), str(KAFKA_DATA))
    here = whole(pieces(log))
    assert here[0] == list(events(log, print, shown=at_least(INFO)))
    assert whole(pieces_apart(log, lambda: False)) == here
    assert here[2].end_offset == log.end_offset


def test_only_what_differs_from_the_point_before_is_a_point() -> None:
    _, points, _ = whole(pieces(open_log(PosixDisk(), str(KAFKA_DATA))))
    values = [(point.leaderless, point.under_min_isr) for point in points]
    assert len(values) > 1 and all(one != other for one, other in pairwise(values))


def test_a_log_that_cannot_be_sent_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose disk is an open archive."""
    asked = Asked(KAFKA_DATA)
    asked.log.on_read = lambda size: None
    with pytest.raises(ReaderLostError):
        list(pieces_apart(asked.log, lambda: False))
    monkeypatch.setattr("metaquorum.console.strip.APART_FROM_BYTES", 0)
    again = Strip(asked.moments)
    again.follow(None)
    assert again.is_complete and again.events == asked.strip.events and not again.trouble
