"""One local replica of a partition, in one good directory: leader, follower, or neither.

After each call the manager takes from `take_changes` what may concern others (parked fetches,
AlterPartition).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.follower import Following
from metaquorum.broker.replica.partition.leader import Leading, Verification
from metaquorum.broker.replica.partition.local_log import LocalLog, Reading
from metaquorum.broker.replica.partition.values import (
    BatchRefusal,
    Brokers,
    Changes,
    DeleteTicket,
    FindPlan,
    FollowerOutcome,
    FollowerStep,
    ProduceTicket,
    Reader,
    ReadPlan,
    ReplicaRole,
    Ticket,
)
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import NO_LEADER, PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import (
    NOT_LED,
    DeletedRecords,
    EpochEnd,
    EpochPartition,
    FetchedPartition,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
    PartitionKey,
    ProducePartition,
    ProduceResult,
    TransactionalPartition,
    VerificationGuard,
)
from metaquorum.metadata.requests.partitions import AlteredPartition, PartitionAlteration
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable

# What others may see of a replica: its log, and figures of its role.
# View.


class ReplicaView:
    """Offsets are exclusive ends except `start_offset`. `end_offset` is what was accepted, perhaps not
    written; the tables are live: read only."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._leading: Leading | None = None
        self._following: Following | None = None

    @property
    def incarnation(self) -> int:
        return self._log.incarnation

    @property
    def start_offset(self) -> int:
        return self._log.start

    @property
    def end_offset(self) -> int:
        return self._log.end

    @property
    def written_end(self) -> int:
        return self._log.written

    @property
    def synced_end(self) -> int:
        return self._log.synced

    @property
    def is_held(self) -> bool:
        """Accepted batches wait: the replica is about to be in another directory."""
        return self._log.is_held

    @property
    def is_cutting(self) -> bool:
        """Its directory is truncating the log; until that is reported, nothing is read from it."""
        return self._log.cutting

    @property
    def given_end(self) -> int:
        """The end of what its directory was given before it was held."""
        return self._log.given

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._log.last_stable_offset

    def aborted_in(self, from_offset: int, records: bytes) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of the aborted transactions that may have records in `records`, which
        were read from `from_offset` on."""
        return tuple(self._log.aborted_in(from_offset, records))

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def epochs(self) -> EpochTable:
        return self._log.epochs

    @property
    def producers(self) -> ProducerTable:
        return self._log.producers

    @property
    def leads(self) -> bool:
        return self._leading is not None

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed ISR while leading, else ()."""
        return () if self._leading is None else self._leading.isr.committed

    @property
    def is_under_replicated(self) -> bool:
        """It leads with fewer replicas in sync than it has; replicas being added do not count."""
        leading = self._leading
        if leading is None:
            return False
        wanted = sum(1 for broker_id in leading.isr.replicas if broker_id not in leading.isr.adding)
        return len(leading.isr.committed) < wanted

    @property
    def is_under_min_isr(self) -> bool:
        """It leads, and acks=all is refused."""
        return self._leading is not None and len(self.isr) < self._leading.min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """It leads, and with one replica fewer in sync acks=all would be refused."""
        return self._leading is not None and len(self.isr) == self._leading.min_isr

    @property
    def lag(self) -> int:
        """The offsets between its end and the high watermark that this replica knows; 0 for a leader."""
        following = self._following
        return 0 if following is None else max(0, following.leader_high_watermark - self.end_offset)


# A replica's answers to queries that change nothing: reads, offsets, verification of transactions.

CLIENT = Reader()


