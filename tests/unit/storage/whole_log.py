"""A segmented log read as a whole, in windows, through the same call that its users make."""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.storage.log.log import SegmentedLog


def window(log: SegmentedLog, offset: int, max_bytes: int) -> list[RecordBatch]:
    """The batches of one read. Their positions count from the first of them."""
    return list(iter_batches(log.read(offset, max_bytes).data))


def whole(log: SegmentedLog, window_bytes: int = 1 << 20) -> Iterator[RecordBatch]:
    """Every batch from the start to the end offset at the time of the call."""
    at, end = log.start_offset, log.end_offset
    while at < end:
        for batch in window(log, at, window_bytes):
            yield batch
            at = batch.header.next_offset
