"""Decodes batches of the metadata log to records with their offsets."""

from __future__ import annotations

from typing import NamedTuple

from metaquorum.metadata.errors import RecordDecodeError, UnknownRecordError
from metaquorum.metadata.records.codec import (
    control_schema_version,
    decode,
    decode_control,
    decode_control_tolerant,
    decode_tolerant,
)
from metaquorum.metadata.records.control import ControlRecord, UnknownControlRecord
from metaquorum.metadata.records.types import Record, UnknownRecord
from metaquorum.storage.batches.batch import RawRecord, RecordBatch, batch_record_spans
from metaquorum.storage.errors import BatchError

AnyRecord = Record | ControlRecord | UnknownRecord | UnknownControlRecord


class DecodedRecord(NamedTuple):
    """A record and its place. `version` is the schema version; for a control record, that of its message."""

    offset: int
    timestamp_ms: int
    version: int
    record: AnyRecord


def decode_batch(batch: RecordBatch, *, tolerant: bool = False) -> tuple[DecodedRecord, ...]:
    """Every record of a batch, control batches included.

    With `tolerant`, records of unknown types and versions become UnknownRecord or UnknownControlRecord.
    Raises RecordDecodeError, which names the offset, and what `RecordBatch.records` raises.
    """
    header = batch.header
    if not header.is_control and header.base_timestamp_ms == header.max_timestamp_ms:
        try:
            spans = batch_record_spans(batch)
        except BatchError:  # keys, headers, compression, gaps: needs the general reader
            pass
        else:
            return _decode_spans(batch, spans, tolerant)
    decoded = []
    for raw in batch.records():
        try:
            version, record = _read_control(raw, tolerant) if header.is_control else _read_data(raw, tolerant)
        except RecordDecodeError as error:
            raise _at_offset(error, raw.offset) from None
        decoded.append(DecodedRecord(raw.offset, raw.timestamp_ms, version, record))
    return tuple(decoded)


def decode_readable(batch: RecordBatch) -> tuple[DecodedRecord, ...]:
    """The records of a batch that can be decoded; empty if the batch cannot be parsed.

    For tools that report what is wrong with the batch in another way.
    """
    try:
        return decode_batch(batch, tolerant=True)
    except RecordDecodeError:
        pass
    except BatchError:
        return ()
    decoded = []
    read = _read_control if batch.header.is_control else _read_data
    for raw in batch.records():
        try:
            version, record = read(raw, True)
        except RecordDecodeError:
            continue
        decoded.append(DecodedRecord(raw.offset, raw.timestamp_ms, version, record))
    return tuple(decoded)


def _decode_spans(
    batch: RecordBatch, spans: list[tuple[int, int]], tolerant: bool
) -> tuple[DecodedRecord, ...]:
    """The records of a batch whose records all have its timestamp and consecutive offsets."""
    data = batch.data
    base_offset = offset = batch.header.base_offset
    timestamp_ms = batch.header.max_timestamp_ms
    decoded: list[DecodedRecord] = []
    make = tuple.__new__  # a third of the cost of DecodedRecord's own
    record: AnyRecord
    try:
        for offset, (start, end) in enumerate(spans, base_offset):
            try:
                version, record = decode(data, start, end)
            except UnknownRecordError:
                if not tolerant:
                    raise
                version, record = decode_tolerant(data, start, end)
            decoded.append(make(DecodedRecord, (offset, timestamp_ms, version, record)))
    except RecordDecodeError as error:
        raise _at_offset(error, offset) from None
    return tuple(decoded)


def _read_data(raw: RawRecord, tolerant: bool) -> tuple[int, AnyRecord]:
    if raw.value is None:
        raise RecordDecodeError("a metadata record needs a value, but this one has none")
    return decode_tolerant(raw.value) if tolerant else decode(raw.value)


def _read_control(raw: RawRecord, tolerant: bool) -> tuple[int, AnyRecord]:
    record = (decode_control_tolerant if tolerant else decode_control)(raw.key, raw.value)
    return control_schema_version(record), record


def _at_offset(error: RecordDecodeError, offset: int) -> RecordDecodeError:
    """The same error with the offset in front of its text."""
    error.args = (f"offset {offset}: {error.args[0]}", *error.args[1:])
    return error
