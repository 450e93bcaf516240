"""Which producer snapshots a partition's directory has, and which of them are kept.

Owns the list of their offsets and the removal of files. Does not know segments or threads: its caller decides
when.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from metaquorum.storage.disk.interface import Disk, join, remove_if_present
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.partition.producer_snapshot import load_producers, parse_snapshot_name, snapshot_name
from metaquorum.storage.partition.producers import ProducerTable


class ProducerSnapshots:
    """One directory's snapshots, by the offset at which the log ended when they were taken."""

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets: list[int] = []

    @property
    def newest(self) -> int | None:
        """The highest offset; None if there is no snapshot."""
        return self._offsets[-1] if self._offsets else None

    def find(self, names: list[str]) -> None:
        """Finds the snapshots among the names in the directory."""
        self._offsets = sorted(offset for offset in map(parse_snapshot_name, names) if offset is not None)

    def note(self, offset: int) -> None:
        """Records that there is a snapshot at `offset` now."""
        self._offsets = sorted({*self._offsets, offset})

    def load(self, start_offset: int, on_warning: Callable[[str], None]) -> tuple[ProducerTable, int]:
        """The newest readable snapshot, and its offset; if there is none, no producers, as of
        `start_offset`. Removes unreadable snapshots."""
        for offset in reversed(self._offsets):
            if offset < start_offset:
                break
            try:
                return load_producers(self._disk, self._directory, offset), offset
            except (CorruptFileError, FileMissingError) as error:
                on_warning(f"{error}; it is ignored")
                self.remove(offset)
        return ProducerTable(), start_offset

    def remove(self, offset: int) -> None:
        """Removes one if it exists."""
        if offset in self._offsets:
            self._offsets.remove(offset)
            remove_if_present(self._disk, join(self._directory, snapshot_name(offset)))

    def forget(self, bases: Collection[int]) -> None:
        """Call once the newest is durable: of the others, keeps only those at a segment's start, which
        a truncation may need."""
        for offset in [one for one in self._offsets[:-1] if one not in bases]:
            self.remove(offset)

    def drop(self, from_offset: int) -> None:
        """Removes those at and above an offset, durably: they describe records that are being truncated."""
        doomed = [offset for offset in self._offsets if offset >= from_offset]
        for offset in doomed:
            self.remove(offset)
        if doomed:
            self._disk.sync_directory(self._directory)
