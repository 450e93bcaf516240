"""The logs of several nodes read as one: each part from a node that has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

import numpy as np

from metaquorum.metadata.inspect.causes.rule import WARNING
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.coverage import batch_at, offsets_text
from metaquorum.metadata.inspect.log.log import ClusterIdentity, MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.nodes.merge import NodesReport
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.types import LogPosition


class MergedLog(MetadataLog):
    """What the nodes hold together."""

    def __init__(self, logs: Sequence[MetadataLog], report: NodesReport, name: str) -> None:
        """`report` is about these logs, in this order; `name` represents them in messages."""
        super().__init__(logs[0].disk, logs[0].path)
        self.path = self.name = name
        self.is_directory = True
        self.is_checkpoint = False
        self._logs = logs
        self._report = report
        self._of_snapshot: dict[LogPosition, MetadataLog] = {}

    @property
    def has_node_files(self) -> bool:
        """They are each node's own."""
        return False

    @property
    def directory(self) -> str:
        """The directory of the node that the log's beginning is read from."""
        pieces = self._report.pieces
        return self._logs[pieces[0].source if pieces else 0].directory

    @property
    def identity(self) -> ClusterIdentity | None:
        """The cluster of the first node that names it; no node id."""
        for log in self._logs:
            if log.identity is not None and log.identity.cluster_id is not None:
                return ClusterIdentity(cluster_id=log.identity.cluster_id, node_id=None)
        return None

    @property
    def segments(self) -> list[int]:
        """Where each piece begins."""
        return [piece.start for piece in self._report.pieces]

    @property
    def start_offset(self) -> int:
        return self._report.start_offset

    @property
    def end_offset(self) -> int:
        return self._report.end_offset

    def size_bytes(self) -> int:
        """Size of the largest log in bytes, for progress."""
        return max(log.size_bytes() for log in self._logs)

    def snapshots(self) -> list[LogPosition]:
        """The snapshots of all nodes, except those taken from records that the other nodes contradict."""
        positions: dict[LogPosition, None] = {}
        for log, node in zip(self._logs, self._report.nodes, strict=True):
            limit = None if node.departure is None else node.departure.offset
            positions.update((at, None) for at in log.snapshots() if limit is None or at.offset <= limit)
        return sorted(positions, key=lambda at: (at.offset, at.epoch))

    def snapshot(self, position: LogPosition) -> MetadataLog:
        """The snapshot that ends at `position`, from the first node that has it whole."""
        if position not in self._of_snapshot:
            having = [log for log in self._logs if position in log.snapshots()]
            whole = having
            if len(having) > 1:
                whole = [log for log in having if log.is_whole(position)] or having
            self._of_snapshot[position] = (whole or self._logs)[0].snapshot(position)
        return self._of_snapshot[position]

    def batches(self, start_offset: int | None = None) -> Iterator[RecordBatch | Damage]:
        """Every batch from the one that holds `start_offset` on; ranges that no node has are
        damage between them."""
        for item in self.runs(start_offset):
            if isinstance(item, BatchRun):
                yield from item.batches()
            else:
                yield item

    def runs(self, start_offset: int | None = None) -> Iterator[RecordBatch | BatchRun | Damage]:
        """The same as `batches`, with consecutive plain batches as one value."""
        wanted = start_offset or 0
        before: int | None = None
        for piece in self._report.pieces:
            if piece.end <= wanted:
                before = piece.end
                continue
            if before is not None and before < piece.start and wanted < piece.start:
                yield self._hole(before, piece.start)
            low = max(wanted, piece.start)
            for item in self._runs_of(piece.source, low):
                if isinstance(item, Damage):
                    continue  # nothing is missing inside a piece
                part = _part(item, low, piece.end)
                if part is not None:
                    if self.on_read is not None:
                        self.on_read(part.size_bytes if isinstance(part, BatchRun) else len(part.data))
                    yield part
                elif _base(item) >= piece.end:
                    break
            before = piece.end

    def _runs_of(self, source: int, start: int) -> Iterator[RecordBatch | BatchRun | Damage]:
        log, mending = self._logs[source], self._report.mendings[source]
        return log.runs(start or None) if mending is None else mending.runs(log)

    def _hole(self, start: int, end: int) -> Damage:
        what = f"offset {start} is" if end == start + 1 else f"offsets {start} to {end - 1} are"
        return Damage(file=self.path, position=0, offset=start, reason=f"{what} on none of the nodes")


def _base(item: RecordBatch | BatchRun) -> int:
    return item.base_offset if isinstance(item, BatchRun) else item.header.base_offset


def _part(item: RecordBatch | BatchRun, low: int, end: int) -> RecordBatch | BatchRun | None:
    """The part of an item between two offsets, or None. Pieces begin and end at whole batches."""
    if isinstance(item, RecordBatch):
        return item if item.header.next_offset > low and item.header.base_offset < end else None
    first = int(np.searchsorted(item.offsets[1:], low, side="right"))
    last = int(np.searchsorted(item.offsets[:-1], end))
    return item.part(first, last) if first < last else None


# Damage of one node's log that another node's log makes up for, as events of their common log.


def with_damage(
    events: Iterable[TimelineEvent], log: MetadataLog, report: NodesReport, start: Point | None, end: Point
) -> Iterator[TimelineEvent]:
    """The `events` of the nodes' common `log`, with the damage of each node from `start`
    up to `end` inserted."""
    damage = [
        event
        for event in sorted(_damage(log, report), key=lambda one: one.offset)
        if not (start is not None and _is_before(event, start)) and (end.is_end or _is_before(event, end))
    ]
    return merge(events, damage, key=lambda event: event.offset)


def _damage(log: MetadataLog, report: NodesReport) -> Iterator[TimelineEvent]:
    for node in report.nodes:
        for lost in node.lost:
            batch = batch_at(log, lost.start)
            if lost.by is None or batch is None:
                continue
            header = batch.header
            entity = "quorum" if node.node_id is None else f"controller/{node.node_id}"
            yield TimelineEvent(
                offset=lost.start,
                epoch=header.leader_epoch,
                time_ms=clock_of(log).time_ms(lost.start, header.max_timestamp_ms),
                kind="replica damaged",
                entity=entity,
                text=f"{node.name} has no {offsets_text(lost.start, lost.end)}: read from {lost.by}",
                severity=WARNING,
                entities=(entity,),
            )


def _is_before(event: TimelineEvent, point: Point) -> bool:
    if point.time_ms is not None:
        return event.time_ms < point.time_ms
    return point.offset is not None and event.offset < point.offset + point.after
