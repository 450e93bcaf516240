"""From a path that a user gave to batches and records: node directories, logs, segments, checkpoints.

Reads only; takes no lock and writes nothing. Problems come as values with file, position and offset, so
that a tool can name them and go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metadata.batches import DecodedRecord, decode_batch
from metadata.errors import RecordDecodeError
from metadata.inspect.entities import EntityNamer
from metadata.records import TopicRecord
from storage.batch import RecordBatch
from storage.disk import join, name_of, parent_of
from storage.errors import BatchError, FileMissingError, NotALogError
from storage.log import METADATA_DIRECTORY
from storage.posix_disk import PosixDisk
from storage.reader import Damage, LogReader
from storage.segment import list_segments, parse_segment_name, segment_name
from storage.snapshots import list_snapshots, snapshot_path
from storage.types import LogPosition


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One batch with its records decoded."""

    batch: RecordBatch
    records: tuple[DecodedRecord, ...]


Item = ReadBatch | Damage


def log_path(path: str) -> str:
    """The log that a path means: a node's directory stands for the `__cluster_metadata-0` in it.

    For a node of a local cluster it is in its `data`.

    Raises FileMissingError, NotALogError for what holds no log.
    """
    disk = PosixDisk()
    if not disk.exists(path):
        raise FileMissingError(path)
    if disk.is_directory(path):
        inner = [join(path, METADATA_DIRECTORY), join(join(path, "data"), METADATA_DIRECTORY)]
        found = next((one for one in inner if disk.is_directory(one)), path)
        if not list_segments(disk, found) and not list_snapshots(disk, found):
            raise NotALogError(path, "holds no .log segment")
        return found
    return path


def is_checkpoint(path: str) -> bool:
    return ".checkpoint" in name_of(path)


def items(path: str, start_offset: int | None = None) -> Iterator[Item]:
    """Everything that the log at `path` holds now, damage between what could be read.

    A log that is read from its beginning and holds no byte is damage too, and so is a checkpoint without its
    last record: nothing else would tell it from a whole one.
    """
    reader = open_reader(path, start_offset)
    finished = not is_checkpoint(path)
    try:
        for found in reader:
            for item in decode_item(found):
                finished = finished or _ends_snapshot(item)
                yield item
    finally:
        reader.close()
    size_bytes = _size_bytes(path)
    if size_bytes == 0 and not start_offset:
        yield Damage(file=path, position=0, offset=log_start(path), reason="is empty, it holds no record yet")
    elif not finished:
        reason = "has no footer: it is cut off, or was never finished"
        yield Damage(file=path, position=size_bytes, offset=reader.next_offset or 0, reason=reason)


def _ends_snapshot(item: Item) -> bool:
    return isinstance(item, ReadBatch) and any(
        decoded.record.type_name == "SNAPSHOT_FOOTER" for decoded in item.records
    )


def _size_bytes(path: str) -> int:
    disk = PosixDisk()
    if not disk.is_directory(path):
        return disk.file_size(path)
    return sum(disk.file_size(join(path, segment_name(base))) for base in list_segments(disk, path))


def open_reader(path: str, start_offset: int | None = None) -> LogReader:
    return LogReader(PosixDisk(), path, tolerant=True, start_offset=start_offset)


def decode_item(found: RecordBatch | Damage) -> list[Item]:
    """A batch with its records; where one cannot be decoded, what is wrong with the batch."""
    if isinstance(found, Damage):
        return [found]
    try:
        return [ReadBatch(found, decode_batch(found, tolerant=True))]
    except (RecordDecodeError, BatchError) as error:
        return [
            Damage(
                file=found.file, position=found.position, offset=found.header.base_offset, reason=str(error)
            )
        ]


def damage_line(damage: Damage) -> str:
    """One line that names file, position and offset."""
    return f"{damage.file} at byte {damage.position} (offset {damage.offset}): {damage.reason}"


def log_start(path: str) -> int:
    """Where a log begins by its file names: the first segment of a directory, or this segment."""
    disk = PosixDisk()
    if disk.is_directory(path):
        return min(list_segments(disk, path), default=0)
    return parse_segment_name(name_of(path)) or 0


def segment_end(path: str) -> int | None:
    """Where a single segment ends; None for a directory, whose end is the log's."""
    disk = PosixDisk()
    if disk.is_directory(path):
        return None
    last = log_start(path)
    for found in open_reader(path):
        if isinstance(found, RecordBatch):
            last = found.header.next_offset
    return last


def snapshot_before(path: str, offset: int | None) -> LogPosition | None:
    """The newest snapshot beside a log whose end is at or below `offset` (None: the newest of all)."""
    fitting = [
        found
        for found in list_snapshots(PosixDisk(), _directory(path))
        if offset is None or found.offset <= offset
    ]
    return fitting[-1] if fitting else None


def snapshot_file(path: str, position: LogPosition) -> str:
    return snapshot_path(_directory(path), position)


def namer_for(path: str) -> EntityNamer:
    """A namer that knows the topics from before the log's first segment, as far as a snapshot tells them."""
    namer = EntityNamer()
    disk = PosixDisk()
    if is_checkpoint(path):
        return namer
    directory = _directory(path)
    start = log_start(path)
    fitting = [found for found in list_snapshots(disk, directory) if found.offset >= start] if start else []
    if fitting:
        for item in items(snapshot_path(directory, fitting[0])):
            if isinstance(item, ReadBatch):
                for decoded in item.records:
                    if isinstance(decoded.record, TopicRecord):
                        namer.entities(decoded.record)
    return namer


def _directory(path: str) -> str:
    return path if PosixDisk().is_directory(path) else parent_of(path)
