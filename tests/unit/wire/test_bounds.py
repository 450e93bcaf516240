"""What decoding a stranger's request costs is bounded by its size and by the limits, for every API and
version: values are counted before they are read."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.wire import codec, explain
from metaquorum.wire.errors import DecodeError, TooManyValues, UnknownApiError
from metaquorum.wire.schema import Field, StructSchema
from metaquorum.wire.table import APIS, request_type

VERSIONS = [(api.key, version) for api in APIS.values() for version in api.versions]
MOST = 100


def values_in(found: Any) -> int:
    """Every value of an array, and every unknown tag."""
    if isinstance(found, msgspec.Struct):
        return sum(values_in(getattr(found, name)) for name in found.__struct_fields__)
    return sum(1 + values_in(each) for each in found) if type(found) is tuple else 0


def head(key: int, version: int) -> bytes:
    flexible = request_type(key).api.is_flexible(version)
    return struct.pack(">hhih", key, version, 7, -1) + b"\0" * flexible


@settings(max_examples=400)
@given(
    place=st.sampled_from(VERSIONS),
    body=st.one_of(
        st.binary(max_size=600),
        st.builds(
            lambda lead, fill, count: lead + fill * count,
            st.binary(max_size=30),
            st.sampled_from([b"\1", b"\0", b"\2", b"\xff\xff\3", b"\0\0\0\1", b"\1\0", b"\x7f"]),
            st.integers(0, 2_000),
        ),
    ),
)
def test_hostile_bytes_give_no_more_values_than_allowed(place: tuple[int, int], body: bytes) -> None:
    try:
        request = codec.decode_request(head(*place) + body, MOST)
    except (DecodeError, TooManyValues):
        return
    # A tag is a pair of its number and its bytes.
    assert values_in(request.body) <= 3 * MOST


def _array(schema: StructSchema, version: int) -> Field | None:
    """The first array of the message that no array of another kind precedes."""
    fields = schema.fields_at(version)
    return next((each for each in fields if each.is_array), None)


@pytest.mark.parametrize("place", VERSIONS, ids=str)
def test_arrays_of_the_smallest_values_are_refused_before_they_are_read(place: tuple[int, int]) -> None:
    """Bytes that announce as many values as the frame has room for."""
    key, version = place
    kind = request_type(key)
    array = _array(kind.schema, version)
    if array is None or any(each.type in ("bytes", "records") for each in kind.schema.fields_at(version)):
        pytest.skip("the request has no array")
    flexible = kind.api.is_flexible(version)
    before = b""
    for each in kind.schema.fields_at(version):
        if each is array:
            break
        before += _smallest(each, version, flexible)
    count = 1_000_000
    size = b"\xc1\x84\x3d" if flexible else struct.pack(">i", count)
    frame = head(key, version) + before + size + bytes(64 * count)
    with pytest.raises(TooManyValues):
        codec.decode_request(frame, codec.FEW_VALUES)
    with pytest.raises(DecodeError, match="its arrays have over 262144 values: send several requests"):
        codec.decode_request_apart(frame)


def _smallest(field: Field, version: int, flexible: bool) -> bytes:
    """The field with its smallest value."""
    widths = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16, "float64": 8}
    if field.type in widths:
        return bytes(widths[field.type])
    if field.type == "string":
        return b"\1" if flexible else b"\0\0"
    raise AssertionError(f"{field.name}: {field.type}")


def test_the_text_about_a_malformed_request_looks_at_few_values() -> None:
    names = b"\0\0" * 200_000
    frame = head(15, 0) + struct.pack(">i", 200_001) + names + b"\xff\xff"
    with pytest.raises(DecodeError, match=f"after the first {explain.VALUES_MAX} values"):
        codec.decode_request(frame)


def test_unknown_tags_of_a_header_are_few() -> None:
    count = 1_000
    tags = b"".join(
        bytes(((tag & 0x7F) | 0x80, tag >> 7, 0)) if tag > 127 else bytes((tag, 0)) for tag in range(count)
    )
    frame = struct.pack(">hhih", 18, 3, 7, -1) + bytes((count & 0x7F | 0x80, count >> 7)) + tags + b"\2a\2b\0"
    with pytest.raises(DecodeError, match="at most 64 are read"):
        codec.decode_request(frame)


def test_an_unknown_version_is_still_told_apart() -> None:
    with pytest.raises(UnknownApiError):
        codec.decode_request(struct.pack(">hhih", 0, 99, 7, -1), MOST)
