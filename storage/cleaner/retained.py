"""One batch through the cleaner: which of its records stay, and the batch that is left.

Kafka's rules (`Cleaner.shouldRetainRecord`, `MemoryRecords.filterTo`): offsets never change, an emptied batch
stays while it is its producer's last, and a tombstone or marker is dropped once the delete horizon that the
first pass wrote into its header has passed (KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import ge
from typing import NamedTuple, cast

import msgspec

from metaquorum.storage.batches.batch import batch_payload, read_marker
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.encode import seal_batch
from metaquorum.storage.batches.format import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
)
from metaquorum.storage.batches.places import RecordPlaces, places_of_many, record_places, retimed
from metaquorum.storage.errors import BatchError
from metaquorum.storage.partition.producers import AbortedTransaction

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
    """Decides what stays. `now_ms` is when the pass began, wall clock."""

    keys: KeyOffsets
    transactions: CleanedTransactions
    producers: Mapping[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int

    def batch(self, opened: BatchToClean) -> bytes | None:
        """What is left of a batch; None if nothing is. Raises BatchError."""
        header, data = opened.header, opened.data
        dropped = self.transactions.is_dropped(header, data)
        horizon = header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None
        is_old = horizon is not None and horizon <= self.now_ms
        if (dropped and (is_old or not header.is_control)) or not header.records_count:
            return self._emptied(header)
        if header.is_control:
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
        for number, (start, length) in enumerate(zip(places.keys, places.key_lengths, strict=True)):
            if offsets[number] > latest:
                chosen.append(number)
            elif length < 0 or (drops_tombstones and places.value_lengths[number] < 0):
                continue
            elif self.keys.is_last(key_names(plain, [start], [length]), [offsets[number]])[0]:
                chosen.append(number)
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


# The records of many small batches, found together, because a single batch is too small for numpy's
# calls.
#
# Refuses nothing: a batch that cannot be opened raises when its records are read.

TOGETHER_BYTES = 1024 * 1024
"""Bytes of records opened at once, or a single batch."""


class BatchToClean(NamedTuple):
    """`data` is header and records. `opened` are the records and their places; None if not opened yet."""

    header: BatchHeader
    data: bytes
    opened: tuple[bytes, RecordPlaces] | None = None

    def records(self) -> tuple[bytes, RecordPlaces]:
        """The records and their places. Raises BatchError."""
        if self.opened is not None:
            return self.opened
        plain = batch_payload(self.header, self.data)
        return plain, record_places(plain, self.header.records_count)


def open_batches(batches: Iterable[tuple[BatchHeader, bytes]]) -> Iterator[BatchToClean]:
    """The same batches in the same order."""
    group: list[BatchToClean] = []
    payloads: list[bytes] = []
    size = 0
    for header, data in batches:
        group.append(BatchToClean(header, data))
        payloads.append(_payload(header, data))
        size += len(payloads[-1])
        if size >= TOGETHER_BYTES:
            yield from _opened(group, payloads)
            group, payloads, size = [], [], 0
    yield from _opened(group, payloads)


def _payload(header: BatchHeader, data: bytes) -> bytes:
    """Empty if it cannot be decompressed."""
    try:
        return batch_payload(header, data) if header.records_count > 0 else b""
    except BatchError:
        return b""


def _opened(group: list[BatchToClean], payloads: list[bytes]) -> Iterator[BatchToClean]:
    counts = [max(one.header.records_count, 0) for one in group]
    try:
        plain, places = places_of_many(payloads, counts)
    except BatchError:
        return iter(group)
    return (one._replace(opened=(plain, each)) for one, each in zip(group, places, strict=True))


# The last offset of every key in the dirty part of a log, in bounded memory.
# Keys are compared whole, or by a 256-bit digest if they are long: no two keys are confused (Kafka keeps
# 128-bit digests, `SkimpyOffsetMap`).

LONG_KEY_BYTES = 64
_DIGEST_BYTES = 32
_ENTRY_BYTES = 176
"""Measured bytes per entry, without its key: the key's object, the offset's, and slots that are two thirds
full."""


class KeyOffsets:
    """Has the records up to `latest`; -1 for none. Uses `max_bytes` of memory, but holds at least one
    batch."""

    def __init__(self, max_bytes: int) -> None:
        self.latest = -1
        self._max_bytes = max_bytes
        self._bytes = 0
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, keys: list[bytes]) -> bool:
        """Whether all of these still fit if they are new. Always true while it is empty."""
        return not self._offsets or self._bytes + _cost(keys) <= self._max_bytes

    def put_all(self, keys: list[bytes], offsets: list[int]) -> None:
        """Adds these records, in the order of the log."""
        before = len(self._offsets)
        self._offsets.update(zip(keys, offsets, strict=True))
        if keys:
            self._bytes += (len(self._offsets) - before) * _cost(keys) // len(keys)

    def is_last(self, keys: list[bytes], offsets: list[int]) -> list[bool]:
        """For each of these, whether no later record of its key is known."""
        found = list(map(self._offsets.get, keys))
        if None in found:
            return [known is None or offset >= known for known, offset in zip(found, offsets, strict=True)]
        return list(map(ge, offsets, cast("list[int]", found)))


def _cost(keys: list[bytes]) -> int:
    return sum(map(len, keys)) + _ENTRY_BYTES * len(keys)


def key_names(payload: bytes, starts: list[int], lengths: list[int]) -> list[bytes]:
    """The bytes that represent the key at each place; a key is never null here."""
    names = [payload[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    if lengths and max(lengths) > LONG_KEY_BYTES:
        # One byte longer than any key that represents itself.
        pad = bytes(LONG_KEY_BYTES + 1 - _DIGEST_BYTES)
        names = [
            name if len(name) <= LONG_KEY_BYTES else blake2b(name, digest_size=_DIGEST_BYTES).digest() + pad
            for name in names
        ]
    return names


# Which batches of transactions a cleaner may drop: those of aborted ones, and markers with no batch left.
# The aborted transactions come from `.txnindex`; those that keep their marker are returned, for the new
# one.


class CleanedTransactions:
    """`retained` are the aborted transactions whose marker was met and stays; `take_retained` returns
    them."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        self._committing: set[int] = set()
        self._retained: list[AbortedTransaction] = []

    def take_retained(self) -> list[AbortedTransaction]:
        """Those since the last call, by the offsets of their markers."""
        taken, self._retained = self._retained, []
        return taken

    def is_dropped(self, header: BatchHeader, data: bytes) -> bool:
        """Whether the batch (`data`: header and records) is no longer needed: a batch of an aborted
        transaction, or a marker with no batch left. Call it once per batch."""
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            one = self._waiting.pop()
            if one.last_offset >= header.base_offset:  # else an earlier pass removed its marker
                self._aborting[one.producer_id] = one
        self._forget_ended(header)
        if header.is_control:
            return self._is_marker_dropped(header, data)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborting:
            self._seen.add(header.producer_id)
            return True
        self._committing.add(header.producer_id)
        return False

    def _forget_ended(self, header: BatchHeader) -> None:
        """What follows an aborted transaction is not part of it, even if its marker is gone."""
        one = self._aborting.get(header.producer_id)
        if one is not None and one.last_offset < header.base_offset:
            del self._aborting[header.producer_id]
            self._seen.discard(header.producer_id)

    def _is_marker_dropped(self, header: BatchHeader, data: bytes) -> bool:
        if not header.records_count:
            return True  # emptied before
        marker = read_marker(header, data)
        if marker is None:
            return False
        producer_id = header.producer_id
        if marker.committed:
            found = producer_id in self._committing
            self._committing.discard(producer_id)
            return not found
        aborted = self._aborting.pop(producer_id, None)
        if aborted is None or producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self._retained.append(aborted)
        return False
