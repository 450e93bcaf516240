"""Laws of the codec of requests and responses, over messages drawn from the table itself."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.wire import codec
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.explain import where_decoding_fails
from metaquorum.wire.primitives import write_tags
from metaquorum.wire.table import APIS, MessageType, request_type, response_type
from tests.properties.wire_values import TEXT, filled, messages

TAGS = st.dictionaries(st.integers(0, 2**31 - 2), st.binary(max_size=9), max_size=3).map(
    lambda tags: tuple(sorted(tags.items()))
)
"""Tagged fields that this release does not know."""

KEYS = [pytest.param(key, id=api.name) for key, api in APIS.items()]


def names_a_field(kind: MessageType, version: int, body: Any) -> bool:
    """Whether the text about bytes that do not decode would blame a field of this message."""
    out = bytearray()
    kind.writer(version)(body, out)
    return " at byte " in where_decoding_fails(
        kind.schema, version, kind.api.is_flexible(version), bytes(out), 0
    )


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=8)
@given(data=st.data())
def test_a_request_that_is_written_is_read(key: int, data: st.DataObject) -> None:
    api = APIS[key]
    version = data.draw(st.sampled_from(api.versions))
    body = data.draw(messages(request_type(key).schema, version, api.is_flexible(version)))
    tags = data.draw(TAGS) if api.is_flexible(version) else ()
    header = codec.RequestHeader(
        key, version, data.draw(st.integers(-1, 9)), data.draw(st.none() | TEXT), tags
    )
    frame = b"".join(codec.encode_request(header, body))
    assert codec.decode_request(frame) == codec.Request(header, body, len(frame), frame)
    assert codec.decode_request(memoryview(bytearray(frame))).body == body
    assert not names_a_field(request_type(key), version, body)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=8)
@given(data=st.data())
def test_a_response_that_is_written_is_read(key: int, data: st.DataObject) -> None:
    api = APIS[key]
    version = data.draw(st.sampled_from(api.versions))
    body = data.draw(messages(response_type(key).schema, version, api.is_flexible(version)))
    if api.name == "ApiVersions" and body.error_code == 35 and version:
        return  # always in version 0
    frame = b"".join(codec.encode_response(key, version, 7, body))
    assert codec.decode_response(key, version, frame) == codec.Response(version, 7, body, len(frame))
    if api.is_flexible(version) and api.name != "ApiVersions":
        tags = data.draw(TAGS)
        tagged = frame[:4] + write_tags([], tags, frozenset()) + frame[5:]
        found = codec.decode_response(key, version, tagged)
        assert found == codec.Response(version, 7, body, len(tagged), tags)
    assert not names_a_field(response_type(key), version, body)


KINDS = [kind for key in APIS for kind in (request_type(key), response_type(key))]
ALL = [(kind, version) for kind in KINDS for version in kind.api.versions]
HUGE = (
    b"\x7f\xff\xff\xff" * 30,
    b"\xff\xff\xff\xff\x07" * 30,
    bytes(7) + b"\x7f\xff\xff\xff" * 9,
)
"""Lengths of two billion, as they are written in four bytes and as varints."""


def body_of(kind: MessageType, version: int, rng: random.Random) -> bytes:
    """The body of a message with something in every array; deterministic in `rng`."""
    out = bytearray()
    kind.writer(version)(filled(kind.schema, version, rng), out)
    return bytes(out)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_damaged_bytes_raise_only_the_named_error(seed: int) -> None:
    """Bytes are removed, changed and inserted; the error for what does not decode names field and
    position."""
    rng = random.Random(seed)
    for _ in range(25):
        kind, version = rng.choice(ALL)
        body = bytearray(body_of(kind, version, rng))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(body) + 1)
            match rng.randrange(4):
                case 0:
                    body[at : at + 1] = bytes([rng.choice([0, 1, 2, 127, 128, 255])])
                case 1:
                    body[at:] = b""
                case 2:
                    body[at:at] = b"\xff\xff\xff\xff\x07"
                case 3:
                    body[at : at + 4] = b"\x7f\xff\xff\xff"
        explained = where_decoding_fails(kind.schema, version, kind.api.is_flexible(version), bytes(body), 0)
        frame = b"\0\0\0\1" + bytes(body)
        decoder = kind.decoder(version)
        try:
            _, end = decoder(frame, 4, len(frame))
        except codec.DECODE_ERRORS:
            assert " at byte " in explained, (kind.name, version, bytes(body))
        else:
            assert (end > len(frame)) == (" at byte " in explained), (kind.name, version, bytes(body))


@settings(max_examples=150)
@given(data=st.binary(max_size=60), head=st.sampled_from(sorted(APIS)), version=st.integers(-1, 20))
def test_raw_bytes_raise_only_the_named_error(data: bytes, head: int, version: int) -> None:
    for frame in (data, head.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + data):
        try:
            codec.decode_request(frame)
        except DecodeError as error:
            assert str(error)
    if version in APIS[head].versions:
        try:
            codec.decode_response(head, version, data)
        except DecodeError as error:
            assert str(error)


@pytest.mark.parametrize("key", [0, 1, 3, 18])
def test_announced_lengths_allocate_nothing(key: int) -> None:
    """Arrays of two billion elements in a frame of some bytes."""
    tracemalloc.start()
    for version in APIS[key].versions:
        head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff"
        for lengths in HUGE:
            with contextlib.suppress(DecodeError):
                codec.decode_request(head + lengths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Most of it is the code of each version, which is compiled here at its first use.
    assert peak < 20 * 2**20
