"""One batch through the cleaner: which of its records stay, and the batch that is left.

Owns Kafka's rules (`Cleaner.shouldRetainRecord`, `MemoryRecords.filterTo`): offsets never change, an emptied
batch stays while it is its producer's last, and a tombstone or marker is dropped once the delete horizon that
the first pass wrote into its header has passed (KIP-534). Does not know files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.encode import seal_batch
from metaquorum.storage.batches.format import COMPRESSION_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from metaquorum.storage.batches.places import RecordPlaces, retimed
from metaquorum.storage.cleaner.keys import KeyOffsets, key_names
from metaquorum.storage.cleaner.opened import BatchToClean
from metaquorum.storage.cleaner.transactions import CleanedTransactions

NO_TIMESTAMP = -1
MAX_SIZE = 2**31 - 1
# Clears both codec and horizon.
_EMPTY_ATTRIBUTES = ~(DELETE_HORIZON | COMPRESSION_MASK)


class LastOfProducer(msgspec.Struct, frozen=True, kw_only=True):
    """What must be kept for an active producer: the batch that ends at `data_offset`, or if it has none
    (-1), the markers of its `epoch`."""

    data_offset: int
    epoch: int


@dataclass(slots=True, kw_only=True)
class RecordFilter:
    """Decides what stays. `now_ms` is when the pass began, wall clock. Counts the records that it saw."""

    keys: KeyOffsets
    transactions: CleanedTransactions
    producers: Mapping[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    records_read: int = 0
    records_kept: int = 0

    def batch(self, opened: BatchToClean) -> bytes | None:
        """What is left of a batch; None if nothing is. Raises BatchError."""
        header, data = opened.header, opened.data
        dropped = self.transactions.is_dropped(header, data)
        horizon = header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None
        is_old = horizon is not None and horizon <= self.now_ms
        self.records_read += header.records_count
        if (dropped and (is_old or not header.is_control)) or not header.records_count:
            return self._emptied(header)
        if header.is_control:
            self.records_kept += header.records_count
            if dropped and horizon is None:
                return self._with_horizon(opened)
            return data
        return self._filtered(opened, horizon, drops_tombstones=is_old)

    def _emptied(self, header: BatchHeader) -> bytes | None:
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return None
        if last.data_offset >= 0:
            is_last = header.last_offset == last.data_offset
        else:
            is_last = header.is_control and header.producer_epoch == last.epoch
        if not is_last:
            return None
        attributes = header.attributes & _EMPTY_ATTRIBUTES
        return seal_batch(
            header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, records_count=0), b""
        )

    def _with_horizon(self, opened: BatchToClean) -> bytes:
        header = opened.header
        plain, places = opened.records()
        horizon = self.now_ms + self.delete_retention_ms
        return _rebuilt(header, plain, places, range(header.records_count), horizon)

    def _filtered(self, opened: BatchToClean, horizon: int | None, *, drops_tombstones: bool) -> bytes | None:
        header = opened.header
        plain, places = opened.records()
        kept = self._kept(header, plain, places, drops_tombstones=drops_tombstones)
        if not kept:
            return self._emptied(header)
        self.records_kept += len(kept)
        lengths = places.value_lengths
        if horizon is None and min(lengths) < 0 and any(lengths[at] < 0 for at in kept):
            return _rebuilt(header, plain, places, kept, self.now_ms + self.delete_retention_ms)
        if len(kept) == header.records_count:
            return opened.data
        return _rebuilt(header, plain, places, kept, horizon)

    def _kept(
        self, header: BatchHeader, plain: bytes, places: RecordPlaces, *, drops_tombstones: bool
    ) -> Sequence[int]:
        count = header.records_count
        if header.base_offset > self.keys.latest:
            return range(count)
        base = header.base_offset
        offsets = [base + delta for delta in places.offset_deltas]
        if min(places.key_lengths) < 0:
            return self._kept_of_some(plain, places, offsets, drops_tombstones)
        last = self.keys.is_last(key_names(plain, places.keys, places.key_lengths), offsets)
        if all(last):
            chosen: Sequence[int] = range(count)
        else:
            chosen = [at for at, is_last in enumerate(last) if is_last]
        if drops_tombstones and min(places.value_lengths) < 0:
            latest, lengths = self.keys.latest, places.value_lengths
            chosen = [at for at in chosen if lengths[at] >= 0 or offsets[at] > latest]
        return chosen

    def _kept_of_some(
        self, plain: bytes, places: RecordPlaces, offsets: list[int], drops_tombstones: bool
    ) -> list[int]:
        """For batches with keyless records: these are dropped, because the log does not show which is the
        newest."""
        latest = self.keys.latest
        chosen = []
        for at, (start, length) in enumerate(zip(places.keys, places.key_lengths, strict=True)):
            if offsets[at] > latest:
                chosen.append(at)
            elif length < 0 or (drops_tombstones and places.value_lengths[at] < 0):
                continue
            elif self.keys.is_last(key_names(plain, [start], [length]), [offsets[at]])[0]:
                chosen.append(at)
        return chosen


def _rebuilt(
    header: BatchHeader, plain: bytes, places: RecordPlaces, kept: Sequence[int], horizon: int | None
) -> bytes:
    """The batch with only these records. Its times count from the delete horizon, or from the first record
    that is left; its last offset, sequences and epoch stay."""
    deltas = places.time_deltas
    before = header.base_timestamp_ms
    if header.attributes & LOG_APPEND_TIME:
        first = newest = header.max_timestamp_ms
        times = [0] * len(kept) if horizon is None else [newest - horizon] * len(kept)
        base = first if horizon is None else horizon
    else:
        base = before + deltas[kept[0]] if horizon is None else horizon
        newest = before + max([deltas[at] for at in kept])
        times = [] if base == before else [before + deltas[at] - base for at in kept]
    if base == before and not header.attributes & LOG_APPEND_TIME:
        body = _joined(plain, places.starts, kept)
    else:
        body = retimed(plain, places, kept, times)
    attributes = header.attributes | (DELETE_HORIZON if horizon is not None else 0)
    changed = header._replace(
        attributes=attributes,
        base_timestamp_ms=base,
        max_timestamp_ms=newest,
        records_count=len(kept),
    )
    return seal_batch(changed, pack(header.compression, body), limit=MAX_SIZE)


def _joined(plain: bytes, starts: list[int], kept: Sequence[int]) -> bytes:
    return b"".join([plain[starts[at] : starts[at + 1]] for at in kept])
