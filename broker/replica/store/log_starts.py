"""Where the logs of one directory start for their readers, if that is not at the base of a segment.

Owns `log-start-offset-checkpoint`: read when a directory is opened, and durable before a new start is
reported, so deleted records never come back, neither here nor in Kafka. An entry of a log that now starts at
a segment is too low and does no harm, as in Kafka. An entry that is too high would hide later records, so it
is removed before there can be any.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.replica_directory import load_log_starts, store_log_starts

Name = tuple[str, int]
"""Topic and partition."""


class LogStarts:
    """The entries of one directory's file, in their state on the disk."""

    def __init__(self) -> None:
        self._entries: dict[Name, int] = {}

    def load(self, disk: Disk, directory: str) -> None:
        """Raises CorruptFileError, DiskError."""
        self._entries = load_log_starts(disk, directory)

    def apply(self, name: Name, log: PartitionLog) -> None:
        """Applies the entry to a log that was just opened."""
        log.start_at(self._entries.get(name, 0))

    def settle(self, disk: Disk, directory: str, logs: Iterable[tuple[Name, PartitionLog]]) -> None:
        """Lowers the entries above the ends of these logs: what is appended to them now was not deleted.
        Durable on return; raises DiskError."""
        too_high = [each for each in logs if self._entries.get(each[0], 0) > each[1].log_start_offset]
        self.change(disk, directory, [(name, log, log.log_start_offset) for name, log in too_high])

    def change(self, disk: Disk, directory: str, logs: Iterable[tuple[Name, PartitionLog, int]]) -> None:
        """Each log is about to start at the given offset. Durable on return; raises DiskError."""
        entries = dict(self._entries)
        for name, log, start in logs:
            if log.begins_at(start):
                entries.pop(name, None)
            else:
                entries[name] = start
        self._store(disk, directory, entries)

    def forget(self, disk: Disk, directory: str, names: Iterable[Name]) -> None:
        """These names no longer belong to the same logs. Durable on return; raises DiskError."""
        gone = set(names)
        self._store(disk, directory, {name: at for name, at in self._entries.items() if name not in gone})

    def _store(self, disk: Disk, directory: str, entries: dict[Name, int]) -> None:
        if entries != self._entries:
            store_log_starts(disk, directory, entries)
            self._entries = entries
