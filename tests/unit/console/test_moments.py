"""States that are kept before the log was replayed once: what one question passed, the next begins with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from metaquorum.cli.local.demo_checks import KAFKA_DATA
from metaquorum.console import answers, moments
from metaquorum.console.kept_states import SMALL_BYTES, KeptStates
from metaquorum.console.moments import Moments
from metaquorum.metadata.image import Provenance
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk.states import FoundState, state_at
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import ReplayState
from tests.unit.console.asked import Asked
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
    assert asked.state(Point(offset=701)).image == state_at(log, Point(offset=701)).image
    step = (END - SNAPSHOT) // 100
    assert begun[0] == SNAPSHOT and 701 - step <= begun[1] < 701


@pytest.mark.parametrize("states", [2, 3, 10])
def test_few_states_are_kept_if_they_need_too_much_memory_and_the_answers_are_the_same(
    log: MetadataLog, states: int
) -> None:
    limit_bytes = states * (SMALL_BYTES + 2_000)
    asked = Moments(log, limit_bytes)
    filling = asked.fill()
    next(filling)
    places = random.Random(states).sample(range(1, END), 60)
    for number, offset in enumerate(places):
        found = asked.state(Point(offset=offset))
        assert found.image == state_at(log, Point(offset=offset)).image
        assert 2 <= len(asked._kept) <= states
        if number % 10 == 0:
            next(filling)
    list(filling)
    assert asked._kept.cost_bytes <= limit_bytes


def test_a_state_that_is_dropped_is_one_whose_neighbours_are_near(log: MetadataLog) -> None:
    kept = KeptStates(4 * (SMALL_BYTES + 2_000))
    states = {at: state_at(log, Point(offset=at)) for at in (10, 400, 410, 800, 1000)}
    for state in states.values():
        kept.add(state)
    found = {at: kept.up_to(at, -1) for at in states}
    assert [at for at, near in found.items() if near is None or near.end_offset != at] == [410]
    assert all(near is not None and near.image == states[near.end_offset].image for near in found.values())
    assert kept.up_to(410, 400) is None


def test_a_state_inside_a_transaction_is_kept_with_what_it_makes() -> None:
    disk = memory_disk()
    make_node(
        disk, [*STORY, (2, [r.BeginTransactionRecord("t"), r.PartitionChangeRecord(0, ORDERS, leader=2)])]
    )
    log = open_log(disk, HOME)
    state = state_at(log)
    assert state.state.transaction is not None
    kept = KeptStates(1 << 20)
    kept.add(state)
    found = kept.up_to(state.end_offset, -1)
    assert found is not None and found.state.transaction is not None
    assert found.image == state.image != found.state.newest
    assert found.state.newest == state.state.newest


def test_what_neighbours_share_is_stored_once_and_what_is_in_use_is_not_unpacked_again(
    log: MetadataLog,
) -> None:
    state = state_at(log, Point(offset=500))
    kept = KeptStates(1 << 20)
    kept.add(state)
    alone = kept.cost_bytes
    later = replace(state, state=ReplayState(state.image.with_provenance(Provenance(501, 2, 7))))
    kept.add(later)
    assert kept.cost_bytes == alone + SMALL_BYTES
    found = kept.up_to(501, -1)
    assert found is not None
    mine, theirs = found.image.topics.columns.chunks, state.image.topics.columns.chunks
    assert all(one.data is two.data for one, two in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("view", "is_long"), [("overview", False), ("table?kind=brokers", False), ("why?target=quorum", True)]
)
def test_work_in_the_background_waits_until_a_view_is_whole_but_not_for_a_long_one(
    monkeypatch: pytest.MonkeyPatch, view: str, is_long: bool
) -> None:
    asked = Asked(KAFKA_DATA)
    busy: list[int] = []
    own = answers.in_json

    def in_json(value: object, status: int = 200) -> object:
        busy.append(asked.moments._asked)
        return own(value, status)

    monkeypatch.setattr(
        "metaquorum.console.views.Views.moment", lambda views, state: busy.append(views.moments._asked) or {}
    )
    monkeypatch.setattr(answers, "in_json", in_json)
    assert asked.get(f"/api/{view}").status == 200
    assert busy[0] == (0 if is_long else 1)
    assert asked.moments._asked == 0
    asked.moments.give_way()
