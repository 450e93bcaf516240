"""The column decoder: which batches it takes, and that odd framing and odd shapes go the other way."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from metaquorum.metadata.columnar import MIN_RECORDS
from metaquorum.metadata.columnar.partition_records import decode_changes, decode_partitions, read_frames
from metaquorum.metadata.image import images_equal
from metaquorum.metadata.image.chunk import INDEX, LEADER, N_ISR
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches

TOPIC_ID = b"\x05" * 16
D = b"\xdd" * 16


def partition(index: int, **fields: Any) -> PartitionRecord:
    defaults: dict[str, Any] = {"replicas": (1, 2), "isr": (1,), "leader": 1, "directories": (D, D)}
    return PartitionRecord(index, TOPIC_ID, **(defaults | fields))


def batch_of(values: list[bytes], **arguments: Any) -> RecordBatch:
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=values, **arguments)
    return next(iter(iter_batches(data)))


def encoded(*records: Any, version: int = 1) -> list[bytes]:
    return [
        encode(at, version if isinstance(at, PartitionRecord | PartitionChangeRecord) else 0)
        for at in records
    ]


@pytest.mark.parametrize("count", [1, 3, 63, 64, 65, 200, 8193])
def test_frames_of_any_number_of_records_are_where_the_values_are(count: int) -> None:
    values = [
        encode(ConfigRecord(2, "t", "k", "v" * (at % 90 if at % 400 < 100 else 7)), 0) for at in range(count)
    ]
    batch = batch_of(values)
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    found = [
        batch.data[start : start + length]
        for start, length in zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)
    ]
    assert found == values
    assert set(frames.keys.tolist()) == {4}


@pytest.mark.parametrize(
    "arguments",
    [
        {"keys": [b"key", None, None]},
        {"timestamps": [5, 5 + 100_000, 5]},
        {"timestamps": [5, 4, 5]},
        {"headers": [(), [(b"h", b"v")], ()]},
        {"last_offset_delta": 5},
    ],
)
def test_odd_framing_is_left_to_the_record_path(arguments: dict[str, Any]) -> None:
    data = encode_batch(
        base_offset=0, leader_epoch=1, timestamp_ms=5, values=[encode(NoOpRecord(), 0)] * 3, **arguments
    )
    from metaquorum.storage.batches.batch import parse_header

    assert read_frames(data, parse_header(data)) is None


def test_damaged_lengths_are_odd_and_never_an_exception() -> None:
    batch = batch_of(encoded(*(partition(at) for at in range(40))))
    for place in range(61, len(batch.data), 7):
        data = bytearray(batch.data)
        data[place] ^= 0x81
        frames = read_frames(bytes(data), batch.header)
        if frames is not None:
            decode_partitions(frames, np.flatnonzero(frames.keys == 3), DirectoryTable())


def test_partition_shapes_usual_and_odd() -> None:
    records = [
        partition(0),
        partition(1, replicas=(1, 2, 3), directories=(D, D, D), isr=(2, 3)),
        partition(2, adding_replicas=(2,)),
        partition(3, leader_recovery_state=1),
        partition(4, directories=()),
        partition(5, isr=()),
        partition(6, unknown_tags=((9, b"x"),)),
    ]
    batch = batch_of(encoded(*records))
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    rows, odd = decode_partitions(frames, np.arange(len(records)), DirectoryTable())
    assert odd.tolist() == [False, False, True, True, True, False, True]
    assert rows.block[INDEX].tolist() == [0, 1, 5]
    assert rows.block[LEADER].tolist() == [1, 1, 1]
    assert rows.block[N_ISR].tolist() == [1, 2, 0]


def test_a_list_that_is_null_is_odd_whatever_is_before_it() -> None:
    """The topic's id has the number of replicas in sync where that would be with fewer than no replicas."""
    topic = bytes(13) + b"\2" + bytes(2)
    value = bytearray(encode(PartitionRecord(0, topic, replicas=(), isr=()), 0))
    value[3 + 4 + 16] = 0
    batch = batch_of([bytes(value)])
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    _, odd = decode_partitions(frames, np.arange(1), DirectoryTable())
    assert odd.tolist() == [True]


