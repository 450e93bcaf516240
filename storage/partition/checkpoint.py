"""A checkpoint of a partition's log: the small files that save verifying and replaying it after a crash.

Owns the order in which they come into their places. `PartitionLog` says what is in them and whether they are
still right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaquorum.storage.disk.file_pool import PooledFile
from metaquorum.storage.disk.interface import join
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import RecoveryPoint

if TYPE_CHECKING:
    from metaquorum.storage.partition.partition_log import PartitionLog


class Checkpoint:
    """Small files that say what a log is at one moment: its producers, epochs and recovery point.

    Used in this order, for many logs at once: everything up to `offset` is synced; `stage`, and a sync of the
    files; `place` with each of STEPS, and a sync of the names where one is due; `PartitionLog.checkpointed`.
    What is placed later vouches for what is placed before.
    """

    STEPS = (0, 1, 2)

    def __init__(
        self,
        log: PartitionLog,
        shape: int,
        aborted: list[tuple[str, bytes]],
        files: list[tuple[str, bytes]],
        point: RecoveryPoint,
    ) -> None:
        self.log = log
        self.shape = shape
        self.offset = point.offset
        self.epochs = log.epochs
        self._steps = (aborted, files)
        self._point = point

    def stage(self) -> list[PooledFile]:
        """Writes them beside their places, unless they are wrong already."""
        point = (join(self.log.directory, POINT_FILE), self._point.encode())
        aborted, files = self._steps
        return self.log.stage(self, [*aborted, *files, point])

    def place(self, step: int) -> bool:
        """Gives their names to the aborted transactions, then to producers, epochs and indexes, last to the
        recovery point, unless the log was cut, trimmed or removed meanwhile: then they are wrong. True where
        a sync of the names is due."""
        if step < len(self._steps):
            return self.log.place(self, None, [path for path, _ in self._steps[step]])
        return self.log.place(self, self._point, [])
