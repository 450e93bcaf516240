"""What a log knows of its idempotent producers: the last batches of each, so that a repeated one is told.

Owns the rules of sequence numbers and epochs (KIP-98, KIP-360) and the content of a producer snapshot. Knows
batches by their headers, no file and no clock: the newest timestamps come from the batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.storage.batches.format import BatchHeader

BATCHES_KEPT = 5
"""The batches remembered of each producer, as in Kafka: this many requests may be in flight on one
connection."""

SEQUENCE_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """A batch that was stored. Sequences wrap at 2**31; offsets are inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class KnownProducer:
    """`batches`: the last ones of this epoch, oldest first; none right after the epoch began elsewhere.
    `seen_ms`: wall clock of the broker when the last one was stored (rebuilt from a log: its timestamp)."""

    producer_id: int
    epoch: int
    batches: tuple[KnownBatch, ...]
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """The batch follows what is known: store it."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Stored before, from this offset on."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Its sequence does not follow; `expected` is the one that would."""

    expected: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer epoch of the producer is known."""

    epoch: int


Verdict = Fresh | Duplicate | OutOfOrder | Fenced


class ProducerTable:
    """One log's producers. Changed in place by `note` and `expire`; `copy` before handing it to a thread."""

    def __init__(self, producers: dict[int, KnownProducer] | None = None) -> None:
        self._producers: dict[int, KnownProducer] = dict(producers or {})

    def __len__(self) -> int:
        return len(self._producers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerTable) and self._producers == other._producers

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> ProducerTable:
        return ProducerTable(self._producers)

    def all(self) -> tuple[KnownProducer, ...]:
        """Every producer, by rising id."""
        return tuple(self._producers[producer_id] for producer_id in sorted(self._producers))

    def get(self, producer_id: int) -> KnownProducer | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader) -> Verdict:
        """Whether a leader may append this batch now. Batches without a producer id are always fresh."""
        if header.producer_id < 0:
            return Fresh()
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch > known.epoch:
            # A producer that no one here knows (it expired, or its batches were removed) may go on anywhere:
            # KIP-360. A new epoch begins at 0.
            begins = known is None or header.base_sequence == 0
            return Fresh() if begins else OutOfOrder(0)
        if header.producer_epoch < known.epoch:
            return Fenced(known.epoch)
        last_sequence = (header.base_sequence + header.last_offset_delta) % SEQUENCE_LIMIT
        for batch in known.batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last_sequence):
                return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp_ms)
        if not known.batches:
            return Fresh()
        expected = (known.batches[-1].last_sequence + 1) % SEQUENCE_LIMIT
        return Fresh() if header.base_sequence == expected else OutOfOrder(expected)

    def note(self, header: BatchHeader, *, seen_ms: int) -> None:
        """Takes up a batch that was appended, with its offsets set; a follower's leader has checked it."""
        if header.producer_id < 0:
            return
        batch = KnownBatch(
            first_sequence=header.base_sequence,
            last_sequence=(header.base_sequence + header.last_offset_delta) % SEQUENCE_LIMIT,
            first_offset=header.base_offset,
            last_offset=header.last_offset,
            timestamp_ms=header.max_timestamp_ms,
        )
        known = self._producers.get(header.producer_id)
        before = known.batches if known is not None and known.epoch == header.producer_epoch else ()
        self._producers[header.producer_id] = KnownProducer(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            batches=(*before, batch)[-BATCHES_KEPT:],
            seen_ms=seen_ms,
        )

    def expire(self, before_ms: int) -> int:
        """Forgets who was last seen before; how many."""
        gone = [each.producer_id for each in self._producers.values() if each.seen_ms < before_ms]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)
