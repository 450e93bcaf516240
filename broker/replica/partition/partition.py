"""One local replica of a partition, in one good directory: leader, follower, or neither.

Owns its role and its answers while it has none; leaves everything else to the role (`leader`, `follower`) and
to its log (`local_log`). Pure: disk work and answers go to the outbox; the disk's reports come back through
`appended`, `synced`, `cut` and `trimmed`. Knows no image, session or token, and no other partition.

After each call the manager takes from `take_changes` what may concern others (parked fetches,
AlterPartition).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    ChangeLogSettings,
    LogAppended,
    LogCut,
    LogSettings,
    ReplicaLog,
    ReplicaLogTrimmed,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.answers import AnsweringReplica
from metaquorum.broker.replica.partition.follower import Following
from metaquorum.broker.replica.partition.leader import Leading
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.reading import Reading
from metaquorum.broker.replica.partition.values import (
    Brokers,
    Changes,
    DeleteTicket,
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
from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.metadata.requests.data import (
    FetchedPartition,
    FetchPartition,
    PartitionKey,
    ProducePartition,
    ProduceResult,
)
from metaquorum.metadata.requests.log_ends import DeletedRecords
from metaquorum.metadata.requests.partitions import AlteredPartition, PartitionAlteration
from metaquorum.raft.effects import Warn
from metaquorum.raft.outbox import Outbox
from metaquorum.storage.batches.parsed import Batches


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
        log: ReplicaLog,
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
            self._leading = Leading(self._config, self._log, self.settings, self._brokers, self._out)
        self._leading.update(info, now_ms=now_ms)

    def follow(self, info: PartitionInfo, *, now_ms: int) -> None:
        """Follows `info.leader` (NO_LEADER: does not fetch). Waiting requests are answered with
        NOT_LEADER_OR_FOLLOWER."""
        if self._is_old(info):
            return
        self._lead_after_cut = None
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
        if self.settings.log != LogSettings():
            self._change_log_settings()

    def _change_log_settings(self) -> None:
        self._out.append(
            ChangeLogSettings(
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
            log=self._log, leader=self._config.broker_id, epoch=epoch, epoch_start=0, reader=reader
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

    def appended(self, event: LogAppended, *, now_ms: int) -> None:
        self._log.appended(event)
        self._advance(now_ms)

    def synced(self, incarnation: int, end_offset: int, size_bytes: int, *, now_ms: int) -> None:
        self._log.synced_to(incarnation, end_offset, size_bytes)
        self._advance(now_ms)

    def cut(self, event: LogCut, *, now_ms: int) -> None:
        """The log is in the state of `event`, whose tables are this partition's from here on."""
        if not self._log.was_cut(event):
            return
        info, self._lead_after_cut = self._lead_after_cut, None
        if info is not None:
            self.lead(info, now_ms=now_ms)

    def trimmed(self, event: ReplicaLogTrimmed, *, now_ms: int) -> None:
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
