"""The transactional ids of one partition of __transaction_state (KIP-98, KIP-360, KIP-890 part 1).

A decision to commit or abort is stored before any marker is written: `SendTxnMarkers` leaves when the record
is committed, and after a change of coordinators or a doubtful append the record is stored once more before
markers are sent again. A producer that begins its next transaction meanwhile waits here for a while: its
partitions are stored with the completion of the last one, in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from metaquorum.broker.coordinator import transaction
from metaquorum.broker.coordinator.state import NOTHING, Ask, BatchOrigin, Decision, Now, Reply
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.coordinators import TransactionConfig
from metaquorum.wire.stored import StoredRecord

AT_ONCE_MAX = 500
"""How many transactions one batch aborts, removes or decides again."""
RESEND_MS = 500
"""How long markers wait that could not be sent because the log refused appends."""
COMPLETION_WAIT_MS = 500
"""How long a producer that adds partitions waits for the markers of its last transaction. Clients that are
refused with CONCURRENT_TRANSACTIONS wait 20 to 100 ms, many times what the markers take."""

_READS = (transaction.DescribeTransaction, transaction.ListTransactions)


class TransactionState:
    """See the module. `partition`: of __transaction_state."""

    def __init__(self, partition: int, config: TransactionConfig) -> None:
        self.transactions: dict[str, transaction.Transaction] = {}
        self._partition = partition
        self._config = config
        # Decisions that are about to be replayed, in order.
        self._proposed: dict[str, list[transaction.Transaction]] = {}
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
        self.transactions[transactional_id] = known[0] if known else transaction.of_record(record)
        if known and known[0] is not proposed[-1]:
            self._proposed[transactional_id] = proposed[proposed.index(known[0]) + 1 :]

    def replay_marker(self, origin: BatchOrigin, *, committed: bool) -> None:
        """Unused: there are no transactions in this topic."""

    def loaded(self, image: MetadataImage, now: Now) -> Decision:
        """Completes what was decided and not completed: the previous coordinator may not have sent every
        marker."""
        self._abort_due_ms = now.ms + self._config.abort_interval_ms
        self._removal_due_ms = now.ms + self._config.removal_interval_ms
        prepared = [
            one.transactional_id for one in self.transactions.values() if one.status in transaction.PREPARED
        ]
        self._resend(prepared, now.ms)
        return NOTHING

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> Decision:
        return NOTHING

    # ---- requests --------------------------------------------------------------------------------

    def only_reads(self, body: Any) -> bool:
        return isinstance(body, _READS) or (isinstance(body, transaction.AddPartitions) and body.verify_only)

    def decide(self, asked: Ask, now: Now) -> Decision:
        match asked.body:
            case transaction.InitProducer() as body:
                return self._init(asked, body, now)
            case transaction.AddPartitions(verify_only=True) as body:
                return _said(asked, self._verified(body))
            case transaction.AddPartitions() as body:
                return self._add(asked, body, now)
            case transaction.EndTransaction() as body:
                return self._end(asked, body, now)
            case transaction.MarkersWritten() as body:
                return self._complete(asked, body, now)
            case transaction.DescribeTransaction(transactional_id):
                return _said(asked, self._described(transactional_id))
            case transaction.ListTransactions() as body:
                return _said(asked, self._listed(body, now))
            case body:
                raise TypeError(f"a transaction coordinator has no answer to {type(body).__name__}")

    def _init(self, asked: Ask, body: transaction.InitProducer, now: Now) -> Decision:
        if not 0 < body.timeout_ms <= self._config.max_timeout_ms:
            return _said(asked, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        expected = body.producer_epoch if body.producer_id >= 0 else None
        current = self.transactions.get(body.transactional_id)
        if current is None:
            if body.fresh_id is None:
                return _said(asked, transaction.NeedsProducerId())
            current = transaction.Transaction(
                transactional_id=body.transactional_id, producer_id=body.fresh_id
            )
        elif expected is not None and not _may_begin(current, body):
            return _said(asked, ErrorCode.PRODUCER_FENCED)
        if current.status in transaction.PREPARED:
            return _said(asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.status is transaction.TransactionStatus.ONGOING:
            # Its epoch is never given to a client: the next request raises it again.
            fenced = current.ended(committed=False, fence=True, now_ms=now.wall_ms)
            return self._decided([fenced], (Reply(asked.key, ErrorCode.CONCURRENT_TRANSACTIONS),), now)
        if current.is_exhausted and expected in (None, current.epoch):
            if body.fresh_id is None:
                return _said(asked, transaction.NeedsProducerId())
            keep = expected is not None
            begun: transaction.Transaction | None = current.rotated(
                body.fresh_id, body.timeout_ms, keep_last=keep, now_ms=now.wall_ms
            )
        elif current.is_exhausted and expected != current.last_epoch:
            begun = None
        else:
            begun = current.begun(body.timeout_ms, expected, now.wall_ms)
        if begun is None:
            return _said(asked, ErrorCode.PRODUCER_FENCED)
        return self._stored(asked, begun, transaction.InitializedProducer(begun.producer_id, begun.epoch))

    def _add(self, asked: Ask, body: transaction.AddPartitions, now: Now) -> Decision:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return _said(asked, current)
        if current.status in transaction.PREPARED:
            due_ms = now.ms + COMPLETION_WAIT_MS
            self._adding.setdefault(body.transactional_id, (due_ms, []))[1].append(asked)
            return NOTHING
        extended = current.extended(body.partitions, now.wall_ms)
        if extended is current:
            return _said(asked, ErrorCode.NONE)
        return self._stored(asked, extended, ErrorCode.NONE)

    def _verified(self, body: transaction.AddPartitions) -> tuple[ErrorCode, ...]:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return (current,) * len(body.partitions)
        if current.status in transaction.PREPARED:
            return (ErrorCode.CONCURRENT_TRANSACTIONS,) * len(body.partitions)
        held = current.partitions if current.status is transaction.TransactionStatus.ONGOING else frozenset()
        return tuple(
            [ErrorCode.NONE if each in held else ErrorCode.INVALID_TXN_STATE for each in body.partitions]
        )

    def _end(self, asked: Ask, body: transaction.EndTransaction, now: Now) -> Decision:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return _said(asked, current)
        status = transaction.TransactionStatus
        if current.status is status.ONGOING:
            ended = current.ended(committed=body.committed, now_ms=now.wall_ms)
            return self._decided([ended], (Reply(asked.key, ErrorCode.NONE),), now)
        if current.status is (status.COMPLETE_COMMIT if body.committed else status.COMPLETE_ABORT):
            return _said(asked, ErrorCode.NONE)  # a repeated request
        if current.status is (status.PREPARE_COMMIT if body.committed else status.PREPARE_ABORT):
            return _said(asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        return _said(asked, ErrorCode.INVALID_TXN_STATE)

    def _complete(self, asked: Ask, body: transaction.MarkersWritten, now: Now) -> Decision:
        current = self._known(body)
        if isinstance(current, ErrorCode):
            return _said(asked, current)
        if current.status not in transaction.PREPARED:
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

    def _known(
        self, body: transaction.AddPartitions | transaction.EndTransaction | transaction.MarkersWritten
    ) -> transaction.Transaction | ErrorCode:
        current = self.transactions.get(body.transactional_id)
        if current is None or current.producer_id != body.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if current.epoch != body.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return current

    def _described(self, transactional_id: str) -> transaction.TransactionDescription:
        current = self.transactions.get(transactional_id)
        if current is None:
            return transaction.TransactionDescription(
                error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
            )
        return _description(current)

    def _listed(
        self, body: transaction.ListTransactions, now: Now
    ) -> tuple[transaction.TransactionDescription, ...]:
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
            gone = self._some(lambda one: one.status in transaction.IDLE and one.updated_ms <= before_ms)
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
        prepared = [one for one in found if one is not None and one.status in transaction.PREPARED]
        return self._decided(prepared, (), now) if prepared else NOTHING

    def _some(self, chosen: Callable[[transaction.Transaction], bool]) -> list[transaction.Transaction]:
        found = (one for one in self.transactions.values() if chosen(one))
        return [one for one, _ in zip(found, range(AT_ONCE_MAX), strict=False)]

    # ---- decisions -------------------------------------------------------------------------------

    def _stored(self, asked: Ask, changed: transaction.Transaction, reply: Any) -> Decision:
        self._proposed[changed.transactional_id] = [changed]
        return Decision(records=(changed.record(),), replies=(Reply(asked.key, reply),))

    def _decided(
        self, prepared: list[transaction.Transaction], replies: tuple[Reply, ...], now: Now
    ) -> Decision:
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

    def _markers(self, txn: transaction.Transaction) -> SendTxnMarkers:
        return SendTxnMarkers(
            partition=self._partition,
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            producer_epoch=txn.epoch,
            committed=txn.status is transaction.TransactionStatus.PREPARE_COMMIT,
            partitions=tuple(sorted(txn.partitions)),
        )

    def _resend(self, names: Iterable[str], due_ms: int) -> None:
        self._unsent.update(dict.fromkeys(names))
        if self._unsent:
            self._unsent_due_ms = due_ms


def _may_begin(current: transaction.Transaction, body: transaction.InitProducer) -> bool:
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


def _is_late(txn: transaction.Transaction, wall_ms: int) -> bool:
    return txn.status is transaction.TransactionStatus.ONGOING and txn.start_ms + txn.timeout_ms < wall_ms


def _description(txn: transaction.Transaction) -> transaction.TransactionDescription:
    return transaction.TransactionDescription(
        transactional_id=txn.transactional_id,
        state=txn.status.shown,
        timeout_ms=txn.timeout_ms,
        start_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        partitions=tuple(sorted(txn.partitions)),
    )
