"""`log dump` of the files of topic partitions and log directories, in the form of kafka-dump-log."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from metaquorum.cli.log.input.select import SelectedRecords
from metaquorum.cli.text.output import json_line, text_or_base64
from metaquorum.metadata.text.dump import struct_json
from metaquorum.storage.archive import archive_in, disk_for
from metaquorum.storage.batches.batch import (
    BatchHeader,
    RawRecord,
    RecordBatch,
    batch_problem,
    parse_control_key,
    parse_header,
)
from metaquorum.storage.batches.format import (
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    Compression,
)
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.errors import BatchError, CorruptFileError
from metaquorum.storage.files import known_committed, meta_properties, quorum_state
from metaquorum.storage.files.checkpoint_text import decode_offsets
from metaquorum.storage.log import epochs, recovery, timed_segment
from metaquorum.storage.log.config import METADATA_DIRECTORY, PARTITION_METADATA_FILE
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES
from metaquorum.storage.log.timed_segment import INDEX_SUFFIX
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
from metaquorum.wire.embedded import assigned_partitions, consumer_assignment, consumer_subscription
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, TransactionLogKey
from metaquorum.wire.stored import DECODED_TOPICS, StoredRecord, decode_stored, stored_structures

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The files beside a log's segments and in a log directory, as rows of names and values; indexes and producer
# snapshots have the names that kafka-dump-log prints.

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


def _damage(path: str, position: int, what: str) -> CorruptFileError:
    return CorruptFileError(path, f"byte {position}: {what}", _REBUILT)


def _index_rows(file: BinaryIO, path: str, base: int) -> Iterator[Row]:
    last = (-1, -1)
    for entry_start, (delta, position) in _used(file, path, timed_segment.INDEX_ENTRY):
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
    for entry_start, (time_ms, delta) in _used(file, path, timed_segment.TIME_ENTRY):
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
        file, path, timed_segment.ABORTED_ENTRY
    ):
        if version != timed_segment.ABORTED_VERSION:
            raise _damage(
                path, entry_start, f"expected version {timed_segment.ABORTED_VERSION}, found {version}"
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
    timed_segment.INDEX_SUFFIX: _index_rows,
    timed_segment.TIME_INDEX_SUFFIX: _time_rows,
    timed_segment.TXN_INDEX_SUFFIX: _aborted_rows,
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


# A partition's record batches as text in kafka-dump-log's form: with `--deep-iteration --print-data-log` and,
# for the internal topics, with its decoders.
#
# The JSON of internal topics' records is in `stored_json`.

_OPTIONAL = frozenset({"deleteHorizonMs", "currentTxnFirstOffset"})
_MAX_SEQUENCE = 2**31 - 1
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
_DELETED = "<DELETE>"


def batch_lines(topic: str, header: BatchHeader, data: bytes, position: int) -> Iterator[str]:
    """The batch at `position` of its file, and each of its records. Raises BatchError if its
    records cannot be read."""
    yield fields_line(batch_fields(header, data, position))
    for record in RecordBatch(header, data, position).records():
        yield _record_line(topic, header, record)


def batch_fields(header: BatchHeader, data: bytes, position: int) -> dict[str, object]:
    """What kafka-dump-log prints about a batch, in its order."""
    codec = header.compression
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.records_count,
        "baseSequence": header.base_sequence,
        "lastSequence": sequence_at(header, header.last_offset_delta),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None,
        "position": position,
        time_name(header): header.max_timestamp_ms,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": Compression(codec).name.lower() if codec <= max(Compression) else codec,
        "crc": header.crc,
        "isvalid": batch_problem(data, 0, check_count=False) is None,
    }


def fields_line(fields: Mapping[str, object]) -> str:
    """`name: value` for each field, as Java prints them."""
    return " ".join(f"{name}: {_java(name, value)}" for name, value in fields.items())


def _java(name: str, value: object) -> object:
    if name in _OPTIONAL:
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    return str(value).lower() if isinstance(value, bool) else value


def _record_line(topic: str, header: BatchHeader, record: RawRecord) -> str:
    names = ",".join(name.decode(errors="replace") for name, _ in record.headers)
    line = (
        f"| offset: {record.offset} {time_name(header)}: {record.timestamp_ms} "
        f"keySize: {_size(record.key)} valueSize: {_size(record.value)} "
        f"sequence: {sequence_at(header, record.offset - header.base_offset)} headerKeys: [{names}]"
    )
    if header.is_control:
        return f"{line} {fields_line(control_fields(record))}"
    key, payload = _decoded(topic, record) if topic in DECODED_TOPICS else _plain(record)
    return (
        line + ("" if key is None else f" key: {key}") + ("" if payload is None else f" payload: {payload}")
    )


def control_fields(record: RawRecord) -> dict[str, object]:
    """The content of a control record: the end of a transaction, or a type unknown to this
    release. Raises BatchError."""
    kind = parse_control_key(record.key)[1]
    if kind not in _MARKERS:
        return {"controlType": f"UNKNOWN({kind})"}
    if record.value is None or len(record.value) < 6:
        raise BatchError(f"the marker at offset {record.offset} has no coordinator epoch")
    epoch = int.from_bytes(record.value[2:6], "big", signed=True)
    return {"endTxnMarker": _MARKERS[kind], "coordinatorEpoch": epoch}


def _plain(record: RawRecord) -> tuple[str | None, str | None]:
    return _text(record.key), _text(record.value)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _decoded(topic: str, record: RawRecord) -> tuple[str | None, str | None]:
    """Key and value of a record of an internal topic as text; raw text or the error if not decoded."""
    if record.key is None:
        return _plain(record)
    try:
        stored = decode_stored(topic, record.key, record.value)
    except DecodeError as error:
        return _plain(record)[0], f"<{error}>"
    if stored is None:
        return f"unknown::version={int.from_bytes(record.key[:2], 'big', signed=True)}", None
    return _key_text(stored), _DELETED if stored.value is None else _value_text(stored)


def _key_text(stored: StoredRecord) -> str:
    key = stored.key
    if isinstance(key, OffsetCommitKey):
        return f"offset_commit::group={key.group},partition={key.topic}-{key.partition}"
    if isinstance(key, GroupMetadataKey):
        return f"group_metadata::group={key.group}"
    if isinstance(key, TransactionLogKey):
        return f"transaction_metadata::transactionalId={key.transactional_id}"
    return json.dumps(stored_json(stored)[0], separators=(",", ":"), ensure_ascii=False)


def _value_text(stored: StoredRecord) -> str:
    value = stored.value
    if isinstance(stored.key, OffsetCommitKey):
        metadata = f",metadata={value.metadata}" if value.metadata else ""
        expires = f",expireTimestamp={value.expire_timestamp}" if value.expire_timestamp >= 0 else ""
        return f"offset={value.offset}{metadata}{expires}"
    if isinstance(stored.key, GroupMetadataKey):
        return _group_text(value)
    if isinstance(stored.key, TransactionLogKey):
        status = value.transaction_status
        parts = [
            f"{topic.topic}-{index}"
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ]
        return (
            f"producerId:{value.producer_id},producerEpoch:{value.producer_epoch},"
            f"state={_STATES[status] if 0 <= status < len(_STATES) else status},"
            f"partitions=[{','.join(parts)}],"
            f"txnLastUpdateTimestamp={value.transaction_last_update_timestamp_ms},"
            f"txnTimeoutMs={value.transaction_timeout_ms}"
        )
    return json.dumps(stored_json(stored)[1], separators=(",", ":"), ensure_ascii=False)


def _group_text(value: Any) -> str:
    shares = []
    for member in value.members:
        assigned = assigned_partitions(member.assignment) if value.protocol_type == "consumer" else None
        if assigned is None:
            share = member.assignment.hex().upper().lstrip("0")
        else:
            partitions, user_data = assigned
            share = f"[{', '.join(f'{topic}-{index}' for topic, index in partitions)}]"
            if user_data:
                share += f":{user_data.hex().upper().lstrip('0')}"
        shares.append(f"{member.member_id}={share}")
    fields = {
        "protocolType": value.protocol_type,
        "protocol": value.protocol,
        "generationId": value.generation,
        "assignment": "{" + ",".join(shares) + "}",
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def time_name(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def sequence_at(header: BatchHeader, delta: int) -> int:
    """Sequence numbers start over at 0 after the largest int."""
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + delta) % (_MAX_SEQUENCE + 1)


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


# Records of the internal topics as JSON, in the form in which kafka-dump-log prints them from Kafka 3.8
# on.
#
# Names and structure: `type` is the version of the key, which identifies the record's type. A consumer's
# own data in a group's record is decoded too.

_TAKEN_APART = {"subscription": consumer_subscription, "assignment": consumer_assignment}


def stored_json(stored: StoredRecord) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Key and value; the value is None for a record that deletes."""
    key = {"type": str(stored.key_version), "data": _plain_value(stored.key, stored.key_version)}
    if stored.value is None:
        return key, None
    data = _plain_value(stored.value, stored.value_version)
    if isinstance(stored.value, GroupMetadataValue) and stored.value.protocol_type == "consumer":
        for shown, member in zip(data["members"], stored.value.members, strict=True):
            for name, decode in _TAKEN_APART.items():
                found = decode(getattr(member, name))
                if found is not None:
                    shown[name] = struct_json(found.schema, found.version)(found.value)
    return key, {"version": str(stored.value_version), "data": data}


