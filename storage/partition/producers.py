"""What a log knows of its producers: the last batches of each, to detect duplicates, and the ongoing and
aborted transactions.

The rules of sequence numbers, epochs and markers (KIP-98, KIP-360) and the content of a producer snapshot.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from metaquorum.storage.batches.batch import EndMarker
from metaquorum.storage.batches.format import BatchHeader

BATCHES_KEPT = 5
"""The batches remembered per producer, as in Kafka: this many requests may be in flight on one connection."""

SEQUENCE_LIMIT = 2**31


class KnownBatch(Struct, frozen=True):
    """A batch that was stored. Sequences wrap at 2**31; offsets are inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class KnownProducer(Struct, frozen=True):
    """`batches` are the last ones of this epoch, oldest first; empty right after the epoch began
    elsewhere. `seen_ms` is the broker's wall clock when the last one was stored (its timestamp if rebuilt
    from a log). `coordinator_epoch` is that of its last marker; -1 if there was none. `open_from` is the
    first offset of its ongoing transaction; -1 if there is none."""

    producer_id: int
    epoch: int
    batches: tuple[KnownBatch, ...]
    seen_ms: int
    coordinator_epoch: int = -1
    open_from: int = -1


class Fresh(Struct, frozen=True):
    """The batch follows what is known and may be stored."""


class Duplicate(Struct, frozen=True):
    """The batch was stored before, from this offset on."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


class OutOfOrder(Struct, frozen=True):
    """Its sequence does not follow; `expected` is the one that would."""

    expected: int


class Fenced(Struct, frozen=True):
    """A newer epoch of the producer is known."""

    epoch: int


class CoordinatorFenced(Struct, frozen=True):
    """A marker of a newer coordinator is known."""

    epoch: int


class OutsideTransaction(Struct, frozen=True):
    """A non-transactional batch of a producer whose transaction has not ended."""


class EndedTransaction(Struct, frozen=True):
    """A transaction that a marker has ended: the offsets of its first batch and of the marker."""

    first_offset: int
    last_offset: int


Verdict = Fresh | Duplicate | OutOfOrder | Fenced | CoordinatorFenced | OutsideTransaction


class ProducerTable:
    """One log's producers. `note` and `expire` change it in place; `copy` it before passing it to a
    thread. `aborted` are the log's aborted transactions."""

    def __init__(
        self,
        producers: dict[int, KnownProducer] | None = None,
        aborted: AbortedTransactions | None = None,
    ) -> None:
        self._producers: dict[int, KnownProducer] = dict(producers or {})
        self.aborted = AbortedTransactions() if aborted is None else aborted
        # First offsets of ongoing transactions by producer, rising.
        under_way = [(one.open_from, one.producer_id) for one in self._producers.values()]
        self.under_way = {each: first for first, each in sorted(under_way) if first >= 0}

    def __len__(self) -> int:
        return len(self._producers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerTable) and self._producers == other._producers

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> ProducerTable:
        return ProducerTable(self._producers, self.aborted.copy())

    def all(self) -> tuple[KnownProducer, ...]:
        """Every producer, by rising id."""
        return tuple(self._producers[producer_id] for producer_id in sorted(self._producers))

    def get(self, producer_id: int) -> KnownProducer | None:
        return self._producers.get(producer_id)

    @property
    def open_from(self) -> int | None:
        """The first offset of the earliest ongoing transaction; None if there is none."""
        return next(iter(self.under_way.values()), None)

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether this producer, in this epoch, has an ongoing transaction here."""
        known = self._producers.get(producer_id)
        return known is not None and known.open_from >= 0 and known.epoch == epoch

    def check_marker(self, header: BatchHeader, marker: EndMarker) -> Verdict:
        """Whether a leader may append this marker now."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            return Fenced(producer.epoch)
        if producer is not None and marker.coordinator_epoch < producer.coordinator_epoch:
            return CoordinatorFenced(producer.coordinator_epoch)
        return Fresh()

    def check(self, header: BatchHeader, *, sequenced: bool = True) -> Verdict:
        """Whether a leader may append this batch now. Batches without a producer id are always fresh; a
        coordinator's batches, which have no sequences, are fresh in any epoch that is not fenced."""
        if header.producer_id < 0:
            return Fresh()
        producer = self._producers.get(header.producer_id)
        if producer is not None and producer.open_from >= 0 and not header.is_transactional:
            return OutsideTransaction() if header.producer_epoch >= producer.epoch else Fenced(producer.epoch)
        if not sequenced and (producer is None or header.producer_epoch >= producer.epoch):
            return Fresh()
        if producer is None or header.producer_epoch > producer.epoch:
            # A producer that is unknown here (it expired, or its batches were removed) may continue at any
            # sequence: KIP-360. A new epoch begins at 0.
            begins = producer is None or header.base_sequence == 0
            return Fresh() if begins else OutOfOrder(0)
        if header.producer_epoch < producer.epoch:
            return Fenced(producer.epoch)
        last_sequence = (header.base_sequence + header.last_offset_delta) % SEQUENCE_LIMIT
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last_sequence):
                return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp_ms)
        expected = (producer.batches[-1].last_sequence + 1) % SEQUENCE_LIMIT if producer.batches else 0
        return Fresh() if header.base_sequence == expected else OutOfOrder(expected)

    def note(
        self, header: BatchHeader, *, seen_ms: int, marker: EndMarker | None = None
    ) -> EndedTransaction | None:
        """Adds a batch that was appended, with its offsets set; a follower's leader has checked it.
        Returns the transaction that it ended, if any."""
        if header.producer_id < 0:
            return None
        producer = self._producers.get(header.producer_id)
        if header.is_control:
            return None if marker is None else self._note_marker(header, marker, producer, seen_ms)
        before = producer.batches if producer is not None and producer.epoch == header.producer_epoch else ()
        if header.base_sequence >= 0:
            batch = KnownBatch(
                first_sequence=header.base_sequence,
                last_sequence=(header.base_sequence + header.last_offset_delta) % SEQUENCE_LIMIT,
                first_offset=header.base_offset,
                last_offset=header.last_offset,
                timestamp_ms=header.max_timestamp_ms,
            )
            before = (*before, batch)[-BATCHES_KEPT:]
        open_from = -1 if producer is None else producer.open_from
        if header.is_transactional and open_from < 0:
            open_from = self.under_way[header.producer_id] = header.base_offset
        self._producers[header.producer_id] = KnownProducer(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            batches=before,
            seen_ms=seen_ms,
            coordinator_epoch=-1 if producer is None else producer.coordinator_epoch,
            open_from=open_from,
        )
        return None

    def _note_marker(
        self, header: BatchHeader, marker: EndMarker, producer: KnownProducer | None, seen_ms: int
    ) -> EndedTransaction | None:
        kept = producer.batches if producer is not None and producer.epoch == header.producer_epoch else ()
        self._producers[header.producer_id] = KnownProducer(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            batches=kept,
            seen_ms=seen_ms,
            coordinator_epoch=marker.coordinator_epoch,
        )
        first = self.under_way.pop(header.producer_id, None)
        if first is None:
            return None
        last = header.last_offset
        if not marker.committed:
            following = self.open_from
            stable = last + 1 if following is None else following
            self.aborted.add(AbortedTransaction(header.producer_id, first, last, stable))
        return EndedTransaction(first, last)

    def expire(self, before_ms: int) -> int:
        """Drops producers last seen before this time that have no ongoing transaction; returns how many."""
        gone = [
            each.producer_id
            for each in self._producers.values()
            if each.seen_ms < before_ms and each.open_from < 0
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)


