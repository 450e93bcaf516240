"""The readers of a batch's records take the same payloads for right and find the same in them; so do those of
its header."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from metaquorum.storage.batches import places as under_test
from metaquorum.storage.batches.batch import (
    RawRecord,
    RecordBatch,
    batch_of_records,
    batch_problem,
    batch_record_spans,
    iter_batches,
    parse_header,
    plain_header,
    seal_batch,
)
from metaquorum.storage.batches.format import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MIN_LENGTH,
    BatchHeader,
    is_cut_off,
    walk_batches,
    walk_headers,
)
from metaquorum.storage.batches.places import RecordPlaces, record_bounds, retimed
from metaquorum.storage.errors import BatchError, CorruptLogError
from metaquorum.storage.log import recovery
from metaquorum.testing.faulty_disk import FaultyDisk

ANY = under_test._Headers(2**63)
Fields = list[tuple[int, int, bytes | None, bytes | None]]
BYTES = (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def record(delta: int, time: int, key: bytes | None, value: bytes | None, *headers: bytes) -> RawRecord:
    return RawRecord(delta, time, key, value, tuple((name, None) for name in headers), 0)


SHAPES = {
    "one": [record(0, 0, None, b"v")],
    "values": [record(at, 0, None, b"v" * (1 + at)) for at in range(4)],
    "long values": [record(at, 0, None, b"v" * size) for at, size in enumerate((56, 57, 58, 59, 60, 121))],
    "fields": [record(0, 5, b"k", b"v"), record(3, -1, b"", None), record(4, 300, None, b"", b"h", b"")],
    "equal": [record(at, 1, b"k", b"v") for at in range(9)],
    "equal, two bytes": [record(at, -2, b"k" * 70, None) for at in range(6)],
}


def payload_of(records: list[RawRecord]) -> tuple[BatchHeader, bytes]:
    header = plain_header(0, 0, 0, len(records))
    return header, batch_of_records(header, records)[HEADER_BYTES:]


def damaged(payload: bytes) -> Iterator[bytes]:
    """One byte changed, at every place of the first 80; the end cut off; a byte too many."""
    yield payload
    for at in range(min(len(payload), 80)):
        for byte in (*BYTES, payload[at] + 1 & 0xFF, payload[at] - 2 & 0xFF):
            yield payload[:at] + bytes([byte]) + payload[at + 1 :]
    yield from (payload[:-1], payload[:-2], payload + b"\0", payload + payload[:1])


def split(header: BatchHeader, payload: bytes) -> Fields | None:
    try:
        found = RecordBatch(header, bytes(HEADER_BYTES) + payload).records()
    except BatchError:
        return None
    return [(one.timestamp_ms, one.offset, one.key, one.value) for one in found]


def told(payload: bytes, places: RecordPlaces) -> Fields:
    def field(start: int, length: int) -> bytes | None:
        return None if length < 0 else payload[start : start + length]

    keys = map(field, places.keys, places.key_lengths)
    values = map(field, places.values, places.value_lengths)
    return list(zip(places.time_deltas, places.offset_deltas, keys, values, strict=True))


def few(payload: bytes, count: int) -> RecordPlaces:
    return under_test._few(payload, count, ANY)


def many(payload: bytes, count: int) -> RecordPlaces:
    return RecordPlaces(*[column.tolist() for column in under_test._many(payload, count, ANY)])


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_byte_is_wrong_they_agree(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    header, whole = payload_of(SHAPES[shape])
    accepted = 0
    for payload in damaged(whole):
        expected = split(header, payload)
        for reader in (few, many):
            try:
                found: Fields | None = told(payload, reader(payload, header.records_count))
            except (BatchError, IndexError):
                found = None
            assert found == expected, (reader.__name__, payload.hex())
        if expected is not None:
            accepted += 1
            bounds = record_bounds(payload, header.records_count)
            times, offsets, keys, _ = zip(*expected, strict=True)
            numbered = list(offsets) == list(range(len(offsets)))
            assert bounds[:4] == (min(times), max(times), numbered, None in keys)
            with monkeypatch.context() as patched:
                patched.setattr(under_test, "FEW_RECORDS", 0)
                assert record_bounds(payload, header.records_count) == bounds
        assert spans(header, payload) == values_alone(header, payload), payload.hex()
    assert accepted > 5


def spans(header: BatchHeader, payload: bytes) -> list[bytes] | None:
    whole = seal_batch(header, payload)
    try:
        found = batch_record_spans(RecordBatch(parse_header(whole), whole))
    except BatchError:
        return None
    return [whole[start:end] for start, end in found]


def values_alone(header: BatchHeader, payload: bytes) -> list[bytes | None] | None:
    """What the reader of metadata may take: records that are nothing but a value, of the batch's time."""
    try:
        found = RecordBatch(header, bytes(HEADER_BYTES) + payload).records()
    except BatchError:
        return None
    plain = [one.key is None and one.value is not None and not one.headers for one in found]
    if not all(plain) or [one.offset for one in found] != list(range(len(found))):
        return None
    if {one.timestamp_ms for one in found} - {header.base_timestamp_ms}:
        return None
    return [one.value for one in found]


