"""Batches with records removed, and batches that fill a gap, so that all other offsets stay the same.

Leaving the offset empty is not possible: a KRaft log has no gaps, partition and broker epochs *are* offsets,
and a follower refuses a batch that does not begin at its log's end. Every controller and broker since
metadata.version 3.3-IV1 reads NoOpRecord (KIP-835), and it changes nothing. Times and leader epochs stay
those of the batch. Touches no file and knows no image.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

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
from metaquorum.storage.log.reader import Damage

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


# Repairs damaged base offsets and leader epochs of batches, using the batches around them.
#
# Both are outside a batch's CRC, so a flipped bit there damages no record: if the next batch continues as if
# the number were the one that fits, that number is restored, and nothing is lost.

Repaired = tuple[RecordBatch | Damage, str | None]
"""What was read, and the repair made to it; None if there was none."""


def repaired_headers(items: Iterable[RecordBatch | Damage], expected: int) -> Iterator[Repaired]:
    """`items` with damaged base offsets and epochs repaired; `expected` is the first offset."""
    epoch = 0
    waiting: RecordBatch | None = None
    between: list[Damage] = []
    for item in items:
        if isinstance(item, Damage):
            between.append(item)
            continue
        if waiting is not None:
            repaired = repair_header(waiting, item, expected, epoch)
            expected, epoch = repaired[0].header.next_offset, repaired[0].header.leader_epoch
            yield repaired
        yield from ((damage, None) for damage in between)
        between = []
        waiting = item
    if waiting is not None:
        yield waiting, None
    yield from ((damage, None) for damage in between)


def repair_header(
    batch: RecordBatch, following: RecordBatch, expected: int, epoch: int
) -> tuple[RecordBatch, str | None]:
    """`batch` as the following one implies it was, and the repair made; None if there was none."""
    header, after = batch.header, following.header
    base, fitting_epoch = fitting_header(
        (header.base_offset, header.last_offset_delta + 1, header.leader_epoch, header.is_control),
        (after.base_offset, after.leader_epoch, after.is_control),
        expected,
        epoch,
    )
    fitting = header._replace(base_offset=base, leader_epoch=fitting_epoch)
    if fitting == header:
        return batch, None
    changes = [
        f"{name} {old} is put back to {new}"
        for name, old, new in (
            ("base offset", header.base_offset, fitting.base_offset),
            ("leader epoch", header.leader_epoch, fitting.leader_epoch),
        )
        if old != new
    ]
    return with_header(batch, fitting), "; ".join(changes)


def fitting_header(
    own: tuple[int, int, int, bool], after: tuple[int, int, bool], expected: int, before: int
) -> tuple[int, int]:
    """The base offset and leader epoch that a batch must have had: its own, unless the next batch continues
    as if they were others. `own` is (base offset, offsets, leader epoch, whether it is a control batch),
    `after` the same of the next batch without its number of offsets; `expected` and `before` are the offset
    and the epoch that the batch before it leads to."""
    base, offsets, epoch, is_control = own
    next_base, next_epoch, next_is_control = after
    if next_base == expected + offsets:
        base = expected
    # An epoch that is not between those around it is damaged. Each epoch begins with a control batch.
    if before <= next_epoch and not before <= epoch <= next_epoch:
        epoch = next_epoch if is_control and not next_is_control else before
    return base, epoch
