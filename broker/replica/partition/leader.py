"""What a broker does for a partition that it leads: appends, serves fetches, and moves the high watermark.

Which replicas are in sync is `isr`'s, the rules of a batch are `validation`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from metaquorum.broker.replica.deadlines import earliest
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.isr import IsrState
from metaquorum.broker.replica.partition.local_log import LocalLog, Reading, visible_end
from metaquorum.broker.replica.partition.validation import (
    OpenedBatch,
    check_batch,
    coordinator_fenced,
    fenced,
    is_about_the_log,
    out_of_order,
    outside,
    stored_batch,
)
from metaquorum.broker.replica.partition.values import (
    NEVER_MS,
    BatchRefusal,
    Brokers,
    Changes,
    DeleteTicket,
    ProduceTicket,
    Reader,
    Ticket,
)
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    NOT_LED,
    TO_HIGH_WATERMARK,
    DeletedRecords,
    FetchPartition,
    ProducePartition,
    ProduceResult,
    TransactionalPartition,
    VerificationGuard,
)
from metaquorum.metadata.requests.partitions import AlteredPartition, PartitionAlteration
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.storage.batches.batch import Batches, read_marker
from metaquorum.storage.batches.format import BatchHeader
from metaquorum.storage.partition.producers import (
    CoordinatorFenced,
    Duplicate,
    Fenced,
    Fresh,
    OutOfOrder,
    OutsideTransaction,
    Verdict,
)

UNWRITTEN_LIMIT_BYTES = 64 * 1024 * 1024
"""The most that may wait for a partition's directory; more is refused until the disk has caught up."""

_ACKS = (ACKS_NONE, ACKS_LEADER, ACKS_ALL)


