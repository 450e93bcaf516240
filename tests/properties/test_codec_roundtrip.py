"""Laws of the codec, over records drawn from the schema table itself."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.records import codec
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RECORD_SCHEMAS, RecordSchema
from metaquorum.metadata.records.types import QuotaEntity
from metaquorum.metadata.text.dump import CACHED_TEXTS, TextCache, payload_json, payload_text
from metaquorum.wire.schema import INT_RANGES, Field, StructSchema

UUIDS = st.binary(min_size=16, max_size=16)
# Any text that UTF-8 can hold: no lone surrogates.
TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.just("x" * 200)


def scalars(field: Field, version: int) -> st.SearchStrategy[Any]:
    kind = field.element_type
    if field.struct is not None:
        return structs(field.struct, version)
    if kind in INT_RANGES:
        low, high = INT_RANGES[kind]
        return st.integers(low, high) | st.sampled_from([low, high])
    return {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "string": TEXT,
        "bytes": st.binary(max_size=200),
        "uuid": UUIDS,
    }[kind]


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    """The possible values of `field` at `version`."""
    if field.since > version:
        return st.just(field.default)
    value = scalars(field, version)
    if field.is_array:
        value = st.lists(value, max_size=3).map(tuple)
        if field.element_type == "int32":
            value |= st.lists(st.integers(0, 9), min_size=14, max_size=40).map(tuple)
    if field.none_on_wire is not None:
        return st.none() | value.filter(lambda drawn: drawn != field.none_on_wire)
    return st.none() | value if field.nullable else value


def structs(schema: StructSchema, version: int) -> st.SearchStrategy[Any]:
    known = {field.tag for field in schema.tagged_at(version)}
    tags = st.dictionaries(
        st.integers(0, 2**31 - 2).filter(lambda tag: tag not in known) | st.integers(10, 20),
        st.binary(max_size=8) | st.just(bytes(130)),
        max_size=2,
    ).map(lambda drawn: tuple(sorted(drawn.items())))
    fields = {field.name: values(field, version) for field in schema.fields}
    return st.builds(schema.cls, unknown_tags=st.just(()) | tags, **fields)


TYPE_VERSIONS = [(schema, version) for schema in RECORD_SCHEMAS for version in schema.versions]


def _id(value: object) -> str:
    return value.type_name if isinstance(value, RecordSchema) else str(value)


@pytest.mark.parametrize(("schema", "version"), TYPE_VERSIONS, ids=_id)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(schema: RecordSchema, version: int, data: st.DataObject) -> None:
    record = data.draw(structs(schema.body, version))
    encoded = codec.encode(record, version)
    assert codec.decode(encoded) == (version, record)
    assert codec.encode(record, version) == encoded
    shown = payload_json(record, version)
    assert (shown["type"], shown["version"]) == (schema.type_name, version)
    untagged = {field.kafka_name for field in schema.body.fields_at(version)}
    assert untagged <= set(shown["data"]) <= {field.kafka_name for field in schema.body.fields}


@pytest.mark.parametrize("schema", CONTROL_SCHEMAS, ids=_id)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_control_records_that_are_written_are_read(schema: RecordSchema, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(list(schema.versions)))
    record = data.draw(structs(schema.body, version))
    # The message's own first field contains the version in which it is written.
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    record = schema.body.cls(**{**fields, "version": version})
    assert codec.decode_control(*codec.encode_control(record)) == record


def _written_alike(decoded: tuple[int, Any], data: bytes) -> None:
    version, record = decoded
    # Equal except for tagged fields that were encoded with their default, which are left out now.
    again = codec.encode(record, version)
    assert len(again) <= len(data)
    assert codec.decode(again) == (version, record)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_decode_errors(data: bytes) -> None:
    for buffer in (data, memoryview(data)):
        try:
            codec.decode_tolerant(buffer)
            decoded = codec.decode(buffer)
        except RecordDecodeError:
            continue
        _written_alike(decoded, data)


@settings(max_examples=600, deadline=None)
@given(place=st.sampled_from(TYPE_VERSIONS), body=st.binary(max_size=80))
def test_random_bodies_raise_nothing_but_decode_errors(place: tuple[RecordSchema, int], body: bytes) -> None:
    schema, version = place
    data = bytes((1, schema.key, version)) + body
    try:
        decoded = codec.decode(data)
    except RecordDecodeError as error:
        assert schema.type_name in str(error)
        return
    if "nan" not in repr(decoded):
        _written_alike(decoded, data)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), place=st.sampled_from(TYPE_VERSIONS))
def test_a_damaged_record_raises_nothing_but_decode_errors(
    data: st.DataObject, place: tuple[RecordSchema, int]
) -> None:
    schema, version = place
    damaged = bytearray(codec.encode(data.draw(structs(schema.body, version)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = codec.decode(bytes(damaged))
    except RecordDecodeError:
        return
    if "nan" not in repr(decoded):
        _written_alike(decoded, bytes(damaged))


@settings(max_examples=400, deadline=None)
@given(control_type=st.integers(0, 8), value=st.binary(max_size=60))
def test_random_control_values_raise_nothing_but_decode_errors(control_type: int, value: bytes) -> None:
    key = bytes((0, 0, 0, control_type))
    try:
        record = codec.decode_control(key, value)
    except RecordDecodeError:
        return
    assert codec.encode_control(record) == (key, value)


# The fast text of a payload equals the plain JSON, for every type, version and unusual value.


def plain(record: object, version: int, *, secrets: bool = False) -> str:
    return msgspec.json.encode(payload_json(record, version, secrets=secrets)).decode()  # type: ignore[arg-type]


@pytest.mark.parametrize(("schema", "version"), TYPE_VERSIONS, ids=_id)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_both_ways_give_the_same_text(schema: RecordSchema, version: int, data: st.DataObject) -> None:
    record = data.draw(structs(schema.body, version))
    for secrets in (False, True):
        text = "{" + payload_text(record, version, secrets=secrets) + "}"
        assert text == plain(record, version, secrets=secrets)


@pytest.mark.parametrize("schema", CONTROL_SCHEMAS, ids=lambda schema: schema.type_name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_control_records_too(schema: RecordSchema, data: st.DataObject) -> None:
    record = data.draw(structs(schema.body, 0))
    assert "{" + payload_text(record, 0) + "}" == plain(record, 0)


def test_records_from_the_future_and_numbers_that_json_lacks() -> None:
    for record, version in (
        (r.UnknownRecord(99, 7, b"\x00\xff"), 7),
        (UnknownControlRecord(40, b"k", b"v"), 0),
        (r.ClientQuotaRecord((QuotaEntity("user", '"{}\\\n'),), "k", math.inf, False), 0),
        (r.ClientQuotaRecord((), "k", math.nan, True), 0),
    ):
        text = "{" + payload_text(record, version) + "}"
        assert text == plain(record, version)
        json.loads(text)


def test_a_cache_is_bounded() -> None:
    cache = TextCache(str)
    for value in range(CACHED_TEXTS + 10):
        assert cache[value] == str(value)
        assert len(cache) <= CACHED_TEXTS
