"""The files beside a log's segments and in a log directory, as rows of names and values; indexes and producer
snapshots have the names that kafka-dump-log prints.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.files import known_committed, meta_properties, quorum_state
from metaquorum.storage.files.checkpoint_text import decode_offsets
from metaquorum.storage.log import epochs, recovery, segment_index
from metaquorum.storage.log.config import PARTITION_METADATA_FILE
from metaquorum.storage.partition.log_producers import SUFFIX as SNAPSHOT_SUFFIX
from metaquorum.storage.partition.log_producers import decode_entries as decode_producers
from metaquorum.storage.partition.replica_directory import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    KAFKA_RECOVERY_POINT_FILE,
    LOG_START_FILE,
    decode_partition_metadata,
)
from metaquorum.storage.uuids import uuid_to_text

Row = dict[str, object]

_ENTRIES_AT_ONCE = 4096
_MAX_BYTES = 1 << 28
"""Maximum size of a file that is read whole."""
_REBUILT = "a broker rebuilds it from the log"
_NOT_NEEDED = "a broker ignores it"
_NAME = re.compile(r"(\d{20})(\.index|\.timeindex|\.txnindex|\.snapshot)")


class FileRows(NamedTuple):
    """`read` returns the rows of a file, and raises CorruptFileError where it is damaged. `base_offset`: the
    offset in its name; 0 for names without one. `suffix`: that of a segment's file, else empty."""

    read: Callable[[BinaryIO, str], Iterator[Row]]
    base_offset: int = 0
    suffix: str = ""


def rows_for(name: str) -> FileRows | None:
    """How a file of this name is shown; None for any other file."""
    if name in _BY_NAME:
        return FileRows(_whole(_BY_NAME[name]))
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    base, suffix = int(match[1]), match[2]
    return FileRows(lambda file, path: _BY_SUFFIX[suffix](file, path, base), base, suffix)


def _whole(rows: Callable[[bytes, str], Iterator[Row]]) -> Callable[[BinaryIO, str], Iterator[Row]]:
    """For small files."""

    def read(file: BinaryIO, path: str) -> Iterator[Row]:
        data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise CorruptFileError(
                path, f"has more than {_MAX_BYTES >> 20} MiB", "check that it is the right file"
            )
        return rows(data, path)

    return read


