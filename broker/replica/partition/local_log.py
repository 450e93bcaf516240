"""What a broker knows of one replica's log: its offsets, epochs and producers, and the work for the disk.

Owns the incarnation: reports of older ones are ignored, because a cut has overtaken them. Knows neither
leader nor follower. `end` is what was accepted, `written` what the disk took, `synced` what survives a power
failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    CutPartition,
    LogAppended,
    LogCut,
    ReplicaLog,
    ReplicaLogTrimmed,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.values import Changes
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.raft.effects import Warn
from metaquorum.raft.outbox import Outbox
from metaquorum.storage.batches.format import hop_headers
from metaquorum.storage.batches.markers import marked_headers
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable


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
        log: ReplicaLog,
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
        self._held: list[AppendPartition | TrimTo] | None = None
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
            AppendPartition(
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
            CutPartition(
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
            TrimTo(
                directory_id=self.directory_id, key=self.key, incarnation=self.incarnation, start_offset=start
            )
        )

    def _give(self, work: AppendPartition | TrimTo) -> None:
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

    def appended(self, event: LogAppended) -> None:
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

    def was_cut(self, event: LogCut) -> bool:
        """Whether it is the report that was waited for."""
        if event.incarnation != self.incarnation or not self.cutting:
            return False
        self.cutting = False
        self._take_up(event.log)
        self.high_watermark = min(max(self.high_watermark, self.start), self.end)
        self.changes |= Changes.POSITION
        return True

    def trimmed(self, event: ReplicaLogTrimmed) -> None:
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

    def _take_up(self, log: ReplicaLog) -> None:
        self.start = log.start_offset
        self.end = self.written = self.synced = log.end_offset
        self.size_bytes = log.size_bytes
        self.epochs = log.epochs
        self.producers = log.producers
        # For earlier markers the coordinator's decision is final: they would be written again.
        self._decided.clear()
        self._unwritten.clear()
        self.unwritten_bytes = 0
