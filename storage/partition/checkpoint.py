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
    files; `place(last=False)`, and a sync of the names; `place(last=True)`, and a sync of the names;
    `PartitionLog.checkpointed`. What is placed last vouches for what is placed first.
    """

    def __init__(
        self, log: PartitionLog, shape: int, files: list[tuple[str, bytes]], point: RecoveryPoint
    ) -> None:
        self.log = log
        self.shape = shape
        self.offset = point.offset
        self.epochs = log.epochs
        self._files = files
        self._point = point

    def stage(self) -> list[PooledFile]:
        """Writes them beside their places, unless they are wrong already."""
        point = (join(self.log.directory, POINT_FILE), self._point.encode())
        return self.log.stage(self, [*self._files, point])

    def place(self, *, last: bool) -> bool:
        """Gives the producers and epochs, or last the recovery point, their names, unless the log was cut,
        trimmed or removed meanwhile: then they are wrong. True where a sync of the names is due."""
        return self.log.place(self, self._point if last else None, [path for path, _ in self._files])
