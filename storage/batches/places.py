"""Where the records of a batch and their fields are, without an object per record.

Finds the fields of many records in numpy, those of a few one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.storage.batches.format import decode_varint, encode_varint
from metaquorum.storage.errors import BatchError

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Buffer = bytes | memoryview

SAME_LENGTH_STEPS = 3
"""After this many consecutive records of equal length, the next ones are tried in numpy."""
FIRST_LOOK = 128
_HEADER_MIN_BYTES = 2
FEW_RECORDS = 24
"""Up to this many records are parsed one by one, which costs less than numpy's calls."""
_LAST_SHIFT = 63
"""The shift of the tenth byte of a number, which has only one bit left for it."""
# The value of every number of one or two bytes.
_ZIGZAG = np.arange(1 << 14, dtype=np.int64)
_ZIGZAG = (_ZIGZAG >> 1) ^ -(_ZIGZAG & 1)


class RecordPlaces(NamedTuple):
    """For each record: its start, its time and offset deltas, and the start and length of key and value
    (-1 for null). `starts` also has the end of the last record."""

    starts: list[int]
    time_deltas: list[int]
    offset_deltas: list[int]
    keys: list[int]
    key_lengths: list[int]
    values: list[int]
    value_lengths: list[int]


class RecordBounds(NamedTuple):
    """For all records: the lowest and highest time deltas, whether the offset deltas are 0, 1, 2 and so
    on, whether any record has no key, and how many headers they have together."""

    first_time: int
    last_time: int
    numbered: bool
    keyless: bool
    headers: int


class TooManyHeaders(BatchError):
    """The records have more headers than their reader allows."""


class _Headers:
    """Counts the headers that are read one by one, up to a bound."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyHeaders(f"its records have over {self.most} headers")


_ANY = 2**63


def record_places(payload: Buffer, count: int) -> RecordPlaces:
    """The `count` records that fill `payload` exactly. Raises BatchError if they do not fill it exactly."""
    try:
        if count <= FEW_RECORDS:
            return _few(payload, count, _Headers(_ANY))
        return RecordPlaces(*[column.tolist() for column in _many(payload, count, _Headers(_ANY))])
    except IndexError:
        raise _beyond_the_end() from None


def record_bounds(payload: Buffer, count: int, headers_max: int = _ANY) -> RecordBounds:
    """Bounds of the same records, if their places do not matter. Raises BatchError like `record_places`, and
    TooManyHeaders."""
    headers = _Headers(headers_max)
    try:
        if count <= FEW_RECORDS:
            found = _few(payload, count, headers)
            times, numbered = found.time_deltas, found.offset_deltas == list(range(count))
            keyless = min(found.key_lengths) < 0
            return RecordBounds(min(times), max(times), numbered, keyless, headers.most - headers.left)
        _, all_times, offsets, _, key_lengths, _, _ = _many(payload, count, headers)
    except IndexError:
        raise _beyond_the_end() from None
    return RecordBounds(
        int(all_times.min()),
        int(all_times.max()),
        bool((offsets == np.arange(count)).all()),
        int(key_lengths.min()) < 0,
        headers.most - headers.left,
    )


def times_and_key_lengths(payload: Buffer, count: int) -> tuple[Places, Places]:
    """The time delta of each record, and the length of its key. Raises BatchError like `record_places`."""
    try:
        _, times, _, _, key_lengths, _, _ = _many(payload, count, _Headers(_ANY))
    except IndexError:
        raise _beyond_the_end() from None
    return times, key_lengths


def _beyond_the_end() -> BatchError:
    return BatchError("a record extends past the end of its batch")


def places_of_many(payloads: Sequence[bytes], counts: Sequence[int]) -> tuple[bytes, list[RecordPlaces]]:
    """The concatenated payloads, and the places of each payload's records in them. Raises BatchError."""
    plain = b"".join(payloads)
    whole = record_places(plain, sum(counts))
    places_of_all = []
    first = end = 0
    for payload, count in zip(payloads, counts, strict=True):
        last, end = first + count, end + len(payload)
        if whole.starts[last] != end:
            raise BatchError("the records of a batch do not end with it")
        columns = [column[first:last] for column in whole[1:]]
        places_of_all.append(RecordPlaces(whole.starts[first : last + 1], *columns))
        first = last
    return plain, places_of_all


