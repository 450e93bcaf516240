"""Fields of a record type as Arrow columns, by Kafka's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RECORD_SCHEMAS, RecordSchema
from metaquorum.metadata.secrets import REDACTED, is_secret
from metaquorum.pipeline.intervals.moments import MAX_TIME_MS
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.schema import Field

TIME_TYPE = pa.timestamp("us", tz="UTC")
CHUNK_ROWS = 16_384
"""Approximate number of rows in an Arrow batch."""

Longs = npt.NDArray[np.int64]


def times(values_ms: Sequence[int] | Longs) -> pa.Array:
    """Unix ms as timestamps; null for values that are not a time (before 1970, after 9999)."""
    at = np.asarray(values_ms, dtype=np.int64)
    wrong = (at < 0) | (at > MAX_TIME_MS)
    return pa.array(np.where(wrong, 0, at) * 1000, mask=wrong if wrong.any() else None).cast(TIME_TYPE)


def same(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    """A column with one value in every row."""
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def uuid_column(words: npt.NDArray[np.uint64]) -> pa.Array:
    """Uuids as text, from two native words each: (rows, 2)."""
    raw = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(words), [None, pa.py_buffer(np.ascontiguousarray(words))]
    )
    found = raw.dictionary_encode()
    return pa.array(list(map(uuid_to_text, found.dictionary.to_pylist())), pa.string()).take(found.indices)


def padded_lists(values: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> pa.Array:
    """Lists of different lengths from a padded array (rows, longest list): of each
    row, the first `lengths`."""
    mask = np.arange(values.shape[1]) < lengths[:, None]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[mask]))


_PLAIN = {
    "bool": pa.bool_(),
    "int8": pa.int32(),
    "int16": pa.int32(),
    "uint16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "uuid": pa.string(),
}
PLACE_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("cluster", pa.string()),
    ("node_id", pa.int32()),
    ("file", pa.string()),
    ("offset", pa.int64()),
    ("epoch", pa.int32()),
    ("timestamp", TIME_TYPE),
    ("version", pa.int32()),
)
"""The columns before a record type's own."""
_TAKEN = {name for name, _ in PLACE_COLUMNS}
SCHEMAS: dict[str, RecordSchema] = {
    schema.type_name: schema for schema in [*RECORD_SCHEMAS, *CONTROL_SCHEMAS]
}


def column_name(field: Field) -> str:
    """The field's name in snake case, with the prefix `record_` if a place column has that name."""
    return f"record_{field.name}" if field.name in _TAKEN else field.name


def column_type(field: Field) -> pa.DataType:
    if field.struct is not None:
        element = pa.struct([(inner.name, column_type(inner)) for inner in field.struct.fields])
    else:
        element = _PLAIN[field.element_type]
    return pa.list_(element) if field.is_array else element


def converter(field: Field) -> Callable[[Any], Any] | None:
    """The function that converts a field's values for Arrow; None if they need no conversion."""
    inside: Callable[[Any], Any] | None = None
    if field.struct is not None:
        parts = [(inner.name, converter(inner)) for inner in field.struct.fields]

        def as_dict(value: Any) -> dict[str, Any]:
            return {name: _converted(convert, getattr(value, name)) for name, convert in parts}

        inside = as_dict
    elif field.element_type == "uuid":
        inside = uuid_to_text
    if inside is None or not field.is_array:
        return inside
    element = inside
    return lambda values: [element(value) for value in values]


def _converted(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def typed_schema(type_name: str) -> pa.Schema:
    """The columns of a record type's table."""
    body = SCHEMAS[type_name].body
    own = [(column_name(field), column_type(field)) for field in body.fields]
    return pa.schema([*PLACE_COLUMNS, *own])


def field_columns(type_name: str, records: list[Any], *, secrets: bool = False) -> list[pa.Array]:
    """The own columns of records of one type. Secrets are `(redacted)` in texts and null in other columns."""
    columns = []
    for field in SCHEMAS[type_name].body.fields:
        convert = converter(field)
        values = [getattr(record, field.name) for record in records]
        if field.secret and not secrets:
            hidden = REDACTED if field.type == "string" else None
            values = [
                hidden if value is not None and is_secret(field.secret, record) else value
                for value, record in zip(values, records, strict=True)
            ]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        columns.append(pa.array(values, column_type(field)))
    return columns
