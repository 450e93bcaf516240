"""Making record batches: encodes records, with a header that has their length and CRC."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from metaquorum.storage.batches.format import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_BYTES,
    BatchHeader,
    encode_varint,
)
from metaquorum.storage.errors import BatchError

_AFTER_CRC = struct.Struct(">hiqqqhii")
_PREFIX = struct.Struct(">qiibI")
_CONTROL_KEY = struct.Struct(">hh")


def encode_batch(  # noqa: PLR0913
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[tuple[bytes, bytes | None]]] | None = None,
    is_control: bool = False,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int | None = None,
    last_offset_delta: int | None = None,
    records_count: int | None = None,
) -> bytes:
    """One uncompressed batch; record `i` gets offset `base_offset + i`.

    For a metadata batch, pass `values` only: null keys, no headers, every record at `timestamp_ms`. For a
    control batch, pass `keys` made by `control_key`. The last seven parameters exist so that a batch that was
    read can be encoded to the same bytes. Raises BatchError if there are no records, if a sequence has the
    wrong length, or above MAX_BATCH_BYTES.
    """
    count = len(values)
    if not count:
        raise BatchError("a batch needs at least one record")
    for name, sequence in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
        if sequence is not None and len(sequence) != count:
            raise BatchError(f"{len(sequence)} {name} were given for {count} values; give one per value")
    if keys is None and timestamps is None and headers is None:
        body = _encode_plain(values)
        newest = timestamp_ms
    else:
        body = encode_records(
            base_timestamp_ms=timestamp_ms, values=values, keys=keys, timestamps=timestamps, headers=headers
        )
        newest = max(timestamps) if timestamps else timestamp_ms
    return seal_batch(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=(CONTROL if is_control else 0) if attributes is None else attributes,
            last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp_ms=timestamp_ms,
            max_timestamp_ms=newest if max_timestamp_ms is None else max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=count if records_count is None else records_count,
        ),
        body,
    )


def plain_header(base_offset: int, leader_epoch: int, timestamp_ms: int, records: int) -> BatchHeader:
    """The header of an uncompressed metadata batch of `records` records, for `seal_batch`."""
    return BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=records,
    )


def seal_batch(header: BatchHeader, payload: bytes, *, limit: int = MAX_BATCH_BYTES) -> bytes:
    """`header` and `payload` as one batch, with its length and CRC recomputed.

    Also copies a compressed batch with another base offset or epoch. Raises BatchError above `limit` bytes.
    """
    size = HEADER_BYTES + len(payload)
    if size > limit:
        raise BatchError(f"a batch of {size} bytes exceeds the limit of {limit}; split the request")
    covered = _AFTER_CRC.pack(*header[5:])
    crc = crc32c(payload, crc32c(covered))
    prefix = _PREFIX.pack(
        header.base_offset, size - LENGTH_OVERHEAD_BYTES, header.leader_epoch, header.magic, crc
    )
    return b"".join((prefix, covered, payload))


def control_key(control_type: int) -> bytes:
    """A control record's key: int16 version (0), int16 type."""
    return _CONTROL_KEY.pack(0, control_type)


def parse_control_key(key: bytes | None) -> tuple[int, int]:
    """(version, type) of a control record's key. Raises BatchError if it is absent or too short."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise BatchError("a control record has no key of int16 version and int16 type")
    version, control_type = _CONTROL_KEY.unpack_from(key)
    return version, control_type


def _encode_plain(values: Sequence[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for delta, value in enumerate(values):
        delta_bytes = encode_varint(delta)
        if value is None:
            parts.append(encode_varint(5 + len(delta_bytes)) + b"\0\0" + delta_bytes + b"\x01\x01\0")
            continue
        length_bytes = encode_varint(len(value))
        head = b"\0\0" + delta_bytes + b"\x01" + length_bytes
        parts.append(encode_varint(len(head) + len(value) + 1) + head)
        parts.append(value)
        parts.append(b"\0")
    return b"".join(parts)


def encode_records(
    *,
    base_timestamp_ms: int,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[tuple[bytes, bytes | None]]] | None = None,
    deltas: Sequence[int] | None = None,
    attributes: Sequence[int] | None = None,
) -> bytes:
    """The records of one batch as bytes; None for a sequence means null, 0, none, or counting up."""
    parts: list[bytes] = []
    for index, value in enumerate(values):
        pieces = [
            bytes((attributes[index] if attributes else 0,)),
            encode_varint(timestamps[index] - base_timestamp_ms if timestamps else 0),
            encode_varint(deltas[index] if deltas else index),
            _length_prefixed(keys[index] if keys else None),
            _length_prefixed(value),
        ]
        record_headers = headers[index] if headers else ()
        pieces.append(encode_varint(len(record_headers)))
        for name, content in record_headers:
            pieces += (_length_prefixed(name), _length_prefixed(content))
        body = b"".join(pieces)
        parts += (encode_varint(len(body)), body)
    return b"".join(parts)


def _length_prefixed(content: bytes | None) -> bytes:
    return b"\x01" if content is None else encode_varint(len(content)) + content
