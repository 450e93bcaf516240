"""Checks that a log is a metadata log, before a tool interprets or drops a user's records.

One batch proves nothing, since a real log may contain a damaged one. Each of the first batches with a correct
CRC is judged alone and the majority decides; if it is against the log, its last segment and newest snapshot
are judged too. Damage is not evidence. Reads only, and does not replay what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records.codec import decode_control_tolerant, decode_tolerant
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.storage.batches.batch import Compression, RecordBatch
from metaquorum.storage.disk.interface import name_of
from metaquorum.storage.errors import BatchError, CompressedBatchError, CorruptFileError, NotALogError
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.partition.replica_directory import load_partition_metadata
from metaquorum.storage.uuids import METADATA_TOPIC_ID, uuid_from_text, uuid_to_text

JUDGED_BATCHES = 16
JUDGED_RECORDS = 8
"""How many records of each batch are looked at."""
ENOUGH_BYTES = 1 << 20
LEAST_BATCHES = 3
"""How many batches are judged at least, however large, if the log has that many."""

_METADATA_CODECS = (Compression.NONE, Compression.GZIP)
_TRANSACTION_MARKERS = (0, 1)
"""Control types of clients' transactions; a metadata log has others."""


@dataclass(slots=True)
class _Verdict:
    metadata: int = 0
    other: int = 0
    reason: str = ""

    @property
    def judged(self) -> int:
        return self.metadata + self.other


def refuse_other_logs(log: MetadataLog) -> None:
    """Raises NotALogError, one line, for the log of a topic's partition or of anything else."""
    first = _heard(log, None)
    if first.judged == 0:
        topic_id = _other_topic(log)
        if topic_id is not None and not log.is_checkpoint and not log.snapshots():
            raise NotALogError(
                log.path, f"is not a metadata log: its partition.metadata names topic {topic_id}"
            )
        return
    if first.metadata >= first.other or _spoken_for(log, first):
        return
    raise NotALogError(log.path, f"is the log of a topic partition, not a metadata log ({first.reason})")


def _spoken_for(log: MetadataLog, first: _Verdict) -> bool:
    """Whether other evidence shows a metadata log although its first batches do not."""
    if name_of(log.directory) == METADATA_DIRECTORY and first.other < 2:
        return True
    others = [log.snapshot(at) for at in log.snapshots()[-1:]] if log.is_directory else []
    if any(found.metadata > found.other for found in map(_heard, others, [None])):
        return True
    segments = log.segments
    if len(segments) < 2:
        return False
    last = _heard(log, segments[-1])
    return last.metadata > last.other


def _heard(log: MetadataLog, start_offset: int | None) -> _Verdict:
    verdict = _Verdict()
    size = 0
    for batch in _batches(log, start_offset):
        against = _judged(batch)
        size += len(batch.data)
        if against == "":
            verdict.metadata += 1
        elif against is not None:
            verdict.other += 1
            verdict.reason = verdict.reason or f"offset {batch.header.base_offset}: {against}"
        if verdict.judged >= (JUDGED_BATCHES if size < ENOUGH_BYTES else LEAST_BATCHES):
            break
    return verdict


def _batches(log: MetadataLog, start_offset: int | None) -> Iterator[RecordBatch]:
    for item in log.batches(start_offset):
        if isinstance(item, RecordBatch):
            yield item


def _judged(batch: RecordBatch) -> str | None:  # noqa: PLR0911
    """What shows that a batch is not from a metadata log; "" if it is from one, None if undecided."""
    header = batch.header
    if header.producer_id >= 0 or header.is_transactional:
        return f"a batch of producer {header.producer_id}"
    if header.compression not in _METADATA_CODECS:
        return "a batch in a compression that no metadata log has"
    try:
        raws = batch.records()[:JUDGED_RECORDS]
    except CompressedBatchError:
        return "a batch in a compression that no metadata log has"
    except BatchError:
        return None
    is_metadata = False
    for raw in raws:
        if header.is_control:
            record = _control(raw.key, raw.value)
            if isinstance(record, UnknownControlRecord) and record.control_type in _TRANSACTION_MARKERS:
                return "a transaction's marker"
            is_metadata = is_metadata or not isinstance(record, UnknownControlRecord | None)
            continue
        if raw.key is not None:
            return "a record with a key"
        if raw.value is None:
            return "a record without a value"
        try:
            _, one = decode_tolerant(raw.value)
        except RecordDecodeError:
            return "a record that is not cluster metadata"
        is_metadata = is_metadata or not isinstance(one, UnknownRecord)
    return "" if is_metadata else None


def _control(key: bytes | None, value: bytes | None) -> object | None:
    try:
        return decode_control_tolerant(key, value)
    except RecordDecodeError:
        return None


def _other_topic(log: MetadataLog) -> str | None:
    """The topic id in a directory's metadata, if it is not that of the metadata topic."""
    try:
        topic_id = load_partition_metadata(log.disk, log.directory)
    except CorruptFileError:
        return None
    if topic_id is None or topic_id == uuid_from_text(METADATA_TOPIC_ID):
        return None
    return uuid_to_text(topic_id)
