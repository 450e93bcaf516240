"""Which producers' transactions may begin in a partition (KIP-890, part 1).

The first batch of a transaction is taken only after its coordinator has confirmed that the partition is in
the transaction. Owns the guards that span that query: a marker in between voids the guard, so a late batch
cannot begin a transaction that would never end. The broker's shell sends the query.
"""

from __future__ import annotations

from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import TransactionalPartition, VerificationGuard
from metaquorum.storage.batches.format import BatchHeader

GUARDS_MAX = 10_000
"""The number of producers whose first batch may be on its way to one partition; the oldest is dropped
first."""


class Verification:
    """The verification guards of one leader, in all its epochs."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._guards: dict[int, int] = {}
        self._next = 1

    def begin(self, asked: TransactionalPartition) -> VerificationGuard:
        """A guard, which holds for all batches that are sent before the first one is taken. None where the
        log itself says enough: the transaction is open, or the epoch is older than the one that has it."""
        known = self._log.producers.get(asked.producer_id)
        if known is not None and known.open_from >= 0 and asked.producer_epoch <= known.epoch:
            return VerificationGuard(key=asked.key)
        guard = self._guards.get(asked.producer_id)
        if guard is None:
            guard = self._guards[asked.producer_id] = self._next
            self._next += 1
            if len(self._guards) > GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
        return VerificationGuard(key=asked.key, guard=guard)

    def refusal(self, header: BatchHeader, guard: int | None) -> BatchRefusal | None:
        """Why a batch of a transaction is refused; None if it may be taken."""
        if self._log.producers.has_open(header.producer_id, header.producer_epoch):
            return None
        if guard is not None and self._guards.get(header.producer_id) == guard:
            return None
        return BatchRefusal(
            ErrorCode.INVALID_TXN_STATE,
            f"this partition is not in a transaction of producer {header.producer_id}: add the partition to "
            "the transaction before producing to it",
        )

    def forget(self, producer_id: int) -> None:
        """A batch or a marker of the producer is being appended."""
        self._guards.pop(producer_id, None)
