"""Records as JSON, in the form in which Kafka's own dump prints a payload.

Owns names, order and omissions of that form: `{"type": ..., "version": ..., "data": {...}}` with camelCase
fields, uuids as text, bytes in base64, tagged fields only if they differ from their default, and no unknown
tagged fields. Secrets (`metadata.secrets`) are redacted unless requested: only with them is the form exactly
Kafka's. Does not know files and offsets. The field names are those of Kafka 3.7 (`lastKnownELR`; 3.9 and
later spell it `lastKnownElr`).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from functools import cache
from typing import Any

from metaquorum.metadata.records.batches import AnyRecord
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.secrets import REDACTED, SECRET_KEYS, is_secret
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
