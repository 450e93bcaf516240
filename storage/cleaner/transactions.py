"""Which batches of transactions a cleaner may drop: those of aborted ones, and markers with no batch left.

Owns the state of one walk over a log in offset order (Kafka's `CleanedTransactionMetadata`). The aborted
transactions come from `.txnindex`; those that keep their marker are returned, for the new one. Knows headers
and markers, and does not look at keys: `retained` does.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.storage.batches.format import BatchHeader
from metaquorum.storage.batches.markers import read_marker
from metaquorum.storage.partition.aborted import AbortedTransaction


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
