"""Which segments of a partition's log have index files on disk, and which still need them.

Owns when the files are created and removed, not their contents (`segment_index`, `timed_segment`). Index
files match their segment or do not exist: so the active segment's files are removed with its first append,
and written again at a clean shutdown.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.storage.disk.interface import Disk, join, read_file, remove_if_present, write_atomically
from metaquorum.storage.log.segment_index import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    cut_aborted,
    index_name,
    parse_index_name,
)
from metaquorum.storage.log.timed_segment import TimedSegment


class LogIndexes:
    """The index files of one log. `missing` has the base offsets of segments without index files."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.missing: set[int] = set()
        self._disk = disk
        self._directory = directory

    def find(self, names: list[str], segments: Sequence[TimedSegment], *, last_is_right: bool) -> None:
        """Finds the files that exist. `last_is_right`: nothing was appended to the log after they were
        written."""
        present = set(names)
        for segment in segments:
            base = segment.base_offset
            whole = all(index_name(base, suffix) in present for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
            if not whole or (segment is segments[-1] and not last_is_right):
                segment.without_index_files()
                self.missing.add(base)

    def is_leftover(self, name: str, bases: set[int]) -> bool:
        """Whether this file belongs to a segment that is gone, or is an index file that does not match."""
        base = parse_index_name(name)
        if base is None:
            return False
        return base not in bases or (base in self.missing and not name.endswith(TXN_INDEX_SUFFIX))

    def begin(self, base_offset: int) -> None:
        """Starts a new log with one empty segment."""
        self.missing = {base_offset}

    def drop(self, base_offset: int) -> None:
        """Removes the files because they are about to become wrong."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            remove_if_present(self._disk, join(self._directory, index_name(base_offset, suffix)))
        self.missing.add(base_offset)

    def cut(self, base_offset: int, end: int) -> None:
        """The segment will end at `end`; Kafka's list of aborted transactions must not extend beyond it
        either."""
        self.drop(base_offset)
        path = join(self._directory, index_name(base_offset, TXN_INDEX_SUFFIX))
        if not self._disk.exists(path):
            return
        kept = cut_aborted(read_file(self._disk, path), end)
        if kept:
            write_atomically(self._disk, path, kept)
        else:
            self._disk.remove(path)

    def remove(self, base_offset: int) -> None:
        """The segment is being removed."""
        self.cut(base_offset, 0)
        self.missing.discard(base_offset)

    def seal(self, segment: TimedSegment, end_offset: int) -> list[tuple[str, bytes]]:
        """The files for a full segment; the next segment starts without files."""
        files = segment.seal(end_offset)
        if files:
            self.missing.discard(segment.base_offset)
        self.missing.add(end_offset)
        return files

    def bytes_to_read(self, segments: Sequence[TimedSegment]) -> int | None:
        """The bytes to hop over so that every segment can have its files; None if all have them."""
        if not self.missing:
            return None
        return sum(segment.untimed_bytes for segment in segments if segment.base_offset in self.missing)

    def complete(self, segments: Sequence[TimedSegment]) -> list[tuple[str, bytes]]:
        """The files of every segment that has none; the log is about to be closed."""
        without = [segment for segment in segments if segment.base_offset in self.missing]
        self.missing.clear()
        return [file for segment in without for file in segment.index_files(segment.untimed_bytes)]
