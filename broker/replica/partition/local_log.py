"""What a broker knows of one replica's log: its offsets, epochs and producers, and the work for the disk.

The incarnation: reports of older ones are ignored, because a cut has overtaken them. `end` is what was
accepted, `written` what the disk took, `synced` what survives a power failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from msgspec.structs import replace

from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.values import Changes, FindPlan, Reader, ReadPlan
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    BEFORE_ALL,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    NEWEST_TIMESTAMP,
    EpochEnd,
    FetchedPartition,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
    PartitionKey,
)
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.storage.batches.batch import Batches, marked_headers
from metaquorum.storage.batches.format import hop_headers
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable
from metaquorum.storage.types import LogPosition


class LocalLog:
    """Mutable. `counts_synced`: only durable records are acknowledged (`log.flush.before.ack`)."""

    __slots__ = (
        "_decided",
        "_held",
        "_out",
        "_trim_asked",
        "_unwritten",
        "changes",
        "counts_synced",
        "cutting",
        "directory_id",
        "end",
        "epochs",
        "given",
        "high_watermark",
        "incarnation",
        "key",
        "producers",
        "size_bytes",
        "start",
        "synced",
        "topic",
        "unwritten_bytes",
        "written",
    )

    start: int
    end: int
    written: int
    synced: int
    size_bytes: int
    unwritten_bytes: int
    epochs: EpochTable
    producers: ProducerTable

    def __init__(
        self,
        *,
        key: PartitionKey,
        topic: str,
        directory_id: bytes,
        incarnation: int,
        log: disk_work.ReplicaLog,
        counts_synced: bool,
        out: Outbox[DataEffect],
    ) -> None:
        self.key = key
        self.topic = topic
        self.directory_id = directory_id
        self.incarnation = incarnation
        self.counts_synced = counts_synced
        self._out = out
        self.cutting = False
        self.changes = Changes.NONE
        self.high_watermark = 0
        self._trim_asked = 0
        self._unwritten: deque[tuple[int, int]] = deque()
        # (first offset, offset of the marker) of transactions whose marker may be above the high watermark.
        self._decided: list[tuple[int, int]] = []
        self._held: list[disk_work.AppendPartition | disk_work.TrimTo] | None = None
        self.given = 0
        self._take_up(log)
        self.high_watermark = min(max(log.high_watermark, self.start), self.end)

    def __str__(self) -> str:
        return f"{self.topic}-{self.key[1]}"

    @property
    def acknowledged(self) -> int:
        """The end offset that this replica acknowledges."""
        return self.synced if self.counts_synced else self.written

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of a transaction that has not ended below it."""
        decided, producers = self._decided, self.producers
        if not decided and not producers.under_way:
            return max(self.high_watermark, self.start)
        while decided and decided[0][1] < self.high_watermark:
            heappop(decided)
        stable = self.high_watermark
        if decided:
            stable = min(stable, decided[0][0])
        if producers.open_from is not None:
            stable = min(stable, producers.open_from)
        return max(stable, self.start)

    def aborted_in(self, from_offset: int, records: bytes) -> Iterator[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that may have records in `records`, which
        were read from `from_offset` on. Leaves out those whose marker a cleaner removed, with all their
        records: a reader would wait for the marker, and skip what the producer has committed since."""
        aborted = self.producers.aborted
        if not records or not aborted.ends_above(from_offset):
            return
        hops = hop_headers(records)
        end = hops[-1][2]
        there = {base for _, base, _, _ in hops}
        for one in aborted.overlapping(from_offset, end):
            if one.last_offset >= end or one.last_offset in there:
                yield one.producer_id, one.first_offset

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last record; -1 if there is none."""
        epoch = self.epochs.epoch_at(self.end - 1) if self.end > self.start else None
        return -1 if epoch is None else epoch

    # ---- work for the disk -------------------------------------------------------------------

    def append(self, batches: Batches, wall_ms: int) -> None:
        """Accepts batches that follow `end`, their epochs and their producers. If the log is empty, the first
        may begin below `end`, as its files then do."""
        for header, marker in marked_headers(batches):
            self.epochs = self.epochs.append(header.leader_epoch, header.base_offset)
            decided = self.producers.note(header, seen_ms=wall_ms, marker=marker)
            if decided is not None:
                heappush(self._decided, (decided.first_offset, decided.last_offset))
        self.end = batches.next_offset
        self._unwritten.append((self.end, len(batches.data)))
        self.unwritten_bytes += len(batches.data)
        self._give(
            disk_work.AppendPartition(
                directory_id=self.directory_id,
                key=self.key,
                incarnation=self.incarnation,
                batches=batches,
                sync=self.counts_synced,
            )
        )
        if batches.headers[0].base_offset < self.start:
            self._trim(self.start)

    def cut(self, to: int, *, start_over: bool = False) -> None:
        """Truncates the log to `to`; nothing is read from it or appended before that is done."""
        if to < self.high_watermark:
            self._out.append(
                Warn(
                    message=f"{self}: truncating the log from {self.end} to {to}, below the high watermark "
                    f"{self.high_watermark}: an unclean election lost committed records"
                )
            )
        self.incarnation += 1
        self.cutting = True
        self.high_watermark = min(self.high_watermark, to)
        self._out.append(
            disk_work.CutPartition(
                directory_id=self.directory_id,
                key=self.key,
                incarnation=self.incarnation,
                end_offset=to,
                start_over=start_over,
            )
        )

    def trim_to(self, start: int) -> None:
        """Requests each new `start` once: segments that contain it stay, so the log may begin below it."""
        if start <= max(self.start, self._trim_asked):
            return
        self._trim(start)

    def _trim(self, start: int) -> None:
        self._trim_asked = start
        self._give(
            disk_work.TrimTo(
                directory_id=self.directory_id, key=self.key, incarnation=self.incarnation, start_offset=start
            )
        )

    def _give(self, work: disk_work.AppendPartition | disk_work.TrimTo) -> None:
        (self._out if self._held is None else self._held).append(work)

    # ---- move to another directory -----------------------------------------------------------

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def hold(self) -> None:
        """Continues to accept batches, but gives the disk none of them until `release`. What the disk was
        given ends at `given`."""
        self._held, self.given = [], self.end
        self.changes |= Changes.POSITION

    def release(self) -> None:
        """The disk gets what was held back."""
        held, self._held = self._held or [], None
        for work in held:
            self._out.append(
                replace(work, directory_id=self.directory_id, incarnation=self.incarnation),
            )
        self.changes |= Changes.POSITION

    def move(self, directory_id: bytes, incarnation: int) -> None:
        """Everything that its disk was given is durable in another directory, where the log continues."""
        self.directory_id, self.incarnation = directory_id, incarnation
        self.synced = max(self.synced, self.given)
        self._wrote_to(self.given)
        self.release()

    # ---- what the disk did -------------------------------------------------------------------

    def appended(self, event: disk_work.LogAppended) -> None:
        if event.incarnation != self.incarnation:
            return
        self._wrote_to(event.end_offset)
        self.size_bytes = event.size_bytes

    def synced_to(self, incarnation: int, end: int, size_bytes: int) -> None:
        if incarnation != self.incarnation or end <= self.synced:
            return
        self.synced = min(end, self.end)
        self.size_bytes = size_bytes
        # What is durable was written, reported or not; the two threads' reports may also cross.
        self._wrote_to(self.synced)
        self.changes |= Changes.POSITION

    def was_cut(self, event: disk_work.LogCut) -> bool:
        """Whether it is the report that was waited for."""
        if event.incarnation != self.incarnation or not self.cutting:
            return False
        self.cutting = False
        self._take_up(event.log)
        self.high_watermark = min(max(self.high_watermark, self.start), self.end)
        self.changes |= Changes.POSITION
        return True

    def trimmed(self, event: disk_work.ReplicaLogTrimmed) -> None:
        if event.incarnation != self.incarnation:
            return
        if event.start_offset > self.start:
            self.start = event.start_offset
            self.changes |= Changes.HIGH_WATERMARK | Changes.POSITION
        self.changes |= Changes.STORED
        self.size_bytes = event.size_bytes
        self.epochs = self.epochs.truncate_start(self.start)
        self.high_watermark = max(self.high_watermark, self.start)
        self.producers.aborted.trim(self.start)

    def raise_high_watermark(self, to: int) -> None:
        """Never lowers it, and never puts it above the end."""
        to = min(to, self.end)
        if to > self.high_watermark:
            self.high_watermark = to
            self.changes |= Changes.HIGH_WATERMARK

    def _wrote_to(self, end: int) -> None:
        end = min(end, self.end)
        if end > self.written:
            if self.written < self.high_watermark:
                # More of what is committed elsewhere is now visible to readers.
                self.changes |= Changes.HIGH_WATERMARK
            self.written = end
            self.changes |= Changes.END | Changes.POSITION
        unwritten = self._unwritten
        while unwritten and unwritten[0][0] <= self.written:
            self.unwritten_bytes -= unwritten.popleft()[1]

    def _take_up(self, log: disk_work.ReplicaLog) -> None:
        self.start = log.start_offset
        self.end = self.written = self.synced = log.end_offset
        self.size_bytes = log.size_bytes
        self.epochs = log.epochs
        self.producers = log.producers
        # For earlier markers the coordinator's decision is final: they would be written again.
        self._decided.clear()
        self._unwritten.clear()
        self.unwritten_bytes = 0


# A replica's answers to readers: from where to where, what is out of range, the offset of a time.
# The bounds of reads and the comparison of epochs (KIP-595).


def visible_end(log: LocalLog) -> int:
    """How far clients read: the high watermark may cover records that a follower accepted and has not
    written."""
    return min(log.high_watermark, log.written)


@dataclass(slots=True, kw_only=True)
class Reading:
    """The log of a leader, whose epoch began at `epoch_start`, or of a follower (None), for one reader."""

    log: LocalLog
    leader: int
    epoch: int
    epoch_start: int | None
    reader: Reader

    @property
    def end(self) -> int:
        """Followers read what is written, clients what every replica in sync holds, and those of committed
        records only what is decided."""
        if self.reader.is_follower:
            return self.log.written
        end = visible_end(self.log)
        return min(end, self.log.last_stable_offset) if self.reader.read_committed else end

    @property
    def _epochs(self) -> EpochTable:
        """The log's epochs, and the leader's own from its start on, of which there may be no record yet: as
        Kafka's leader notes it."""
        epochs = self.log.epochs
        if self.epoch_start is None or (epochs.entries and epochs.last_epoch >= self.epoch):
            return epochs
        return epochs.append(self.epoch, self.epoch_start)

    def fetch(self, request: FetchPartition) -> FetchedPartition | ReadPlan:
        log, offset = self.log, request.fetch_offset
        if offset < log.start:
            return self._out_of_range(request)
        epoch, entries = request.last_fetched_epoch, log.epochs.entries
        follows = entries and epoch == entries[-1][0] and offset <= log.end
        if epoch >= 0 and not follows:
            # Before the end is checked: a fetcher that is ahead keeps what both logs have.
            shared = self._end_of(epoch)
            # A follower from before all known epochs starts over: nothing shows that it has this log.
            if shared is None or (self.reader.is_follower and epoch < self._epochs.entries[0][0]):
                return self._out_of_range(request)
            if shared.epoch < epoch or shared.offset < offset:
                return self._diverging(shared)
        if offset > log.end:
            return self._out_of_range(request)
        return ReadPlan(
            key=log.key,
            from_offset=offset,
            to_offset=self.end,
            max_bytes=request.max_bytes,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start,
            leader_epoch=self.epoch,
        )

    def elsewhere(self, replica_id: int) -> FetchedPartition:
        """Nothing is read here: the reader is sent to this replica."""
        return FetchedPartition(
            key=self.log.key,
            high_watermark=self.log.high_watermark,
            last_stable_offset=self.log.last_stable_offset,
            log_start_offset=self.log.start,
            preferred_read_replica=replica_id,
            leader_epoch=self.epoch,
        )

    def _diverging(self, position: LogPosition) -> FetchedPartition:
        return FetchedPartition(
            key=self.log.key,
            high_watermark=self.log.high_watermark,
            last_stable_offset=self.log.last_stable_offset,
            log_start_offset=self.log.start,
            diverging=position,
            leader=self.leader,
            leader_epoch=self.epoch,
        )

    def _out_of_range(self, request: FetchPartition) -> FetchedPartition:
        log = self.log
        epoch = request.last_fetched_epoch
        whose = "" if epoch < 0 else f" after epoch {epoch}"
        text = (
            f"{log}: offset {request.fetch_offset}{whose} is not in this log, which holds {log.start} up "
            f"to {log.end}: read from its start or its end"
        )
        return FetchedPartition(
            key=log.key,
            error=ErrorCode.OFFSET_OUT_OF_RANGE,
            message=text,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start,
            leader=self.leader,
            leader_epoch=self.epoch,
        )

    # ---- list offsets ------------------------------------------------------------------------

    def list_offset(self, request: ListOffsetsPartition) -> ListedOffset | FindPlan:
        log, wanted = self.log, request.timestamp_ms
        if wanted in {EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP}:
            return self._listed(log.start, -1, self._epochs.epoch_at(log.start))
        if wanted == LATEST_TIMESTAMP:
            if self._is_behind():
                return self._not_available()
            return self._listed(self.end, -1, self._epochs.epoch_at(max(log.start, self.end - 1)))
        if wanted == LATEST_TIERED_TIMESTAMP:
            return self._listed(-1, -1, None)  # there is no remote storage
        if wanted < 0 and wanted not in {NEWEST_TIMESTAMP, BEFORE_ALL}:
            text = f"{log}: {wanted} is not a timestamp: send ms since 1970, or -1 (latest) to -5"
            return ListedOffset(key=log.key, error=ErrorCode.INVALID_REQUEST, message=text)
        return FindPlan(key=log.key, timestamp_ms=wanted, below_offset=self.end, leader_epoch=self.epoch)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where an epoch ends in this log. An epoch younger than the log has no end."""
        key = self.log.key
        found = self._end_of(epoch) if 0 <= epoch <= self._epochs.last_epoch else None
        if found is None:
            return EpochEnd(key=key)
        return EpochEnd(key=key, leader_epoch=found.epoch, end_offset=found.offset)

    def _end_of(self, epoch: int) -> LogPosition | None:
        """The largest epoch not above this one, and where it ends; one older than all known epochs ends where
        those begin (KIP-279). None if no epoch is known."""
        epochs = self._epochs
        if not epochs.entries:
            return None
        return epochs.end_offset_for(epoch, self.log.end) or LogPosition(epoch, epochs.entries[0][1])

    def found_offset(self, offset: int | None, timestamp_ms: int, leader_epoch: int) -> ListedOffset:
        """The answer to a look-up by time; `offset` None: the log holds no record that late."""
        if offset is not None:
            return self._listed(offset, timestamp_ms, leader_epoch)
        return self._not_available() if self._is_behind() else self._listed(-1, -1, None)

    def _is_behind(self) -> bool:
        """The high watermark of a new leader may be below what clients have read from the previous one; it is
        right as soon as it reaches the epoch's start (KIP-207)."""
        return not self.reader.is_follower and visible_end(self.log) < (self.epoch_start or 0)

    def _listed(self, offset: int, timestamp_ms: int, epoch: int | None) -> ListedOffset:
        return ListedOffset(
            key=self.log.key,
            offset=offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=-1 if epoch is None else epoch,
            leader=self.leader,
        )

    def _not_available(self) -> ListedOffset:
        text = f"{self.log}: this leader is new and does not know the high watermark yet: try again"
        return ListedOffset(key=self.log.key, error=ErrorCode.OFFSET_NOT_AVAILABLE, message=text)