# The aborted transactions of one log, which let readers of committed records skip them.


class AbortedTransaction(NamedTuple):
    """`first_offset` is that of its first batch, `last_offset` that of the marker that aborted it;
    `stable_offset` is the last stable offset once that marker is committed."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class AbortedTransactions:
    """By rising offset of the marker. Stored in columns: a log may have many."""

    __slots__ = ("_firsts", "_lasts", "_producers", "_stables")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._producers, self._firsts = array("q"), array("q")
        self._lasts, self._stables = array("q"), array("q")
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._lasts)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        columns = zip(self._producers, self._firsts, self._lasts, self._stables, strict=True)
        return (AbortedTransaction(*row) for row in columns)

    def _columns(self) -> tuple[array[int], ...]:
        return self._producers, self._firsts, self._lasts, self._stables

    def copy(self) -> AbortedTransactions:
        made = AbortedTransactions()
        made._producers, made._firsts, made._lasts, made._stables = (one[:] for one in self._columns())
        return made

    def add(self, entry: AbortedTransaction) -> None:
        """Adds the newest one."""
        for column, value in zip(self._columns(), entry, strict=True):
            column.append(value)

    def ending_in(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Transactions whose marker is in [from_offset, to_offset)."""
        begin, end = bisect_left(self._lasts, from_offset), bisect_left(self._lasts, to_offset)
        return [AbortedTransaction(*[column[at] for column in self._columns()]) for at in range(begin, end)]

    def ends_above(self, offset: int) -> bool:
        """Whether a transaction's marker is at or above `offset`: one below has nothing there."""
        return bool(self._lasts) and self._lasts[-1] >= offset

    def overlapping(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Transactions that may have records in [from_offset, to_offset)."""
        aborted = []
        for at in range(bisect_left(self._lasts, from_offset), len(self._lasts)):
            if self._firsts[at] < to_offset:
                aborted.append(AbortedTransaction(*[column[at] for column in self._columns()]))
            if self._stables[at] >= to_offset:
                break  # when this one was aborted, everything below was decided
        return aborted

    def cut(self, end_offset: int) -> None:
        """Drops those whose marker is at or above `end_offset`."""
        keep = bisect_left(self._lasts, end_offset)
        for column in self._columns():
            del column[keep:]

    def trim(self, start_offset: int) -> None:
        """Drops those whose marker is below `start_offset`."""
        gone = bisect_left(self._lasts, start_offset)
        for column in self._columns():
            del column[:gone]
