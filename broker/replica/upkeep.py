"""Periodic work on every replica: high watermarks written, old segments removed, ISRs checked, producers
forgotten.

The schedule, and that the work is done in slices: a round over all replicas is never one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from metaquorum.broker.replica.disk_work import CheckpointHighWatermarks, CompactPartition, EnforceRetention
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.placement.directories import Copy
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.raft.effects import Outbox

SLICE_MAX = 200
SLICE_PAUSE_MS = 20
"""Between two slices of a round: a round takes a second on a broker with 10,000 replicas."""


class Round:
    """Work on each running partition every `interval_ms`, a slice at a time."""

    def __init__(self, interval_ms: int, now_ms: int, work: Callable[[Partition], None]) -> None:
        self._interval_ms = interval_ms
        self._work = work
        self._left: deque[PartitionKey] = deque()
        self.due_ms = now_ms + interval_ms

    @property
    def is_under_way(self) -> bool:
        """Whether a slice of it is left."""
        return bool(self._left)

    def start_now(self, now_ms: int) -> None:
        """Starts over, and is due."""
        self._left.clear()
        self.due_ms = now_ms

    def tick(self, placement: Placement, now_ms: int) -> None:
        if now_ms < self.due_ms:
            return
        if not self._left:
            self._left.extend(placement.running)
        for _ in range(min(SLICE_MAX, len(self._left))):
            partition = placement.running.get(self._left.popleft())
            if partition is not None:
                self._work(partition)
        self.due_ms = now_ms + (SLICE_PAUSE_MS if self._left else self._interval_ms)


Work = Callable[[Partition], None]


def rounds(
    config: ReplicaConfig, now_ms: int, look_at_isr: Work, clean: Work, compact: Work
) -> tuple[Round, ...]:
    """The work on every partition, as often as the broker's configuration says."""
    return (
        Round(max(1, config.replica_lag_time_max_ms // 2), now_ms, look_at_isr),
        Round(config.log_retention_check_interval_ms, now_ms, clean),
        Round(config.log_cleaner_backoff_ms, now_ms, compact),
    )


class Checkpoints:
    """The high watermarks of each directory in which one moved since they were last written."""

    def __init__(self, config: ReplicaConfig, now_ms: int, out: Outbox[DataEffect]) -> None:
        self._interval_ms = config.replica_high_watermark_checkpoint_interval_ms
        self._out = out
        self._moved: set[bytes] = set()
        self.due_ms = now_ms + self._interval_ms

    def moved(self, directory_id: bytes) -> None:
        self._moved.add(directory_id)

    def tick(self, placement: Placement, now_ms: int) -> None:
        if now_ms >= self.due_ms:
            self.due_ms = now_ms + self._interval_ms
            self.write(placement)

    def write(self, placement: Placement) -> None:
        moved = {each for each in self._moved if placement.directories.is_good(each)}
        self._moved.clear()
        if not moved:
            return
        lines: dict[bytes, list[tuple[str, int, int]]] = {each: [] for each in moved}
        for copy in placement.copies.all():
            if copy.directory_id in moved and not copy.future:
                lines[copy.directory_id].append((copy.topic, copy.key[1], _high_watermark(copy)))
        for directory_id in sorted(moved):
            marks = tuple(lines[directory_id])
            self._out.append(CheckpointHighWatermarks(directory_id=directory_id, high_watermarks=marks))


def _high_watermark(copy: Copy) -> int:
    if copy.partition is not None:
        return copy.partition.high_watermark
    return 0 if copy.log is None else copy.log.high_watermark


def retain(partition: Partition, wall_ms: int, out: Outbox[DataEffect]) -> None:
    """Forgets old producers and has the directory remove old segments."""
    partition.expire_producers(wall_ms)
    out.append(
        EnforceRetention(
            directory_id=partition.directory_id,
            key=partition.key,
            incarnation=partition.incarnation,
            below_offset=partition.high_watermark,
            wall_ms=wall_ms,
        )
    )


def compact(partition: Partition, wall_ms: int, out: Outbox[DataEffect]) -> None:
    """If the topic is compacted, lets its directory compact the log. Not while it is being copied: the
    tombstone of a key must not be removed before it is copied, after an older value of the key was."""
    if not partition.settings.log.compacts:
        return
    out.append(
        CompactPartition(
            directory_id=partition.directory_id,
            key=partition.key,
            incarnation=partition.incarnation,
            below_offset=partition.last_stable_offset,
            wall_ms=wall_ms,
        )
    )
