"""The payloads of whole batches are those of their records one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.text.dump import MIN_RECORDS, batch_payloads, payload_text
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches

IDS = st.sampled_from([bytes(16), bytes([255]) * 16, bytes(range(16)), bytes(15) + b"\x01"])
NODES = st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(tuple)
NUMBER = st.integers(-(2**31), 2**31 - 1)


@st.composite
def partitions(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(0, 2))
    odd = draw(st.sampled_from([False] * 6 + [True]))
    record = r.PartitionRecord(
        draw(NUMBER),
        draw(IDS),
        replicas=draw(NODES),
        isr=draw(NODES),
        leader=draw(NUMBER),
        leader_epoch=draw(NUMBER),
        partition_epoch=draw(NUMBER),
        directories=tuple(draw(st.lists(IDS, max_size=4))) if version else (),
        adding_replicas=draw(NODES) if odd else (),
        leader_recovery_state=int(odd),
    )
    return encode(record, version)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(0, 2))
    odd = draw(st.sampled_from([False] * 6 + [True]))
    record = r.PartitionChangeRecord(
        draw(NUMBER),
        draw(IDS),
        isr=draw(maybe(NODES)),
        leader=draw(maybe(st.integers(-1, 9))),
        replicas=draw(NODES) if odd else None,
        leader_recovery_state=draw(maybe(st.integers(0, 2))),
        directories=draw(maybe(st.lists(IDS, max_size=4).map(tuple))) if version else None,
        eligible_leader_replicas=draw(NODES) if odd and version == 2 else None,
    )
    return encode(record, version)


OTHERS = st.sampled_from(
    [
        encode(r.TopicRecord('a "b"', bytes(16)), 0),
        encode(r.NoOpRecord(), 0),
        bytes([1, 3, 9, 5]),  # a PartitionRecord from the future
        bytes([1, 5, 9, 5]),
        bytes([1, 99, 0, 5]),
    ]
)


def one_batch(values: list[bytes]) -> RecordBatch:
    made = encode_batch(base_offset=70, leader_epoch=4, timestamp_ms=1_700_000_000_000, values=values)
    return next(iter(iter_batches(made)))


@given(st.lists(st.one_of(partitions(), changes(), changes(), OTHERS), min_size=MIN_RECORDS, max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_same_text_as_record_by_record(values: list[bytes]) -> None:
    batch = one_batch(values)
    made = batch_payloads(batch)
    number = sum(value[1] in (3, 5) for value in values)
    assert (made is None) == (number < MIN_RECORDS)
    if made is not None:
        decoded = decode_batch(batch, tolerant=True)
        assert made[0] == [payload_text(one.record, one.version) for one in decoded]
        assert made[1] == sum(isinstance(one.record, UnknownRecord) for one in decoded)


def test_a_batch_of_one_record_is_not_its_business() -> None:
    assert batch_payloads(one_batch([encode(r.NoOpRecord(), 0)])) is None
