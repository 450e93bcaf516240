"""A partition's record batches as text in kafka-dump-log's form: with `--deep-iteration --print-data-log`
and, for the internal topics, with its decoders.

The JSON of internal topics' records is in `stored_json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from metaquorum.metadata.text.dump import struct_json
from metaquorum.storage.batches.batch import RawRecord, RecordBatch, batch_problem, parse_control_key
from metaquorum.storage.batches.format import DELETE_HORIZON, BatchHeader, Compression
from metaquorum.storage.errors import BatchError
from metaquorum.wire.embedded import assigned_partitions, consumer_assignment, consumer_subscription
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, TransactionLogKey
from metaquorum.wire.stored import DECODED_TOPICS, StoredRecord, decode_stored, stored_structures

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