class Leading:
    """Leads from the first `update` on, for one leader epoch after another."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LocalLog,
        settings: TopicSettings,
        brokers: Brokers,
        out: Outbox[DataEffect],
        verification: Verification,
    ) -> None:
        self._out = out
        self._log = log
        self._brokers = brokers
        self._verification = verification
        self._self = config.broker_id
        self.settings = settings
        self.isr = IsrState(config, brokers)
        self.epoch = -1
        self.epoch_start = log.end
        self._until_written: WaitingTickets[ProduceResult] = WaitingTickets()
        self._until_held: WaitingTickets[ProduceResult] = WaitingTickets()
        self.appended: Batches | None = None
        self.deleting = Deleting(log, self.isr)

    # ---- metadata ----------------------------------------------------------------------------

    def update(self, info: PartitionInfo, *, now_ms: int) -> None:
        log = self._log
        if info.leader_epoch != self.epoch:
            self.epoch = info.leader_epoch
            self.epoch_start = log.end
        self.isr.update(info, now_ms=now_ms)
        log.changes |= Changes.ISR
        self.advance(now_ms=now_ms)

    def resign(self, error: ErrorCode, message: str, leader: int | None) -> None:
        """Waiting requests get an error: the outcome of their appends is unknown here."""
        for waiting in (*self._until_written.all(), *self._until_held.all()):
            self._fail(waiting, error, message, leader=leader)
        self.deleting.resign(error, message)

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas`, at most the number of replicas."""
        return max(1, min(self.settings.min_insync_replicas, len(self.isr.replicas)))

    # ---- produce -----------------------------------------------------------------------------

    def produce(
        self,
        ticket: ProduceTicket,
        part: ProducePartition,
        acks: int,
        *,
        by_coordinator: bool,
        wall_ms: int,
    ) -> ProduceResult | None:
        refusal = self._produce_refusal(len(part.batch.data), acks)
        if refusal is not None:
            return self._refused(refusal)
        batch = check_batch(
            part.batch, self.settings, opened=part.opened, by_coordinator=by_coordinator, wall_ms=wall_ms
        )
        if isinstance(batch, BatchRefusal):
            return self._refused(batch)
        header = batch.header
        match self._verdict(header, part, by_coordinator):
            case BatchRefusal() as refused:
                return self._refused(refused)
            case Fresh():
                placed = self._append(batch, wall_ms)
                result, end = self._success(placed.base_offset, placed.max_timestamp_ms), placed.next_offset
            case Duplicate(first_offset, last_offset, timestamp_ms):
                result, end = self._success(first_offset, timestamp_ms, was_stored=True), last_offset + 1
            case OutOfOrder(expected):
                return self._refused(out_of_order(header, expected))
            case Fenced(epoch):
                return self._refused(fenced(header, epoch))
            case CoordinatorFenced(epoch):
                return self._refused(coordinator_fenced(header, epoch))
            case OutsideTransaction():
                return self._refused(outside(header))
        return self._wait(Waiting(ticket, end, result, acks == ACKS_ALL), acks)

    def _verdict(
        self, header: BatchHeader, part: ProducePartition, by_coordinator: bool
    ) -> Verdict | BatchRefusal:
        producers = self._log.producers
        marker = read_marker(header, part.batch.data) if by_coordinator else None
        if marker is not None:
            verdict = producers.check_marker(header, marker)
        else:
            verdict = producers.check(header, sequenced=not by_coordinator)
        if not isinstance(verdict, Fresh) or header.producer_id < 0:
            return verdict
        if marker is None and header.is_transactional and not by_coordinator:
            refusal = self._verification.refusal(header, part.guard)
            if refusal is not None:
                return refusal
        self._verification.forget(header.producer_id)
        return verdict

    def _produce_refusal(self, size: int, acks: int) -> BatchRefusal | None:
        if acks not in _ACKS:
            return BatchRefusal(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is not valid: send 0, 1 or -1 (all)"
            )
        if acks == ACKS_ALL and len(self.isr.committed) < self.min_isr:
            return BatchRefusal(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr.committed)} replicas are in sync, but min.insync.replicas is "
                f"{self.min_isr}: nothing was stored; try again when more brokers are up",
            )
        if self._log.unwritten_bytes + size > UNWRITTEN_LIMIT_BYTES:
            return BatchRefusal(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._log.unwritten_bytes} bytes are waiting for the slow log directory: nothing was "
                "stored; send the batch again later",
            )
        return None

    def _append(self, batch: OpenedBatch, wall_ms: int) -> BatchHeader:
        log = self._log
        placed = stored_batch(
            batch,
            base_offset=log.end,
            leader_epoch=self.epoch,
            append_time_ms=wall_ms if self.settings.log_append_time else None,
        )
        log.append(placed, wall_ms)
        log.changes |= Changes.END
        self.appended = placed
        return placed.headers[0]

    def _wait(self, waiting: Waiting[ProduceResult], acks: int) -> ProduceResult | None:
        """acks=1 waits until the records are written here; a duplicate may already be further. A sole replica
        answers when readers see them, which for Kafka is the same moment: a client that then lists offsets
        finds them. So too with acks=0, where the answer only lets the connection's next request begin."""
        if acks != ACKS_ALL and self.isr.replicas != (self._self,):
            if acks == ACKS_NONE or waiting.offset <= self._log.written:
                return waiting.result
            self._until_written.add(waiting)
        else:
            if waiting.offset <= visible_end(self._log):
                return waiting.result
            self._until_held.add(waiting)
        self._log.changes |= Changes.DEADLINE
        return None

    def _success(self, base_offset: int, timestamp_ms: int, *, was_stored: bool = False) -> ProduceResult:
        """`was_stored`: a duplicate, for which Kafka returns the batch's time whatever the topic's timestamp
        type."""
        log = self._log
        return ProduceResult(
            key=log.key,
            base_offset=base_offset,
            log_append_time_ms=timestamp_ms if was_stored or self.settings.log_append_time else -1,
            log_start_offset=log.start,
        )

    def _refused(self, refusal: BatchRefusal) -> ProduceResult:
        return ProduceResult(
            key=self._log.key,
            error=refusal.error,
            message=f"{self._log}: {refusal.message}",
            log_start_offset=self._log.start if is_about_the_log(refusal) else -1,
            leader=self._self,
            leader_epoch=self.epoch,
            refused_records=refusal.records,
        )

    def _fail(
        self,
        waiting: Waiting[ProduceResult],
        error: ErrorCode,
        message: str,
        *,
        leader: int | None = None,
    ) -> None:
        result = ProduceResult(
            key=self._log.key,
            error=error,
            message=f"{self._log}: {message}",
            leader=leader,
            leader_epoch=self.epoch,
        )
        waiting.ticket.complete(result)

    # ---- the high watermark ------------------------------------------------------------------

    def advance(self, *, now_ms: int) -> None:
        """Checks how far every replica in sync holds the log, and answers requests that waited for that."""
        log, isr = self._log, self.isr
        if not self.settings.holds_back_high_watermark or len(isr.committed) >= self.min_isr:
            reached = log.acknowledged
            for broker_id, follower in isr.followers.items():
                if follower.acknowledged < reached and isr.awaited(broker_id, follower, now_ms=now_ms):
                    reached = follower.acknowledged
            log.raise_high_watermark(reached)
        if self._until_held.heap or self._until_written.heap or self.deleting.is_awaited:
            self._complete()

    def _complete(self) -> None:
        self.deleting.moved()
        for waiting in self._until_written.reached(self._log.written):
            waiting.ticket.complete(waiting.result)
        held = self._until_held.reached(visible_end(self._log))
        if not held:
            return
        enough = len(self.isr.maximal) >= self.min_isr
        for waiting in held:
            if enough or not waiting.needs_isr:
                waiting.ticket.complete(waiting.result)
            else:
                text = (
                    f"the records are stored from offset {waiting.result.base_offset} on, but only "
                    f"{len(self.isr.maximal)} replicas are in sync, fewer than min.insync.replicas "
                    f"{self.min_isr}: send the batch again with the same sequence; it is stored only once"
                )
                self._fail(waiting, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)

    def tick(self, *, now_ms: int) -> None:
        for waiting in self._until_held.overdue(now_ms):
            text = (
                f"not every in-sync replica had offset {waiting.offset - 1} in time (high watermark "
                f"{self._log.high_watermark}): send the batch again with the same sequence"
            )
            self._fail(waiting, ErrorCode.REQUEST_TIMED_OUT, text)
        self.deleting.tick(now_ms)
        if self.isr.release_held(now_ms):
            self.advance(now_ms=now_ms)

    def next_deadline_ms(self) -> int | None:
        return earliest(self._until_held.deadline_ms, self.isr.held_until_ms, self.deleting.deadline_ms)

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._until_written.cancel(ticket)
        self._until_held.cancel(ticket)
        self.deleting.cancel(ticket)

    # ---- fetch -------------------------------------------------------------------------------

    def note_fetch(
        self,
        request: FetchPartition,
        replica_id: int,
        replica_epoch: int,
        *,
        now_ms: int,
    ) -> None:
        """A valid fetch of a follower: it holds what is below its offset."""
        log, isr = self._log, self.isr
        self.deleting.follower_starts(replica_id, request.log_start_offset)
        follower = isr.followers[replica_id]
        before = follower.acknowledged
        follower.fetched(request.fetch_offset, leader_end=log.written, epoch=replica_epoch, now_ms=now_ms)
        if replica_id not in isr.committed and isr.may_join(replica_id, floor=self._floor(), now_ms=now_ms):
            log.changes |= Changes.ISR
        if follower.acknowledged != before:
            self.advance(now_ms=now_ms)

    def sender_refusal(self, replica_id: int, replica_epoch: int) -> BatchRefusal | None:
        """Which replicas may fetch as followers: assigned ones, and not an earlier process of their broker
        (KIP-903)."""
        follower = self.isr.followers.get(replica_id)
        if follower is None:
            return BatchRefusal(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"this leader's metadata shows no replica on broker {replica_id}: try again",
            )
        registered = self._brokers.epoch(replica_id)
        newest = max(-1 if registered is None else registered, follower.epoch or -1)
        if -1 < replica_epoch < newest:
            return BatchRefusal(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica_id} fetched with epoch {replica_epoch}, but now has {newest}: it was "
                "restarted, and only the newer process may fetch",
            )
        return None

    def reading(self, reader: Reader) -> Reading:
        """The log for this reader."""
        return Reading(
            log=self._log,
            leader=self._self,
            epoch=self.epoch,
            epoch_start=self.epoch_start,
            reader=reader,
        )

    # ---- the ISR -----------------------------------------------------------------------------

    def _floor(self) -> int:
        return max(self._log.high_watermark, self.epoch_start)

    def isr_change(self, *, now_ms: int) -> PartitionAlteration | None:
        return self.isr.propose(leader_end=self._log.written, floor=self._floor(), now_ms=now_ms)

    def isr_answered(
        self,
        sent: PartitionAlteration,
        result: AlteredPartition | ApiError,
        *,
        now_ms: int,
    ) -> None:
        refused = self.isr.answered(sent, result, now_ms=now_ms)
        if refused is not None:
            self._out.append(Warn(message=f"{self._log}: {refused}"))
        self._log.changes |= Changes.DEADLINE if self.isr.is_proposing else Changes.DEADLINE | Changes.ISR
        self.advance(now_ms=now_ms)