def _plain_value(value: Any, version: int) -> dict[str, Any]:
    data: dict[str, Any] = struct_json(stored_structures()[type(value).__name__], version)(value)
    return data


_DIRECTORY = re.compile(r"(?P<topic>[\w.-]+)-\d+")
_SEGMENT = re.compile(r"\d{20}\.log")


class Shown(NamedTuple):
    """How files are shown. `topic`: the topic of all segments; None: by the names of their directories.
    `complain` takes a line about damage."""

    selection: SelectedRecords
    as_json: bool
    topic: str | None
    complain: Callable[[str], None]


def partition_files(path: str, topic: str | None) -> list[Path]:
    """The files that a path names: the segments of a partition (one, or all in its directory), or another
    file of a partition or log directory. Empty: it names something else. With a `topic`, every segment
    counts as one of a partition."""
    given = Path(path)
    if rows_for(given.name) is not None and _is_file(path):
        return [given]
    directory = given.absolute() if given.is_dir() else given.absolute().parent
    of_partition = _DIRECTORY.fullmatch(directory.name) is not None and directory.name != METADATA_DIRECTORY
    if not of_partition and topic is None:
        return []
    if given.is_dir():
        return sorted(each for each in given.iterdir() if _SEGMENT.fullmatch(each.name))
    return [given] if _SEGMENT.fullmatch(given.name) and given.is_file() else []


