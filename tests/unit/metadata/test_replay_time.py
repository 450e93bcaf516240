"""Time in replay: what was replayed has the time of its batch, whichever way the clocks inside it ran."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.metadata.image.compare import partition_changes
from metaquorum.metadata.image.types import Provenance
from metaquorum.metadata.records.codec import decode, encode
from metaquorum.metadata.records.types import (
    ControllerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState, replay, replay_records
from metaquorum.storage.batches.batch import (
    RawRecord,
    RecordBatch,
    batch_of_records,
    iter_batches,
    plain_header,
)
from metaquorum.wire.primitives import uvarint
from tests.images import describe_difference

WIDE, NARROW = b"w" * 16, b"n" * 16
DIRECTORIES = tuple(bytes([at]) * 16 for at in range(200, 209))
CHUNK = 512


def test_where_nothing_was_replayed_there_is_no_time_and_no_epoch() -> None:
    assert Provenance() == Provenance(offset=0, epoch=-1, timestamp_ms=-1)
    assert ReplayState().newest.provenance == Provenance(0, -1, -1)


def partitions(topic: bytes, count: int, replicas: int) -> list[Any]:
    made: list[Any] = [TopicRecord(topic.decode(), topic)]
    brokers = tuple(range(1, 1 + replicas))
    for at in range(count):
        directories = tuple(DIRECTORIES[(at + each) % 9] for each in range(replicas))
        made.append(
            PartitionRecord(
                at,
                topic,
                replicas=brokers,
                isr=(1, 2),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=directories,
            )
        )
    return made


def replayed(state: ReplayState, records: list[Any]) -> ReplayState:
    end = state.end_offset
    return replay_records(state, base_offset=end, epoch=1, timestamp_ms=5, records=records)


def batch_of(records: list[Any], base: int, times: list[int], claimed_ms: int) -> RecordBatch:
    header = plain_header(base, 3, times[0], len(records))._replace(max_timestamp_ms=claimed_ms)
    raw = [
        RawRecord(base + at, times[at % len(times)], None, encode(record, 1), (), 0)
        for at, record in enumerate(records)
    ]
    (batch,) = iter_batches(batch_of_records(header, raw), expected_offset=base)
    return batch


def with_columns(state: ReplayState, batch: RecordBatch, *, use_columns: bool) -> ReplayState:
    engine = Replayer(state, use_columns=use_columns)
    engine.apply_batch(batch)
    return engine.state()


@pytest.mark.parametrize("times", [[50], [50, 40, 30], [50, 90, 10, 90], [90, 50, 1_000_000, 0]])
@pytest.mark.parametrize("count", [3, 60])
def test_a_clock_that_runs_backwards_inside_a_batch_changes_nothing_but_its_time(
    times: list[int], count: int
) -> None:
    """The batch's newest timestamp is its time, be it of the first record, the last, or one between; and the
    next batch may be older than all."""
    state = replayed(ReplayState(), partitions(WIDE, count, 3))
    changes = [PartitionChangeRecord(at, WIDE, isr=(2, 1), leader=2) for at in range(count)]
    plain = with_columns(state, batch_of(list(changes), state.end_offset, [5], 5), use_columns=False)
    for use_columns in (False, True):
        batch = batch_of(list(changes), state.end_offset, times, max(times))
        after = with_columns(state, batch, use_columns=use_columns)
        assert after.newest.provenance == Provenance(batch.header.next_offset, 3, max(times))
        assert describe_difference(plain.newest, after.newest.with_provenance(plain.newest.provenance)) == ""
        older = replay(after, batch_of([changes[0]], after.end_offset, [2], 2))
        assert older.newest.provenance == Provenance(batch.header.next_offset + 1, 3, 2)


@pytest.mark.parametrize("wide_first", [True, False])
@pytest.mark.parametrize("replicas", [3, 5, 9])
def test_changes_of_rows_of_different_widths_are_those_of_one_record_after_another(
    replicas: int, wide_first: bool
) -> None:
    """Two blocks of rows, of short and of long replica lists, changed by one batch: replicas, directories
    and ISRs stay what they are where the change does not name them."""
    topics = [*partitions(NARROW, CHUNK, 2)], [*partitions(WIDE, CHUNK, replicas)]
    state = replayed(ReplayState(), [record for one in topics[:: -1 if wide_first else 1] for record in one])
    widths = {chunk.replica_width for chunk in state.newest.topics.columns.chunks}
    assert len(widths) == 2
    changes = [
        PartitionChangeRecord(at, topic, isr=isr, leader=isr[0])
        for isr in ((2,), (2, 1))
        for topic in (NARROW, WIDE)
        for at in range(0, CHUNK, 3)
    ]
    batch = batch_of(list(changes), state.end_offset, [5], 5)
    quick = with_columns(state, batch, use_columns=True)
    slow = with_columns(state, batch, use_columns=False)
    assert describe_difference(slow.newest, quick.newest) == ""


@pytest.mark.parametrize("replicas", [1, 2, 3, 9])
@pytest.mark.parametrize("isr", [0, 1, 2, 3, 9])
def test_one_partition_whose_lists_become_longer_or_shorter_changes_no_other(replicas: int, isr: int) -> None:
    """It is changed by itself, among many that are changed in columns, which are written after it."""
    state = replayed(ReplayState(), partitions(NARROW, 60, 2))
    brokers = tuple(range(1, 1 + replicas))
    odd = PartitionChangeRecord(
        59, NARROW, replicas=brokers, isr=(1, 2, 3, 4, 5, 6, 7, 8, 9)[:isr], adding_replicas=brokers[:1]
    )
    plain = [PartitionChangeRecord(at, NARROW, leader=2) for at in range(50)]
    batch = batch_of([*plain[:25], odd, *plain[25:]], state.end_offset, [5], 5)
    quick = with_columns(state, batch, use_columns=True)
    slow = with_columns(state, batch, use_columns=False)
    assert describe_difference(slow.newest, quick.newest) == ""
    assert quick.newest.topics.partitions_of(NARROW) == slow.newest.topics.partitions_of(NARROW)


@pytest.mark.parametrize("replicas", [3, 5, 9])
def test_a_partition_with_longer_lists_is_the_only_one_that_differs(replicas: int) -> None:
    """It widens the block of rows in which the others are, which changes none of them; in both directions."""
    before = replayed(ReplayState(), partitions(NARROW, 20, 2))
    after = replayed(before, partitions(WIDE, 1, replicas))
    forth = partition_changes(before.newest.topics, after.newest.topics)
    assert (forth.added, forth.removed, forth.changed) == (((WIDE, 0),), (), ())
    back = partition_changes(after.newest.topics, before.newest.topics)
    assert (back.added, back.removed, back.changed) == ((), ((WIDE, 0),), ())


def test_what_is_added_to_the_first_topic_is_added_and_not_changed() -> None:
    """Rows that nobody has belong to no topic, so not to the first one either."""
    before = replayed(ReplayState(), partitions(NARROW, 20, 2))
    more = partitions(NARROW, 23, 2)[21:]
    after = replayed(before, more)
    forth = partition_changes(before.newest.topics, after.newest.topics)
    assert (forth.added, forth.removed, forth.changed) == (tuple((NARROW, at) for at in (20, 21, 22)), (), ())
    back = partition_changes(after.newest.topics, before.newest.topics)
    assert (back.added, back.removed, back.changed) == ((), forth.added, ())


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 129, 300])
def test_any_number_of_tagged_fields_that_nobody_knows_is_kept(count: int) -> None:
    """Their number is a varint, which gets its second byte at 128."""
    tags = b"".join(uvarint(tag) + b"\2ab" for tag in range(count))
    frame = encode(NoOpRecord(), 0)[:-1] + uvarint(count) + tags
    version, record = decode(frame)
    assert encode(record, version) == frame


def test_a_controller_that_registers_again_changes_no_earlier_image() -> None:
    first = ControllerRecord(
        controller_id=3, incarnation_id=b"a" * 16, zk_migration_ready=False, end_points=(), features=()
    )
    before = replayed(ReplayState(), [first])
    seen = dict(before.newest.controllers)
    after = replayed(before, [replace(first, incarnation_id=b"b" * 16)])
    assert dict(before.newest.controllers) == seen
    assert after.newest.controllers[3].incarnation_id == b"b" * 16
