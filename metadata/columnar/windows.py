"""Consecutive batches as one: the frames of all their records in one buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.partition_records import Frames, frames_at
from metaquorum.storage.batches.batch import HEADER_BYTES, RecordBatch
from metaquorum.storage.batches.places import Places, record_starts
from metaquorum.storage.errors import BatchError

WINDOW_RECORDS = 4_096
"""A window has about this many records: from there on the fixed cost per window no longer matters."""
WINDOW_BYTES = 4 * 1024 * 1024
"""A window of this size does not grow further."""
_MANY_RECORDS = 400
"""From this many on, the records of one batch are found faster in numpy."""


T = TypeVar("T")


class BatchWindow(NamedTuple):
    """Consecutive batches. `ends` are the numbers of records up to the end of each."""

    batches: Sequence[RecordBatch]
    frames: Frames
    ends: Places

    @property
    def counts(self) -> Places:
        """The number of records of each batch."""
        return np.diff(self.ends, prepend=0)

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.frames.starts)

    @property
    def extent(self) -> tuple[int, int]:
        """The number of records, and the newest timestamp."""
        return self.records, max(at.header.max_timestamp_ms for at in self.batches)

    def each(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """Repeats each batch's value for each of its records."""
        return np.repeat(np.array(values, dtype=np.int64), self.counts)

    def batches_of(self, records: Places) -> list[int]:
        """The batch numbers of some records."""
        found: list[int] = np.searchsorted(self.ends, records, side="right").tolist()
        return found

    def deltas(self) -> Places:
        """The place of each record in its batch."""
        firsts = self.ends - self.counts
        return np.arange(len(self.frames.starts), dtype=np.int64) - np.repeat(firsts, self.counts)

    def offsets(self) -> Places:
        """The offset of each record."""
        return self.each([at.header.base_offset for at in self.batches]) + self.deltas()

    def part(self, low: int, high: int) -> BatchWindow:
        """The batches with the numbers from `low` up to but not including `high`."""
        first = int(self.ends[low - 1]) if low else 0
        last = int(self.ends[high - 1])
        data, octets, starts, lengths, keys, versions = self.frames
        here = slice(first, last)
        frames = Frames(data, octets, starts[here], lengths[here], keys[here], versions[here])
        return BatchWindow(self.batches[low:high], frames, self.ends[low:high] - first)


def is_plain(batch: RecordBatch) -> bool:
    """Whether a batch has the usual shape, according to its header."""
    header = batch.header
    return (
        not header.attributes
        and header.base_timestamp_ms == header.max_timestamp_ms
        and header.records_count == header.last_offset_delta + 1
    )


def read_window(batches: Sequence[RecordBatch]) -> BatchWindow | None:
    """Plain batches as one; None if a record is odd."""
    data = b"".join([batch.data for batch in batches])
    octets = np.frombuffer(data, dtype=np.uint8)
    starts: list[int] = []
    bounds: list[int] = []
    low = 0
    try:
        for batch in batches:
            if not _add_starts(starts, data, octets, low, batch):
                return None
            low += len(batch.data)
            bounds.append(len(starts))
        ends = np.array(bounds, dtype=np.int64)
        record_starts_at = np.array(starts, dtype=np.int64)
        after = np.append(record_starts_at[1:], low)
        after[ends - 1] = np.cumsum([len(batch.data) for batch in batches])
        counts = np.diff(ends, prepend=0)
        deltas = np.arange(len(record_starts_at), dtype=np.int64) - np.repeat(ends - counts, counts)
        frames = frames_at(data, octets, record_starts_at, after, deltas)
    except (IndexError, BatchError):
        return None
    return None if frames is None else BatchWindow(batches, frames, ends)


def _add_starts(starts: list[int], data: bytes, octets: Any, low: int, batch: RecordBatch) -> bool:
    """Adds the starts of the records of the batch at `low`; False if they do not fill it exactly."""
    position, count, end = low + HEADER_BYTES, batch.header.records_count, low + len(batch.data)
    if count >= _MANY_RECORDS:
        found = record_starts(batch.data, octets[low:end], count, HEADER_BYTES)
        if found is not None:
            starts += (found[:-1] + low).tolist()
        return found is not None
    add = starts.append
    for _ in range(count):
        if position >= end:
            return False
        add(position)
        size = data[position]
        if size < 0x80:
            position += 1 + (size >> 1)
            continue
        second = data[position + 1]
        if second < 0x80:
            position += 2 + ((size & 0x7F | second << 7) >> 1)
        else:
            position += 3 + ((size & 0x7F | (second & 0x7F) << 7 | data[position + 2] << 14) >> 1)
    return position == end


def windows(
    items: Iterable[RecordBatch | T], window_records: int = WINDOW_RECORDS
) -> Iterator[BatchWindow | RecordBatch | T]:
    """The items in order; consecutive batches that can be combined become one value with about
    `window_records` records."""
    held: list[RecordBatch] = []
    records = size_bytes = 0
    for item in items:
        plain = isinstance(item, RecordBatch) and is_plain(item)
        is_full = records >= window_records or size_bytes >= WINDOW_BYTES
        if held and (not plain or is_full or not _follows(item, held[-1])):
            yield from whole_or_parts(held)
            held, records, size_bytes = [], 0, 0
        if plain and isinstance(item, RecordBatch):
            held.append(item)
            records += item.header.records_count
            size_bytes += len(item.data)
        else:
            yield item
    yield from whole_or_parts(held)


def _follows(item: object, last: RecordBatch) -> bool:
    return isinstance(item, RecordBatch) and item.header.base_offset == last.header.next_offset


def whole_or_parts(batches: Sequence[RecordBatch]) -> Iterator[BatchWindow | RecordBatch]:
    """The batches as one window, or as several with the odd ones between them."""
    if not batches:
        return
    window = read_window(batches)
    if window is not None:
        yield window
    elif len(batches) == 1:
        yield batches[0]
    else:
        middle = len(batches) // 2
        yield from whole_or_parts(batches[:middle])
        yield from whole_or_parts(batches[middle:])
