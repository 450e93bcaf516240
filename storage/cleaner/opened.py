"""The records of many small batches, found together, because a single batch is too small for numpy's calls.

Owns how many batches are taken at once. Refuses nothing: a batch that cannot be opened raises when its
records are read. Does not decide which records stay: `retained` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from metaquorum.storage.batches.batch import BatchHeader, batch_payload
from metaquorum.storage.batches.places import RecordPlaces, places_of_many, record_places
from metaquorum.storage.errors import BatchError

TOGETHER_BYTES = 1024 * 1024
"""Bytes of records opened at once, or a single batch."""


class BatchToClean(NamedTuple):
    """`data` is header and records. `found` are the records and their places; None if not found yet."""

    header: BatchHeader
    data: bytes
    found: tuple[bytes, RecordPlaces] | None = None

    def records(self) -> tuple[bytes, RecordPlaces]:
        """The records and their places. Raises BatchError."""
        if self.found is not None:
            return self.found
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
    return (one._replace(found=(plain, each)) for one, each in zip(group, places, strict=True))