def _few(payload: Buffer, count: int, headers: _Headers) -> RecordPlaces:
    rows = []
    record_start = 0
    for _ in range(count):
        length, body = _varint(payload, record_start)
        end = body + length
        if end > len(payload):
            raise BatchError(
                f"a record at byte {record_start} has length {length}; {len(payload) - body} are left"
            )
        time, field_start = _varint(payload, body + 1)
        offset, field_start = _varint(payload, field_start)
        key_length, key = _varint(payload, field_start)
        value_length, value = _varint(payload, key + max(key_length, 0))
        field_start = value + max(value_length, 0)
        if field_start < end and not payload[field_start]:
            field_start += 1  # no headers
        else:
            field_start = _after_headers(payload, field_start, end, headers)
        if field_start != end or key > end or value > end:
            raise BatchError(f"the fields of the record at byte {record_start} do not fill it")
        rows.append((record_start, time, offset, key, key_length, value, value_length))
        record_start = end
    if record_start != len(payload):
        raise BatchError(f"{len(payload) - record_start} bytes follow the last of {count} records")
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(7)]
    columns[0].append(record_start)
    return RecordPlaces(*columns)


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return decode_varint(data, position)


def _after_headers(data: Buffer, position: int, end: int, headers: _Headers) -> int:
    count, position = _varint(data, position)
    if count > (end - position) // _HEADER_MIN_BYTES:
        return -1
    headers.take(max(count, 0))
    for _ in range(count):
        length, position = _varint(data, position)
        if length < 0 or position > end:
            return -1
        length, position = _varint(data, position + length)
        position += max(length, 0)
    return -1 if count < 0 else position


def _many(payload: Buffer, count: int, headers: _Headers) -> tuple[Places, ...]:
    """The columns of `RecordPlaces`."""
    octets = np.frombuffer(payload, dtype=np.uint8)
    starts = record_starts(payload, octets, count, 0)
    if starts is None:
        raise BatchError(f"{count} records do not fill the {len(payload)} bytes of their batch")
    ends = starts[1:]
    positions = _after_varints(octets, starts[:-1])
    times, positions = varints_at(octets, positions + 1)
    offsets, positions = varints_at(octets, positions)
    key_lengths, keys = varints_at(octets, positions)
    positions = keys + np.maximum(key_lengths, 0)
    _within(positions, ends)
    value_lengths, values = varints_at(octets, positions)
    positions = values + np.maximum(value_lengths, 0)
    _within(positions, ends)
    positions = (
        _after_many_headers(payload, octets, positions, ends, headers)
        if octets[positions].any()
        else positions + 1
    )
    if (positions != ends).any():
        raise BatchError("the fields of a record do not fill it")
    return starts, times, offsets, keys, key_lengths, values, value_lengths


def _within(positions: Places, ends: Places) -> None:
    if (positions >= ends).any() or (positions < 0).any():
        raise BatchError("a field of a record extends past its end")


def _after_many_headers(
    payload: Buffer, octets: Bytes, positions: Places, ends: Places, headers: _Headers
) -> Places:
    after = positions + 1
    for index in np.flatnonzero(octets[positions]).tolist():
        after[index] = _after_headers(payload, int(positions[index]), int(ends[index]), headers)
    return after


def renumbered(payload: Buffer, places: RecordPlaces) -> bytes:
    """The same records with the offset deltas 0, 1, 2 and so on."""
    parts: list[bytes] = []
    starts = places.starts
    for index, start in enumerate(starts[:-1]):
        _, body = _varint(payload, start)
        _, before = _varint(payload, body + 1)
        _, after = _varint(payload, before)
        record = b"".join((payload[body:before], encode_varint(index), payload[after : starts[index + 1]]))
        parts += (encode_varint(len(record)), record)
    return b"".join(parts)