class AnsweringReplica(ReplicaView):
    """`leader`: the leader as far as this replica knows; None if there is none. `_idle`: why none leads
    here."""

    def __init__(self, config: ReplicaConfig, key: PartitionKey, log: LocalLog) -> None:
        super().__init__(log)
        self._verification = Verification(log)
        self._config = config
        self.key = key
        self.role = ReplicaRole.IDLE
        self.leader: int | None = None
        self.leader_epoch = -1
        self._idle = (ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not know its role yet: try again")

    def begin_verification(self, asked: TransactionalPartition) -> VerificationGuard:
        """A guard, if the coordinator must be asked before a batch of a transaction is taken. Without a
        leader here it need not be: the batch will be refused, also if this broker leads by then."""
        if self._leading is None:
            return VerificationGuard(key=asked.key, guard=NOT_LED)
        return self._verification.begin(asked)

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

    def found_offset(self, plan: FindPlan, looked_up: disk_work.OffsetFound) -> ListedOffset:
        """The answer to a look-up by time, from what the log returned; refused if the leader has changed
        since."""
        leading = self._leader_in(plan.leader_epoch)
        if isinstance(leading, BatchRefusal):
            return self._not_listed(leading)
        if looked_up.problem is not None:
            text = f"the requested data is damaged: {looked_up.problem}; elect another leader, then repair it"
            return self._not_listed(BatchRefusal(ErrorCode.KAFKA_STORAGE_ERROR, text))
        return leading.reading(CLIENT).found_offset(
            looked_up.offset, looked_up.timestamp_ms, looked_up.leader_epoch
        )

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


class Partition(AnsweringReplica):
    """`incarnation` grows by one with every CutPartition that the partition requests; reports of other
    incarnations are ignored here too.

    `leader`: the leader as far as this replica knows; None if there is none. `replicas`: of the newest
    metadata.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        *,
        key: PartitionKey,
        topic: str,
        directory_id: bytes,
        incarnation: int,
        log: disk_work.ReplicaLog,
        settings: TopicSettings,
        brokers: Brokers,
        out: Outbox[DataEffect],
    ) -> None:
        super().__init__(
            config,
            key,
            LocalLog(
                key=key,
                topic=topic,
                directory_id=directory_id,
                incarnation=incarnation,
                log=log,
                counts_synced=config.log_flush_before_ack,
                out=out,
            ),
        )
        self._brokers = brokers
        self._out = out
        self.topic = topic
        self.directory_id = directory_id
        self.settings = settings
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self._lead_after_cut: PartitionInfo | None = None

    # ---- what the image says -----------------------------------------------------------------

    def lead(self, info: PartitionInfo, *, now_ms: int) -> None:
        """Becomes or stays leader with the newer `info`. Older partition epochs than known are ignored (the
        answer to an AlterPartition may have arrived before its image). While the log is being cut the role is
        IDLE; it leads once the cut is done."""
        if self._is_old(info):
            return
        if self._log.cutting:
            text = "this broker is about to lead and is still truncating its log: try again"
            self._stand_aside(info, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
            self._lead_after_cut = info
            return
        newest = self._log.epochs.last_epoch
        if newest > info.leader_epoch:
            text = (
                f"this broker's log has records of leader epoch {newest}, but the metadata log is at "
                f"{info.leader_epoch}: the directory belongs to another history; replace it"
            )
            self._stand_aside(info, ErrorCode.KAFKA_STORAGE_ERROR, text)
            self._out.append(Warn(message=f"{self._log}: {text}"))
            return
        if self.role is not ReplicaRole.LEADER or info.leader_epoch != self.leader_epoch:
            self._log.changes |= Changes.ROLE | Changes.POSITION
        self._note(info)
        self.role = ReplicaRole.LEADER
        self._following = None
        if self._leading is None:
            self._verification.lead()
            self._leading = Leading(
                self._config, self._log, self.settings, self._brokers, self._out, self._verification
            )
        self._leading.update(info, now_ms=now_ms)

    def follow(self, info: PartitionInfo, *, now_ms: int) -> None:
        """Follows `info.leader` (NO_LEADER: does not fetch). Waiting requests are answered with
        NOT_LEADER_OR_FOLLOWER."""
        if self._is_old(info):
            return
        same = (self.role, self.leader_epoch, self.leader) == (
            ReplicaRole.FOLLOWER,
            info.leader_epoch,
            _leader_of(info),
        )
        self._note(info)
        if same:
            return
        self.role = ReplicaRole.FOLLOWER
        leader = self.leader
        text = "this broker is not the leader: " + (
            "there is no leader; try again later" if leader is None else f"use broker {leader}"
        )
        self._resign(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        self._idle = (ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        self._following = None
        if leader is not None and leader != self._config.broker_id:
            self._following = Following(self._config, self._log, leader=leader, epoch=info.leader_epoch)
        self._log.changes |= Changes.ROLE | Changes.POSITION

    def idle(self, error: ErrorCode, message: str) -> None:
        """No longer leads or follows: waiting requests are answered with `error`, and so are later
        ones until it leads again."""
        self._lead_after_cut = None
        self.role = ReplicaRole.IDLE
        self._following = None
        self._resign(error, message)
        self._idle = (error, message)
        self._log.changes |= Changes.ROLE | Changes.POSITION

    def change_settings(self, settings: TopicSettings, *, now_ms: int) -> None:
        """Takes up a topic's new settings; sends ChangeLogSettings if those of the log differ."""
        before, self.settings = self.settings, settings
        if settings.log != before.log:
            self._change_log_settings()
        if self._leading is not None:
            self._leading.settings = settings
            self._leading.advance(now_ms=now_ms)

    def was_found(self) -> None:
        """Its log was opened with Kafka's defaults before the image was known; now it gets its settings."""
        if self.settings.log != disk_work.LogSettings():
            self._change_log_settings()

    def _change_log_settings(self) -> None:
        self._out.append(
            disk_work.ChangeLogSettings(
                directory_id=self.directory_id,
                key=self.key,
                incarnation=self.incarnation,
                settings=self.settings.log,
            )
        )

    def _is_old(self, info: PartitionInfo) -> bool:
        return (info.leader_epoch, info.partition_epoch) < (self.leader_epoch, self.partition_epoch)

    def _note(self, info: PartitionInfo) -> None:
        self.leader = _leader_of(info)
        self.leader_epoch = info.leader_epoch
        self.partition_epoch = info.partition_epoch
        self.replicas = info.replicas

    def _stand_aside(self, info: PartitionInfo, error: ErrorCode, message: str) -> None:
        self.idle(error, message)
        self._note(info)

    def _resign(self, error: ErrorCode, message: str) -> None:
        leading, self._leading = self._leading, None
        if leading is not None:
            other = None if self.leader == self._config.broker_id else self.leader
            leading.resign(error, message, other)

    # ---- clients and followers ---------------------------------------------------------------

    def produce(
        self,
        ticket: ProduceTicket,
        part: ProducePartition,
        acks: int,
        *,
        by_coordinator: bool = False,
        wall_ms: int,
    ) -> ProduceResult | None:
        """Appends one batch. A result: it is refused (nothing stored), or done (acks=0, or a duplicate that
        is already held). None: it waits, and `ticket.complete` is called later, exactly once: acks=1 when it
        is written here, acks=all when it is below the high watermark, or REQUEST_TIMED_OUT by `tick`."""
        if self._leading is None:
            error, message = self._idle
            return ProduceResult(
                key=self.key,
                error=error,
                message=f"{self._log}: {message}",
                leader=self._other_leader(),
                leader_epoch=self.leader_epoch,
            )
        return self._leading.produce(ticket, part, acks, by_coordinator=by_coordinator, wall_ms=wall_ms)

    def take_appended(self) -> Batches | None:
        """What `produce` has appended, as it is stored; the call clears it."""
        if self._leading is None:
            return None
        appended, self._leading.appended = self._leading.appended, None
        return appended

    def cancel(self, ticket: Ticket[Any]) -> None:
        """The caller is gone: `complete` is no longer called."""
        if self._leading is not None:
            self._leading.cancel(ticket)

    def delete_records(self, ticket: DeleteTicket, offset: int) -> DeletedRecords | None:
        """Deletes what is below `offset`. A result: refused, or done. None: it waits, and `ticket.complete`
        is called when every replica in sync has done so, or with REQUEST_TIMED_OUT by `tick`."""
        if self._leading is None:
            error, message = self._idle
            return DeletedRecords(key=self.key, error=error, message=f"{self._log}: {message}")
        return self._leading.deleting.delete(ticket, offset, deletes=self.settings.log.deletes)

    def fetch(self, request: FetchPartition, reader: Reader, *, now_ms: int) -> FetchedPartition | ReadPlan:
        """A fetch that has just arrived, of a client or of a follower, whose offset counts as acknowledged:
        the high watermark may move and waiting produces complete. FetchedPartition: answer at once (refused,
        or diverging). ReadPlan: read, or wait if it is empty. A partition of a session that is not named and
        has no news need not be passed (`was_caught_up`)."""
        plan = self.plan_read(request, reader)
        if not reader.is_follower or self._leading is None or not isinstance(plan, ReadPlan):
            return plan
        self._leading.note_fetch(request, reader.replica_id, reader.replica_epoch, now_ms=now_ms)
        if plan.high_watermark == self.high_watermark:
            return plan
        # This very fetch has moved it.
        stable = self._log.last_stable_offset
        return replace(plan, high_watermark=self.high_watermark, last_stable_offset=stable)

    def was_caught_up(self, replica_id: int, at_ms: int) -> None:
        """A follower whose session had no news of this partition fetched at `at_ms`, when it held everything
        there was. Reported when that ends, instead of at every fetch."""
        if self._leading is not None:
            progress = self._leading.isr.followers.get(replica_id)
            if progress is not None:
                progress.held_all(at_ms)

    # ---- move to another directory of this broker --------------------------------------------

    def copied(self, request: FetchPartition) -> FetchedPartition | ReadPlan:
        """What another log of this broker may copy from this one, or where it must be cut. In any role."""
        reader = Reader(replica_id=self._config.broker_id)
        epoch = max(self.leader_epoch, self._log.epochs.last_epoch)
        reading = Reading(
            log=self._log, leader=self._config.broker_id, epoch=epoch, epoch_start=None, reader=reader
        )
        return reading.fetch(request)

    def hold(self) -> None:
        """As in its log: accepted batches wait for `move` or `release`."""
        self._log.hold()

    def release(self) -> None:
        self._log.release()

    def move(self, directory_id: bytes, incarnation: int, *, now_ms: int) -> None:
        """Everything that its directory was given is in another one now, where the log continues."""
        self.directory_id = directory_id
        self._log.move(directory_id, incarnation)
        self._change_log_settings()
        self._advance(now_ms)

    # ---- the ISR -----------------------------------------------------------------------------

    def isr_change(self, *, now_ms: int) -> PartitionAlteration | None:
        """The proposal to send to the controller now; None if there is none, or one is in flight. Once
        returned it is in flight until `isr_answered` or newer metadata. Call it when `Changes.ISR` is set,
        for every leader each `replica_lag_time_max_ms / 2` (followers that stopped), and again after an
        answer that failed (after a back-off: an unanswered proposal is then repeated unchanged)."""
        return None if self._leading is None else self._leading.isr_change(now_ms=now_ms)

    def isr_answered(
        self, sent: PartitionAlteration, result: AlteredPartition | ApiError, *, now_ms: int
    ) -> None:
        """The answer to `sent`, which counts only while that is the proposal in flight; an ApiError means
        that its outcome is unknown."""
        leading = self._leading
        if leading is None:
            return
        leading.isr_answered(sent, result, now_ms=now_ms)
        self.partition_epoch = max(self.partition_epoch, leading.isr.partition_epoch)

    # ---- following ---------------------------------------------------------------------------

    @property
    def can_fetch(self) -> bool:
        """Whether there is a `fetch_position`."""
        return self._following is not None and self._following.is_ready

    def fetch_position(self) -> FetchPartition | None:
        """The next fetch to send to the leader; None while it does not follow, or an append or cut is
        unfinished."""
        return None if self._following is None else self._following.position()

    def fetched(
        self, part: FetchedPartition, *, asked: FetchPartition, now_ms: int, wall_ms: int
    ) -> FollowerOutcome:
        """The leader's answer to `asked`, which is compared with the current position: answers to older
        requests change nothing."""
        if self._following is None:
            return FollowerOutcome(step=FollowerStep.STALE)
        return self._following.take(part, asked, wall_ms=wall_ms)

    # ---- what the disk did, and time ---------------------------------------------------------

    def appended(self, event: disk_work.LogAppended, *, now_ms: int) -> None:
        self._log.appended(event)
        self._advance(now_ms)

    def synced(self, incarnation: int, end_offset: int, size_bytes: int, *, now_ms: int) -> None:
        self._log.synced_to(incarnation, end_offset, size_bytes)
        self._advance(now_ms)

    def cut(self, event: disk_work.LogCut, *, now_ms: int) -> None:
        """The log is in the state of `event`, whose tables are this partition's from here on."""
        if not self._log.was_cut(event):
            return
        info, self._lead_after_cut = self._lead_after_cut, None
        if info is not None:
            self.lead(info, now_ms=now_ms)

    def trimmed(self, event: disk_work.ReplicaLogTrimmed, *, now_ms: int) -> None:
        self._log.trimmed(event)
        if self._leading is not None:
            self._leading.deleting.moved()

    def _advance(self, now_ms: int) -> None:
        if self._leading is not None:
            self._leading.advance(now_ms=now_ms)

    def tick(self, *, now_ms: int) -> None:
        """Answers waiting requests whose time is up."""
        if self._leading is not None:
            self._leading.tick(now_ms=now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None if never. A cheap check: it may be early."""
        return None if self._leading is None else self._leading.next_deadline_ms()

    def expire_producers(self, wall_ms: int) -> None:
        """Forgets producers not seen for `producer_id_expiration_ms`; call it now and then."""
        self._log.producers.expire(wall_ms - self._config.producer_id_expiration_ms)

    def take_changes(self) -> int:
        """What moved since the last call; the call clears it."""
        changes, self._log.changes = self._log.changes, Changes.NONE
        return changes


def _leader_of(info: PartitionInfo) -> int | None:
    return None if info.leader == NO_LEADER else info.leader
