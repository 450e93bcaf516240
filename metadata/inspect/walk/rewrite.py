"""Batches with records removed, and batches that fill a gap, so that all other offsets stay the same.

Leaving the offset empty is not possible: a KRaft log has no gaps, partition and broker epochs *are* offsets,
and a follower refuses a batch that does not begin at its log's end. Every controller and broker since
metadata.version 3.3-IV1 reads NoOpRecord (KIP-835), and it changes nothing. Times and leader epochs stay
those of the batch. Touches no file and knows no image.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    BatchHeader,
    RawRecord,
    RecordBatch,
    batch_of_records,
    encode_batch,
    parse_header,
    seal_batch,
)
from metaquorum.storage.errors import BatchError

NO_OP = encode(NoOpRecord(), 0)
NO_OP_LEVEL = 5
"""metadata.version 3.3-IV1: programs at a lower level do not know the record."""
FILL_RECORDS = 4096
"""Maximum number of NoOpRecords in a batch that fills a gap."""


def without_records(batch: RecordBatch, offsets: Collection[int]) -> RecordBatch:
    """The batch with NoOpRecords at `offsets`; every other record is the same, byte for byte.

    A compressed batch is returned uncompressed. If the bytes after the header cannot be parsed as records,
    all of them become NoOpRecords.
    """
    try:
        records = batch.records()
    except BatchError:
        return _all_no_op(batch)
    kept = [_emptied(raw) if raw.offset in offsets else raw for raw in records]
    return _encoded(batch, kept, batch.header.last_offset_delta)


def regular(batch: RecordBatch) -> RecordBatch:
    """A batch whose records and header disagree, repaired: one record for each offset of the header.

    Offsets without a record get a NoOpRecord. Records past the last offset are dropped, because those offsets
    belong to the next batch.
    """
    header = batch.header
    try:
        records = {raw.offset: raw for raw in batch.records()}
    except BatchError:
        return _all_no_op(batch)
    if not records:
        return _all_no_op(batch)
    first = next(iter(records.values()))
    filled = [
        records.get(offset) or _emptied(first._replace(offset=offset))
        for offset in range(header.base_offset, header.next_offset)
    ]
    return _encoded(batch, filled, header.last_offset_delta)


def with_header(batch: RecordBatch, header: BatchHeader) -> RecordBatch:
    """The same records under another header; length and CRC are recomputed."""
    return _batch(seal_batch(header, batch.data[HEADER_BYTES:]), batch)


def filling(start: int, end: int, leader_epoch: int, timestamp_ms: int) -> Iterator[RecordBatch]:
    """Batches of NoOpRecords for the offsets from `start` up to but not including `end`."""
    while start < end:
        count = min(FILL_RECORDS, end - start)
        data = encode_batch(
            base_offset=start, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms, values=[NO_OP] * count
        )
        yield RecordBatch(parse_header(data), data)
        start += count


def _emptied(raw: RawRecord) -> RawRecord:
    return raw._replace(key=None, value=NO_OP, headers=(), attributes=0)


def _encoded(batch: RecordBatch, records: list[RawRecord], last_offset_delta: int) -> RecordBatch:
    header = batch.header
    data = batch_of_records(
        header._replace(
            attributes=header.attributes - header.compression,
            last_offset_delta=last_offset_delta,
            records_count=len(records),
        ),
        records,
    )
    return _batch(data, batch)


def _all_no_op(batch: RecordBatch) -> RecordBatch:
    header = batch.header
    count = header.last_offset_delta + 1
    if count > FILL_RECORDS * 16:
        raise BatchError(
            f"the batch at offset {header.base_offset} claims {count} records and cannot be split; end the "
            "log before it"
        )
    data = encode_batch(
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        values=[NO_OP] * count,
    )
    return _batch(data, batch)


def _batch(data: bytes, old: RecordBatch) -> RecordBatch:
    return RecordBatch(parse_header(data), data, old.position, old.file)
