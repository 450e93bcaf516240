"""Records as JSON, in the form in which Kafka's own dump prints a payload.

Names, order and omissions of that form: `{"type": ..., "version": ..., "data": {...}}` with camelCase fields,
uuids as text, bytes in base64, tagged fields only if they differ from their default, and no unknown tagged
fields. Secrets (`metadata.secrets`) are redacted unless requested: only with them is the form exactly
Kafka's. The field names are those of Kafka 3.7 (`lastKnownELR`; 3.9 and later spell it `lastKnownElr`).
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, cast

import msgspec
import numpy as np

from metaquorum.metadata.columnar.partition_records import CHANGE_API_KEY as CHANGE_KEY
from metaquorum.metadata.columnar.partition_records import PARTITION_API_KEY as API_KEY
from metaquorum.metadata.columnar.partition_records import (
    ChangeRows,
    Frames,
    decode_changes,
    gather,
    read_frames,
    record_dtype,
    record_shapes,
)
from metaquorum.metadata.records.batches import AnyRecord
from metaquorum.metadata.records.codec import decode_tolerant
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.secrets import REDACTED, SECRET_KEYS, is_secret
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.schema import Field, StructSchema

Converter = Callable[[Any], Any]


def payload_json(record: AnyRecord, version: int, *, secrets: bool = False) -> dict[str, Any]:
    """The payload object of a record at the version in which it was read (or will be written).

    Control records have the same form, with the names of Kafka's control record types and the fields of their
    message; Kafka's dump prints snapshot headers and footers like this, and only the type of a leader change.
    A record without a schema shows its numbers and its bytes.
    """
    match record:
        case UnknownRecord():
            hidden = record.api_key in SECRET_KEYS and not secrets
            data = {"apiKey": record.api_key, "body": REDACTED if hidden else _base64(record.body)}
        case UnknownControlRecord():
            data = {
                "controlType": record.control_type,
                "key": _base64(record.key),
                "value": _base64(record.value),
            }
        case _:
            data = struct_json(SCHEMA_BY_CLASS[type(record)].body, version, secrets)(record)
    return {"type": record.type_name, "version": version, "data": data}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _double(value: float) -> float | str:
    """JSON has no numbers for these; Kafka's writer prints their names as text."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_CONVERTERS: dict[str, Converter] = {"uuid": uuid_to_text, "bytes": _base64, "float64": _double}


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]


def _same(value: Any) -> Any:
    return value


def converter(field: Field, version: int) -> Converter:
    """Converts a value of `field` that is not None to plain data."""
    if field.struct is not None:
        element = struct_json(field.struct, version)  # no structure inside a record has secrets
    else:
        element = _CONVERTERS.get(field.element_type, _same)
    if field.is_array:
        return lambda values: [element(value) for value in values]
    return element


@cache
def struct_json(schema: StructSchema, version: int, secrets: bool = True) -> Converter:
    """The function that prints a structure, with its fields in schema order, tagged ones included."""
    plan = [
        (
            *(field.name, _camel(field.kafka_name), field.tag is not None, field.default),
            *(converter(field, version), False if secrets else field.secret),
        )
        for field in schema.fields
        if field.exists_at(version)
    ]

    def convert(record: Any) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name, kafka_name, is_tagged, default, element, secret in plan:
            value = getattr(record, name)
            if is_tagged and value == default:
                continue
            if secret and value is not None and is_secret(secret, record):
                data[kafka_name] = REDACTED
                continue
            data[kafka_name] = None if value is None else element(value)
        return data

    return convert


# Payloads directly as JSON text: the same as `dump.payload_json`, several times as fast.

Texter = Callable[[Any], str]

CACHED_TEXTS = 1 << 16
"""Entries of each cache; a full one is emptied."""

_INTEGERS = frozenset({"int8", "int16", "uint16", "int32", "int64"})


def payload_text(record: AnyRecord, version: int, *, secrets: bool = False) -> str:
    """`"type":...,"version":...,"data":{...}`: the members of the payload object, as compact JSON."""
    return payload_texter(cast(Hashable, record.__class__), version, secrets)(record)


@cache
def payload_texter(kind: Any, version: int, secrets: bool = False) -> Texter:
    """`payload_text` for records of one type and version, for code that has many of them in a row."""
    hides = (
        kind not in _UNKNOWN and not secrets and any(one.secret for one in SCHEMA_BY_CLASS[kind].body.fields)
    )
    maker = _payload_maker(kind, version) if kind not in _UNKNOWN and not hides else None
    if maker is None:
        return lambda record: _json(payload_json(record, version, secrets=secrets))[1:-1]
    return maker


_UNKNOWN = frozenset({UnknownRecord, UnknownControlRecord})


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class TextCache(dict[Any, str]):
    """Texts by value; empties itself when it is full."""

    def __init__(self, make: Texter) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, value: Any) -> str:
        if len(self) >= CACHED_TEXTS:
            self.clear()
        text = self[value] = self._make(value)
        return text


def _uuid(value: bytes) -> str:
    return f'"{uuid_to_text(value)}"'


