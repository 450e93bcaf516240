"""A replica's answers to queries that change nothing: reads, offsets, verification of transactions.

Owns which role answers a query about a leader epoch. Does not know what may be read: `reading` does.
"""

from __future__ import annotations

from metaquorum.broker.replica.disk_work import OffsetFound
from metaquorum.broker.replica.partition.leader import Leading
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.reading import Reading
from metaquorum.broker.replica.partition.values import BatchRefusal, FindPlan, Reader, ReadPlan, ReplicaRole
from metaquorum.broker.replica.partition.view import ReplicaView
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.metadata.requests.data import (
    FetchedPartition,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
    PartitionKey,
    TransactionalPartition,
    VerificationGuard,
)
from metaquorum.metadata.requests.log_ends import EpochEnd, EpochPartition

CLIENT = Reader()


class AnsweringReplica(ReplicaView):
    """`leader`: the leader as far as this replica knows; None if there is none. `_idle`: why none leads
    here."""

    def __init__(self, config: ReplicaConfig, key: PartitionKey, log: LocalLog) -> None:
        super().__init__(log)
        self._config = config
        self.key = key
        self.role = ReplicaRole.IDLE
        self.leader: int | None = None
        self.leader_epoch = -1
        self._idle = (ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not know its role yet: try again")

    def begin_verification(self, asked: TransactionalPartition) -> VerificationGuard:
        """A guard, if the coordinator must be asked before a batch of a transaction is taken. Without a
        leader here it need not be: the batch will be refused."""
        if self._leading is None:
            return VerificationGuard(key=asked.key)
        return self._leading.verification.begin(asked)

    def plan_read(self, request: FetchPartition, reader: Reader) -> FetchedPartition | ReadPlan:
        """What a fetch may have now; changes nothing."""
        leading = self._leader_in(request.current_leader_epoch)
        if isinstance(leading, BatchRefusal):
            followed = self._followed(request.current_leader_epoch, reader)
            return self._not_fetched(leading) if followed is None else followed.fetch(request)
        reading = leading.reading(reader)
        if reader.is_follower:
            refusal = leading.sender_refusal(reader.replica_id, reader.replica_epoch)
            if refusal is not None:
                return self._not_fetched(refusal)
        elif reader.rack:
            starts = leading.deleting.start_of
            preferred = leading.isr.preferred_replica(request.fetch_offset, reader.rack, starts)
            if preferred is not None:
                return reading.elsewhere(preferred)
        return reading.fetch(request)

    def about_bytes(self, plan: ReadPlan) -> int:
        """An estimate of the bytes to read, by the log's average: `min_bytes` of a fetch is not strict."""
        log = self._log
        mean = max(1, log.size_bytes // max(1, log.end - log.start))
        return min(plan.max_bytes, mean * (plan.to_offset - plan.from_offset))

    def _followed(self, asked_epoch: int, reader: Reader) -> Reading | None:
        """The log of a follower: clients may read what it knows to be committed (KIP-392); None if not
        now."""
        log, leader = self._log, self.leader
        if reader.rack is None or reader.is_follower or self.role is not ReplicaRole.FOLLOWER:
            return None
        if leader is None or log.cutting or asked_epoch not in {-1, self.leader_epoch}:
            return None
        return Reading(log=log, leader=leader, epoch=self.leader_epoch, epoch_start=log.end, reader=reader)

    def _not_fetched(self, refusal: BatchRefusal) -> FetchedPartition:
        return FetchedPartition(
            key=self.key,
            error=refusal.error,
            message=f"{self._log}: {refusal.message}",
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )

    def list_offset(self, request: ListOffsetsPartition, reader: Reader = CLIENT) -> ListedOffset | FindPlan:
        """Start and high watermark at once; a FindPlan needs the log (`found_offset` then makes the
        answer)."""
        leading = self._leader_in(request.current_leader_epoch)
        if isinstance(leading, BatchRefusal):
            return self._not_listed(leading)
        return leading.reading(reader).list_offset(request)

    def found_offset(self, plan: FindPlan, found: OffsetFound) -> ListedOffset:
        """The answer to a look-up by time, from what the log returned; refused if the leader has changed
        since."""
        leading = self._leader_in(plan.leader_epoch)
        if isinstance(leading, BatchRefusal):
            return self._not_listed(leading)
        if found.problem is not None:
            text = f"the requested data is damaged: {found.problem}; elect another leader, then repair it"
            return self._not_listed(BatchRefusal(ErrorCode.KAFKA_STORAGE_ERROR, text))
        return leading.reading(CLIENT).found_offset(found.offset, found.timestamp_ms, found.leader_epoch)

    def end_of_epoch(self, asked: EpochPartition) -> EpochEnd:
        """Where a leader epoch ends (KIP-320)."""
        leading = self._leader_in(asked.current_leader_epoch)
        if isinstance(leading, BatchRefusal):
            text = f"{self._log}: {leading.message}"
            return EpochEnd(key=self.key, error=leading.error, message=text)
        return leading.reading(CLIENT).end_of_epoch(asked.leader_epoch)

    def _not_listed(self, refusal: BatchRefusal) -> ListedOffset:
        return ListedOffset(
            key=self.key,
            error=refusal.error,
            message=f"{self._log}: {refusal.message}",
            leader=self._other_leader(),
        )

    def _leader_in(self, asked_epoch: int) -> Leading | BatchRefusal:
        """The leader that answers a query about a leader epoch (-1: it names none), or why none here does."""
        if self.role is ReplicaRole.IDLE or asked_epoch in {-1, self.leader_epoch}:
            return BatchRefusal(*self._idle) if self._leading is None else self._leading
        if asked_epoch < self.leader_epoch:
            text = f"leader epoch {asked_epoch} has ended, {self.leader_epoch} is current: refresh metadata"
            return BatchRefusal(ErrorCode.FENCED_LEADER_EPOCH, text)
        text = f"leader epoch {asked_epoch} is newer than {self.leader_epoch}, the last one known: try again"
        return BatchRefusal(ErrorCode.UNKNOWN_LEADER_EPOCH, text)

    def _other_leader(self) -> int | None:
        return None if self.leader == self._config.broker_id else self.leader
