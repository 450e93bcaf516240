"""Record batches: encode, parse, split, and every way in which one can be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import (
    CRC_START,
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    BatchHeader,
    Compression,
    RecordBatch,
    batch_record_spans,
    control_key,
    encode_batch,
    hop_headers,
    iter_batches,
    parse_control_key,
    parse_header,
    seal_batch,
)
from metaquorum.storage.batches.format import decode_varint, encode_varint, walk_batches
from metaquorum.storage.errors import BatchError, CompressedBatchError, CorruptLogError
from tests.unit.storage.reencoding import reencode_batch


def plain(base: int = 0, epoch: int = 1, count: int = 1) -> bytes:
    values = [b"v%d" % n for n in range(count)]
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=1_700_000_000_000, values=values)


def only(data: bytes) -> RecordBatch:
    (batch,) = iter_batches(data)
    return batch


def test_the_bytes_of_a_small_batch() -> None:
    """Written down once by hand from the format's description."""
    data = encode_batch(base_offset=7, leader_epoch=3, timestamp_ms=1000, values=[b"ab"])
    record = bytes((16, 0, 0, 0, 1, 4)) + b"ab" + b"\0"
    assert data[HEADER_BYTES:] == record
    assert (
        data[:17] == (7).to_bytes(8, "big") + (49 + 9).to_bytes(4, "big") + (3).to_bytes(4, "big") + b"\x02"
    )
    assert data[CRC_START:HEADER_BYTES] == (
        bytes(2)
        + bytes(4)
        + (1000).to_bytes(8, "big") * 2
        + b"\xff" * 8
        + b"\xff" * 2
        + b"\xff" * 4
        + (1).to_bytes(4, "big")
    )


def test_header_properties() -> None:
    header = parse_header(plain(base=10, epoch=4, count=3))
    assert (header.base_offset, header.last_offset, header.next_offset) == (10, 12, 13)
    assert (header.leader_epoch, header.records_count, header.size_bytes) == (4, 3, len(plain(count=3)))
    assert not header.is_control and not header.is_transactional and not header.is_log_append_time
    assert header.compression == Compression.NONE
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_000)


def test_control_batches() -> None:
    data = encode_batch(
        base_offset=0,
        leader_epoch=1,
        timestamp_ms=5,
        values=[b"leader"],
        keys=[control_key(2)],
        is_control=True,
    )
    batch = only(data)
    (record,) = batch.records()
    assert batch.header.is_control and parse_control_key(record.key) == (0, 2) and record.value == b"leader"
    with pytest.raises(BatchError, match="key"):
        batch_record_spans(batch)
    for key in (None, b"\0\0\0"):
        with pytest.raises(BatchError, match="int16"):
            parse_control_key(key)


headers_strategy = st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
record_strategy = st.tuples(
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=9),
    st.integers(0, 2**41),
    headers_strategy,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(record_strategy, min_size=1, max_size=12),
    st.integers(0, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**41),
    st.booleans(),
)
def test_what_is_encoded_is_read_back_and_encodes_to_the_same_bytes(
    records: list[tuple[bytes | None, bytes | None, int, list[tuple[bytes, bytes | None]]]],
    base: int,
    epoch: int,
    timestamp: int,
    control: bool,
) -> None:
    data = encode_batch(
        base_offset=base,
        leader_epoch=epoch,
        timestamp_ms=timestamp,
        values=[one[0] for one in records],
        keys=[one[1] for one in records],
        timestamps=[one[2] for one in records],
        headers=[one[3] for one in records],
        is_control=control,
    )
    batch = only(data)
    found = [(one.value, one.key, one.timestamp_ms, list(one.headers)) for one in batch.records()]
    assert found == records
    assert [one.offset for one in batch.records()] == list(range(base, base + len(records)))
    assert batch.header.max_timestamp_ms == max(one[2] for one in records)
    assert reencode_batch(batch) == data


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=200))
def test_spans_are_the_values(values: list[bytes]) -> None:
    batch = only(encode_batch(base_offset=5, leader_epoch=1, timestamp_ms=9, values=values))
    assert [batch.data[start:end] for start, end in batch_record_spans(batch)] == values
    assert [one.value for one in batch.records()] == values
    assert {one.timestamp_ms for one in batch.records()} == {9}


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(data + b"\xff", 0) == (value, len(data))
    assert len(data) <= 10
    for cut in range(len(data)):
        with pytest.raises(BatchError):
            decode_varint(data[:cut], 0)


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101"), (300, "d804")],
)
def test_known_varints(value: int, data: str) -> None:
    assert encode_varint(value).hex() == data


