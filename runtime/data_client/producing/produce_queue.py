"""The batches of one partition on their way out: order, sequences, retries, and what an answer means.

Pure: time comes as `now_ms`. Owns the rules that keep a partition's batches in order and stored once
(KIP-98, KIP-360): sequences are given when a batch is first sent and kept by every retry; after a failure
nothing is sent until everything under way is answered, then all is sent again from the oldest on; the newest
batch is less than `window` batches ahead of the oldest unsettled one, because a leader remembers so many. A
leader that knows nothing of a producer takes any sequence, so that the first batch of an epoch, and the first
after a long silence, go alone: what is sent behind a refused one would be stored before it. A
batch that a leader refuses as out of order though nothing before it is unsettled will never fit: the
producer needs a new epoch, and the partition's unsettled batches, none of which is stored, begin again at 0.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.data_client.producing.batches import Payload
from metaquorum.storage.partition.producers import BATCHES_KEPT, SEQUENCE_LIMIT

RETRY = BackoffPolicy(initial_ms=20, max_ms=500)
PROVEN_MS = 60_000
"""How long after an acknowledgement the leader is taken to know the producer (it forgets after a day)."""

_NEVER_FITS = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
_STORED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """An idempotent producer's id and epoch."""

    producer_id: int
    epoch: int


_NOT_STORED = _NEVER_FITS | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
"""With these a leader refuses a batch before it appends it; others may come after that."""


class BatchOutcome(Enum):
    """What becomes of a batch after an answer."""

    DONE = auto()
    RETRY = auto()
    NEW_EPOCH = auto()
    """As RETRY, but not before the producer has a new epoch."""
    FAILED = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class OutBatch:
    """A sealed batch. `handle` is its owner's; `attempts`: how often it was sent.
    `maybe_stored`: at least one of those may have been carried out."""

    payload: Payload
    deadline_ms: int
    handle: Any = None
    identity: ProducerIdentity | None = None
    sequence: int = -1
    ordinal: int = 0
    in_flight: bool = False
    sent_as_oldest: bool = False
    attempts: int = 0
    problem: str = ""
    maybe_stored: bool = False

    def sealed(self) -> bytes:
        if self.identity is None:
            return self.payload.sealed()
        return self.payload.sealed(self.identity.producer_id, self.identity.epoch, self.sequence)


@dataclass(slots=True)
class _Numbers:
    """Of the partition's current epoch."""

    identity: ProducerIdentity | None = None
    next_sequence: int = 0
    next_ordinal: int = 0