@cache
def _payload_maker(kind: Any, version: int) -> Texter | None:
    """The generated function for a record type; None if the general way is needed."""
    body = _struct_source(SCHEMA_BY_CLASS[kind].body, version)
    if body is None:
        return None
    source, names = body
    head = f'"type":{_json(kind.type_name)},"version":{version},"data":'
    return _compiled(f"dump_{kind.__name__}_v{version}", _literal(head) + source, names)


def _compiled(name: str, source: str, names: dict[str, Any]) -> Texter:
    scope = dict(names)
    exec(f"def {name}(r):\n    return f'''{source}'''", scope)  # the source comes only from the table
    made: Texter = scope[name]
    return made


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@cache
def _struct_source(schema: StructSchema, version: int) -> tuple[str, dict[str, Any]] | None:
    """(inside of an f-string, names in it) for a structure `r`; None if a tagged field comes first."""
    parts: list[str] = []
    names: dict[str, Any] = {}
    for number, field in enumerate(field for field in schema.fields if field.since <= version):
        label = f'"{field.kafka_name}":'
        value = f"r.{field.name}"
        if field.tag is not None:
            if not parts:
                return None
            names |= {
                f"t{number}": _tagged(field, version, label),
                f"d{number}": field.default,
                "nothing": "",
            }
            parts.append(f"{{nothing if {value} == d{number} else t{number}({value})}}")
            continue
        comma = "," if parts else ""
        maker = _texter(field, version)
        if field.element_type in _INTEGERS and not field.is_array and not _may_be_none(field):
            use = value
        elif isinstance(maker, dict):
            names[f"f{number}"], use = maker, f"f{number}[{value}]"
        else:
            names[f"f{number}"], use = maker, f"f{number}({value})"
        parts.append(_literal(comma + label) + f"{{{use}}}")
    return "{{" + "".join(parts) + "}}", names


def _may_be_none(field: Field) -> bool:
    return field.nullable or field.none_on_wire is not None or field.default is None


def _tagged(field: Field, version: int, label: str) -> Texter:
    """Writes a tagged field that differs from its default."""
    make = _call(_texter(field, version))
    return lambda value: f",{label}{make(value)}"


def _call(maker: Texter | TextCache) -> Texter:
    return maker.__getitem__ if isinstance(maker, dict) else maker


def _texter(field: Field, version: int) -> Texter | TextCache:
    """Writes any value of a field, None included."""
    if field.struct is not None:
        return _structs(field, version)
    match field.element_type:
        case "uuid" if field.is_array:
            return TextCache(_listed(TextCache(_uuid).__getitem__))
        case "uuid":
            return TextCache(_or_null(_uuid))
        case kind if field.is_array and kind in _INTEGERS:
            return TextCache(_listed(str))
        case "bool" if not field.is_array:
            return TextCache(_json)
        case "string" if not field.is_array:
            return TextCache(_json)
    return _general(field, version)


def _general(field: Field, version: int) -> Texter:
    convert = converter(field, version)
    return lambda value: "null" if value is None else _json(convert(value))


def _or_null(make: Texter) -> Texter:
    return lambda value: "null" if value is None else make(value)


def _listed(make: Texter) -> Texter:
    return lambda values: "null" if values is None else "[" + ",".join(map(make, values)) + "]"


def _structs(field: Field, version: int) -> Texter:
    if field.struct is None:
        raise RuntimeError("a structure's text was asked for a plain field")
    made = _struct_source(field.struct, version)
    if made is None:
        return _general(field, version)
    one = _compiled(f"dump_{field.struct.name}_v{version}", *made)
    return _listed(one) if field.is_array else _or_null(one)


# The payloads of whole batches directly from bytes to JSON text, for batches with many partition records.
# The fast path for PartitionRecords and PartitionChangeRecords of the usual shapes (see `columnar`):
# fields are cut out in numpy, the texts of ids and lists come from caches, and no record is created.

MIN_RECORDS = 24
"""Batches with fewer partition records are faster record by record."""


def batch_payloads(batch: RecordBatch, *, secrets: bool = False) -> tuple[list[str], int] | None:
    """The result of `payload_text` for each record, and how many of them are from a newer version; None for a
    batch that must be read record by record. Raises RecordDecodeError."""
    frames = frames_of(batch)
    return None if frames is None else frame_payloads(frames, secrets=secrets)


def frames_of(batch: RecordBatch) -> Frames | None:
    """The frames of a batch for `frame_payloads`; None if it must be read record by record. All records of
    such a batch have its timestamp and consecutive offsets."""
    header = batch.header
    if (
        header.is_control
        or header.records_count < MIN_RECORDS
        or header.base_timestamp_ms != header.max_timestamp_ms
    ):
        return None
    frames = read_frames(batch.data, header)
    if frames is None:
        return None
    short = np.count_nonzero((frames.keys == API_KEY) | (frames.keys == CHANGE_KEY))
    return frames if short >= MIN_RECORDS else None


