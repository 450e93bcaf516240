"""What `produce` and `consume` make of librdkafka's answers and errors, one by one, and of a login."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from metaquorum.cli.data import consume, produce
from metaquorum.cli.data.cluster import KafkaCluster
from metaquorum.cli.data.consume import (
    ConsumeOptions,
    ConsumeTotals,
    RangePolicy,
    ReadFrom,
    ReadFromKind,
)
from metaquorum.cli.data.produce import ProduceTotals
from metaquorum.cli.errors import Failure
from tests.unit.cli.test_consume_goes_on import PLAN
from tests.unit.cli.test_data_answers import fixture_cluster

__all__ = ["fixture_cluster"]

CUT, DOWN, SILENT = KafkaError._LOG_TRUNCATION, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT
ANY: Any = None


def plan(**fields: Any) -> ConsumeOptions:
    made = {name: getattr(PLAN, name) for name in ConsumeOptions.__slots__}
    return ConsumeOptions(**(made | fields))


def message(offset: int, partition: int = 0, code: int | None = None) -> Message:
    error = None if code is None else KafkaError(code)
    return Message(topic="t", partition=partition, offset=offset, value=b"v", error=error)


# ---- records


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, DOWN, SILENT])
def test_errors_that_pass_are_not_told(code: int) -> None:
    assert consume._taken(PLAN, ConsumeTotals(), [message(0, code=code)]) == []


@pytest.mark.parametrize(
    ("code", "skip_cut", "part"),
    [
        (CUT, False, "the log of t-1 was truncated: records already printed from offset 5 on are lost"),
        (CUT, True, None),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, "TOPIC_AUTHORIZATION_FAILED: "),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True, "TOPIC_AUTHORIZATION_FAILED: "),
        (KafkaError._MAX_POLL_EXCEEDED, True, "MAX_POLL_EXCEEDED: "),
    ],
)
def test_errors_that_end_the_command(code: int, skip_cut: bool, part: str | None) -> None:
    asked = (plan(skip_cut=skip_cut), ConsumeTotals(), [message(5, 1, code), message(6, 1)])
    if part is None:
        assert [each.offset() for each in consume._taken(*asked)] == [6]
        return
    with pytest.raises(Failure, match=f"^{part}"):
        consume._taken(*asked)


@pytest.mark.parametrize("most", [None, *range(8)])
@pytest.mark.parametrize("printed", [0, 2])
def test_no_more_records_are_taken_than_were_asked_for(most: int | None, printed: int) -> None:
    account = ConsumeTotals(messages=printed)
    found = consume._taken(plan(max_messages=most), account, [message(at) for at in range(10, 15)])
    count = 5 if most is None else min(5, max(0, most - printed))
    assert [each.offset() for each in found] == list(range(10, 10 + count))
    assert account.positions == ({0: 10 + count} if count else {})


def test_records_behind_the_end_that_was_seen_are_read_and_not_printed() -> None:
    account = ConsumeTotals(ends={0: 12, 1: 0})
    given = [message(11), message(12), message(3, 1), message(4, 2)]
    assert [each.offset() for each in consume._taken(plan(max_messages=None), account, given)] == [11, 4]
    assert account.positions == {0: 13, 1: 4, 2: 5}


class Reader:
    """A consumer with partitions, its positions, those that a group committed, and the bounds of its logs."""

    def __init__(
        self, positions: dict[int, int], committed: dict[int, int] | None = None, bounds: Any = None
    ) -> None:
        self._positions, self._committed, self._bounds = positions, committed, bounds
        self.assigned: list[tuple[int, int]] = []

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("t", at) for at in self._positions]

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition("t", each.partition, self._positions[each.partition]) for each in places]

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self._committed is None:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        return [TopicPartition("t", each.partition, self._committed[each.partition]) for each in places]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        found: tuple[int, int] = self._bounds[place.partition]
        return found

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition("t", each.partition, each.offset // 10) for each in places]

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.assigned += [(each.partition, each.offset) for each in places]


@pytest.mark.parametrize(
    ("positions", "committed", "group", "read", "ends", "expected"),
    [
        ({0: 5, 1: 7}, None, None, {}, {0: 5, 1: 7}, True),
        ({0: 4, 1: 7}, None, None, {}, {0: 5, 1: 7}, False),
        ({0: 4, 1: 7}, None, None, {0: 5}, {0: 5, 1: 7}, True),
        ({0: -1001}, None, None, {}, {0: 0}, True),
        ({0: -1001}, None, None, {}, {0: 1}, False),
        ({0: -1001}, {0: 3}, "g", {}, {0: 3}, True),
        ({0: -1001}, {0: 3}, None, {}, {0: 3}, False),
        ({0: -1001}, {0: 2}, "g", {}, {0: 3}, False),
        ({0: -1001}, {0: 9}, "g", {0: 2}, {0: 3}, False),
        ({0: -1001}, None, "g", {}, {0: 3}, False),
        ({}, {}, "g", {}, {0: 0}, False),
        ({0: 9}, None, None, {}, None, False),
    ],
)
def test_when_everything_was_read(
    positions: dict[int, int],
    committed: dict[int, int] | None,
    group: str | None,
    read: dict[int, int],
    ends: dict[int, int] | None,
    expected: bool,
) -> None:
    account = ConsumeTotals(ends=ends, positions=dict(read))
    consumer: Any = Reader(positions, committed)
    assert consume._finished(consumer, plan(group=group, max_messages=None), account) is expected


@pytest.mark.parametrize(("messages", "most", "expected"), [(3, 4, False), (4, 4, True), (0, None, False)])
def test_as_many_as_were_asked_for_end_it(messages: int, most: int | None, expected: bool) -> None:
    account = ConsumeTotals(messages=messages)
    assert consume._finished(ANY, plan(max_messages=most), account) is expected


# ---- where to start

EARLIEST, LATEST = ReadFrom(ReadFromKind.EARLIEST), ReadFrom(ReadFromKind.LATEST)


@pytest.mark.parametrize("until_end", [False, True])
@pytest.mark.parametrize(
    ("start", "at"),
    [
        (EARLIEST, OFFSET_BEGINNING),
        (LATEST, OFFSET_END),
        (ReadFrom(ReadFromKind.TIME, 70), 7),
        *((ReadFrom(ReadFromKind.OFFSET, at), at) for at in (3, 5, 9)),
    ],
)
def test_where_partitions_start(cluster: KafkaCluster, start: ReadFrom, at: int, until_end: bool) -> None:
    """The position is known at once where the command must know when it has read everything."""
    consumer: Any = Reader({}, bounds={0: (3, 9)})
    consumer.poll = lambda _: None
    account = ConsumeTotals(ends={0: 9} if until_end else None)
    consume._assign(cluster, consumer, plan(start=start), account, [0])
    assert consumer.assigned == [(0, at)]
    named = {OFFSET_BEGINNING: 3, OFFSET_END: 9}.get(at, at)
    assert account.positions == {0: named if until_end else at}


@pytest.mark.parametrize("at", [2, 10])
@pytest.mark.parametrize("policy", RangePolicy)
def test_an_offset_that_is_not_in_the_log(cluster: KafkaCluster, at: int, policy: RangePolicy) -> None:
    consumer: Any = Reader({}, bounds={0: (3, 9)})
    asked = plan(start=ReadFrom(ReadFromKind.OFFSET, at), out_of_range=policy)
    if policy is RangePolicy.FAIL:
        with pytest.raises(Failure, match=f"OFFSET_OUT_OF_RANGE: offset {at} .* which has 3 to 9;"):
            consume._begin(cluster, consumer, asked, 0)
        return
    expected = OFFSET_BEGINNING if policy is RangePolicy.EARLIEST else OFFSET_END
    assert consume._begin(cluster, consumer, asked, 0) == expected


@pytest.mark.parametrize(
    ("group", "policy", "start", "reset"),
    [
        (None, RangePolicy.FAIL, LATEST, "error"),
        (None, RangePolicy.EARLIEST, LATEST, "earliest"),
        (None, RangePolicy.LATEST, EARLIEST, "latest"),
        ("g", RangePolicy.FAIL, LATEST, "latest"),
        ("g", RangePolicy.FAIL, EARLIEST, "earliest"),
        ("g", RangePolicy.EARLIEST, LATEST, "earliest"),
    ],
)
def test_settings_of_a_consumer(group: str | None, policy: RangePolicy, start: ReadFrom, reset: str) -> None:
    found = consume._settings(plan(group=group, out_of_range=policy, start=start))
    name = found.pop("group.id")
    assert name == group if group else name.startswith("metaquorum-consume-")
    assert found == {
        "enable.auto.commit": group is not None,
        "enable.auto.offset.store": False,
        "auto.offset.reset": reset,
        "allow.auto.create.topics": False,
        "check.crcs": True,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
    }


# ---- reports on messages that were sent


def test_reports_are_counted_by_their_kind() -> None:
    account = ProduceTotals()
    assert account.seconds == 0.0

    class Sent:
        def __len__(self) -> int:
            return 7

        def latency(self) -> float | None:
            return None

    report: Any = Sent()
    account.first = 1.0
    account.settled(None, report)
    account.settled(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), report)
    assert not account.maybe_stored
    account.settled(KafkaError(KafkaError._MSG_TIMED_OUT), report)
    account.settled(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), report)
    account.settled(None, report)
    assert (account.acknowledged, account.failed, account.size_bytes) == (2, 3, 14)
    assert account.problem is not None and account.problem.startswith("TOPIC_AUTHORIZATION_FAILED: ")
    assert account.maybe_stored and account.seconds == account.last - 1.0 > 0


def test_while_there_is_no_input_reports_are_taken_and_the_rate_since_the_last_line_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account, polls, lines = ProduceTotals(), list[float](), list[str]()
    due = iter([True, False, True, True])
    times = iter([100.0, 102.0, 106.0, 107.0])

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        if len(polls) == 4:
            raise Enough
        account.acknowledged += 10
        account.size_bytes += 3_000

    monkeypatch.setattr(produce, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(produce, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(produce, "_poll", lambda *_: polls.append(0.0))
    monkeypatch.setattr(produce, "rate_text", lambda *of: str(of))
    progress: Any = SimpleNamespace(due=lambda: next(due), show=lines.append)
    with pytest.raises(Enough):
        asyncio.run(produce._tick(ANY, account, progress))
    assert lines == [
        "10 messages acknowledged, (10, 3000, 2.0)",
        "30 messages acknowledged, (20, 6000, 4.0)",
        "40 messages acknowledged, (10, 3000, 1.0)",
    ]


@pytest.mark.parametrize("now", [None, [], [0], [0, 1, 2]])
def test_new_partitions_are_read_from_their_beginning(now: Any) -> None:
    cluster: Any = SimpleNamespace(partitions_now=lambda consumer, name: now)
    consumer: Any = Reader({})
    account = ConsumeTotals(positions={0: 5})
    consume._read_new_partitions(cluster, consumer, PLAN, account)
    new = [at for at in now or () if at]
    assert consumer.assigned == [(at, OFFSET_BEGINNING) for at in new]
    assert account.positions == {0: 5, **dict.fromkeys(new, 0)}