@dataclass(slots=True)
class PartitionQueue:
    """`idempotent` False: no sequences; `window` must be 1 then to keep the order through retries."""

    idempotent: bool
    rng: random.Random
    window: int = BATCHES_KEPT
    waiting: deque[OutBatch] = field(default_factory=deque)
    unsettled: list[OutBatch] = field(default_factory=list)
    hold_until_ms: int = 0
    _numbers: _Numbers = field(default_factory=_Numbers)
    _proven_ms: int | None = None
    _recovering: bool = False
    _needs_epoch: bool = False
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(RETRY, self.rng)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.unsettled)

    @property
    def identity(self) -> ProducerIdentity | None:
        """Under which the unsettled batches were sent."""
        return self._numbers.identity

    @property
    def needs_epoch_after(self) -> ProducerIdentity | None:
        """The identity that must be followed by a new epoch before anything is sent; None: it is good."""
        return self._numbers.identity if self._needs_epoch else None

    def add(self, batch: OutBatch) -> None:
        self.waiting.append(batch)

    def next(self, identity: ProducerIdentity | None, now_ms: int) -> OutBatch | None:
        """The batch to send now, marked as under way; None: there is none that may be sent."""
        if now_ms < self.hold_until_ms:
            return None
        if self._recovering or self._needs_epoch:
            if any(batch.in_flight for batch in self.unsettled):
                return None
            if self._needs_epoch and (identity is None or identity == self.identity):
                return None
            if self._needs_epoch and identity is not None:
                self._begin_epoch(identity)
            self._recovering = self._needs_epoch = False
        if self.idempotent and not self._proven(now_ms) and any(each.in_flight for each in self.unsettled):
            return None
        batch = next((each for each in self.unsettled if not each.in_flight), None)
        if batch is None:
            batch = self._take_new(identity)
            if batch is None:
                return None
        batch.in_flight = True
        batch.attempts += 1
        batch.sent_as_oldest = batch is self.unsettled[0]
        return batch

    def _proven(self, now_ms: int) -> bool:
        return self._proven_ms is not None and now_ms - self._proven_ms <= PROVEN_MS

    def _take_new(self, identity: ProducerIdentity | None) -> OutBatch | None:
        numbers = self._numbers
        if not self.waiting:
            return None
        if self.unsettled and numbers.next_ordinal - self.unsettled[0].ordinal >= self.window:
            return None
        if self.idempotent:
            if identity is None or (self.unsettled and identity != numbers.identity):
                return None
            if identity != numbers.identity:
                self._begin_epoch(identity)
        batch = self.waiting.popleft()
        self.unsettled.append(batch)
        self._number(batch)
        return batch

    def _begin_epoch(self, identity: ProducerIdentity) -> None:
        self._numbers.identity = identity
        self._numbers.next_sequence = 0
        self._proven_ms = None
        for batch in self.unsettled:
            self._number(batch)

    def _number(self, batch: OutBatch) -> None:
        numbers = self._numbers
        batch.ordinal = numbers.next_ordinal
        numbers.next_ordinal += 1
        if self.idempotent:
            batch.identity = numbers.identity
            batch.sequence = numbers.next_sequence
            numbers.next_sequence = (numbers.next_sequence + batch.payload.count) % SEQUENCE_LIMIT

    def answered(self, batch: OutBatch, code: ErrorCode, now_ms: int) -> BatchOutcome:
        """A leader's answer. RETRY and NEW_EPOCH keep the batch; the others give it back."""
        batch.in_flight = False
        if code in _STORED:
            self._backoff.succeeded()
            self._proven_ms = now_ms
            self.unsettled.remove(batch)
            return BatchOutcome.DONE
        batch.maybe_stored = batch.maybe_stored or code not in _NOT_STORED
        if code in _NEVER_FITS:
            return self._does_not_fit(batch, now_ms)
        if code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE:
            self._retry(now_ms)
            return BatchOutcome.RETRY
        self.unsettled.remove(batch)
        # What was sent behind it is refused as out of order now; the epoch is changed when that is sure.
        self._recovering = bool(self.unsettled)
        return BatchOutcome.FAILED

    def _does_not_fit(self, batch: OutBatch, now_ms: int) -> BatchOutcome:
        if not batch.sent_as_oldest:
            # Something before it failed. It is sent again behind that.
            self._recovering = True
            return BatchOutcome.RETRY
        self._needs_epoch = True
        return BatchOutcome.NEW_EPOCH

    def lost(self, batch: OutBatch, now_ms: int) -> None:
        """There was no answer: the batch may be stored or not. It is sent again with the same sequence."""
        batch.in_flight = False
        batch.maybe_stored = True
        self._retry(now_ms)

    def _retry(self, now_ms: int) -> None:
        if not self._recovering:
            self.hold_until_ms = now_ms + self._backoff.failed(now_ms)
        self._recovering = True

    def hurry(self) -> None:
        """Someone else leads: waiting helps nothing."""
        self.hold_until_ms = 0

    def expire(self, now_ms: int | None) -> Iterator[OutBatch]:
        """Gives back the batches whose time is up (None: all) and that are not under way. One that was sent
        before may be stored; its sequence stays used."""
        for batch in [each for each in self.unsettled if not each.in_flight and _is_over(each, now_ms)]:
            self.unsettled.remove(batch)
            yield batch
        while self.waiting and _is_over(self.waiting[0], now_ms):
            yield self.waiting.popleft()

    def clear(self) -> list[OutBatch]:
        """Gives everything back."""
        gone = [*self.unsettled, *self.waiting]
        self.unsettled.clear()
        self.waiting.clear()
        return gone


def _is_over(batch: OutBatch, now_ms: int | None) -> bool:
    return now_ms is None or batch.deadline_ms <= now_ms