def _entries(file: BinaryIO, path: str, form: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(byte, fields) of each entry."""
    position = 0
    while chunk := file.read(form.size * _ENTRIES_AT_ONCE):
        whole = len(chunk) - len(chunk) % form.size
        for at in range(0, whole, form.size):
            yield position + at, form.unpack_from(chunk, at)
        position += whole
        if whole < len(chunk):
            raise _damage(
                path, position, f"expected an entry of {form.size} bytes, found {len(chunk) - whole}"
            )


def _used(file: BinaryIO, path: str, form: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The entries before the preallocated ones: Kafka creates an index at its maximum size. Only the first
    entry can have 0 in its last field."""
    unused = False
    for position, entry in _entries(file, path, form):
        unused = unused or (position > 0 and not any(entry))
        if not unused:
            yield position, entry
        elif any(entry):
            raise _damage(path, position, "expected the zeros of entries that are not used yet")


def _damage(path: str, position: int, what: str, advice: str = _REBUILT) -> CorruptFileError:
    return CorruptFileError(path, f"byte {position}: {what}", advice)


def _index_rows(file: BinaryIO, path: str, base: int) -> Iterator[Row]:
    last = (-1, -1)
    for entry_start, (delta, position) in _used(file, path, segment_index.INDEX_ENTRY):
        if delta <= last[0] or position <= last[1]:
            raise _damage(
                path,
                entry_start,
                f"expected offset and position above {last[0]} and {last[1]}, found {delta} and {position}",
            )
        last = (delta, position)
        yield {"offset": base + delta, "position": position}


def _time_rows(file: BinaryIO, path: str, base: int) -> Iterator[Row]:
    last_ms, last = -1, 0
    for entry_start, (time_ms, delta) in _used(file, path, segment_index.TIME_ENTRY):
        if time_ms <= last_ms or delta < last:
            raise _damage(
                path,
                entry_start,
                f"expected a time above {last_ms} and an offset of at least {base + last}, "
                f"found {time_ms} and {base + delta}",
            )
        last_ms, last = time_ms, delta
        yield {"timestamp": time_ms, "offset": base + delta}


def _aborted_rows(file: BinaryIO, path: str, base: int) -> Iterator[Row]:
    ended = base - 1
    for entry_start, (version, producer_id, first, last, stable) in _entries(
        file, path, segment_index.ABORTED_ENTRY
    ):
        if version != segment_index.ABORTED_VERSION:
            raise _damage(
                path, entry_start, f"expected version {segment_index.ABORTED_VERSION}, found {version}"
            )
        if last <= ended or not 0 <= first <= last:
            raise _damage(
                path, entry_start, f"expected offsets that end above {ended}, found {first} to {last}"
            )
        ended = last
        yield {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }


def _producer_rows(data: bytes, path: str) -> Iterator[Row]:
    for producer in decode_producers(data, path):
        last = producer.batches[-1] if producer.batches else None
        row: Row = {
            "producerId": producer.producer_id,
            "producerEpoch": producer.epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": None if producer.open_from < 0 else producer.open_from,
            "lastTimestamp": producer.seen_ms if last is None else last.timestamp_ms,
        }
        if last is not None:
            row |= {
                "firstSequence": last.first_sequence,
                "lastSequence": last.last_sequence,
                "lastOffset": last.last_offset,
                "offsetDelta": last.last_offset - last.first_offset,
                "timestamp": last.timestamp_ms,
            }
        yield row


def _epoch_rows(data: bytes, path: str) -> Iterator[Row]:
    for epoch, start in epochs.EpochTable.decode(data, path).entries:
        yield {"epoch": epoch, "startOffset": start}


def _offset_rows(data: bytes, path: str) -> Iterator[Row]:
    for (topic, partition), offset in decode_offsets(data, path, _NOT_NEEDED).items():
        yield {"topic": topic, "partition": partition, "offset": offset}


def _partition_metadata_rows(data: bytes, path: str) -> Iterator[Row]:
    yield {"topic_id": uuid_to_text(decode_partition_metadata(data, path))}


def _properties_rows(data: bytes, path: str) -> Iterator[Row]:
    properties = meta_properties.MetaProperties.decode(data, path)
    yield {
        "version": properties.version,
        "cluster.id": properties.cluster_id,
        "node.id": properties.node_id,
        "directory.id": None if properties.directory_id is None else uuid_to_text(properties.directory_id),
    }


def _quorum_rows(data: bytes, path: str) -> Iterator[Row]:
    state = quorum_state.QuorumState.decode(data, path)
    yield {
        "leaderId": state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": state.voted_id,
        "votedDirectoryId": uuid_to_text(state.voted_directory_id),
        "currentVoters": list(state.voters),
    }


def _recovery_rows(data: bytes, path: str) -> Iterator[Row]:
    points = recovery.RecoveryPoint.decode(data, path)
    yield {
        "offset": points.offset,
        "segment": points.segment,
        "position": points.position,
        "startOffset": points.start_offset,
        "startEpoch": points.start_epoch,
        "resetting": points.resetting,
        "epoch": points.epoch,
    }


def _committed_rows(data: bytes, path: str) -> Iterator[Row]:
    found = known_committed.decode_known(data, path)
    yield {"committedOffset": found.position.offset, "epoch": found.position.epoch}
    for each in found.acknowledged:
        directory = uuid_to_text(each.directory_id)
        yield {"directoryId": directory, "acknowledgedOffset": each.offset, "epoch": each.epoch}


_BY_SUFFIX: dict[str, Callable[[BinaryIO, str, int], Iterator[Row]]] = {
    segment_index.INDEX_SUFFIX: _index_rows,
    segment_index.TIME_INDEX_SUFFIX: _time_rows,
    segment_index.TXN_INDEX_SUFFIX: _aborted_rows,
    SNAPSHOT_SUFFIX: lambda file, path, _: _whole(_producer_rows)(file, path),
}
_BY_NAME: dict[str, Callable[[bytes, str], Iterator[Row]]] = {
    epochs.FILE_NAME: _epoch_rows,
    HIGH_WATERMARK_FILE: _offset_rows,
    KAFKA_RECOVERY_POINT_FILE: _offset_rows,
    LOG_START_FILE: _offset_rows,
    CLEANER_OFFSET_FILE: _offset_rows,
    PARTITION_METADATA_FILE: _partition_metadata_rows,
    meta_properties.FILE_NAME: _properties_rows,
    quorum_state.FILE_NAME: _quorum_rows,
    recovery.FILE_NAME: _recovery_rows,
    known_committed.FILE_NAME: _committed_rows,
}