def frame_payloads(frames: Frames, *, secrets: bool = False) -> tuple[list[str], int]:
    """The result of `payload_text` for each record, and how many of them are from a newer version.
    Raises RecordDecodeError."""
    texts: list[str | None] = [None] * len(frames.starts)
    places = np.flatnonzero(frames.keys == API_KEY)
    if len(places):
        shapes, usual = record_shapes(frames, places)
        for shape in np.unique(shapes[usual]).tolist():
            _put_texts(texts, frames, places[usual & (shapes == shape)], shape)
    for rows in decode_changes(frames, np.flatnonzero(frames.keys == CHANGE_KEY))[0]:
        if len(rows.records):
            _put_changes(texts, frames, rows)
    return _with_others(texts, frames, secrets)


def _with_others(texts: list[str | None], frames: Frames, secrets: bool) -> tuple[list[str], int]:
    """The texts, with the missing ones created record by record."""
    unknown = 0
    filled: list[str] = []
    for number, text in enumerate(texts):
        if text is not None:
            filled.append(text)
            continue
        start = int(frames.starts[number])
        version, record = decode_tolerant(frames.data, start, start + int(frames.lengths[number]))
        unknown += isinstance(record, UnknownRecord)
        filled.append(payload_text(record, version, secrets=secrets))
    return filled, unknown


def _put_texts(texts: list[str | None], frames: Frames, places: Places, shape: int) -> None:
    """Writes the texts of PartitionRecords of one shape to their places."""
    has_directories, replicas, isr = shape >> 16, shape >> 8 & 0xFF, shape & 0xFF
    dtype = record_dtype(has_directories, replicas, isr)
    rows = gather(frames, frames.starts[places], dtype.itemsize, dtype)
    count = len(places)
    columns = zip(
        places.tolist(),
        frames.versions[places].tolist(),
        rows["index"].tolist(),
        _raw(rows["topic"], 16),
        _raw(rows["replicas"], 4 * replicas) if replicas else [b""] * count,
        _raw(rows["isr"], 4 * isr) if isr else [b""] * count,
        rows["leader"].tolist(),
        rows["leader_epoch"].tolist(),
        rows["partition_epoch"].tolist(),
        _raw(rows["directories"], 16 * replicas) if has_directories and replicas else [b""] * count,
        strict=True,
    )
    ids, numbers, directories = _IDS, _NUMBERS, _DIRECTORIES
    for place, version, index, topic, held, synced, leader, leader_epoch, epoch, placed in columns:
        end = f',"directories":{directories[placed]}}}' if has_directories else "}"
        texts[place] = (
            f'"type":"PARTITION_RECORD","version":{version},"data":{{"partitionId":{index},'
            f'"topicId":{ids[topic]},"replicas":{numbers[held]},"isr":{numbers[synced]},'
            f'"removingReplicas":[],"addingReplicas":[],"leader":{leader},"leaderEpoch":{leader_epoch},'
            f'"partitionEpoch":{epoch}{end}'
        )


def _put_changes(texts: list[str | None], frames: Frames, rows: ChangeRows) -> None:
    """The same for PartitionChangeRecords of one shape. Fields are in schema order."""
    form = '"type":"PARTITION_CHANGE_RECORD","version":%d,"data":{"partitionId":%d,"topicId":%s'
    ids, numbers, directories = _IDS, _NUMBERS, _DIRECTORIES
    columns: list[list[Any]] = [
        frames.versions[rows.records].tolist(),
        rows.indexes.tolist(),
        [ids[topic] for topic in _raw(rows.topics, 16)],
    ]
    if rows.isr is not None:
        form += ',"isr":%s'
        columns.append([numbers[isr] for isr in _raw(rows.isr.astype(">i4"), 4 * rows.isr.shape[1])])
    if rows.leader is not None:
        form += ',"leader":%d'
        columns.append(rows.leader.tolist())
    if rows.recovery is not None:
        form += ',"leaderRecoveryState":%d'
        columns.append(rows.recovery.tolist())
    if rows.directories is not None:
        form += ',"directories":%s'
        raw = _raw(rows.directories, 16 * rows.directories.shape[1])
        columns.append([directories[placed] for placed in raw])
    form += "}"
    for place, values in zip(rows.records.tolist(), zip(*columns, strict=True), strict=True):
        texts[place] = form % values


def _raw(column: Any, size: int) -> list[bytes]:
    """The bytes of each row."""
    rows: list[bytes] = (
        np.ascontiguousarray(column).reshape(len(column), -1).view(f"V{size}").ravel().tolist()
    )
    return rows


def _id_text(value: bytes) -> str:
    return f'"{uuid_to_text(value)}"'


def _listed_ids(value: bytes) -> str:
    return "[" + ",".join([_IDS[value[at : at + 16]] for at in range(0, len(value), 16)]) + "]"


def _listed_numbers(value: bytes) -> str:
    return "[" + ",".join(map(str, struct.unpack(f">{len(value) // 4}i", value))) + "]"


_IDS = TextCache(_id_text)
_DIRECTORIES = TextCache(_listed_ids)
_NUMBERS = TextCache(_listed_numbers)
