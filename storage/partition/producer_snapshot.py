"""`<offset>.snapshot`: a log's producers as they were when the log ended at that offset.

Owns the files: their names, and Kafka's format (`ProducerStateManager`, version 1, with its CRC). Kafka
writes only the last batch of a producer; the earlier batches that a retry may repeat follow its entries in an
appendix specific to metaquorum, under the same CRC, where Kafka's reader does not look.
"""

from __future__ import annotations

import re
import struct

from crc32c import crc32c

from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.partition.producers import (
    BATCHES_KEPT,
    SEQUENCE_LIMIT,
    KnownBatch,
    KnownProducer,
    ProducerTable,
)

SUFFIX = ".snapshot"
_VERSION = 1
_NAME = re.compile(r"(\d{20})\.snapshot")
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# Producer id and epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset
# of an ongoing transaction.
_ENTRY = struct.Struct(">qhiqiqiq")
_APPENDIX = b"MQB\x01"
_SEEN = struct.Struct(">qB")
_BATCH = struct.Struct(">iiqqq")
_ADVICE = "no action is needed: the producers are recovered from the log"


def snapshot_name(offset: int) -> str:
    """Kafka's file name: the offset in 20 digits, ".snapshot"."""
    return f"{offset:020d}{SUFFIX}"


def parse_snapshot_name(name: str) -> int | None:
    """The offset in the name; None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def encode_producers(table: ProducerTable) -> bytes:
    """The contents of a file."""
    entries, appendix = [], [_APPENDIX]
    for known in table.all():
        last = known.batches[-1] if known.batches else None
        entries.append(
            _ENTRY.pack(
                known.producer_id,
                known.epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else -1,
                (last.last_offset - last.first_offset) if last else 0,
                last.timestamp_ms if last else known.seen_ms,
                known.coordinator_epoch,
                known.open_from,
            )
        )
        appendix.append(_SEEN.pack(known.seen_ms, len(known.batches)))
        appendix += [
            _BATCH.pack(
                batch.first_sequence,
                batch.last_sequence,
                batch.first_offset,
                batch.last_offset,
                batch.timestamp_ms,
            )
            for batch in known.batches
        ]
    body = b"".join((_COUNT.pack(len(entries)), *entries, *appendix))
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_producers(data: bytes, file: str) -> ProducerTable:
    """The inverse; also reads Kafka's files. Raises CorruptFileError for any other or damaged content."""
    return ProducerTable({known.producer_id: known for known in decode_entries(data, file)})


def decode_entries(data: bytes, file: str) -> list[KnownProducer]:
    """The producers in the order of the file. Raises CorruptFileError."""
    try:
        version, crc = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size :]
        if version != _VERSION:
            raise CorruptFileError(file, f"has version {version}, this release reads {_VERSION}", _ADVICE)
        if crc32c(body) != crc:
            raise CorruptFileError(file, "does not match its CRC", _ADVICE)
        (count,) = _COUNT.unpack_from(body)
        entries = [_ENTRY.unpack_from(body, _COUNT.size + index * _ENTRY.size) for index in range(count)]
        rest = bytes(body[_COUNT.size + count * _ENTRY.size :])
        if not rest.startswith(_APPENDIX):
            return [_from_kafka(entry) for entry in entries]
        return _with_appendix(entries, rest)
    except (struct.error, ValueError) as error:
        raise CorruptFileError(file, f"is not a producer snapshot ({error})", _ADVICE) from None


def _from_kafka(entry: tuple[int, ...]) -> KnownProducer:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, open_from = entry
    batches: tuple[KnownBatch, ...] = ()
    if last_sequence >= 0:
        first = (last_sequence - delta) % SEQUENCE_LIMIT
        batches = (KnownBatch(first, last_sequence, last_offset - delta, last_offset, timestamp_ms),)
    return KnownProducer(producer_id, epoch, batches, timestamp_ms, coordinator, open_from)


def _with_appendix(entries: list[tuple[int, ...]], rest: bytes) -> list[KnownProducer]:
    producers = []
    at = len(_APPENDIX)
    for entry in entries:
        seen_ms, kept = _SEEN.unpack_from(rest, at)
        at += _SEEN.size
        if kept > BATCHES_KEPT:
            raise ValueError(f"{kept} batches of one producer")
        batches = tuple(
            KnownBatch(*_BATCH.unpack_from(rest, at + index * _BATCH.size)) for index in range(kept)
        )
        at += kept * _BATCH.size
        producers.append(KnownProducer(entry[0], entry[1], batches, seen_ms, *entry[-2:]))
    return producers


def load_producers(disk: Disk, directory: str, offset: int) -> ProducerTable:
    """Raises CorruptFileError, FileMissingError or DiskError."""
    path = join(directory, snapshot_name(offset))
    return decode_producers(read_file(disk, path), path)
