"""The table of every record, made from its classes: api key, versions, and fields in wire order.

The facts are those of Kafka's message definitions (KIP-482 flexible encoding, 3.7 with the versions that 3.9
and 4.0 still use). Every version of every record is flexible from 0 on. A nullable field is nullable, and a
tagged one tagged, in every version that has it; no field of any record is ignorable: setting one in a version
without it is an error.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from metaquorum.metadata.records.control import ControlRecord, UnknownControlRecord
from metaquorum.metadata.records.fields import structure
from metaquorum.metadata.records.types import Record, UnknownRecord
from metaquorum.wire.schema import StructSchema


class RecordSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A record type: `key` is its api key or its control type; versions 0..`latest_version` exist."""

    key: int
    type_name: str
    latest_version: int
    body: StructSchema

    @property
    def versions(self) -> range:
        return range(self.latest_version + 1)


def _schema(cls: Any, key: int) -> RecordSchema:
    return RecordSchema(
        key=key, type_name=cls.type_name, latest_version=cls.latest_version, body=structure(cls)
    )


RECORD_SCHEMAS = tuple(_schema(cls, cls.api_key) for cls in get_args(Record))
"""Every metadata record, by ascending api key."""

CONTROL_SCHEMAS = tuple(_schema(cls, cls.control_type) for cls in get_args(ControlRecord))
"""Every control record, by ascending control type. The value's first field repeats its version."""

SCHEMA_BY_API_KEY: dict[int, RecordSchema] = {schema.key: schema for schema in RECORD_SCHEMAS}
SCHEMA_BY_CLASS: dict[type[Any], RecordSchema] = {
    schema.body.cls: schema for schema in (*RECORD_SCHEMAS, *CONTROL_SCHEMAS)
}
CONTROL_SCHEMA_BY_TYPE: dict[int, RecordSchema] = {schema.key: schema for schema in CONTROL_SCHEMAS}

TYPE_NAMES = (
    *(schema.type_name for schema in RECORD_SCHEMAS),
    *(schema.type_name for schema in CONTROL_SCHEMAS),
    UnknownRecord.type_name,
    UnknownControlRecord.type_name,
)
"""The types that a question can name."""
