"""Record batches as a consumer takes them apart. Knows one fetched run of batches, no position and no broker.

Owns the check of lengths and CRC, and the splitting; what unpacks is `storage.batches.batch`'s. This is the
hot path of a consumer: varints of one byte are read in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from metaquorum.storage.batches.batch import BatchHeader, batch_payload, batch_problem, parse_header
from metaquorum.storage.batches.format import LOG_APPEND_TIME
from metaquorum.storage.batches.varint import decode_varint, encode_varint
from metaquorum.storage.errors import BatchError

_PLAIN_MAX = 4096


def _plain(delta: int) -> bytes:
    """Offset delta and null key of a plain record."""
    return encode_varint(delta) + b"\x01"


_PLAIN = tuple(map(_plain, range(_PLAIN_MAX)))


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp_ms`: the producer's, or the broker's where the topic says so."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


class FetchedBatch(NamedTuple):
    """A whole batch, checked; `data` is header and payload."""

    header: BatchHeader
    data: bytes

    def records(self, from_offset: int = 0) -> list[Record]:
        """Its records from `from_offset` on. Raises CompressedBatchError for a codec that is unknown,
        BatchError when the payload is damaged or the records do not fill the batch."""
        found = _split(self.header, batch_payload(self.header, self.data))
        return (
            found if from_offset <= self.header.base_offset else [r for r in found if r.offset >= from_offset]
        )


def split_batches(data: bytes) -> Iterator[FetchedBatch]:
    """The batches of a fetched run, whole ones with the right CRC. Raises BatchError at the first other."""
    position = 0
    while position < len(data):
        problem = batch_problem(data, position, min_epoch=-1, check_count=False)
        if problem is not None:
            raise BatchError(
                f"the fetched data is damaged at byte {position}: {problem}; fetch it again, and if that "
                "does not help, check the leader's disk"
            )
        header = parse_header(data, position)
        after = position + header.size_bytes
        yield FetchedBatch(header, data if not position and after == len(data) else data[position:after])
        position = after


def _split(header: BatchHeader, data: bytes) -> list[Record]:
    records: list[Record] = []
    add = records.append
    base, stamp_base = header.base_offset, header.base_timestamp_ms
    fixed = bool(header.attributes & LOG_APPEND_TIME)
    position = 0
    try:
        for delta in range(header.records_count):
            # Nearly every record is plain: a length of one or two bytes, then bytes that are known before,
            # a value with a length of one or two bytes, no headers. Everything else is taken apart below.
            size = data[position]
            if size < 0x80:
                at = position + 1
            else:
                size = (data[position + 1] << 7) | (size & 0x7F)
                at = position + 2
            stop = at + (size >> 1)
            stamp = data[at + 1]
            plain = _PLAIN[delta] if delta < _PLAIN_MAX else _plain(delta)
            at += 2
            if stamp < 0x80 and not stamp & 1 and not fixed and data.startswith(plain, at):
                at += len(plain)
                length = data[at]
                if length < 0x80:
                    at += 1
                else:
                    length = ((data[at + 1] << 7) | (length & 0x7F)) if data[at + 1] < 0x80 else 1
                    at += 2
                end = at + (length >> 1)
                if not length & 1 and end + 1 == stop and not data[end]:
                    add(Record(base + delta, stamp_base + (stamp >> 1), None, data[at:end], ()))
                    position = stop
                    continue
            record, position = _record(header, data, position)
            add(record)
    except IndexError:
        position = -1
    if position != len(data):
        raise BatchError(
            f"record {len(records)} of the batch at offset {header.base_offset} does not end where the "
            "batch says: the producer encoded it wrongly"
        )
    return records


def _record(header: BatchHeader, data: bytes, position: int) -> tuple[Record, int]:
    """The record at `position` and where it ends. Raises IndexError or BatchError."""
    length = data[position]
    if length < 0x80:
        length >>= 1
        position += 1
    else:
        length, position = decode_varint(data, position)
    end = position + length
    position += 1  # attributes
    stamp = data[position]
    if stamp < 0x80:
        stamp = (stamp >> 1) ^ -(stamp & 1)
        position += 1
    else:
        stamp, position = decode_varint(data, position)
    delta = data[position]
    if delta < 0x80:
        delta >>= 1
        position += 1
    else:
        delta, position = decode_varint(data, position)
    key: bytes | None = None
    if data[position] == 1:
        position += 1
    else:
        key, position = _bytes(data, position)
    length = data[position]
    if length < 0x80 and not length & 1:
        position += 1
        value: bytes | None = data[position : position + (length >> 1)]
        position += length >> 1
    else:
        value, position = _bytes(data, position)
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    if data[position]:
        headers, position = _headers(data, position)
    else:
        position += 1
    if position != end:
        raise BatchError(
            f"a record of the batch at offset {header.base_offset} does not have the length that it claims"
        )
    timestamp_ms = (
        header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else header.base_timestamp_ms + stamp
    )
    return Record(header.base_offset + delta, timestamp_ms, key, value, headers), end


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(data, position)
    if length < 0:
        return None, position
    return data[position : position + length], position + length


def _headers(data: bytes, position: int) -> tuple[tuple[tuple[bytes, bytes | None], ...], int]:
    count, position = decode_varint(data, position)
    if not 0 <= count <= len(data):
        raise BatchError(f"a record claims to have {count} headers")
    found: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes(data, position)
        content, position = _bytes(data, position)
        if name is None:
            raise BatchError("a record header has no name")
        found.append((name, content))
    return tuple(found), position