def test_change_shapes_usual_and_odd() -> None:
    changes = [
        PartitionChangeRecord(0, TOPIC_ID, isr=(1, 2), leader=2),
        PartitionChangeRecord(1, TOPIC_ID, leader=-1),
        PartitionChangeRecord(2, TOPIC_ID, isr=(1,), leader=2),
        PartitionChangeRecord(3, TOPIC_ID, replicas=(1,)),
        PartitionChangeRecord(4, TOPIC_ID, isr=(3, 4), leader=3),
        PartitionChangeRecord(5, TOPIC_ID, directories=(D,), leader_recovery_state=1),
        PartitionChangeRecord(6, TOPIC_ID, leader_recovery_state=3),
        PartitionChangeRecord(7, TOPIC_ID, isr=()),
        PartitionChangeRecord(8, TOPIC_ID),
    ]
    batch = batch_of(encoded(*changes))
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    groups, odd = decode_changes(frames, np.arange(len(changes)))
    assert odd.tolist() == [3, 6, 7]
    assert [group.indexes.tolist() for group in groups if len(group.records)] == [[0, 4], [1], [2], [5], [8]]
    assert groups[0].isr is not None and groups[0].isr.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [partition(3)],  # the same partition twice in one batch
        [partition(900, adding_replicas=(1,))],
        [PartitionChangeRecord(3, TOPIC_ID, leader=2)] * 3,
        [ConfigRecord(2, "t", "a", "b")],
    ],
)
def test_large_batches_with_unusual_company_equal_the_record_path(extra: list[Any]) -> None:
    records = [TopicRecord("t", TOPIC_ID), *(partition(at) for at in range(MIN_RECORDS * 4)), *extra]
    batch = batch_of(encoded(*records))
    images = []
    for use_columns in (True, False):
        engine = Replayer(use_columns=use_columns)
        engine.apply_batch(batch)
        images.append(engine.state().image)
    assert images_equal(*images)
    assert images[0].topics.partition_count >= MIN_RECORDS * 4


BASE = [TopicRecord("t", TOPIC_ID), *(partition(at) for at in range(60))]
OTHER_ID = b"o" * 16
NAMESAKE = [
    TopicRecord("t", OTHER_ID),
    *(msgspec.structs.replace(partition(at), topic_id=OTHER_ID) for at in range(60)),
]
MANY = [PartitionChangeRecord(at, TOPIC_ID, directories=(D, D)) for at in range(40)]


@pytest.mark.parametrize(
    ("records", "errors"),
    [
        ([*BASE[1:], BASE[0]], 60),  # every partition before its topic
        ([*BASE, *MANY], 0),
        ([*BASE, *MANY[:39], PartitionChangeRecord(59, TOPIC_ID, directories=(D,))], 1),
        ([*BASE, *MANY[:39], MANY[5]], 0),  # one partition changes twice
        ([*BASE, *MANY[:39], PartitionChangeRecord(60, TOPIC_ID, directories=(D, D))], 1),
        ([*BASE, *BASE[1:]], 0),  # every partition written again
        ([*BASE, *NAMESAKE], 1 + len(NAMESAKE[1:])),  # another topic of the name, and its partitions
        ([*NAMESAKE, *BASE], len(BASE)),
        ([*BASE, BASE[0]], 1),  # the topic created again
        ([*BASE, PartitionChangeRecord(0, OTHER_ID, leader=2), *NAMESAKE], 2 + len(NAMESAKE[1:])),
    ],
)
def test_what_the_columns_must_notice_before_they_write(records: list[Any], errors: int) -> None:
    batch = batch_of(encoded(*records))
    images, counts = [], []
    for use_columns in (True, False):
        engine = Replayer(on_error=lambda error: None, use_columns=use_columns)
        engine.apply_batch(batch)
        images.append(engine.state().image)
        counts.append(engine.skipped)
    assert counts == [errors, errors]
    assert images_equal(*images)
