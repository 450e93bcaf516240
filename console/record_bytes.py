"""One record down to its bytes: which bytes are which field, and the batch around it."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.coverage import batch_at
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.secrets import REDACTED, is_secret
from metaquorum.metadata.text.cause_text import asked_json, asked_text
from metaquorum.metadata.text.dump import payload_json
from metaquorum.storage.batches.format import Compression
from metaquorum.wire.generator import Encoder, compile_encoder
from metaquorum.wire.schema import Field, StructSchema

_FRAME = (("frame version", 1), ("api key", 1), ("version", 1))
_NO_TAGS = 1
"""Bytes of an empty section of tagged fields."""


def record_bytes(log: MetadataLog, offset: int) -> dict[str, Any]:
    """The record at an offset: its fields, the bytes of each, its batch's header. Raises InspectError if the
    log has no such record."""
    batch = batch_at(log, offset)
    records = () if batch is None else decode_readable(batch)
    decoded = next((each for each in records if each.offset == offset), None)
    if batch is None or decoded is None:
        raise InspectError(f"{log.path} has no readable record at offset {offset}")
    header = batch.header
    raw = next(each for each in batch.records() if each.offset == offset)
    asked = cause_in(records[0].record)
    return {
        "offset": offset,
        "timeMs": decoded.timestamp_ms,
        "record": payload_json(decoded.record, decoded.version),
        "key": None if raw.key is None else raw.key.hex(),
        "parts": _parts(decoded, raw.value or b"", is_control=header.is_control),
        "askedBy": asked_json(asked),
        "askedByText": None if asked is None else asked_text(asked),
        "batch": {
            "file": batch.file,
            "position": batch.position,
            "sizeBytes": len(batch.data),
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "leaderEpoch": header.leader_epoch,
            "magic": header.magic,
            "crc": header.crc,
            "compression": _codec(header.compression),
            "control": header.is_control,
            "baseTimestampMs": header.base_timestamp_ms,
            "maxTimestampMs": header.max_timestamp_ms,
            "records": header.records_count,
            "header": batch.data[:61].hex(),
        },
    }


def _codec(number: int) -> str:
    return Compression(number).name.lower() if number in set(Compression) else str(number)


def _parts(decoded: DecodedRecord, value: bytes, *, is_control: bool) -> list[dict[str, Any]]:
    """The value's bytes in pieces with their meaning. In one piece if the fields do not add up to it: a
    record of a newer release, or one that is not written as it would be here."""
    schema = SCHEMA_BY_CLASS.get(type(decoded.record))
    hidden = schema is not None and any(
        is_secret(field.secret, decoded.record) for field in schema.body.fields
    )
    whole = [{"name": "value", "type": "bytes", "hex": REDACTED if hidden else value.hex(), "meaning": None}]
    if schema is None or decoded.version not in schema.versions:
        return whole
    sizes: list[tuple[str, str, int, Any, bool]] = []
    if not is_control:  # whose value has no frame
        frame = dict(zip((name for name, _ in _FRAME), value[:3], strict=False))
        sizes += [(name, "uvarint", size, frame.get(name), False) for name, size in _FRAME]
    meanings = payload_json(decoded.record, decoded.version)["data"]
    record = decoded.record
    if getattr(record, "unknown_tags", ()):
        record = replace(record, unknown_tags=())
    for field in schema.body.fields_at(decoded.version):
        size = len(_encoder(schema.body, field, decoded.version)(record)) - _NO_TAGS
        is_hidden = is_secret(field.secret, record)
        sizes.append((field.kafka_name, field.type, size, meanings.get(field.kafka_name), is_hidden))
    used = sum(size for _, _, size, _, _ in sizes)
    if used >= len(value):
        return whole
    sizes.append(("tagged fields", "tags", len(value) - used, None, hidden))
    parts, position = [], 0
    for name, kind, size, meaning, is_hidden in sizes:
        shown = REDACTED if is_hidden else value[position : position + size].hex()
        parts.append({"name": name, "type": kind, "hex": shown, "meaning": meaning})
        position += size
    return parts


@cache
def _encoder(schema: StructSchema, field: Field, version: int) -> Encoder:
    """Writes one field of a record, and an empty section of tagged fields."""
    return compile_encoder(StructSchema(cls=schema.cls, fields=(field,)), version)
