"""Snapshot files: naming, writing, receiving in chunks, serving in chunks, deleting.

A file is written under a temporary name, synced, renamed, and the directory synced: a file with its final
name is complete. Source: KIP-630, Kafka's `Snapshots` and `FileRawSnapshotWriter`.
"""

from __future__ import annotations

import re

import msgspec

from metaquorum.storage.batches.format import MAX_OFFSET
from metaquorum.storage.disk.interface import Disk, DiskFile, join, remove_if_present
from metaquorum.storage.errors import FileMissingError, SnapshotError
from metaquorum.storage.types import LogPosition

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
BOOTSTRAP_FILE = "bootstrap.checkpoint"
"""The records that the first active controller writes."""
BOOTSTRAP_SNAPSHOT = LogPosition(0, 0)
"""The checkpoint that formatting writes if the voters are dynamic: the voter set before any record."""
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_TEMPORARY = re.compile(r"\d{20}-\d{10}.*\.checkpoint\.(part|deleted)")


def snapshot_name(snapshot_id: LogPosition) -> str:
    """`00000000000000001850-0000000003.checkpoint` for epoch 3, end offset 1850."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SUFFIX}"


def parse_snapshot_name(name: str) -> LogPosition | None:
    """The identity in a finished snapshot's file name; None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None or int(match.group(1)) >= MAX_OFFSET:
        return None
    return LogPosition(int(match.group(2)), int(match.group(1)))


def list_snapshots(disk: Disk, directory: str) -> list[LogPosition]:
    """Finished snapshots, by rising end offset, then epoch."""
    found = (parse_snapshot_name(name) for name in disk.list_directory(directory))
    return sorted((one for one in found if one is not None), key=lambda one: (one.offset, one.epoch))


def latest_snapshot(disk: Disk, directory: str) -> LogPosition | None:
    """The finished snapshot with the highest end offset."""
    snapshots = list_snapshots(disk, directory)
    return snapshots[-1] if snapshots else None


def snapshot_path(directory: str, snapshot_id: LogPosition) -> str:
    """Path of the finished snapshot with this identity."""
    return join(directory, snapshot_name(snapshot_id))


def clean_abandoned(disk: Disk, directory: str) -> list[str]:
    """Removes temporary files left by a crash; returns their names. Only for the writer, when it opens."""
    names = [name for name in disk.list_directory(directory) if _TEMPORARY.fullmatch(name)]
    for name in names:
        disk.remove(join(directory, name))
    if names:
        disk.sync_directory(directory)
    return names


def delete_snapshots_before(disk: Disk, directory: str, end_offset: int) -> list[LogPosition]:
    """Removes finished snapshots whose end offset is below `end_offset`, but never the newest snapshot."""
    doomed = [one for one in list_snapshots(disk, directory)[:-1] if one.offset < end_offset]
    for one in doomed:
        delete_snapshot(disk, directory, one)
    return doomed


def delete_snapshot(disk: Disk, directory: str, snapshot_id: LogPosition) -> bool:
    """Removes one finished snapshot, durably; returns False if it did not exist."""
    if not remove_if_present(disk, snapshot_path(directory, snapshot_id)):
        return False
    disk.sync_directory(directory)
    return True


class SnapshotChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a snapshot from `position` on; `size_bytes` is the size of the whole file."""

    snapshot_id: LogPosition
    position: int
    size_bytes: int
    data: bytes

    @property
    def is_last(self) -> bool:
        """True when these bytes reach the end."""
        return self.position + len(self.data) >= self.size_bytes


def read_chunk(
    disk: Disk, directory: str, snapshot_id: LogPosition, position: int, max_bytes: int
) -> SnapshotChunk:
    """At most `max_bytes` of a finished snapshot from `position` on; not aligned to batches (FetchSnapshot).

    Raises SnapshotError if there is no such snapshot (Kafka's SNAPSHOT_NOT_FOUND) or `position` is not in it
    (POSITION_OUT_OF_RANGE).
    """
    path = snapshot_path(directory, snapshot_id)
    try:
        file = disk.open_read(path)
    except FileMissingError:
        raise SnapshotNotFoundError(
            f"{path} does not exist or was removed; fetch again to get the newest snapshot"
        ) from None
    try:
        size = file.size()
        if not 0 <= position < max(size, 1):
            raise SnapshotPositionError(
                f"position {position} is not in {path} of {size} bytes; start again at 0"
            )
        data = file.read_at(position, max_bytes)
    finally:
        file.close()
    return SnapshotChunk(snapshot_id=snapshot_id, position=position, size_bytes=size, data=data)


class SnapshotNotFoundError(SnapshotError):
    """There is no finished snapshot with this identity."""


class SnapshotPositionError(SnapshotError):
    """A chunk position outside the file, or one that does not follow the bytes received so far."""


class SnapshotWriter:
    """One snapshot that is being written here or received from a leader. Invisible to readers before
    `freeze`."""

    def __init__(self, disk: Disk, directory: str, snapshot_id: LogPosition, *, resume: bool = False) -> None:
        """Opens the temporary file. With `resume`, keeps what an interrupted transfer left (its bytes may
        be torn after a crash: check the whole file before `freeze`); otherwise empties it."""
        self.snapshot_id = snapshot_id
        self._disk = disk
        self._directory = directory
        stem = snapshot_name(snapshot_id).removesuffix(SUFFIX)
        self._temporary = join(directory, stem + PARTIAL_SUFFIX)
        self._file: DiskFile | None = disk.open_append(self._temporary)
        if not resume and self._file.size():
            self._file.truncate(0)

    @property
    def path(self) -> str:
        """The temporary file, which can be read while it is written."""
        return self._temporary

    @property
    def size_bytes(self) -> int:
        """Size so far: the position at which the next chunk must start."""
        return self._open_file().size()

    def append(self, data: bytes) -> int:
        """Adds bytes and returns the size. Raises DiskError."""
        file = self._open_file()
        file.append(data)
        return file.size()

    def receive(self, chunk: SnapshotChunk) -> int:
        """Adds a chunk that starts where the last one ended; returns the position to request next.

        Skips a chunk that was received before (its response was lost). Raises SnapshotError for another
        snapshot's chunk, SnapshotPositionError for a gap.
        """
        if chunk.snapshot_id != self.snapshot_id:
            raise SnapshotError(
                f"a chunk of snapshot {snapshot_name(chunk.snapshot_id)} arrived while receiving "
                f"{snapshot_name(self.snapshot_id)}; drop it or start the new one"
            )
        size = self.size_bytes
        already_received = size - chunk.position
        if already_received < 0 or chunk.position < 0:
            raise SnapshotPositionError(
                f"a chunk at {chunk.position} does not follow the {size} bytes received; ask for {size}"
            )
        return self.append(chunk.data[already_received:])

    def freeze(self) -> str:
        """Sync, rename, sync of the directory; returns the final path. Durable and visible on return."""
        file = self._open_file()
        file.sync()
        file.close()
        self._file = None
        path = snapshot_path(self._directory, self.snapshot_id)
        self._disk.rename(self._temporary, path)
        self._disk.sync_directory(self._directory)
        return path

    def close(self, *, keep: bool = False) -> None:
        """Ends without a snapshot and removes the temporary file, unless it will be resumed."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        if not keep:
            remove_if_present(self._disk, self._temporary)

    def _open_file(self) -> DiskFile:
        if self._file is None:
            raise SnapshotError(
                f"the snapshot {snapshot_name(self.snapshot_id)} is already frozen or closed; create a new "
                "writer"
            )
        return self._file
