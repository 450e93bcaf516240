"""Transactional ids at their coordinator: the state of each and its record, and all of one partition.

The states (KIP-98) and the two ways in which an epoch is raised (KIP-360).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from metaquorum.broker.coordinator.state import NOTHING, Ask, BatchOrigin, Decision, Now, Reply
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import TransactionConfig
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


# The transactional ids of one partition of __transaction_state (KIP-98, KIP-360, KIP-890 part 1).
#
# A decision to commit or abort is stored before any marker is written: `SendTxnMarkers` leaves when the
# record is committed, and after a change of coordinators or a doubtful append the record is stored once more
# before markers are sent again. A producer that begins its next transaction meanwhile waits here for a while:
# its partitions are stored with the completion of the last one, in one batch.

AT_ONCE_MAX = 500
"""How many transactions one batch aborts, removes or decides again."""
RESEND_MS = 500
"""How long markers wait that could not be sent because the log refused appends."""
COMPLETION_WAIT_MS = 500
"""How long a producer that adds partitions waits for the markers of its last transaction. Clients that are
refused with CONCURRENT_TRANSACTIONS wait 20 to 100 ms, many times what the markers take."""

_READS = (DescribeTransaction, ListTransactions)


class TransactionState:
    """See the module. `partition`: of __transaction_state."""

    def __init__(self, partition: int, config: TransactionConfig) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._partition = partition
        self._config = config
        # Decisions that are about to be replayed, in order.
        self._proposed: dict[str, list[Transaction]] = {}
        # Additions of partitions that wait for the completion of a transaction, with their rising deadlines.
        self._adding: dict[str, tuple[int, list[Ask]]] = {}
        # Prepared transactions whose markers must be sent, or sent again.
        self._unsent: dict[str, None] = {}
        self._unsent_due_ms: int | None = None
        self._abort_due_ms: int | None = None
        self._removal_due_ms: int | None = None

    # ---- the log ---------------------------------------------------------------------------------

    def replay(self, record: StoredRecord, origin: BatchOrigin) -> None:
        """The newest record of a transactional id counts."""
        transactional_id = record.key.transactional_id
        proposed = self._proposed.pop(transactional_id, [])
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            return
        known = [one for one in proposed if one.record() == record]
        self.transactions[transactional_id] = known[0] if known else of_record(record)
        if known and known[0] is not proposed[-1]:
            self._proposed[transactional_id] = proposed[proposed.index(known[0]) + 1 :]

    def replay_marker(self, origin: BatchOrigin, *, committed: bool) -> None:
        """Unused: there are no transactions in this topic."""

    def loaded(self, image: MetadataImage, now: Now) -> Decision:
        """Completes what was decided and not completed: the previous coordinator may not have sent every
        marker."""
        self._abort_due_ms = now.ms + self._config.abort_interval_ms
        self._removal_due_ms = now.ms + self._config.removal_interval_ms
        prepared = [one.transactional_id for one in self.transactions.values() if one.status in PREPARED]
        self._resend(prepared, now.ms)
        return NOTHING

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> Decision:
        return NOTHING

    # ---- requests --------------------------------------------------------------------------------

    def only_reads(self, body: Any) -> bool:
        return isinstance(body, _READS) or (isinstance(body, AddPartitions) and body.verify_only)

    def decide(self, asked: Ask, now: Now) -> Decision:
        match asked.body:
            case InitProducer() as body:
                return self._init(asked, body, now)
            case AddPartitions(verify_only=True) as body:
                return _said(asked, self._verified(body))
            case AddPartitions() as body:
                return self._add(asked, body, now)
            case EndTransaction() as body:
                return self._end(asked, body, now)
            case MarkersWritten() as body:
                return self._complete(asked, body, now)
            case DescribeTransaction(transactional_id):
                return _said(asked, self._described(transactional_id))
            case ListTransactions() as body:
                return _said(asked, self._listed(body, now))
            case body:
                raise TypeError(f"a transaction coordinator has no answer to {type(body).__name__}")

    def _init(self, asked: Ask, body: InitProducer, now: Now) -> Decision:
        if not 0 < body.timeout_ms <= self._config.max_timeout_ms:
            return _said(asked, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        expected = body.producer_epoch if body.producer_id >= 0 else None
        current = self.transactions.get(body.transactional_id)
        if current is None:
            if body.fresh_id is None:
                return _said(asked, NeedsProducerId())
            current = Transaction(transactional_id=body.transactional_id, producer_id=body.fresh_id)
        elif expected is not None and not _may_begin(current, body):
            return _said(asked, ErrorCode.PRODUCER_FENCED)
        if current.status in PREPARED:
            return _said(asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.status is TransactionStatus.ONGOING:
            # Its epoch is never given to a client: the next request raises it again.
            fenced = current.ended(committed=False, fence=True, now_ms=now.wall_ms)
            return self._decided([fenced], (Reply(asked.key, ErrorCode.CONCURRENT_TRANSACTIONS),), now)
        if current.is_exhausted and expected in (None, current.epoch):
            if body.fresh_id is None:
                return _said(asked, NeedsProducerId())
            keep = expected is not None
            begun: Transaction | None = current.rotated(
                body.fresh_id, body.timeout_ms, keep_last=keep, now_ms=now.wall_ms
            )
        else:
            begun = current.begun(body.timeout_ms, expected, now.wall_ms)
        if begun is None:
            return _said(asked, ErrorCode.PRODUCER_FENCED)
        return self._stored(asked, begun, InitializedProducer(begun.producer_id, begun.epoch))

    def _add(self, asked: Ask, body: AddPartitions, now: Now) -> Decision:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return _said(asked, current)
        if current.status in PREPARED:
            due_ms = now.ms + COMPLETION_WAIT_MS
            self._adding.setdefault(body.transactional_id, (due_ms, []))[1].append(asked)
            return NOTHING
        extended = current.extended(body.partitions, now.wall_ms)
        if extended is current:
            return _said(asked, ErrorCode.NONE)
        return self._stored(asked, extended, ErrorCode.NONE)

    def _verified(self, body: AddPartitions) -> tuple[ErrorCode, ...]:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return (current,) * len(body.partitions)
        if current.status in PREPARED:
            return (ErrorCode.CONCURRENT_TRANSACTIONS,) * len(body.partitions)
        held = current.partitions if current.status is TransactionStatus.ONGOING else frozenset()
        return tuple(
            [ErrorCode.NONE if each in held else ErrorCode.INVALID_TXN_STATE for each in body.partitions]
        )

    def _end(self, asked: Ask, body: EndTransaction, now: Now) -> Decision:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return _said(asked, current)
        status = TransactionStatus
        if current.status is status.ONGOING:
            ended = current.ended(committed=body.committed, now_ms=now.wall_ms)
            return self._decided([ended], (Reply(asked.key, ErrorCode.NONE),), now)
        if current.status is (status.COMPLETE_COMMIT if body.committed else status.COMPLETE_ABORT):
            return _said(asked, ErrorCode.NONE)  # a repeated request
        if current.status is (status.PREPARE_COMMIT if body.committed else status.PREPARE_ABORT):
            return _said(asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        return _said(asked, ErrorCode.INVALID_TXN_STATE)

    def _complete(self, asked: Ask, body: MarkersWritten, now: Now) -> Decision:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return _said(asked, current)
        if current.status not in PREPARED:
            return _said(asked, ErrorCode.NONE)
        completed = current.completed(now.wall_ms)
        decision = self._stored(asked, completed, ErrorCode.NONE)
        _, adding = self._adding.pop(body.transactional_id, (0, []))
        if not adding:
            return decision
        begun = completed.extended([place for each in adding for place in each.body.partitions], now.wall_ms)
        self._proposed[begun.transactional_id].append(begun)
        return replace(
            decision,
            records=(*decision.records, begun.record()),
            replies=(*decision.replies, *[Reply(each.key, ErrorCode.NONE) for each in adding]),
        )

    def _known(self, body: AddPartitions | EndTransaction | MarkersWritten) -> Transaction | ErrorCode:
        current = self.transactions.get(body.transactional_id)
        if current is None or current.producer_id != body.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if current.epoch != body.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return current

    def _described(self, transactional_id: str) -> TransactionDescription:
        current = self.transactions.get(transactional_id)
        if current is None:
            return TransactionDescription(
                error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
            )
        return _description(current)

    def _listed(self, body: ListTransactions, now: Now) -> tuple[TransactionDescription, ...]:
        return tuple(
            [
                _description(txn)
                for txn in self.transactions.values()
                if (not body.states or txn.status.shown in body.states)
                and (not body.producer_ids or txn.producer_id in body.producer_ids)
                and (body.min_duration_ms < 0 or 0 <= txn.start_ms <= now.wall_ms - body.min_duration_ms)
            ]
        )

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, now: Now) -> Decision:
        if _is_due(self._adding_due_ms, now.ms):
            return self._give_up_adding()
        if _is_due(self._unsent_due_ms, now.ms):
            return self._decide_again(now)
        if _is_due(self._abort_due_ms, now.ms):
            late = self._some(lambda one: _is_late(one, now.wall_ms))
            self._abort_due_ms = now.ms + (0 if len(late) == AT_ONCE_MAX else self._config.abort_interval_ms)
            fenced = [one.ended(committed=False, fence=True, now_ms=now.wall_ms) for one in late]
            return self._decided(fenced, (), now) if fenced else NOTHING
        if _is_due(self._removal_due_ms, now.ms):
            before_ms = now.wall_ms - self._config.id_expiration_ms
            gone = self._some(lambda one: one.status in IDLE and one.updated_ms <= before_ms)
            wait_ms = 0 if len(gone) == AT_ONCE_MAX else self._config.removal_interval_ms
            self._removal_due_ms = now.ms + wait_ms
            return Decision(records=tuple([one.tombstone() for one in gone]))
        return NOTHING

    def next_deadline_ms(self) -> int | None:
        waits = (self._adding_due_ms, self._unsent_due_ms, self._abort_due_ms, self._removal_due_ms)
        return min((due_ms for due_ms in waits if due_ms is not None), default=None)

    @property
    def _adding_due_ms(self) -> int | None:
        return next((due_ms for due_ms, _ in self._adding.values()), None)

    def _give_up_adding(self) -> Decision:
        """The markers take long: producers that wait for them are refused."""
        _, asked = self._adding.pop(next(iter(self._adding)))
        code = ErrorCode.CONCURRENT_TRANSACTIONS
        return Decision(replies=tuple([Reply(each.key, code) for each in asked]), at_once=True)

    def _decide_again(self, now: Now) -> Decision:
        names, self._unsent_due_ms = list(self._unsent)[:AT_ONCE_MAX], None
        for name in names:
            del self._unsent[name]
        self._resend((), now.ms)
        found = [self.transactions.get(name) for name in names]
        prepared = [one for one in found if one is not None and one.status in PREPARED]
        return self._decided(prepared, (), now) if prepared else NOTHING

    def _some(self, chosen: Callable[[Transaction], bool]) -> list[Transaction]:
        found = (one for one in self.transactions.values() if chosen(one))
        return [one for one, _ in zip(found, range(AT_ONCE_MAX), strict=False)]

    # ---- decisions -------------------------------------------------------------------------------

    def _stored(self, asked: Ask, changed: Transaction, reply: Any) -> Decision:
        self._proposed[changed.transactional_id] = [changed]
        return Decision(records=(changed.record(),), replies=(Reply(asked.key, reply),))

    def _decided(self, prepared: list[Transaction], replies: tuple[Reply, ...], now: Now) -> Decision:
        """To commit or to abort: markers follow the records."""
        for decided in prepared:
            self._proposed[decided.transactional_id] = [decided]
        names = [one.transactional_id for one in prepared]

        def again() -> None:
            self._resend(names, now.ms + RESEND_MS)

        def refused(error: ErrorCode) -> Decision:
            again()
            return NOTHING

        return Decision(
            records=tuple([one.record() for one in prepared]),
            replies=replies,
            effects=tuple([self._markers(one) for one in prepared]),
            if_refused=None if replies else refused,
            if_unsettled=again,
        )

    def _markers(self, txn: Transaction) -> SendTxnMarkers:
        return SendTxnMarkers(
            partition=self._partition,
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            producer_epoch=txn.epoch,
            committed=txn.status is TransactionStatus.PREPARE_COMMIT,
            partitions=tuple(sorted(txn.partitions)),
        )

    def _resend(self, names: Iterable[str], due_ms: int) -> None:
        self._unsent.update(dict.fromkeys(names))
        if self._unsent:
            self._unsent_due_ms = due_ms


def _may_begin(current: Transaction, body: InitProducer) -> bool:
    """Whether the producer in the request may be the known one (KIP-360)."""
    return (
        current.epoch < 0
        or body.producer_id == current.producer_id
        or (body.producer_id == current.last_id and body.producer_epoch == current.last_epoch)
    )


def _said(asked: Ask, reply: Any) -> Decision:
    return Decision(replies=(Reply(asked.key, reply),))


def _is_due(due_ms: int | None, now_ms: int) -> bool:
    return due_ms is not None and due_ms <= now_ms


def _is_late(txn: Transaction, wall_ms: int) -> bool:
    return txn.status is TransactionStatus.ONGOING and txn.start_ms + txn.timeout_ms < wall_ms


def _description(txn: Transaction) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=txn.transactional_id,
        state=txn.status.shown,
        timeout_ms=txn.timeout_ms,
        start_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        partitions=tuple(sorted(txn.partitions)),
    )
