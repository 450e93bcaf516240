"""What a node of Apache Kafka has replayed of the metadata log that its model holds."""

from __future__ import annotations

from metaquorum.metadata.replay import ReplayState, replay
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.storage.batches.batch import iter_batches
from tests.raft.world import MemoryDisk


class Applied:
    """`state` is the newest snapshot at the log's start, and what was committed after it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.state = ReplayState()
        if disk.start:
            self._load()

    def up_to(self, high_watermark: int) -> None:
        """Replays what is committed."""
        if self.state.end_offset < self._disk.start:
            self._load()
        if high_watermark <= self.state.end_offset:
            return
        for base, end, _, data in self._disk.batches:
            if base >= self.state.end_offset and end <= high_watermark:
                self.state = replay(self.state, next(iter(iter_batches(data))))

    def _load(self) -> None:
        (position,) = [each for each in self._disk.snapshots if each.offset == self._disk.start]
        data = self._disk.snapshots[position]
        self.state = ReplayState(load_snapshot(iter_batches(data), position=position))