@pytest.mark.parametrize("length", range(1, 10))
def test_a_varint_is_as_short_as_it_can_be(length: int) -> None:
    """Seven bits to a byte, half of them for negative numbers."""
    most = 1 << (7 * length - 1)
    assert len(encode_varint(most - 1)) == len(encode_varint(-most)) == length
    assert len(encode_varint(most)) == len(encode_varint(-most - 1)) == length + 1


def test_a_varint_without_end_is_refused() -> None:
    with pytest.raises(BatchError, match="does not end"):
        decode_varint(b"\xff" * 20, 0)


def damaged(change: Callable[[bytearray], None], *, fix_crc: bool = False) -> bytes:
    data = bytearray(plain(base=3, epoch=5, count=2))
    change(data)
    if fix_crc:
        header = parse_header(bytes(data))
        return seal_batch(header, bytes(data[HEADER_BYTES:]))
    return bytes(data)


def put(position: int, content: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position : position + len(content)] = content

    return change


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (damaged(put(70, b"\xee")), "expected CRC"),
        (damaged(put(16, b"\x01")), "expected magic 2, found 1"),
        (damaged(put(8, (48).to_bytes(4, "big"))), "expected a batch length of at least 49, found 48"),
        (damaged(put(8, (-5).to_bytes(4, "big", signed=True))), "at least 49, found -5"),
        (damaged(put(8, (500).to_bytes(4, "big"))), "expected a batch of 512 bytes, found 79"),
        (damaged(put(0, (4).to_bytes(8, "big"))), "expected base offset 3, found 4"),
        (damaged(put(12, (2).to_bytes(4, "big"))), "expected leader epoch 5 or higher, found 2"),
        (
            damaged(put(57, (3).to_bytes(4, "big")), fix_crc=True),
            "expected 2 records by the last offset delta, found 3",
        ),
        (damaged(put(23, (-1).to_bytes(4, "big", signed=True)), fix_crc=True), "expected offsets from 0 up"),
        (plain(3, 5)[:60], "expected a batch header of 61 bytes, found 60"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, expected: str) -> None:
    good = plain(base=2, epoch=5)
    with pytest.raises(CorruptLogError, match=expected) as caught:
        list(iter_batches(good + data, 1000, "a.log", expected_offset=2))
    error = caught.value
    assert (error.file, error.position, error.offset) == ("a.log", 1000 + len(good), 3)
    assert "a.log is damaged at byte" in str(error) and "\n" not in str(error)
    walk = walk_batches(good + data, expected_offset=2, min_epoch=0)
    assert walk.end == len(good) and walk.problem is not None and expected in walk.problem


def test_the_crc_can_be_left_out() -> None:
    data = damaged(put(70, b"\xee"))
    (batch,) = iter_batches(data, verify_crc=False)
    assert batch.data == data and batch.header.crc != crc32c(data[CRC_START:])


def test_every_single_bit_flip_is_noticed_outside_the_epoch() -> None:
    data = plain(base=3, epoch=5, count=2)
    behind = plain(base=5, epoch=5)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            if 12 <= position < 16:
                continue
            with pytest.raises(CorruptLogError):
                list(iter_batches(bytes(flipped) + behind, expected_offset=3, min_epoch=5))


