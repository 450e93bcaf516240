"""Record batches as a producer makes them: records are encoded as they come, in runs where possible.

Owns the bytes and their sizes; who sends a batch, when, and under which sequence is `produce_queue`'s
business. Source: Kafka's message format 2 (`DefaultRecordBatch`, KIP-98).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate, chain, repeat

from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    MAGIC,
    MAX_BATCH_BYTES,
    BatchHeader,
    Compression,
    batch_problem,
    parse_header,
    seal_batch,
)
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.varint import encode_varint
from metaquorum.storage.errors import BatchError

Headers = Sequence[tuple[bytes, bytes | None]]

RECORDS_MAX = 1 << 20
"""Of one batch, so that its offset deltas have three bytes at most."""

RECORD_MAX_BYTES = MAX_BATCH_BYTES - 64 * 1024
"""Of one record: it must fit into a batch even where gzip makes it longer."""

_TABLE = 8192
_VARINTS = tuple(encode_varint(value) for value in range(_TABLE))
# Attributes 0, timestamp delta 0, the offset delta, a null key: the same for every plain record of a batch.
_MIDDLES = tuple(b"\0\0" + each + b"\x01" for each in _VARINTS)
_LENGTHS_MAX = _TABLE - 64
_DELTA_CLASSES = (64, 8192, RECORDS_MAX)
"""Where an offset delta takes one byte more."""


class Codec(Enum):
    """What the producer itself can compress with."""

    NONE = "none"
    GZIP = "gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A batch without what the sender fills in: the records' bytes (compressed or not) and what the header
    says of them. `count` records; times in ms."""

    body: bytes
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    count: int

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.body)

    def sealed(self, producer_id: int = -1, producer_epoch: int = -1, sequence: int = -1) -> bytes:
        """The whole batch, with length and CRC. Raises BatchError over 8 MiB."""
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self.attributes,
            last_offset_delta=self.count - 1,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            records_count=self.count,
        )
        return seal_batch(header, self.body)


def foreign_payload(batch: bytes) -> Payload:
    """A batch made elsewhere, whatever compressed it: its payload stays unopened. Raises BatchError."""
    header = parse_header(batch)
    problem = batch_problem(batch, 0, min_epoch=-1, check_count=False)
    if problem is None and header.size_bytes != len(batch):
        problem = f"expected one batch of {header.size_bytes} bytes, found {len(batch)}"
    if problem is not None:
        raise BatchError(f"this is not a complete record batch: {problem}")
    return Payload(
        body=batch[HEADER_BYTES : header.size_bytes],
        attributes=header.attributes,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        count=header.last_offset_delta + 1,
    )


