"""The fast text of a payload equals the plain JSON, for every type, version and unusual value."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RecordSchema
from metaquorum.metadata.records.types import QuotaEntity
from metaquorum.metadata.text.dump import CACHED_TEXTS, TextCache, payload_json, payload_text
from tests.properties.test_codec_roundtrip import TYPE_VERSIONS, _id, structs


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
