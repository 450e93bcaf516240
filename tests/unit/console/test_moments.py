"""States that are kept before the log was replayed once: what one question passed, the next begins with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from metaquorum.console import moments
from metaquorum.console.moments import Moments
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.states import FoundState, state_at
from metaquorum.metadata.records import types as r
from tests.unit.metadata.made_logs import HOME, ORDERS, STORY, Batch, add_snapshot, make_node, memory_disk

SNAPSHOT, END = 100, 1015


@pytest.fixture
def log() -> MetadataLog:
    changes: list[Batch] = [
        (2, [r.PartitionChangeRecord(at % 2, ORDERS, leader=at % 3 - 1)]) for at in range(END - 15)
    ]
    disk = memory_disk()
    add_snapshot(make_node(disk, [*STORY, *changes]), SNAPSHOT)
    return open_log(disk, HOME)


def test_the_newest_state_leaves_states_on_its_way_for_the_next_moment(
    log: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    own = moments.states_along

    def along(log: MetadataLog, start: FoundState, offsets: Iterable[int]) -> Iterator[FoundState]:
        begun.append(start.end_offset)
        return own(log, start, offsets)

    monkeypatch.setattr(moments, "states_along", along)
    asked = Moments(log, 64 << 20)
    assert asked.state().end_offset == END
    assert asked.state(Point(offset=700)).image == state_at(log, Point(offset=700)).image
    step = (END - SNAPSHOT) // 100
    assert begun[0] == SNAPSHOT and 700 - step <= begun[1] < 700


@pytest.mark.parametrize("states", [1, 3, 10])
def test_few_states_are_kept_if_they_need_too_much_memory_and_the_answers_are_the_same(
    log: MetadataLog, states: int
) -> None:
    asked = Moments(log, states * 4 * moments._SMALL_BYTES)
    filling = asked.fill()
    next(filling)
    places = random.Random(states).sample(range(1, END), 60)
    for number, offset in enumerate(places):
        found = asked.state(Point(offset=offset))
        assert found.image == state_at(log, Point(offset=offset)).image
        assert 1 <= len(asked._ahead) <= states
        if number % 10 == 0:
            next(filling)
    list(filling)
    assert not asked._ahead
