"""One sync of a log directory: all logs that were appended to since the last one, made durable together.

Prepared and noted by the thread that owns the directory's store, run by another.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.disk.interface import FileSystem
from metaquorum.storage.errors import DiskError, FileMissingError, LogFailedError
from metaquorum.storage.log.log import SyncTicket
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.partition_log import Checkpoint

CHECKPOINTS_AT_ONCE = 1_000
"""How many logs' small files are written before they are synced: more would only need more memory."""


class MissingIsBad:
    """A missing file that was there before makes the directory as bad as one that cannot be read. A context;
    one serves all work of a directory."""

    __slots__ = ("_directory",)

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileMissingError):
            text = f"{error.path} has disappeared; restore the disk"
            raise DiskError(self._directory, "use of its files", text) from error
        if isinstance(error, LogFailedError):
            raise DiskError(self._directory, "use of a log", str(error)) from error


class DirectorySync:
    """What one sync makes durable."""

    def __init__(
        self,
        path: str,
        file_system: FileSystem,
        *,
        tickets: list[tuple[PartitionKey, int, SyncTicket]],
        checkpoints: Sequence[Checkpoint | None],
    ) -> None:
        self.tickets = tickets
        self.checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
        self._path = path
        self._file_system = file_system

    def run(self) -> None:
        """Makes it durable: one sync per file, or, from eight files on, one of the whole file system if the
        kernel offers that. Raises DiskError: the directory is bad."""
        with MissingIsBad(self._path):
            self._sync_segments()
            for start in range(0, len(self.checkpoints), CHECKPOINTS_AT_ONCE):
                self._write_checkpoints(self.checkpoints[start : start + CHECKPOINTS_AT_ONCE])

    @property
    def is_checkpoint(self) -> bool:
        """Whether no log waits for it."""
        return not self.tickets

    def split(self) -> tuple[DirectorySync, DirectorySync]:
        """The sync of the logs, and the checkpoint after it: later syncs may run beside the checkpoint."""
        logs = DirectorySync(self._path, self._file_system, tickets=self.tickets, checkpoints=[])
        files = DirectorySync(self._path, self._file_system, tickets=[], checkpoints=self.checkpoints)
        return logs, files

    def _sync_segments(self) -> None:
        files = []
        for _, _, ticket in self.tickets:
            if isinstance(ticket.segment, TimedSegment) and not ticket.segment.pooled.closed:
                ticket.segment.pooled.begin_sync()
                files.append(ticket.segment.pooled)
        try:
            self._file_system.sync(files, ())
        except BaseException:
            for file in files:
                file.failed_sync()
            raise

    def _write_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        staged = [file for checkpoint in checkpoints for file in checkpoint.stage()]
        self._file_system.sync(staged, ())
        for file in staged:
            file.close()
        for step in Checkpoint.STEPS:
            placed = [one.log.directory for one in checkpoints if one.place(step)]
            if placed:
                self._file_system.sync((), placed)