# Records that clients delete from a log's start on (KIP-107): done when the start has moved on every
# replica.
#
# A start that has moved is durable before it is reported; replicas that are not in sync move theirs when
# they have caught up, before they are in sync again.


class Deleting:
    """The deletions that one leader has pending."""

    def __init__(self, log: LocalLog, isr: IsrState) -> None:
        self._log = log
        self._isr = isr
        self._starts: dict[int, int] = {}
        self._until_trimmed: WaitingTickets[None] = WaitingTickets()
        self._until_everywhere: WaitingTickets[None] = WaitingTickets()

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits."""
        return bool(self._until_trimmed.heap or self._until_everywhere.heap)

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica in sync."""
        others = [
            self._starts.get(broker_id, -1)
            for broker_id in self._isr.followers
            if broker_id in self._isr.committed
        ]
        return min([self._log.start, *others])

    @property
    def deadline_ms(self) -> int | None:
        """Of requests that wait only for followers. As in Kafka only that has a time limit: a request with
        timeout 0 waits for the leader's own log."""
        return self._until_everywhere.deadline_ms

    def delete(self, ticket: DeleteTicket, offset: int, *, deletes: bool) -> DeletedRecords | None:
        """A result: it is refused, or was done before. None: it waits, and `ticket.complete` is called later.
        `deletes`: what the topic's policy says."""
        log = self._log
        if not deletes:
            text = f"{log}: its cleanup.policy is only compact: delete records with tombstones"
            return DeletedRecords(key=log.key, error=ErrorCode.POLICY_VIOLATION, message=text)
        end = visible_end(log)
        target = end if offset == TO_HIGH_WATERMARK else offset
        if not 0 <= target <= end:
            text = f"{log}: records can be deleted up to {end}, not to {offset}: give that, or -1"
            return DeletedRecords(key=log.key, error=ErrorCode.OFFSET_OUT_OF_RANGE, message=text)
        log.trim_to(target)
        if self.low_watermark >= target:
            return DeletedRecords(key=log.key, low_watermark=self.low_watermark)
        waits = self._until_everywhere if target <= log.start else self._until_trimmed
        waits.add(Waiting(ticket, target, None))
        log.changes |= Changes.DEADLINE
        return None

    def follower_starts(self, broker_id: int, log_start_offset: int) -> None:
        """A follower's fetch reports where its log starts."""
        if log_start_offset >= 0 and log_start_offset != self._starts.get(broker_id):
            self._starts[broker_id] = log_start_offset
            self.moved()

    def start_of(self, broker_id: int) -> int:
        """Where a follower's log starts according to its last fetch; -1 if that did not say."""
        return self._starts.get(broker_id, -1)

    def moved(self) -> None:
        """A log's start moved, or the ISR changed: requests that waited for that are answered."""
        if not self.is_awaited:
            return
        for waiting in self._until_trimmed.reached(self._log.start):
            self._until_everywhere.add(waiting)
        low = self.low_watermark
        self._log.changes |= Changes.DEADLINE
        for waiting in self._until_everywhere.reached(low):
            waiting.ticket.complete(DeletedRecords(key=self._log.key, low_watermark=low))

    def tick(self, now_ms: int) -> None:
        text = "only the leader and some in-sync replicas have deleted them in time: send the request again"
        self._fail(self._until_everywhere.overdue(now_ms), ErrorCode.REQUEST_TIMED_OUT, text)

    def resign(self, error: ErrorCode, message: str) -> None:
        self._fail([*self._until_trimmed.all(), *self._until_everywhere.all()], error, message)

    def _fail(self, those: list[Waiting[None]], error: ErrorCode, message: str) -> None:
        result = DeletedRecords(key=self._log.key, error=error, message=f"{self._log}: {message}")
        for waiting in those:
            waiting.ticket.complete(result)

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._until_trimmed.cancel(ticket)
        self._until_everywhere.cancel(ticket)


