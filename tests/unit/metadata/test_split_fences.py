"""A fence that was split over several batches: what it caused is told by its own record, which comes last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from metaquorum.metadata.inspect.causes.rule import SPLIT_MS, Cause
from metaquorum.metadata.inspect.causes.split_fences import HeldEvents
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges
from metaquorum.metadata.inspect.why import explanation as links_module
from metaquorum.metadata.inspect.why.explanation import Link, Links
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)

FENCED, LEAVES, STAYS = (True, False), (False, True), (False, False)


class Event(msgspec.Struct, frozen=True):
    kind: str
    number: int
    rule: str = "unexplained"
    severity: str = "warning"


def batch(time_ms: int, *records: object, **brokers: tuple[bool, bool]) -> BatchChanges:
    """`brokers`: b1=(was fenced, began its shutdown); their records are at 100 and their id."""
    steps = [
        SimpleNamespace(
            broker_id=int(name[1:]), was_fenced=fenced, began_shutdown=leaves, offset=100 + int(name[1:])
        )
        for name, (fenced, leaves) in brokers.items()
    ]
    numbered = tuple(enumerate(records))
    return cast(BatchChanges, SimpleNamespace(time_ms=time_ms, brokers=steps, records=numbered))


def events(*numbers: int, kind: str = "leader changed") -> list[Event]:
    return [Event(kind, number) for number in numbers]


def numbers(told: list[Event]) -> list[int]:
    return [event.number for event in told]


def test_events_without_a_suspect_are_told_at_once() -> None:
    held: HeldEvents[Event] = HeldEvents()
    assert numbers(held.through(events(1, 2), {}, batch(5))) == [1, 2]
    assert numbers(held.through(events(3), {}, batch(6, b1=FENCED))) == [3]
    assert held.rest() == []


@pytest.mark.parametrize(("step", "rule"), [(FENCED, "broker-fenced"), (LEAVES, "controlled-shutdown")])
def test_what_waits_is_told_with_the_fence_and_in_order(step: tuple[bool, bool], rule: str) -> None:
    held: HeldEvents[Event] = HeldEvents()
    one, two, three = events(1, 2, 3)
    shrank = Event("isr shrank", 4)
    assert held.through([one, two], {one: 7}, batch(5)) == []
    assert held.through([three, shrank], {three: 8, shrank: 7}, batch(6, b9=STAYS)) == []
    (last,) = events(5)
    told = held.through([last], {}, batch(5 + SPLIT_MS, b7=step, b9=STAYS))
    assert numbers(told) == [1, 2, 3, 4, 5]
    assert [event.rule for event in told] == [rule, "unexplained", "unexplained", rule, "unexplained"]
    assert [event.severity for event in told] == ["warning"] * 3 + ["detail", "warning"]
    assert held.rest() == []


def test_an_event_of_the_batch_with_the_fence_is_as_it_is() -> None:
    held: HeldEvents[Event] = HeldEvents()
    (one,) = events(1)
    assert held.through([one], {one: 7}, batch(5, b7=FENCED)) == [one]
    assert held.rest() == []


@pytest.mark.parametrize(
    ("later", "waits"), [(0, True), (SPLIT_MS, True), (SPLIT_MS + 1, False), (-1, False)]
)
def test_it_waits_for_a_second_by_a_clock_that_does_not_run_backwards(later: int, waits: bool) -> None:
    held: HeldEvents[Event] = HeldEvents()
    one, two, three = events(1, 2, 3)
    assert held.through([one], {one: 7}, batch(50_000)) == []
    told = held.through([two], {two: 7}, batch(50_000 + later))
    assert told == ([] if waits else [one])
    told += held.through([three], {}, batch(50_000 + later, b7=FENCED))
    assert numbers(told) == [1, 2, 3]
    assert [event.rule == "broker-fenced" for event in told] == [waits, True, False]


def test_each_event_waits_for_a_second_of_its_own() -> None:
    held: HeldEvents[Event] = HeldEvents()
    one, two = events(1, 2)
    assert held.through([one], {one: 7}, batch(0)) == []
    assert held.through([two], {two: 7}, batch(SPLIT_MS)) == []
    assert numbers(held.through([], {}, batch(SPLIT_MS + 1))) == [1]
    (late,) = held.through([], {}, batch(2 * SPLIT_MS, b7=FENCED))
    assert (late.number, late.rule) == (2, "broker-fenced")


# ---- the chain of `why` -----------------------------------------------------------------------


def link(offset: int, time_ms: int = 0, broker_id: int | None = 7, rule: str = "unexplained") -> Link:
    causes = (Cause(rule=rule, text="?", broker_id=broker_id),)
    return Link(offset=offset, epoch=1, time_ms=time_ms, type_name="T", changes=(), causes=causes)


def offsets(links: list[Link]) -> list[int]:
    return [one.offset for one in links]


@pytest.mark.parametrize("end", [EndTransactionRecord(), AbortTransactionRecord(None), None])
def test_an_open_transaction_adds_links_that_hold_when_it_ends(end: object) -> None:
    chain = Links(has_begun=False)
    chain.add(link(1))
    chain.batch(batch(0, BeginTransactionRecord(None)))
    assert chain.is_in_transaction
    chain.clear()
    chain.add(link(2))
    assert (offsets(chain.all()), len(chain), chain.dropped) == ([2], 1, 0)
    so_far, begun = chain.so_far()
    assert (offsets(so_far), begun) == ([1], False)
    if end is None:
        chain.take_back()
    else:
        chain.batch(batch(0, end))
    committed = isinstance(end, EndTransactionRecord)
    assert not chain.is_in_transaction
    assert (offsets(chain.all()), chain.has_begun) == (([2], True) if committed else ([1], False))
    assert chain.so_far() == (chain.all(), chain.has_begun)
    chain.take_back()
    assert (len(chain), chain.dropped) == (1, 0)


def test_so_many_links_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "MAX_LINKS", 2)
    chain = Links(has_begun=True)
    assert chain.first is None
    for offset in range(5):
        chain.add(link(offset))
    assert (offsets(chain.all()), chain.dropped, len(chain)) == ([3, 4], 3, 2)
    assert chain.first is not None and chain.first.offset == 3
    chain.batch(batch(0, BeginTransactionRecord(None)))
    chain.add(link(5))
    assert (offsets(chain.all()), chain.dropped) == ([4, 5], 4)
    chain.take_back()
    assert (offsets(chain.all()), chain.dropped) == ([3, 4], 3)
    chain.clear()
    assert (len(chain), chain.dropped) == (0, 0)


@pytest.mark.parametrize("step", [FENCED, LEAVES, STAYS])
@pytest.mark.parametrize(
    ("changed", "explained"),
    [
        ({}, True),
        ({"time_ms": -SPLIT_MS}, True),
        ({"time_ms": -SPLIT_MS - 1}, False),
        ({"broker_id": 8}, False),
        ({"broker_id": None}, False),
        ({"rule": "requested"}, False),
        *(({"rule": rule}, True) for rule in sorted(MAY_BE_FENCE)),
    ],
)
def test_a_late_cause_explains_the_slices_just_before_it(
    changed: dict[str, Any], explained: bool, step: tuple[bool, bool]
) -> None:
    chain = Links(has_begun=True)
    before = [link(1, **changed), link(2), link(3), link(4)]
    for one in before:
        chain.add(one)
    for offset in (1, 3, 4):
        chain.note_slice(offset)
    chain.batch(batch(0, b7=step, b9=FENCED))
    found: list[Any] = chain.all()
    assert found[1] == before[1]
    for at, due in ((0, explained), (2, True), (3, True)):
        (cause,) = found[at].causes
        if due and step is not STAYS:
            what, rule = ("being fenced", "broker-fenced")
            if step is LEAVES:
                what, rule = ("shutting down", "controlled-shutdown")
            text = f"broker 7 was {what}; the record is at 107"
            assert cause == Cause(rule=rule, text=text, offset=107, broker_id=7)
        else:
            assert found[at] == before[at]