class BatchBuilder:
    """The open batch of one partition. Takes records until `limit_bytes` would be passed (a first record is
    taken whatever its size), and counts its bytes exactly, as they are before compression."""

    __slots__ = ("_limit_bytes", "_parts", "base_timestamp_ms", "count", "max_timestamp_ms", "size_bytes")

    def __init__(self, timestamp_ms: int, limit_bytes: int) -> None:
        self.base_timestamp_ms = timestamp_ms
        self.max_timestamp_ms = timestamp_ms
        self.count = 0
        self.size_bytes = HEADER_BYTES
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []

    def append(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = (), timestamp_ms: int
    ) -> bool:
        """Takes one record; False: it does not fit, seal the batch first. Raises
        BatchError for one that fits into none."""
        record = encode_record(
            value,
            key=key,
            headers=headers,
            delta=self.count,
            timestamp_delta=timestamp_ms - self.base_timestamp_ms,
        )
        if len(record) > RECORD_MAX_BYTES:
            raise BatchError(
                f"a message of {len(record)} bytes exceeds the limit of {RECORD_MAX_BYTES}: split it"
            )
        if self.count and (self.size_bytes + len(record) > self._limit_bytes or self.count >= RECORDS_MAX):
            return False
        self._take(record, 1, timestamp_ms)
        return True

    def extend(self, values: Sequence[bytes], start: int, timestamp_ms: int) -> int:
        """Takes plain values (no keys, no headers) from `start` on; returns how many fitted."""
        taken = 0
        while start + taken < len(values):
            at = start + taken
            run = self._run(values, at)
            lengths = list(map(len, run))
            if not lengths or max(lengths) >= _LENGTHS_MAX:
                if not self.append(values[at], timestamp_ms=timestamp_ms):
                    break
                taken += 1
                continue
            fit = self._extend_run(run, lengths, timestamp_ms)
            taken += fit
            if fit < len(run):
                break
        return taken

    def _run(self, values: Sequence[bytes], at: int) -> Sequence[bytes]:
        """The next values whose offset deltas are of one width, about as many as can fit."""
        room = self._limit_bytes - self.size_bytes
        wide = next(limit for limit in _DELTA_CLASSES if self.count < limit or limit == RECORDS_MAX)
        if self.count >= _TABLE:
            return ()
        guess = max(1, room // (len(values[at]) + 7) + 1)
        return values[at : at + min(guess, wide - self.count)]

    def _extend_run(self, run: Sequence[bytes], lengths: list[int], timestamp_ms: int) -> int:
        stamp = timestamp_ms - self.base_timestamp_ms
        middles: Sequence[bytes] = _MIDDLES[self.count : self.count + len(run)]
        if stamp:
            lead = b"\0" + encode_varint(stamp)
            middles = [lead + each[2:] for each in middles]
        sizes = _record_sizes(len(middles[0]))
        ends = list(accumulate(map(sizes.__getitem__, lengths)))
        fit = bisect_right(ends, self._limit_bytes - self.size_bytes)
        if not fit and not self.count:
            fit = 1
        if not fit:
            return 0
        if fit < len(run):
            run, lengths = run[:fit], lengths[:fit]
        bodies = _body_lengths(len(middles[0]))
        columns = zip(
            map(bodies.__getitem__, lengths),
            middles,
            map(_VARINTS.__getitem__, lengths),
            run,
            repeat(b"\0"),
        )
        self._take(b"".join(chain.from_iterable(columns)), fit, timestamp_ms)
        return fit

    def _take(self, part: bytes, count: int, timestamp_ms: int) -> None:
        self._parts.append(part)
        self.count += count
        self.size_bytes += len(part)
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp_ms)

    def payload(self, codec: Codec = Codec.NONE) -> Payload:
        """What was taken, as one payload."""
        body = b"".join(self._parts)
        attributes = 0
        if codec is Codec.GZIP:
            body = pack(Compression.GZIP, body)
            attributes = int(Compression.GZIP)
        return Payload(
            body=body,
            attributes=attributes,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            count=self.count,
        )


@lru_cache(maxsize=64)
def _body_lengths(middle_bytes: int) -> tuple[bytes, ...]:
    """By a value's length, the encoded length of its record's body."""
    return tuple(
        encode_varint(middle_bytes + len(_VARINTS[length]) + length + 1) for length in range(_LENGTHS_MAX)
    )


@lru_cache(maxsize=64)
def _record_sizes(middle_bytes: int) -> tuple[int, ...]:
    """By a value's length, the size of its whole record."""
    return tuple(
        len(body) + middle_bytes + len(_VARINTS[length]) + length + 1
        for length, body in enumerate(_body_lengths(middle_bytes))
    )


def encode_record(
    value: bytes | None, *, key: bytes | None, headers: Headers, delta: int, timestamp_delta: int
) -> bytes:
    """One record with its length."""
    pieces = [
        b"\0",
        encode_varint(timestamp_delta),
        encode_varint(delta),
        b"\x01" if key is None else encode_varint(len(key)) + key,
    ]
    if value is None:
        pieces.append(b"\x01")
    else:
        pieces += (encode_varint(len(value)), value)
    pieces.append(encode_varint(len(headers)))
    for name, content in headers:
        pieces += (encode_varint(len(name)), name)
        pieces.append(b"\x01" if content is None else encode_varint(len(content)) + content)
    body = b"".join(pieces)
    return encode_varint(len(body)) + body
