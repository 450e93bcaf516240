"""One transactional id: the coordinator's state of it, and its record.

The states (KIP-98) and the two ways in which an epoch is raised (KIP-360).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import TransactionLogKey, TransactionLogValue
from metaquorum.wire.stored import StoredRecord

EPOCH_MAX = 32_766
"""The last epoch that a producer gets; the one above is left for the marker that fences it."""
NONE = -1
_KEY_VERSION = _VALUE_VERSION = 0


class TransactionStatus(IntEnum):
    """As stored; clients see Kafka's names, without underscores."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """The name that DescribeTransactions returns."""
        return self.name.title().replace("_", "")


PREPARED = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
IDLE = frozenset(
    {TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
)


class Transaction(Struct, frozen=True, kw_only=True):
    """`epoch` -1: the id is new. `last_id` and `last_epoch` are what the producer had before its epoch was
    raised; they identify a repeated request, and no record has them. Times are wall clock."""

    transactional_id: str
    producer_id: int
    epoch: int = NONE
    last_id: int = NONE
    last_epoch: int = NONE
    timeout_ms: int = 0
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NONE
    updated_ms: int = NONE

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= EPOCH_MAX

    def begun(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Transaction | None:
        """For a producer that begins, in the next epoch; None if the one it names was fenced."""
        epoch, last = self.epoch + 1, NONE
        if expected_epoch is not None:
            if self.epoch in (NONE, expected_epoch):
                last = self.epoch
            elif expected_epoch == self.last_epoch:
                epoch, last = self.epoch, self.last_epoch
            else:
                return None
        return replace(
            self,
            epoch=epoch,
            last_epoch=last,
            timeout_ms=timeout_ms,
            status=TransactionStatus.EMPTY,
            partitions=frozenset(),
            start_ms=NONE,
            updated_ms=now_ms,
        )

    def rotated(self, fresh_id: int, timeout_ms: int, *, keep_last: bool, now_ms: int) -> Transaction:
        """For a producer whose epochs are used up: a new id."""
        return Transaction(
            transactional_id=self.transactional_id,
            producer_id=fresh_id,
            epoch=0,
            last_id=self.producer_id,
            last_epoch=self.epoch if keep_last else NONE,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )

    def extended(self, partitions: Iterable[TopicPartition], now_ms: int) -> Transaction:
        """With these partitions, begun if none was open; itself if they are already in it."""
        ongoing = self.status is TransactionStatus.ONGOING
        if ongoing and self.partitions.issuperset(partitions):
            return self
        return replace(
            self,
            status=TransactionStatus.ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=self.start_ms if ongoing else now_ms,
            updated_ms=now_ms,
        )

    def ended(self, *, committed: bool, fence: bool = False, now_ms: int) -> Transaction:
        """Decided. With `fence` the producer's epoch also ends: its late batches are refused."""
        status = TransactionStatus.PREPARE_COMMIT if committed else TransactionStatus.PREPARE_ABORT
        return replace(self, status=status, epoch=self.epoch + fence, updated_ms=now_ms)

    def completed(self, now_ms: int) -> Transaction:
        """Every partition has its marker."""
        committed = self.status is TransactionStatus.PREPARE_COMMIT
        status = TransactionStatus.COMPLETE_COMMIT if committed else TransactionStatus.COMPLETE_ABORT
        return replace(self, status=status, partitions=frozenset(), updated_ms=now_ms)

    def record(self) -> StoredRecord:
        """Its record, as Kafka 3.7 writes it."""
        partitions = None
        if self.status is not TransactionStatus.EMPTY:
            by_topic: dict[str, list[int]] = {}
            for topic, index in sorted(self.partitions):
                by_topic.setdefault(topic, []).append(index)
            partitions = tuple(
                TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=tuple(indexes))
                for topic, indexes in by_topic.items()
            )
        value = TransactionLogValue(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.status,
            transaction_partitions=partitions,
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.start_ms,
        )
        return StoredRecord(self._key(), value, _KEY_VERSION, _VALUE_VERSION)

    def tombstone(self) -> StoredRecord:
        """The record that removes it."""
        return StoredRecord(self._key(), None, _KEY_VERSION)

    def _key(self) -> TransactionLogKey:
        return TransactionLogKey(transactional_id=self.transactional_id)


def of_record(record: StoredRecord) -> Transaction:
    """The state in a record. Raises DecodeError for an unknown status."""
    value = record.value
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise DecodeError(f"{value.transaction_status} is not the status of a transaction") from None
    return Transaction(
        transactional_id=record.key.transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            (each.topic, index) for each in value.transaction_partitions or () for index in each.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
    )


# Requests to a transaction coordinator and its replies, as values.

TopicPartition = tuple[str, int]


class InitProducer(Struct, frozen=True, kw_only=True):
    """InitProducerId with a transactional id. `producer_id` -1: the client has none yet. `fresh_id`: an
    unused id, in case one is needed; None: none was taken yet."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    fresh_id: int | None = None


class InitializedProducer(Struct, frozen=True):
    producer_id: int
    producer_epoch: int


class NeedsProducerId(Struct, frozen=True):
    """Send the request again, with a fresh id. Nothing has changed."""


class AddPartitions(Struct, frozen=True, kw_only=True):
    """AddPartitionsToTxn of one transactional id, and AddOffsetsToTxn; the reply is an ErrorCode.
    `verify_only`: whether the partitions are in the transaction (KIP-890); the reply is one code per
    partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False


class EndTransaction(Struct, frozen=True, kw_only=True):
    """EndTxn; the reply is an ErrorCode."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class MarkersWritten(Struct, frozen=True, kw_only=True):
    """Every partition of the transaction has its marker. The reply is an ErrorCode."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class DescribeTransaction(Struct, frozen=True):
    transactional_id: str


class TransactionDescription(Struct, frozen=True, kw_only=True):
    """`start_ms` is that of the open or last transaction; -1 if there was none. `state` is Kafka's name."""

    error: ErrorCode = ErrorCode.NONE
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: tuple[TopicPartition, ...] = ()


class ListTransactions(Struct, frozen=True, kw_only=True):
    """An empty filter matches everything. `min_duration_ms` -1: however long a transaction has been open. The
    reply is a tuple of descriptions."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    min_duration_ms: int = -1