# Which producers' transactions may begin in a partition (KIP-890, part 1).
# The first batch of a transaction is taken only after its coordinator has confirmed that the partition is
# in the transaction. The guards that span that query: a marker in between voids the guard, so a late
# batch cannot begin a transaction that would never end. The broker's shell sends the query.

GUARDS_MAX = 10_000
"""The number of producers whose first batch may be on its way to one partition; the oldest is dropped
first."""


class Verification:
    """The verification guards of one replica while it leads. They are numbered from above `NOT_LED` on."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._guards: dict[int, int] = {}
        self._first = self._next = NOT_LED + 1

    def lead(self) -> None:
        """This replica begins to lead: earlier guards say nothing, as another leader's markers void none."""
        self._guards.clear()
        self._first = self._next

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
        if guard is not None and guard < self._first:
            text = "this broker did not lead the partition when the transaction was checked: send it again"
            return BatchRefusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        return BatchRefusal(
            ErrorCode.INVALID_TXN_STATE,
            f"this partition is not in a transaction of producer {header.producer_id}: add the partition to "
            "the transaction before producing to it",
        )

    def forget(self, producer_id: int) -> None:
        """A batch or a marker of the producer is being appended."""
        self._guards.pop(producer_id, None)


# Requests that wait until a rising offset of a log reaches theirs: the end of what is written, or held by
# every replica in sync, or the start of what is left.