def retimed(payload: bytes, places: RecordPlaces, chosen: Sequence[int], time_deltas: Sequence[int]) -> bytes:
    """Only these records, with these time deltas."""
    parts: list[bytes] = []
    starts = places.starts
    for number, time in zip(chosen, time_deltas, strict=True):
        _, body = _varint(payload, starts[number])
        _, after = _varint(payload, body + 1)
        new = encode_varint(time)
        end = starts[number + 1]
        parts += (
            encode_varint(1 + len(new) + end - after),
            payload[body : body + 1],
            new,
            payload[after:end],
        )
    return b"".join(parts)


def varints_at(octets: Bytes, positions: Places) -> tuple[Places, Places]:
    """The zigzag numbers at these places, and the places after them. Raises IndexError, BatchError."""
    first = octets[positions]
    after: Any = positions + 1
    if first.max() < 0x80:
        return _ZIGZAG[first], after
    longer = first >= 0x80
    second = octets[after]
    if not (longer & (second >= 0x80)).any():
        # Nearly all numbers have one or two bytes: a table holds them all.
        return _ZIGZAG[np.where(longer, second.astype(np.int64) << 7 | first & 0x7F, first)], after + longer
    raw: Any = (first & 0x7F).astype(np.uint64)
    more = np.flatnonzero(first & 0x80)
    shift = 7
    while more.size:
        byte = octets[after[more]]
        if shift == _LAST_SHIFT and (byte > 1).any():
            raise BatchError("a number has over 64 bits")
        raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[(byte & 0x80) != 0]
        shift += 7
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), after


def _after_varints(octets: Bytes, positions: Places) -> Places:
    """The places after the numbers at these places."""
    after: Places = positions + 1
    more = np.flatnonzero(octets[positions] & 0x80)
    while more.size:
        byte = octets[after[more]]
        after[more] += 1
        more = more[byte >= 0x80]
    return after


def record_starts(data: Buffer, octets: Bytes, count: int, position: int) -> Places | None:
    """Where the length of each of `count` records is, from `position` on, and the end of the last one; None
    if they do not fill the data. Raises IndexError."""
    pieces: list[Places] = []
    stepped: list[int] = []
    passed, end = 0, len(data)
    last, same = -1, 0
    while passed < count:
        stride = _stride(data, position)
        if stride is None:
            return None
        same = same + 1 if stride == last else 0
        last = stride
        stepped.append(position)
        passed += 1
        position += stride
        if same == SAME_LENGTH_STEPS:
            run = _run_length(octets, position, stride, min(count - passed, (end - position) // stride))
            if run:
                pieces += [
                    np.array(stepped, dtype=np.int64),
                    np.arange(position, position + run * stride, stride),
                ]
                stepped = []
                passed += run
                position += run * stride
            same = 0
    if position != end:
        return None
    return np.concatenate([*pieces, np.array([*stepped, position], dtype=np.int64)])


def _stride(data: Buffer, position: int) -> int | None:
    """Bytes from this record's start to the next one's; None if the length is impossible."""
    first = data[position]
    if first < 0x80:
        return None if first & 1 else 1 + (first >> 1)
    if first & 1:
        return None
    second = data[position + 1]
    if second < 0x80:
        return 2 + ((first & 0x7F | second << 7) >> 1)
    third = data[position + 2]
    if third < 0x80:
        return 3 + ((first & 0x7F | (second & 0x7F) << 7 | third << 14) >> 1)
    length, after = decode_varint(data, position)
    return after - position + length


def _run_length(octets: Bytes, position: int, stride: int, limit: int) -> int:
    """How many records from `position` on have the same length as the one before `position`.

    If the length bytes at `position + k * stride` are equal for all smaller k, each next place is a record
    start.
    """
    width = 1
    while octets[position - stride + width - 1] & 0x80:
        width += 1
    pattern = octets[position - stride : position - stride + width]
    run, look = 0, FIRST_LOOK
    while run < limit:
        size = min(look, limit - run)
        start = position + run * stride
        table = octets[start : start + size * stride].reshape(size, stride)[:, :width]
        equal = (table == pattern).all(axis=1)
        if not equal.all():
            return run + int(np.argmin(equal))
        run += size
        look *= 8
    return run
