"""A metadata log as the log tools see it: what a path means, its batches, damage, gaps and snapshots.

The step from a path to record batches and records, over the `Disk` interface: the files may be on disk, or
fetched from a live quorum into memory. Reads only: takes no lock and writes nothing. Damage is a value with
file, position and offset, so that a tool can report it and continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import cast

import msgspec

from metaquorum.metadata.errors import InspectError, RecordDecodeError
from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.records.control import SnapshotFooterRecord, SnapshotHeaderRecord
from metaquorum.metadata.records.types import TopicRecord
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch, parse_header
from metaquorum.storage.disk.interface import Disk, join, name_of, parent_of
from metaquorum.storage.errors import (
    BatchError,
    FileMissingError,
    LogDeletedError,
    NotALogError,
    StorageError,
)
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties, load_meta_properties
from metaquorum.storage.files.snapshots import list_snapshots, parse_snapshot_name, snapshot_path
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.reader import Damage, KnownPlaces, LogReader
from metaquorum.storage.log.runs import BatchRun, RunReader
from metaquorum.storage.log.segment import list_segments, parse_segment_name, segment_name
from metaquorum.storage.types import LogPosition

INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")
"""Files that accompany a segment and mean nothing without it."""


class ReadBatch(msgspec.Struct, frozen=True):
    """One batch with its records decoded; unknown ones are UnknownRecord or UnknownControlRecord."""

    batch: RecordBatch
    records: tuple[DecodedRecord, ...]


Item = ReadBatch | Damage
"""What a read returns: a batch, or the damage at a place."""


class NoFooter(Damage, frozen=True, kw_only=True):
    """A checkpoint without its last record: nothing else distinguishes it from a whole one."""


class ClusterIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which cluster and node a log belongs to, by the `meta.properties` beside it; None for what the file
    lacks. `directory_id` is 16 bytes."""

    cluster_id: str | None
    node_id: int | None
    directory_id: bytes | None = None