Result = TypeVar("Result")
"""What is known of the answer before the offset is reached."""


@dataclass(slots=True)
class Waiting(Generic[Result]):
    """`result`: the answer once `offset` is reached. `needs_isr`: if enough replicas are in sync by then."""

    ticket: Ticket[Any]
    offset: int
    result: Result
    needs_isr: bool = False


class WaitingTickets(Generic[Result]):
    """Those that wait for one offset. `requests.partitioned` bounds their number."""

    __slots__ = ("_count", "_deadline_ms", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Waiting[Result]]] = []
        self._count = 0
        self._deadline_ms: int | None = None

    def __len__(self) -> int:
        return len(self.heap)

    @property
    def deadline_ms(self) -> int | None:
        """Not after the first deadline of the waiting requests; None if they have none."""
        return self._deadline_ms if self.heap and self._deadline_ms != NEVER_MS else None

    def add(self, waiting: Waiting[Result]) -> None:
        deadline = waiting.ticket.deadline_ms
        if not self.heap or self._deadline_ms is None or deadline < self._deadline_ms:
            self._deadline_ms = deadline
        self._count += 1
        heappush(self.heap, (waiting.offset, self._count, waiting))

    def reached(self, offset: int) -> list[Waiting[Result]]:
        """Removes and returns those that waited for `offset` or less, by the offset and then by arrival."""
        heap = self.heap
        done: list[Waiting[Result]] = []
        while heap and heap[0][0] <= offset:
            done.append(heappop(heap)[2])
        return done

    def overdue(self, now_ms: int) -> list[Waiting[Result]]:
        """Removes and returns those whose deadline has passed."""
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return []
        return self._take(lambda waiting: waiting.ticket.deadline_ms <= now_ms)

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._take(lambda waiting: waiting.ticket is ticket)

    def all(self) -> list[Waiting[Result]]:
        """Removes and returns all."""
        return self._take(lambda waiting: True)

    def _take(self, chosen: Callable[[Waiting[Result]], bool]) -> list[Waiting[Result]]:
        taken = sorted(entry for entry in self.heap if chosen(entry[2]))
        if taken:
            gone = {entry[1] for entry in taken}
            self.heap = [entry for entry in self.heap if entry[1] not in gone]
            heapify(self.heap)
        self._deadline_ms = min((entry[2].ticket.deadline_ms for entry in self.heap), default=None)
        return [entry[2] for entry in taken]
