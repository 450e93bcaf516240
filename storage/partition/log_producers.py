"""The producers of one open log, and the files that store them: producer snapshots and `.txnindex`.

Owns how they are restored when a log is opened or truncated: from the newest readable snapshot, the aborted
transactions that ended below it, and the headers above it. Does not know threads: `PartitionLog` makes the
calls.

A snapshot at an offset vouches for the `.txnindex` files up to there, so these are put in place before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaquorum.storage.batches.markers import marked_headers
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.disk.interface import Disk, join, read_file, remove_if_present
from metaquorum.storage.log.segment import Segment
from metaquorum.storage.log.segment_index import (
    TXN_INDEX_SUFFIX,
    decode_aborted,
    encode_aborted,
    index_name,
    parse_index_name,
)
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.aborted import AbortedTransaction, AbortedTransactions
from metaquorum.storage.partition.producer_snapshot import encode_producers, snapshot_name
from metaquorum.storage.partition.producer_snapshots import ProducerSnapshots
from metaquorum.storage.partition.producers import ProducerTable

File = tuple[str, bytes]
MAX_OFFSET = 2**63 - 1


class LogProducers:
    """Aborted transactions whose marker is below `kept_to` are in files."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.table = ProducerTable()
        self.snapshots = ProducerSnapshots(disk, directory)
        self.kept_to = 0
        self._indexed: set[int] = set()
        self._disk = disk
        self._directory = directory

    def note(self, batches: Batches) -> None:
        """Adds batches that were appended."""
        for header, marker in marked_headers(batches):
            if header.producer_id >= 0:
                self.table.note(header, seen_ms=header.max_timestamp_ms, marker=marker)

    # --- restoring

    def find(self, names: list[str]) -> None:
        """Finds the files among the names in the directory."""
        self.snapshots.find(names)
        found = (parse_index_name(name) for name in names if name.endswith(TXN_INDEX_SUFFIX))
        self._indexed = {base for base in found if base is not None}

    def open(
        self,
        segments: Sequence[TimedSegment],
        start: int,
        end: int,
        on_warning: Callable[[str], None],
        *,
        rebuild: bool,
    ) -> None:
        """For a log that was just opened and holds [start, end). `rebuild`: the `.txnindex` files may be
        incomplete."""
        table, at = self.snapshots.load(start, on_warning)
        aborted = None if rebuild else self._kept(segments, on_warning)
        if aborted is None:
            every = ProducerTable()
            self._replay(every, start, segments, end)
            self._replay(table, at, segments, end)
            table.aborted, self.kept_to = every.aborted, start
        else:
            aborted.cut(at)
            table.aborted, self.kept_to = aborted, min(at, end)
            self._replay(table, at, segments, end)
        self.table = table

    def cut(self, segments: Sequence[TimedSegment], start: int, end: int) -> None:
        """For a log that was truncated to [start, end); its files have been truncated too."""
        table, at = self.snapshots.load(start, lambda text: None)
        table.aborted, self.kept_to = self.table.aborted, min(self.kept_to, at, end)
        table.aborted.cut(at)
        self._replay(table, at, segments, end)
        self.table = table

    def begin(self, offset: int) -> None:
        """For an empty log that begins at `offset`."""
        self.table, self.kept_to = ProducerTable(), offset

    def trim(self, start: int) -> None:
        """For a log that now starts later."""
        self.table.aborted.trim(start)

    def _kept(
        self, segments: Sequence[TimedSegment], on_warning: Callable[[str], None]
    ) -> AbortedTransactions | None:
        """The contents of the files; None if one of them is invalid, which is removed."""
        found = AbortedTransactions()
        for segment in segments:
            if segment.base_offset not in self._indexed:
                continue
            path = self._index_path(segment.base_offset)
            limit = MAX_OFFSET if segment.sealed_end is None else segment.sealed_end
            entries = decode_aborted(read_file(self._disk, path), segment.base_offset, end_offset=limit)
            if entries is None:
                on_warning(f"{path}: is not a list of aborted transactions; it is rebuilt from the log")
                remove_if_present(self._disk, path)
                return None
            for entry in entries:
                found.add(AbortedTransaction(*entry))
        return found

    def _index_path(self, base: int) -> str:
        return join(self._directory, index_name(base, TXN_INDEX_SUFFIX))

    @staticmethod
    def _replay(table: ProducerTable, at: int, segments: Sequence[TimedSegment], end: int) -> None:
        """`table` is as of `at`; the headers have what followed."""
        for segment in segments:
            limit = end if segment.sealed_end is None else segment.sealed_end
            if limit <= at:
                continue
            position = segment.locate(at)[0] if segment.base_offset < at else 0
            for header, marker in segment.producer_batches(position):
                table.note(header, seen_ms=header.max_timestamp_ms, marker=marker)

    # --- storing

    def snapshot_file(self, end: int) -> File:
        """The snapshot of a log that ends at `end`."""
        return join(self._directory, snapshot_name(end)), encode_producers(self.table)

    def aborted_files(self, segments: Sequence[Segment], end: int) -> list[File]:
        """The `.txnindex` files of segments that do not match what is known now."""
        files: list[File] = []
        aborted = self.table.aborted
        if not aborted.ending_in(self.kept_to, end):
            return files
        for at, segment in enumerate(segments):
            base = segment.base_offset
            limit = segments[at + 1].base_offset if at + 1 < len(segments) else end
            if aborted.ending_in(max(base, self.kept_to), limit):
                files.append((self._index_path(base), encode_aborted(aborted.ending_in(base, limit))))
        return files
