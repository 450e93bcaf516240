"""A checkpoint of a partition's log: the small files that avoid verifying and replaying it after a crash.

Owns the order in which the files are put in place. Does not know whether they are still valid:
`PartitionLog`, which supplies their contents, does.
"""

from __future__ import annotations

from typing import Protocol

from metaquorum.storage.disk.file_pool import PooledFile
from metaquorum.storage.disk.interface import join
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import RecoveryPoint


class CheckpointedLog(Protocol):
    """What a checkpoint asks of its log."""

    directory: str
    epochs: EpochTable

    def stage(self, checkpoint: Checkpoint, files: list[tuple[str, bytes]]) -> list[PooledFile]: ...
    def place(self, checkpoint: Checkpoint, point: RecoveryPoint | None, paths: list[str]) -> bool: ...
    def checkpointed(self, checkpoint: Checkpoint) -> None: ...


class Checkpoint:
    """Small files that describe a log at one moment: its producers, epochs and recovery point.

    Used in this order, for many logs at once: everything up to `offset` is synced; `stage`, and a sync of the
    files; `place` with each of STEPS, and a sync of the names when required; `PartitionLog.checkpointed`.
    Each file vouches for those placed before it.
    """

    STEPS = (0, 1, 2)

    def __init__(
        self,
        log: CheckpointedLog,
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
        """Writes the files under staged names, unless they are already out of date."""
        point = (join(self.log.directory, POINT_FILE), self._point.encode())
        aborted, files = self._steps
        return self.log.stage(self, [*aborted, *files, point])

    def place(self, step: int) -> bool:
        """Gives the files their final names: first the aborted transactions, then producers, epochs and
        indexes, last the recovery point; but not if the log was truncated, trimmed or removed meanwhile,
        which makes them wrong. Returns True if the names must be synced."""
        if step < len(self._steps):
            return self.log.place(self, None, [path for path, _ in self._steps[step]])
        return self.log.place(self, self._point, [])