def test_records_that_do_not_fit_their_batch() -> None:
    header = parse_header(plain())
    for payload, says in (
        (b"\x10\0\0\0\x01\x04a", "bytes are left"),
        (plain()[HEADER_BYTES:] + b"\0", "after its last record"),
        (b"\0", "is empty"),
        (b"\x0e\0\0\0\x01\x04a\0", "runs over|does not end"),
        (b"\x12\0\0\0\x01\x04ab\0\0", "after its headers"),
        (b"", "does not end"),
    ):
        batch = only(seal_batch(header, payload))
        with pytest.raises(BatchError, match=says):
            batch.records()
        with pytest.raises(BatchError):
            batch_record_spans(batch)


def test_null_values_and_headers_need_the_full_path() -> None:
    for batch in (
        only(encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[None])),
        only(
            encode_batch(
                base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"a"], headers=[[(b"h", None)]]
            )
        ),
    ):
        assert len(batch.records()) == 1
        with pytest.raises(BatchError, match="records"):
            batch_record_spans(batch)


def test_plain_and_full_encoders_agree() -> None:
    values = [None, b"", b"x" * 63, b"y" * 64, b"z" * 9000] * 30
    short = encode_batch(base_offset=1, leader_epoch=2, timestamp_ms=3, values=values)
    full = encode_batch(
        base_offset=1, leader_epoch=2, timestamp_ms=3, values=values, keys=[None] * len(values)
    )
    assert short == full


def compressed(codec: int, payload: bytes) -> RecordBatch:
    header = parse_header(plain(count=2))
    return only(seal_batch(header._replace(attributes=codec), payload))


def test_compressed_batches_pass_unopened() -> None:
    for codec in (1, 2, 3, 4, 6):
        batch = compressed(codec, b"whatever is in here")
        assert batch.header.compression == codec
        assert reencode_batch(batch) == batch.data
        with pytest.raises(CompressedBatchError):
            batch_record_spans(batch)
    with pytest.raises(CompressedBatchError, match="codec 6"):
        compressed(6, b"x").records()


def test_log_append_time() -> None:
    header = parse_header(plain())._replace(attributes=8, max_timestamp_ms=99)
    batch = only(seal_batch(header, plain()[HEADER_BYTES:]))
    assert [one.timestamp_ms for one in batch.records()] == [99]
    assert reencode_batch(batch) == batch.data


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"values": []}, "at least one record"),
        ({"values": [b"a"], "keys": []}, "0 keys were given for 1 values"),
        ({"values": [b"x" * MAX_BATCH_BYTES]}, "split the request"),
    ],
)
def test_encode_refuses(arguments: dict[str, list[bytes]], says: str) -> None:
    with pytest.raises(BatchError, match=says):
        encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, **arguments)  # type: ignore[arg-type]


def test_hops() -> None:
    batches = [plain(0, 1, 3), plain(3, 1, 1), plain(4, 2, 2)]
    data = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    expected = [(starts[0], 0, 3, 1), (starts[1], 3, 4, 1), (starts[2], 4, 6, 2)]
    assert hop_headers(data) == expected
    assert hop_headers(data, starts[1]) == expected[1:]
    assert hop_headers(data[:-1]) == expected  # the header is there, the payload is not
    assert hop_headers(data[: starts[2] + 60]) == expected[:2]
    assert hop_headers(bytes(200)) == []


def test_a_walk_stops_at_its_limit_but_takes_one() -> None:
    data = plain(0) + plain(1) + plain(2)
    size = len(plain())
    for limit, count in ((0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (10 * size, 3)):
        walk = walk_batches(data, expected_offset=0, min_epoch=0, limit=limit)
        assert (len(walk.hops), walk.end, walk.problem) == (count, count * size, None)


def test_random_bytes_never_crash_the_parser() -> None:
    rng = random.Random(11)
    for _ in range(300):
        data = bytearray(plain(count=rng.randint(1, 4)))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(HEADER_BYTES, len(data))] = rng.randrange(256)
        header = BatchHeader(*parse_header(bytes(data)))
        batch = RecordBatch(header, bytes(data))
        for split in (batch.records, lambda one=batch: batch_record_spans(one)):
            try:
                split()
            except BatchError:
                pass