_archive = lru_cache(maxsize=1)(disk_for)


def _is_file(path: str) -> bool:
    archive = archive_in(path)
    if archive is None:
        return os.path.isfile(path)
    return _archive(archive).exists(path) and not _archive(archive).is_directory(path)


def _opened(path: Path) -> BinaryIO:
    """Opens a file on this machine's disk or in an archive. Raises OSError, StorageError."""
    archive = archive_in(path.as_posix())
    if archive is None:
        return path.open("rb")
    return BufferedReader(_Archived(_archive(archive).open_read(path.as_posix())))


class _Archived(RawIOBase):
    """A file in an archive as a Python stream."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._file.size()}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read_at(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def dump_file(path: Path, how: Shown) -> None:
    """Prints a file; of a segment, the selected batches. Raises CorruptFileError."""
    if not how.as_json:
        click.echo(f"Dumping {path}")
    rows = rows_for(path.name)
    if rows is None:
        _dump_segment(path, how)
    else:
        _dump_rows(path, rows, how)


def _dump_rows(path: Path, rows: FileRows, how: Shown) -> None:
    segment = path.with_suffix(".log")
    is_index = rows.suffix == INDEX_SUFFIX
    with _opened(path) as file:
        count = 0
        for count, row in enumerate(rows.read(file, path.as_posix()), 1):
            if is_index:
                problem = _index_problem(segment, row)
                if problem is not None:
                    how.complain(f"{path}: entry {count}: {problem}")
            click.echo(json_line({"file": path.as_posix(), **row}) if how.as_json else fields_line(row))
        if is_index and not count and not how.as_json:
            click.echo(f"{path} is empty.")


def _index_problem(segment: Path, row: dict[str, Any]) -> str | None:
    """Why a reader that starts at an entry's position would miss records. None: it would
    not, or there is no segment."""
    if not _is_file(segment.as_posix()):
        return None
    with _opened(segment) as log:
        log.seek(row["position"])
        try:
            header = parse_header(log.read(HEADER_BYTES))
        except BatchError:
            return f"expected a batch at byte {row['position']} of {segment.name}, and there is none"
    if header.base_offset <= row["offset"]:
        return None
    return f"expected a batch from offset {row['offset']} or below, found {header.base_offset}"


def _dump_segment(segment: Path, how: Shown) -> None:
    named = _DIRECTORY.fullmatch(segment.absolute().parent.name)
    topic = how.topic or ("" if named is None else named["topic"])
    if not how.as_json:
        click.echo(f"Log starting offset: {int(segment.stem)}")
    position = 0
    with segment.open("rb") as file:
        while head := file.read(HEADER_BYTES):
            try:
                header = parse_header(head)
            except BatchError as error:
                how.complain(f"{segment}: byte {position}: {error}; the rest of the file is not shown")
                return
            size = header.batch_length + LENGTH_OVERHEAD_BYTES
            if not HEADER_BYTES <= size <= MAX_READABLE_BATCH_BYTES:
                how.complain(
                    f"{segment}: byte {position}: a batch has {size} bytes; the rest of the file is not shown"
                )
                return
            if not how.selection.wants_batch(header):
                file.seek(size - HEADER_BYTES, 1)
            elif not _dump_batch(segment, topic, header, head, file, position, how):
                return
            position += size


def _dump_batch(
    segment: Path, topic: str, header: BatchHeader, head: bytes, file: BinaryIO, position: int, how: Shown
) -> bool:
    """Whether the log is readable after the batch."""
    data = head + file.read(header.size_bytes - HEADER_BYTES)
    if len(data) < header.size_bytes:
        left = header.size_bytes - len(data)
        how.complain(f"{segment}: byte {position}: the last batch is torn, {left} of its bytes are missing")
        return False
    problem = batch_problem(data, 0, check_count=False)
    if problem is not None:
        how.complain(f"{segment}: byte {position}: {problem}")
    try:
        if how.as_json:
            fields = {"file": segment.as_posix(), **batch_fields(header, data, position)}
            records = [
                _record_json(topic, header, record)
                for record in RecordBatch(header, data, position).records()
            ]
            click.echo(json_line({**fields, "records": records}))
        else:
            for line in batch_lines(topic, header, data, position):
                click.echo(line)
    except BatchError as error:
        how.complain(f"{segment}: byte {position}: {error}")
    return True


def _record_json(topic: str, header: BatchHeader, record: RawRecord) -> dict[str, Any]:
    headers = [
        {"name": name.decode(errors="replace"), **text_or_base64("value", value)}
        for name, value in record.headers
    ]
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "sequence": sequence_at(header, record.offset - header.base_offset),
        "headers": headers,
    }
    if header.is_control:
        return {**fields, **control_fields(record)}
    if topic in DECODED_TOPICS and record.key is not None:
        try:
            stored = decode_stored(topic, record.key, record.value)
        except DecodeError as error:
            fields["problem"] = str(error)
            stored = None
        if stored is not None:
            key, value = stored_json(stored)
            return {**fields, "key": key, "value": value}
    return {**fields, **text_or_base64("key", record.key), **text_or_base64("value", record.value)}
