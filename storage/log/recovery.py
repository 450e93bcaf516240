"""What distinguishes a torn tail from corruption: the recovery point, and the scan of what is above it.

Changes no segment: it only reports where the whole batches end and why.

The recovery point means that everything below it was synced before this file was. Damage below it, or before
a later batch that is whole and valid, is corruption; damage above it, at the end, is what a crash leaves.

The file is specific to metaquorum and is in the log's directory. Kafka has `recovery-point-offset-checkpoint`
in the parent directory, but its metadata log neither reads nor writes that file (3.7 `KafkaMetadataLog.apply`
opens with recovery point 0 and verifies everything), and the broker's log manager rewrites it for all its
partitions at once. A file beside the segments has one writer, the one that holds the lock, travels with the
directory, and can hold the byte position too, so that opening a large log reads only its tail. Kafka's log
loader ignores file names other than its own, so the file does not disturb it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAX_BATCH_BYTES,
    BatchHeader,
    batch_problem,
    parse_header,
)
from metaquorum.storage.batches.format import Hop, walk_batches
from metaquorum.storage.disk.interface import Disk, DiskFile, join, read_file, write_atomically
from metaquorum.storage.errors import BatchError, CorruptFileError, FileMissingError

FILE_NAME = "recovery-point"
_VERSION = 0
WINDOW_BYTES = 1024 * 1024
# Kafka lets an administrator raise message.max.bytes; a length above this is taken as damage.
MAX_READABLE_BATCH_BYTES = 16 * MAX_BATCH_BYTES
_ADVICE = "remove it to have the whole log verified when the node starts"


class RecoveryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` begins at byte `position` of the segment with base offset `segment`; everything before it is
    durable.

    `start_offset` is where the log starts and `start_epoch` the leader epoch of the record before it (-1 if
    unknown, in a partition's log that was emptied to start elsewhere). `resetting` marks a reset that has
    begun: every segment will be removed, and the log is empty at `offset`. `epoch` is that of the record
    before `offset`; -1 if an earlier release wrote the file.
    """

    offset: int
    segment: int
    position: int
    start_offset: int
    start_epoch: int
    resetting: bool = False
    epoch: int = -1

    def encode(self) -> bytes:
        """One line of JSON."""
        fields = {
            "version": _VERSION,
            "offset": self.offset,
            "segment": self.segment,
            "position": self.position,
            "startOffset": self.start_offset,
            "startEpoch": self.start_epoch,
            "resetting": self.resetting,
            "epoch": self.epoch,
        }
        return (json.dumps(fields) + "\n").encode()

    @staticmethod
    def decode(data: bytes, file: str) -> RecoveryPoint:
        """The inverse. Raises CorruptFileError; never guesses, because a wrong point could remove
        committed data."""
        try:
            fields = json.loads(data)
            version = fields["version"]
            if version != _VERSION:
                raise CorruptFileError(
                    file,
                    f"has version {version}, this release reads {_VERSION}",
                    "use the release that wrote it",
                )
            names = ("offset", "segment", "position", "startOffset", "startEpoch")
            numbers = [*(fields[name] for name in names), fields.get("epoch", -1)]
            resetting = fields["resetting"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(file, f"is not a recovery point ({error})", _ADVICE) from None
        lowest = (0, 0, 0, 0, -1, -1)
        whole = all(type(number) is int for number in numbers)
        if (
            not whole
            or any(number < least for number, least in zip(numbers, lowest, strict=True))
            or type(resetting) is not bool
        ):
            raise CorruptFileError(file, "has fields that are not offsets", _ADVICE)
        offset, segment, position, start_offset, start_epoch, epoch = numbers
        if not start_offset <= segment <= offset:
            raise CorruptFileError(file, f"has offset {offset} outside its segment {segment}", _ADVICE)
        return RecoveryPoint(
            offset=offset,
            segment=segment,
            position=position,
            start_offset=start_offset,
            start_epoch=start_epoch,
            resetting=resetting,
            epoch=epoch,
        )


def load_recovery_point(disk: Disk, directory: str) -> RecoveryPoint | None:
    """The durable point; None if there is no file (a log that Kafka wrote, or a new one)."""
    path = join(directory, FILE_NAME)
    try:
        return RecoveryPoint.decode(read_file(disk, path), path)
    except FileMissingError:
        return None


def store_recovery_point(disk: Disk, directory: str, point: RecoveryPoint) -> None:
    """Durable on return. The caller has already synced everything below the point."""
    write_atomically(disk, join(directory, FILE_NAME), point.encode())


class RecoveryScan(NamedTuple):
    """How far a file holds whole, valid batches: to byte `end`, offset `next_offset`, leader epoch `epoch`.

    `problem` says what is wrong after that; None if the file ends there.
    """

    end: int
    next_offset: int
    epoch: int
    problem: str | None


def scan_file(
    file: DiskFile,
    position: int,
    next_offset: int,
    epoch: int,
    on_hops: Callable[[int, list[Hop]], None],
    *,
    gaps: bool = False,
) -> RecoveryScan:
    """Walks `file` from `position`, where offset `next_offset` must begin (with `gaps`, the lowest allowed),
    to its end or its first problem.

    Calls `on_hops(window position, hops)` for the batches that passed. Memory: one window, or one batch.
    """
    size = file.size()
    window = WINDOW_BYTES
    while position < size:
        buf = file.read_at(position, min(window, size - position))
        walk = walk_batches(buf, expected_offset=next_offset, min_epoch=epoch, gaps=gaps)
        if walk.hops:
            on_hops(position, walk.hops)
            next_offset, epoch = walk.hops[-1][2], walk.hops[-1][3]
            position += walk.end
            window = WINDOW_BYTES
            continue
        needed = _needed_bytes(buf, size - position)  # cut off by the window, or by the end of the file
        if needed is None or needed <= len(buf):
            return RecoveryScan(position, next_offset, epoch, walk.problem)
        window = needed
    return RecoveryScan(position, next_offset, epoch, None)


def _needed_bytes(buf: bytes, left: int) -> int | None:
    """Size of the batch at the start of `buf`, limited to what is left of the file; None if its length is
    implausible."""
    try:
        size = parse_header(buf).size_bytes
    except BatchError:
        return None
    return min(size, left) if HEADER_BYTES <= size <= MAX_READABLE_BATCH_BYTES else None


def find_valid_batch(file: DiskFile, position: int, min_offset: int) -> tuple[int, BatchHeader] | None:
    """(position, header) of the first whole batch from `position` on that has a correct CRC and an offset
    that can follow `min_offset`.

    Looks at every byte, because the damage may have hit a length. A hit proves that the damage before it is
    not a torn tail. Stale bytes are no danger: a log file never holds any beyond its end.
    """
    size = file.size()
    while size - position >= HEADER_BYTES:
        buf = file.read_at(position, min(WINDOW_BYTES, size - position))
        magic_at = buf.find(b"\x02", 16)
        while magic_at >= 0:
            found = _valid_at(file, buf, magic_at - 16, position, min_offset)
            if found is not None:
                return position + magic_at - 16, found
            magic_at = buf.find(b"\x02", magic_at + 1)
        if position + len(buf) >= size:
            return None
        # The next window repeats the last bytes, because it may have split a header.
        position += len(buf) - HEADER_BYTES + 1
    return None


def _valid_at(file: DiskFile, buf: bytes, index: int, position: int, min_offset: int) -> BatchHeader | None:
    if len(buf) - index < HEADER_BYTES:
        return None
    header = parse_header(buf, index)
    # Offsets of one file differ by less than 2^31, as in Kafka; this rules out nearly every chance hit early.
    if not min_offset <= header.base_offset < min_offset + (1 << 31):
        return None
    if header.last_offset_delta < 0 or header.records_count < 0:
        return None
    needed = header.batch_length + LENGTH_OVERHEAD_BYTES
    if not HEADER_BYTES <= needed <= min(file.size() - position - index, MAX_READABLE_BATCH_BYTES):
        return None
    whole = (
        buf[index : index + needed] if index + needed <= len(buf) else file.read_at(position + index, needed)
    )
    return header if batch_problem(whole, 0, check_count=False) is None else None
