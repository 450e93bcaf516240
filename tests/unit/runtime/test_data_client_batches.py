"""Batches as the client makes and reads them, beside the encoder and the reader of `storage`."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.runtime.data_client.consuming.records import Record, split_batches
from metaquorum.runtime.data_client.producing.batches import BatchBuilder, Codec, foreign_payload
from metaquorum.runtime.data_client.producing.partitioner import StickyPartition, murmur2, partition_of
from metaquorum.storage.batches.batch import (
    BatchHeader,
    Compression,
    RecordBatch,
    encode_batch,
    parse_header,
    seal_batch,
)
from metaquorum.storage.errors import BatchError

VALUES = st.lists(
    st.one_of(st.binary(max_size=20), st.binary(min_size=60, max_size=200)), min_size=1, max_size=90
)
MESSAGE = st.tuples(
    st.one_of(st.none(), st.binary(max_size=90)),
    st.one_of(st.none(), st.binary(max_size=9)),
    st.lists(st.tuples(st.binary(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=2),
    st.integers(0, 100_000),
)


def stored(batch: bytes, base_offset: int, leader_epoch: int = 3) -> bytes:
    """As a leader stores it."""
    header = parse_header(batch)._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    return seal_batch(header, batch[61:])


@given(VALUES, st.sampled_from([0, 7, 1000]), st.integers(61, 3000))
def test_a_run_of_values_is_encoded_as_the_reference_encoder_does_and_cut_where_it_is_full(
    values: list[bytes], stamp: int, limit: int
) -> None:
    builder = BatchBuilder(5_000, limit)
    taken = builder.extend(values, 0, 5_000 + stamp)
    expected = encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=5_000,
        values=values[:taken],
        timestamps=[5_000 + stamp] * taken,
        producer_id=9,
        producer_epoch=1,
        base_sequence=17,
    )
    assert taken >= 1
    assert builder.payload().sealed(9, 1, 17) == expected
    assert builder.size_bytes == len(expected)
    assert taken == 1 or builder.size_bytes <= limit
    if taken < len(values):
        again = BatchBuilder(5_000, 1 << 20)
        again.extend(values[: taken + 1], 0, 5_000 + stamp)
        assert again.size_bytes > limit


@given(st.lists(st.one_of(MESSAGE, VALUES), min_size=1, max_size=12), st.sampled_from(list(Codec)))
def test_records_come_back_as_they_were_given(parts: list, codec: Codec) -> None:
    builder = BatchBuilder(50_000, 1 << 22)
    expected: list[Record] = []
    for part in parts:
        at = 700 + len(expected)
        if isinstance(part, list):
            assert builder.extend(part, 0, 60_000) == len(part)
            expected += [Record(at + i, 60_000, None, value, ()) for i, value in enumerate(part)]
            continue
        value, key, headers, stamp = part
        assert builder.append(value, key=key, headers=headers, timestamp_ms=stamp)
        expected.append(Record(at, stamp, key, value, tuple(headers)))
    batch = stored(builder.payload(codec).sealed(), 700)
    (found,) = split_batches(batch)
    assert found.records() == expected
    assert found.records(702) == expected[2:]
    theirs = RecordBatch(found.header, found.data).records()
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in theirs] == [
        (r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in expected
    ]


def test_many_records_cross_every_width_of_an_offset_delta() -> None:
    values = [b"%d" % i for i in range(20_000)]
    builder = BatchBuilder(0, 1 << 22)
    assert builder.extend(values, 0, 0) == len(values)
    (batch,) = split_batches(builder.payload().sealed())
    assert [each.value for each in batch.records()] == values
    assert [each.offset for each in batch.records()] == list(range(len(values)))


def test_a_large_value_is_taken_alone() -> None:
    builder = BatchBuilder(0, 1000)
    values = [b"x" * 100_000, b"y"]
    assert builder.extend(values, 0, 0) == 1
    (batch,) = split_batches(builder.payload().sealed())
    assert [each.value for each in batch.records()] == values[:1]


def test_log_append_time_is_what_every_record_carries() -> None:
    builder = BatchBuilder(100, 1000)
    builder.extend([b"a", b"b"], 0, 100)
    batch = builder.payload().sealed()
    header = parse_header(batch)._replace(attributes=8, max_timestamp_ms=777)
    (found,) = split_batches(seal_batch(header, batch[61:]))
    assert [each.timestamp_ms for each in found.records()] == [777, 777]


def test_damage_is_found_before_a_record_is_given() -> None:
    builder = BatchBuilder(0, 1000)
    builder.extend([b"alpha", b"beta"], 0, 0)
    good = builder.payload().sealed()
    spoiled = bytearray(good)
    spoiled[-3] ^= 1
    with pytest.raises(BatchError, match="CRC"):
        list(split_batches(good + bytes(spoiled)))
    with pytest.raises(BatchError, match="bytes"):
        list(split_batches(good[:-1]))


@given(st.binary(min_size=1, max_size=60), st.integers(1, 4))
def test_nonsense_with_a_right_crc_is_refused_in_words(body: bytes, count: int) -> None:
    builder = BatchBuilder(0, 1000)
    builder.extend([b"v"], 0, 0)
    header = parse_header(builder.payload().sealed())
    batch = seal_batch(header._replace(records_count=count, last_offset_delta=count - 1), body)
    (found,) = split_batches(batch)
    try:
        records = found.records()
    except BatchError as error:
        assert "record" in str(error) or "integer" in str(error)
    else:
        assert len(records) == count


def test_other_codecs_pass_through() -> None:
    header = BatchHeader(0, 0, -1, 2, 0, int(Compression.ZSTD), 4, 10, 20, -1, -1, -1, 5)
    batch = seal_batch(header, b"not opened")
    payload = foreign_payload(batch)
    assert (payload.count, payload.attributes, payload.body) == (5, 4, b"not opened")
    sealed = payload.sealed(7, 0, 3)
    assert parse_header(sealed).producer_id == 7 and parse_header(sealed).base_sequence == 3
    (found,) = split_batches(sealed)
    with pytest.raises(BatchError, match=r"offset 0.*zstd"):
        found.records()


def test_gzip_that_is_cut_off_is_damage() -> None:
    builder = BatchBuilder(0, 1000)
    builder.extend([b"v" * 100], 0, 0)
    batch = builder.payload(Codec.GZIP).sealed()
    assert zlib.decompress(batch[61:], wbits=31).endswith(b"v\0")
    (found,) = split_batches(seal_batch(parse_header(batch), batch[61:-4]))
    with pytest.raises(BatchError, match="gzip"):
        found.records()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # The vectors of Kafka's UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_kafka_hashes_them(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected
    assert partition_of(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_keyless_messages_stick_until_a_batch_is_full_and_avoid_partitions_without_leader() -> None:
    sticky = StickyPartition(random.Random(1), 1000)
    first = sticky.choose(4, [0, 1, 2, 3])
    sticky.note(999)
    assert sticky.choose(4, [0, 1, 2, 3]) == first
    sticky.note(1)
    second = sticky.choose(4, [0, 1, 2, 3])
    assert second != first
    led = [each for each in range(4) if each != second]
    assert sticky.choose(4, led) in led
    assert 0 <= sticky.choose(4, []) < 4
    assert StickyPartition(random.Random(1), 10).choose(1, [0]) == 0
