"""Requests over several partitions to delete records: answered once, in their order, when the last one is."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.replica.requests import partitioned
from metaquorum.broker.replica.requests.partitioned import Deletes, NotHosted, ends_of_epochs
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    EpochEnd,
    EpochPartition,
    OffsetForLeaderEpochRequest,
    PartitionKey,
)
from metaquorum.raft.effects import Outbox

KEYS: list[PartitionKey] = [(bytes(16), at) for at in range(4)]
ELSEWHERE = NotHosted(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")


def done(at: int, low: int = 5) -> DeletedRecords:
    return DeletedRecords(key=KEYS[at], low_watermark=low)


class Led:
    """A partition that is led here. `at_once`: what it says without waiting."""

    def __init__(self, at_once: DeletedRecords | None = None) -> None:
        self.at_once = at_once
        self.tickets: list[Any] = []
        self.asked: list[int] = []
        self.cancelled: list[Any] = []

    def delete_records(self, ticket: Any, offset: int) -> DeletedRecords | None:
        self.asked.append(offset)
        self.tickets.append(ticket)
        return self.at_once

    def cancel(self, ticket: Any) -> None:
        self.cancelled.append(ticket)

    def end_of_epoch(self, asked: EpochPartition) -> EpochEnd:
        return EpochEnd(key=asked.key, error=ErrorCode.NONE)


class Bench:
    def __init__(self, *found: Led | NotHosted) -> None:
        self.found = dict(zip(KEYS, found, strict=False))
        self.touched: list[Any] = []
        self.out: Outbox[Any] = Outbox()
        self.deletes = Deletes(self.found.__getitem__, self.touched.append, self.out)  # type: ignore[arg-type]

    def ask(self, *ats: int, key: object = "k", now: int = 100, timeout: int = 30) -> None:
        parts = tuple(DeleteRecordsPartition(key=KEYS[at], offset=10 + at) for at in ats)
        request = DeleteRecordsRequest(partitions=parts, timeout_ms=timeout)
        self.deletes.handle(key, request, now_ms=now)

    def told(self) -> list[tuple[object, tuple[DeletedRecords, ...]]]:
        return [(each.key, each.response.results) for each in self.out.take()]


def test_the_answer_leaves_when_the_last_partition_has_answered_in_the_order_of_the_request() -> None:
    led = Led(), Led(done(1)), Led()
    bench = Bench(*led, ELSEWHERE)
    bench.ask(2, 3, 1, 0)
    assert [each.asked for each in led] == [[10], [11], [12]]
    assert bench.touched == [led[2], led[1], led[0]], "not the one that is elsewhere"
    assert bench.told() == []
    led[0].tickets[0].complete(done(0))
    led[0].tickets[0].complete(done(0, 9))
    assert bench.told() == []
    led[2].tickets[0].complete(done(2))
    refused = DeletedRecords(key=KEYS[3], error=ELSEWHERE.error, message=ELSEWHERE.message)
    assert bench.told() == [("k", (done(2), refused, done(1), done(0)))]
    led[2].tickets[0].complete(done(2))
    assert bench.told() == [] and bench.deletes.take_waiting() == []


@pytest.mark.parametrize("found", [(), (Led(done(0)),), (ELSEWHERE,), (ELSEWHERE, Led(done(1)))])
def test_what_needs_no_waiting_is_answered_at_once(found: tuple[Led | NotHosted, ...]) -> None:
    bench = Bench(*found)
    bench.ask(*range(len(found)))
    ((key, results),) = bench.told()
    assert (key, len(results)) == ("k", len(found))


@pytest.mark.parametrize(("timeout", "deadline"), [(30, 130), (0, 100), (-5, 100)])
def test_it_waits_as_long_as_was_asked_for(timeout: int, deadline: int) -> None:
    led = Led()
    Bench(led).ask(0, timeout=timeout)
    assert led.tickets[0].deadline_ms == deadline


def test_a_caller_that_goes_is_not_answered() -> None:
    led = Led(), Led(done(1)), Led()
    bench = Bench(*led)
    bench.ask(0, 1, 2)
    bench.ask(0, key="other")
    assert bench.deletes.cancel("k") and not bench.deletes.cancel("k")
    assert [each.cancelled for each in led] == [[led[0].tickets[0]], [], [led[2].tickets[0]]]
    led[0].tickets[0].complete(done(0))
    led[2].tickets[0].complete(done(2))
    assert bench.told() == []
    assert bench.deletes.take_waiting() == ["other"] and bench.deletes.take_waiting() == []
    assert led[0].cancelled[1:] == [led[0].tickets[1]]


def test_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned, "WAITING_MAX", 2)
    bench = Bench(Led())
    for key in ("a", "b", "c"):
        bench.ask(0, key=key)
    (refused,) = bench.out.take()
    assert refused.key == "c" and isinstance(refused.response, ApiError)
    assert refused.response.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    bench.deletes.cancel("a")
    bench.ask(0, key="c")
    assert bench.out.take() == []


def test_ends_of_epochs_are_told_of_what_is_led_here() -> None:
    bench = Bench(Led(), ELSEWHERE)
    request = OffsetForLeaderEpochRequest(
        partitions=tuple(EpochPartition(key=KEYS[at], leader_epoch=3) for at in range(2)),
    )
    found = ends_of_epochs(bench.found.__getitem__, request).results  # type: ignore[arg-type]
    assert [(each.key, each.error) for each in found] == [
        (KEYS[0], ErrorCode.NONE),
        (KEYS[1], ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