class MetadataLog:
    """One log: a directory of segments and snapshots, a single segment, or a single checkpoint.

    Holds no file open between calls and caches no records: every iteration reads again, so a growing log
    shows its current content.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        """Does not look at the path; use `open_log`, which reports what is wrong with it."""
        self.disk = disk
        self.path = path
        self.name = path
        """What messages call it."""
        self.is_directory = disk.is_directory(path)
        self.is_checkpoint = not self.is_directory and ".checkpoint" in name_of(path)
        self._whole: dict[LogPosition, bool] = {}
        self._had_segments = False
        self._places = KnownPlaces()
        self.on_read: Callable[[int], None] | None = None
        """Called with the size in bytes of every batch read, for progress."""

    def __repr__(self) -> str:
        return f"MetadataLog({self.path!r})"

    @property
    def has_node_files(self) -> bool:
        """Whether the files beside the log are one node's, such as its vote and its identity."""
        return self.is_directory

    @property
    def directory(self) -> str:
        """The directory that holds the log's files."""
        return self.path if self.is_directory else parent_of(self.path)

    @cached_property
    def identity(self) -> ClusterIdentity | None:
        """The cluster and node that the log belongs to; None if no readable file says so."""
        for directory in (self.directory, parent_of(self.directory)):
            if self.disk.exists(join(directory, META_PROPERTIES)):
                try:
                    identity: MetaProperties = load_meta_properties(self.disk, directory)
                except StorageError:
                    return None
                return ClusterIdentity(
                    cluster_id=identity.cluster_id,
                    node_id=identity.node_id,
                    directory_id=identity.directory_id,
                )
        return None

    @property
    def segments(self) -> list[int]:
        """Base offsets of the segments, ascending; empty for a checkpoint and for snapshots without a log.
        Raises LogDeletedError if there were some before."""
        if self.is_directory:
            listed: list[int] = []
            try:
                listed = list_segments(self.disk, self.path)
            except FileMissingError:
                if not self._had_segments:
                    raise
            if self._had_segments and not listed:
                raise LogDeletedError(self.path)
            self._had_segments = bool(listed)
            return listed
        base = None if self.is_checkpoint else parse_segment_name(name_of(self.path))
        return [] if base is None else [base]

    @property
    def start_offset(self) -> int:
        """Where the log begins, by its file names; without a segment, the end of its newest snapshot (0 for a
        checkpoint, which counts its own records)."""
        if self.is_checkpoint:
            return 0
        segments = self.segments
        if segments:
            return segments[0]
        snapshots = self.snapshots() if self.is_directory else []
        return snapshots[-1].offset if snapshots else 0

    @property
    def end_offset(self) -> int:
        """One more than the last offset that can be read now. Reads the last segment."""
        last, segments = self.last_header(), self.segments
        if last is not None:
            return last.next_offset
        return segments[-1] if segments else self.start_offset

    def last_header(self) -> BatchHeader | None:
        """The header of the last batch that can be read now. Reads the last segment."""
        segments = self.segments
        last: RecordBatch | BatchRun | None = None
        for item in self.runs(segments[-1] if segments else None):
            if not isinstance(item, Damage):
                last = item
        if isinstance(last, BatchRun):
            return parse_header(last.data, int(last.places[-2]))
        return None if last is None else last.header

    def size_bytes(self) -> int:
        """Bytes of all segments (or of the file), without those that the node deletes meanwhile."""
        if not self.is_directory:
            return self.disk.file_size(self.path)
        size = 0
        for base in self.segments:
            with suppress(FileMissingError):
                size += self.disk.file_size(join(self.path, segment_name(base)))
        return size

    def snapshots(self) -> list[LogPosition]:
        """Finished snapshots beside the log, by ascending end offset; empty for a checkpoint."""
        return [] if self.is_checkpoint else list_snapshots(self.disk, self.directory)

    def snapshot(self, position: LogPosition) -> MetadataLog:
        """The snapshot that ends at `position`, as a log of its own."""
        return MetadataLog(self.disk, snapshot_path(self.directory, position))

    def is_whole(self, position: LogPosition) -> bool:
        """Whether the snapshot that ends at `position` is complete and every batch of it is
        sound. Reads it once."""
        if position not in self._whole:
            last: RecordBatch | Damage | None = None
            for last in self.snapshot(position).batches():
                if isinstance(last, Damage):
                    break
            ends = decode_item(last) if isinstance(last, RecordBatch) and last.header.is_control else []
            self._whole[position] = any(map(ends_snapshot, ends))
        return self._whole[position]

    def snapshot_position(self) -> LogPosition | None:
        """For a checkpoint, the end of the log that it holds, by its name; None for any other name or log."""
        return parse_snapshot_name(name_of(self.path)) if self.is_checkpoint else None

    def snapshot_timestamp_ms(self) -> int:
        """For a checkpoint, the time of the last record in it, by its header; -1 if the header is missing."""
        for found in self.batches():
            for item in decode_item(found):
                if isinstance(item, ReadBatch):
                    for decoded in item.records:
                        if isinstance(decoded.record, SnapshotHeaderRecord):
                            return decoded.record.last_contained_log_timestamp
            break
        return -1

    def reader(self, start_offset: int | None = None) -> LogReader:
        """A reader that tolerates damage and can follow the log. The caller closes it."""
        return LogReader(self.disk, self.path, tolerant=True, start_offset=start_offset, places=self._places)

    def batches(self, start_offset: int | None = None) -> Iterator[RecordBatch | Damage]:
        """Every batch from the one that holds `start_offset` on, without decoding records, and the damage
        between them.

        A log that is read from its beginning and is empty counts as damage, and so does a missing segment
        whose index is there.
        """
        if self.is_directory and not self.segments:
            yield from self._orphans(start_offset)
            return
        yield from self._from(self.reader(start_offset), start_offset)

    def runs(self, start_offset: int | None = None) -> Iterator[RecordBatch | BatchRun | Damage]:
        """The same as `batches`, with consecutive plain batches as one value."""
        if self.is_directory and not self.segments:
            yield from self._orphans(start_offset)
            return
        reader = RunReader(self.disk, self.path, start_offset=start_offset, places=self._places)
        yield from cast("Iterator[RecordBatch | BatchRun | Damage]", self._from(reader, start_offset))

    def _from(self, reader: LogReader, start_offset: int | None) -> Iterator[RecordBatch | Damage]:
        yield from self._orphans(start_offset)
        try:
            yield from reader if self.on_read is None else _counted(reader, self.on_read)
        finally:
            reader.close()
        if not start_offset and self.size_bytes() == 0:
            reason = "is empty: it has no records yet"
            yield Damage(file=self.path, position=0, offset=self.start_offset, reason=reason)

    def items(self, start_offset: int | None = None) -> Iterator[Item]:
        """The same as `batches`, with every record decoded. A batch that cannot be decoded is damage, and so
        is a checkpoint without its last record: nothing else distinguishes it from a whole one."""
        finished = not self.is_checkpoint
        end = 0
        for found in self.batches(start_offset):
            for item in decode_item(found):
                if isinstance(item, ReadBatch):
                    end = item.batch.header.next_offset
                    finished = finished or ends_snapshot(item)
                yield item
        if not finished and self.size_bytes():
            yield self.missing_footer(end)

    def missing_footer(self, end_offset: int) -> Damage:
        """Damage for a checkpoint that ends at `end_offset`, before its last record."""
        reason = "has no footer: it was truncated, or never completed"
        return NoFooter(file=self.path, position=self.size_bytes(), offset=end_offset, reason=reason)

    def _orphans(self, start_offset: int | None) -> Iterator[Damage]:
        """Indexes from `start_offset` on whose segment is missing."""
        if not self.is_directory:
            return
        names = set(self.disk.list_directory(self.path))
        for name in sorted(names):
            stem, dot, suffix = name.partition(".")
            if dot + suffix not in (".index", ".timeindex") or not stem.isdigit():
                continue
            missing = f"{stem}.log"
            if missing not in names and int(stem) >= (start_offset or 0) and name.endswith(".index"):
                reason = f"is an index without its log: {missing} is not there; restore it from another node"
                yield Damage(file=join(self.path, name), position=0, offset=int(stem), reason=reason)

    def namer(self) -> EntityNamer:
        """A namer that knows the topics from before the log, as far as the snapshots near its beginning have
        them. A topic's id never changes, so later names hold for earlier records too."""
        namer = EntityNamer()
        start = self.start_offset
        snapshots = self.snapshots() if start else []
        before = [found for found in snapshots if found.offset < start]
        behind = [found for found in snapshots if found.offset >= start]
        for found in (*before[-1:], *behind[:1]):
            for item in self.snapshot(found).items():
                if isinstance(item, ReadBatch):
                    for decoded in item.records:
                        if isinstance(decoded.record, TopicRecord):
                            namer.entities(decoded.record)
        return namer


