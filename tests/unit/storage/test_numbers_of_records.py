"""Numbers inside records, however long they are written: every reader takes the same ones, and moves none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from metaquorum.storage.batches.batch import BatchHeader, plain_header
from metaquorum.storage.batches.format import decode_varint, encode_varint
from metaquorum.storage.batches.places import record_starts, renumbered, retimed
from metaquorum.storage.errors import BatchError
from tests.unit.storage.test_readers_agree import Fields, few, many, payload_of, record, split, told

FIELDS = ("length", "time", "offset", "key length", "value length", "headers")


def padded(value: int, size: int) -> bytes:
    """The number in `size` bytes: the last ones say nothing."""
    plain = encode_varint(value)
    if size <= len(plain):
        return plain
    return bytes([*(byte | 0x80 for byte in plain), *[0x80] * (size - len(plain) - 1), 0])


def written(delta: int, time: int, sizes: dict[str, int]) -> bytes:
    """A record with the key `k` and the value `v`, its numbers in so many bytes."""
    numbers = (time, delta, 1, 1, 0)
    time_, offset, key, value, headers = (
        padded(number, sizes.get(name, 1)) for name, number in zip(FIELDS[1:], numbers, strict=True)
    )
    body = b"\0" + time_ + offset + key + b"k" + value + b"v" + headers
    return padded(len(body), sizes.get("length", 1)) + body


def agreed(header: BatchHeader, payload: bytes) -> Fields | None:
    """What the readers find, who must agree; None: no records."""
    expected = split(header, payload)
    for reader in (few, many):
        try:
            found: Fields | None = told(payload, reader(payload, header.records_count))
        except (BatchError, IndexError):
            found = None
        assert found == expected, (reader.__name__, payload.hex())
    return expected


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("size", range(1, 13))
def test_a_number_may_be_written_in_up_to_ten_bytes(field: str, size: int) -> None:
    for odd in range(3):
        records = [written(at, 5 - at, {field: size} if at == odd else {}) for at in range(3)]
        header, payload = plain_header(0, 0, 0, 3), b"".join(records)
        expected = [(5 - at, at, b"k", b"v") for at in range(3)] if size <= 10 else None
        assert agreed(header, payload) == expected
        if expected is None:
            continue
        places = few(payload, 3)
        for chosen in ([0, 1, 2], [odd], [2]):
            changed = retimed(payload, places, chosen, [1000 + at for at in chosen])
            now = [(1000 + at, at, b"k", b"v") for at in chosen]
            assert split(header._replace(records_count=len(chosen)), changed) == now
        counted = [(5 - at, at, b"k", b"v") for at in range(3)]
        assert split(header, renumbered(payload, places)) == counted


EDGES_OF_64_BITS = [
    sign * (1 << bits) + by for bits in (6, 13, 20, 62) for sign in (1, -1) for by in (-1, 0, 1)
]


@pytest.mark.parametrize("time", [*EDGES_OF_64_BITS, 2**63 - 1, -(2**63)])
def test_a_number_has_64_bits(time: int) -> None:
    records = [written(at, time if at == 1 else 0, {}) for at in range(3)]
    header, payload = plain_header(0, 0, 0, 3), b"".join(records)
    found = agreed(header, payload)
    assert found is not None and found[1][0] == time
    assert decode_varint(encode_varint(time), 0) == (time, len(encode_varint(time)))


@pytest.mark.parametrize("last", [0, 1, 2, 3, 0x40, 0x7F])
def test_what_has_more_than_64_bits_is_no_number(last: int) -> None:
    """Ten bytes hold 70: what is above would be lost to one reader and not to the other."""
    number = b"\xff" * 9 + bytes([last])
    body = b"\0" + number + b"\0\x02k\x02v\0"
    records = [encode_varint(len(body)) + body, written(1, 0, {})]
    found = agreed(plain_header(0, 0, 0, 2), b"".join(records))
    assert (found is not None) == (last < 2)


SIZES = [
    40,
    63 - 6,
    64 - 6,
    8191 - 8,
    8192 - 8,
    8193 - 8,
    16_384,
    70_000,
    (1 << 20) - 9,
    (1 << 20) - 8,
    1 << 20,
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("times", [1, 5])
def test_records_of_every_length_are_found_among_others(size: int, times: int) -> None:
    """Alone among short ones, and several in a row, which are stepped over together."""
    if size * times > 3 << 20:
        times = 2
    sizes = [3, *[size] * times, 3, 40]
    header, payload = payload_of([record(at, 0, None, b"v" * each) for at, each in enumerate(sizes)])
    found = agreed(header, payload)
    assert found is not None and [len(value or b"") for *_, value in found] == sizes
    starts = record_starts(payload, np.frombuffer(payload, dtype=np.uint8), len(sizes), 0)
    assert starts is not None
    for (start, end), each in zip(itertools.pairwise(starts.tolist()), sizes, strict=True):
        length, body = decode_varint(payload, start)
        assert body + length == end and length > each