@pytest.mark.parametrize("shape", SHAPES)
def test_records_that_are_chosen_get_other_times_and_nothing_else(shape: str) -> None:
    header, payload = payload_of(SHAPES[shape])
    places = few(payload, header.records_count)
    before = told(payload, places)
    for chosen in (range(len(before)), range(0, len(before), 2), [len(before) - 1]):
        for time in (0, -1, 63, 64, -65, 2**40):
            times = [time + at for at in range(len(chosen))]
            changed = retimed(payload, places, chosen, times)
            expected = [(now, *before[at][1:]) for at, now in zip(chosen, times, strict=True)]
            assert split(header._replace(records_count=len(chosen)), changed) == expected


@pytest.mark.parametrize("size", [1, 100])
def test_however_many_records_in_a_row_are_equally_long(size: int) -> None:
    """They are looked at in steps that grow."""
    for equal in (3, 4, 5, 127, 131, 132, 133, 500, 1_300):
        for behind in (0, 1, 6):
            records = [record(0, 0, None, b"v" * size)] * equal
            records += [record(0, 0, None, b"w" * (size + 1 + at)) for at in range(behind)]
            _, payload = payload_of(records)
            starts = many(payload, len(records)).starts
            assert starts == few(payload, len(records)).starts
            assert starts[-1] == len(payload) and len(starts) == len(records) + 1


# ---- headers --------------------------------------------------------------------------------

EXPECTED, EPOCH = 10, 4
RIGHT = plain_header(EXPECTED, EPOCH, 0, 3)


def header_cases() -> Iterator[tuple[BatchHeader, bool, bool]]:
    """A header, whether it follows, and whether it does where offsets may be missing."""
    yield RIGHT, True, True
    for base in (0, EXPECTED - 1, EXPECTED + 1, 2**40):
        yield RIGHT._replace(base_offset=base), False, base > EXPECTED
    for epoch in (-1, 0, EPOCH - 1, EPOCH + 1):
        yield RIGHT._replace(leader_epoch=epoch), epoch > EPOCH, epoch > EPOCH
    for count in (-1, 0, 1, 2, 4, 2**31 - 1):
        yield RIGHT._replace(records_count=count), False, 0 <= count <= 2
    for delta in (-1, 0, 1, 3):
        right = delta >= 2
        yield RIGHT._replace(last_offset_delta=delta), False, right
    yield RIGHT._replace(last_offset_delta=0, records_count=1), True, True
    yield RIGHT._replace(last_offset_delta=-1, records_count=0), False, False
    yield RIGHT._replace(base_offset=-1), False, False


@pytest.mark.parametrize(("header", "follows", "with_gaps"), list(header_cases()))
@pytest.mark.parametrize("change", ["", "crc", "magic", "short", "cut"])
def test_the_readers_of_headers_agree(
    header: BatchHeader, follows: bool, with_gaps: bool, change: str
) -> None:
    data = bytearray(seal_batch(header, b"records"))
    if change == "crc":
        data[-1] ^= 1
    elif change == "magic":
        data[16] = 1
    elif change == "short":
        data[8:12] = (MIN_LENGTH - 1).to_bytes(4, "big")
    elif change == "cut":
        data.pop()
    if change in ("magic", "short", "cut"):
        # Right in all else: the checksum is that of the bytes that the length names.
        end = int.from_bytes(data[8:12], "big") + LENGTH_OVERHEAD_BYTES
        data[17:21] = crc32c(bytes(data[CRC_START:end])).to_bytes(4, "big")
    whole = bytes(data)
    for gaps, right in ((False, follows and not change), (True, with_gaps and not change)):
        walk = walk_batches(whole, expected_offset=EXPECTED, min_epoch=EPOCH, gaps=gaps)
        problem = batch_problem(whole, 0, expected_offset=EXPECTED, min_epoch=EPOCH, gaps=gaps)
        assert (walk.problem is None, problem is None) == (right, right)
        assert walk.problem == problem
        assert walk.end == (len(whole) if right else 0)
        parsed = walk_headers(whole, expected_offset=EXPECTED, min_epoch=EPOCH, gaps=gaps)
        assert (parsed.end, parsed.problem) == (walk.end, walk.problem)
        assert parsed.headers == ([parse_header(whole)] if right else [])
        following = header.base_offset + header.last_offset_delta + 1
        assert walk.hops == ([(0, header.base_offset, following, header.leader_epoch)] if right else [])
        if not gaps:
            batches = iter_batches(whole, expected_offset=EXPECTED, min_epoch=EPOCH)
            if right:
                assert [(one.header.base_offset, one.data) for one in batches] == [
                    (header.base_offset, whole)
                ]
            else:
                with pytest.raises(CorruptLogError):
                    list(batches)
    unchecked = walk_batches(whole, expected_offset=EXPECTED, min_epoch=EPOCH, verify_crc=False)
    assert (unchecked.problem is None) == (follows and change in ("", "crc"))
    given = iter_batches(whole, expected_offset=EXPECTED, min_epoch=EPOCH, verify_crc=False)
    if follows and change in ("", "crc"):
        assert [one.data for one in given] == [whole]
    else:
        with pytest.raises(CorruptLogError):
            list(given)