def open_log(disk: Disk, path: str) -> MetadataLog:
    """The log at a path.

    A node's directory means the `__cluster_metadata-0` in it (in `data` for a node of a local cluster). A
    `__cluster_metadata-0` directory is all its segments in order; a `.log` file is one segment, a
    `.checkpoint` file one state. Raises FileMissingError, or NotALogError if the path holds no log.
    """
    if not disk.exists(path):
        raise FileMissingError(path)
    if not disk.is_directory(path):
        name = name_of(path)
        if name.endswith(INDEX_SUFFIXES):
            beside = name.partition(".")[0] + ".log"
            there = disk.exists(join(parent_of(path), beside))
            raise NotALogError(
                path,
                f"is an index of {beside}" + ("" if there else ", which is missing; the log is lost here"),
            )
        LogReader(disk, path, tolerant=True).close()  # raises if the name is not a log's
        return MetadataLog(disk, path)
    inner = [join(path, METADATA_DIRECTORY), join(join(path, "data"), METADATA_DIRECTORY)]
    directory = next((one for one in inner if disk.is_directory(one)), path)
    log = MetadataLog(disk, directory)
    if not log.segments and not log.snapshots():
        orphans = [one for one in disk.list_directory(directory) if one.endswith(INDEX_SUFFIXES)]
        lost = f" ({orphans[0]} is present without its log)" if orphans else ""
        what = ".log segment" if name_of(directory) == METADATA_DIRECTORY else "metadata log"
        raise NotALogError(directory, f"holds no {what}{lost}")
    return log


def require_one_cluster(logs: Iterable[MetadataLog]) -> None:
    """Raises InspectError if two of the logs are known to belong to different clusters."""
    path_by_cluster: dict[str, str] = {}
    for log in logs:
        if log.identity is not None and log.identity.cluster_id is not None:
            path_by_cluster.setdefault(log.identity.cluster_id, log.path)
    if len(path_by_cluster) > 1:
        (first, first_path), (second, second_path) = list(path_by_cluster.items())[:2]
        raise InspectError(
            f"{first_path} belongs to cluster {first}, but {second_path} to {second}; give logs of one "
            "cluster"
        )


def decode_item(item: RecordBatch | Damage) -> list[Item]:
    """A batch with its records or, if one cannot be decoded, the damage."""
    if isinstance(item, Damage):
        return [item]
    try:
        return [ReadBatch(item, decode_batch(item, tolerant=True))]
    except (RecordDecodeError, BatchError) as error:
        return [
            Damage(file=item.file, position=item.position, offset=item.header.base_offset, reason=str(error))
        ]


def damage_line(damage: Damage) -> str:
    """One line that names file, position and offset."""
    return f"{damage.file} at byte {damage.position} (offset {damage.offset}): {damage.reason}"


def _counted(
    items: Iterable[RecordBatch | Damage], on_read: Callable[[int], None]
) -> Iterator[RecordBatch | Damage]:
    for item in items:
        if not isinstance(item, Damage):
            on_read(item.size_bytes if isinstance(item, BatchRun) else len(item.data))
        yield item


def ends_snapshot(item: Item) -> bool:
    """Whether a batch holds the last record of a checkpoint."""
    if isinstance(item, Damage):
        return False
    return any(isinstance(decoded.record, SnapshotFooterRecord) for decoded in item.records)