@pytest.mark.parametrize("limit", [0, 1, 67, 68, 69, 135, 136, 137, 204, None])
def test_a_walk_stops_before_its_limit_but_not_before_one_batch(limit: int | None) -> None:
    one = len(seal_batch(RIGHT, b"records"))
    assert one == 68
    data = b"".join(seal_batch(RIGHT._replace(base_offset=EXPECTED + 3 * at), b"records") for at in range(3))
    walk = walk_batches(data, expected_offset=EXPECTED, min_epoch=EPOCH, limit=limit)
    count = 3 if limit is None else max(1, min(limit // one, 3))
    assert (len(walk.hops), walk.end, walk.problem) == (count, count * one, None)


@pytest.mark.parametrize("base", [-1, 0, 5])
def test_the_first_batch_of_a_file_whose_start_is_not_known_begins_anywhere(base: int) -> None:
    """But not below 0; and a header by itself is a batch."""
    data = seal_batch(RIGHT._replace(base_offset=base), b"") + seal_batch(
        RIGHT._replace(base_offset=base + 3), b"x"
    )
    parsed = walk_headers(data)
    assert [one.base_offset for one in parsed.headers] == ([base, base + 3] if base >= 0 else [])
    assert (parsed.problem is None) == (base >= 0)
    if base >= 0:
        assert [one.header.base_offset for one in iter_batches(data)] == [base, base + 3]
        if base:
            with pytest.raises(CorruptLogError, match=f"expected base offset 0, found {base}"):
                list(iter_batches(data, expected_offset=0))
        with pytest.raises(CorruptLogError):
            list(iter_batches(data[HEADER_BYTES:], expected_offset=base))
        with pytest.raises(CorruptLogError):
            list(iter_batches(data + data))
    else:
        with pytest.raises(CorruptLogError):
            list(iter_batches(data))


LIMIT = 200


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({}, True),
        ({"last_offset_delta": 0, "records_count": 0}, True),
        ({"records_count": 7}, True),
        ({"last_offset_delta": -1}, False),
        ({"records_count": -1}, False),
        ({"leader_epoch": -1}, False),
        ({"size": HEADER_BYTES}, True),
        ({"size": LIMIT}, True),
        ({"size": LIMIT + 1}, False),
        ({"cut": 1}, False),
    ],
)
def test_what_counts_as_a_batch_behind_damage(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, int], is_found: bool, start: int
) -> None:
    """At the first byte too, and with nothing behind it."""
    monkeypatch.setattr(recovery, "MAX_READABLE_BATCH_BYTES", LIMIT)
    fields = {name: value for name, value in change.items() if name not in ("size", "cut")}
    payload = b"v" * (change.get("size", 100) - HEADER_BYTES)
    data = seal_batch(RIGHT._replace(**fields), payload)  # type: ignore[arg-type]
    whole = b"\2" * start + data[: len(data) - change.get("cut", 0)]
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    file = disk.open_append("/d/f")
    file.append(whole)
    found = recovery.find_valid_batch(file, 0, 0)
    assert found == ((start, parse_header(data)) if is_found else None)
    assert recovery.find_valid_batch(file, start, EXPECTED) == found
    assert recovery.find_valid_batch(file, start + 1, 0) is None


@pytest.mark.parametrize("before", [0, 68])
def test_a_batch_is_cut_off_where_the_bytes_end_before_its_length_says(before: int) -> None:
    whole = b"\0" * before + seal_batch(RIGHT, b"records")
    for end in range(before, len(whole) + 1):
        assert is_cut_off(whole[:end], before) == (before < end < len(whole))
    short = bytearray(seal_batch(RIGHT, b"records"))
    short[8:12] = (MIN_LENGTH - 1).to_bytes(4, "big")
    assert not is_cut_off(bytes(short[:40]), 0)
