"""Frames to requests and responses, and back: headers and bodies, without the length prefix.

Records are memoryviews of the frame: keeping them keeps the whole frame in memory.
"""

from __future__ import annotations

import struct
import threading
from functools import cache
from typing import Any, NamedTuple

import msgspec

from metaquorum.wire.errors import (
    ENCODE_ERRORS,
    DecodeError,
    EncodeError,
    Malformed,
    TooManyValues,
    UnknownApiError,
    UnsupportedFieldError,
)
from metaquorum.wire.explain import misfit, where_decoding_fails
from metaquorum.wire.generator import Decoder, ValuesLeft, Writer
from metaquorum.wire.primitives import (
    Buffer,
    Chunks,
    Tags,
    read_short_length,
    read_unknown_tags,
    write_string_classic,
    write_tags,
)
from metaquorum.wire.table import API_VERSIONS, APIS, MessageType, request_type, response_type

_HEADER = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_NO_TAGS: frozenset[int] = frozenset()
_UNSUPPORTED_VERSION = b"\0\x23"
"""Kafka's error code 35, as the first field of an ApiVersions response."""

VALUES_MAX = 1 << 18
"""The most values that the arrays of one request have together: of a few bytes each, they take a hundred
times their size in memory. The largest clients send some ten thousand."""
HEADER_TAGS_MAX = 64
"""The most tagged fields of a header that this release does not know."""
FEW_VALUES = 4_096
"""A request with up to this many values is decoded in some milliseconds."""

_LEFT, _LEFT_APART = ValuesLeft(), ValuesLeft()
"""Of the event loop's thread, and of those that decode long requests, one at a time."""
_APART = threading.Lock()

DECODE_ERRORS = (IndexError, struct.error, Malformed, UnicodeDecodeError)
"""What generated code may raise if the bytes are not the message."""


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request. `client_id` None is null."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    unknown_tags: Tags = ()


class Request(msgspec.Struct, frozen=True, gc=False):
    """A decoded request. Bytes from `end` on belong to no field; some clients send such bytes. `frame`: the
    bytes that were decoded; None if the body is another one."""

    header: RequestHeader
    body: Any
    end: int
    frame: Buffer | None = None

    def changed(self, body: Any) -> Request:
        """The same request with another body."""
        return Request(self.header, body, self.end)


class Response(msgspec.Struct, frozen=True, gc=False):
    """A decoded response, in the version in which it arrived. Bytes from `end` on belong to no field."""

    version: int
    correlation_id: int
    body: Any
    end: int
    unknown_tags: Tags = ()


class _Reader(NamedTuple):
    """Reads one message in one version. `is_flexible`: its header has tags."""

    kind: MessageType
    is_flexible: bool
    decode: Decoder


class _Writer(NamedTuple):
    """Writes one message in one version."""

    kind: MessageType
    is_flexible: bool
    cls: type[Any]
    write: Writer


# Kept for each message and version from its first use on, because every frame needs it.
@cache
def _request_reader(api_key: int, version: int, left: ValuesLeft) -> _Reader:
    kind = request_type(api_key)
    if version not in kind.api.versions:
        raise KeyError(version)
    return _Reader(kind, kind.api.is_flexible(version), kind.decoder(version, left))


@cache
def _response_reader(api_key: int, version: int) -> _Reader:
    kind = response_type(api_key)
    if version not in kind.api.versions:
        raise KeyError(version)
    return _Reader(kind, kind.api.is_flexible(version) and api_key != API_VERSIONS, kind.decoder(version))


@cache
def _request_writer(api_key: int, version: int) -> _Writer:
    return _writer(request_type(api_key), version)


@cache
def _response_writer(api_key: int, version: int) -> _Writer:
    return _writer(response_type(api_key), version)


def _writer(kind: MessageType, version: int) -> _Writer:
    if version not in kind.api.versions:
        raise EncodeError(
            f"{kind.name} has no version {version}; write {kind.api.min_version} to {kind.api.max_version}"
        )
    is_flexible = kind.api.is_flexible(version)
    if kind is response_type(API_VERSIONS):
        is_flexible = False
    return _Writer(kind, is_flexible, kind.cls, kind.writer(version))


def decode_request(frame: Buffer, values_max: int = VALUES_MAX) -> Request:
    """The request in a frame, on the event loop's thread.

    Raises UnknownApiError if the table does not have the API or the version, DecodeError for malformed bytes
    or over VALUES_MAX values in its arrays; TooManyValues if a smaller `values_max` is the reason.
    """
    return _decoded(frame, _LEFT, values_max)


def decode_request_apart(frame: Buffer) -> Request:
    """The same on another thread than the event loop's."""
    with _APART:
        return _decoded(frame, _LEFT_APART, VALUES_MAX)


def _decoded(frame: Buffer, left: ValuesLeft, values_max: int) -> Request:
    left.count = values_max
    size = len(frame)
    if size < _HEADER.size:
        raise DecodeError(f"a frame of {size} bytes ends inside the header of its request")
    api_key, version, correlation_id = _HEADER.unpack_from(frame, 0)
    try:
        reader = _request_reader(api_key, version, left)
    except KeyError:
        raise _unknown(api_key, version, correlation_id) from None
    try:
        length, stop = read_short_length(frame, _HEADER.size)
        client_id = None
        if length:
            position, stop = stop, stop + length - 1
            if stop > size:
                raise Malformed(f"the client id ends {stop - size} bytes after the end")
            client_id = str(frame[position:stop], "utf-8")
        tags: Tags = ()
        if reader.is_flexible:
            count, stop = frame[stop], stop + 1
            if count:
                tags, stop = read_unknown_tags(frame, stop, count, size, HEADER_TAGS_MAX)
    except DECODE_ERRORS as error:
        name = reader.kind.name
        raise DecodeError(f"{name} version {version}: header: {reason(error)}") from None
    try:
        body, end = _decode_body(reader, version, frame, stop)
    except TooManyValues:
        if values_max < VALUES_MAX:
            raise
        raise DecodeError(
            f"{reader.kind.name} version {version}: its arrays have over {VALUES_MAX} values: send several "
            "requests"
        ) from None
    return Request(RequestHeader(api_key, version, correlation_id, client_id, tags), body, end, frame)


def _unknown(api_key: int, version: int, correlation_id: int) -> UnknownApiError:
    api = APIS.get(api_key)
    reason = "the key is unknown"
    if api is not None:
        reason = f"{api.name} has versions {api.min_version} to {api.max_version}"
    return UnknownApiError(
        f"request of API {api_key} version {version}: {reason}",
        api_key=api_key,
        version=version,
        correlation_id=correlation_id,
    )


def _decode_body(reader: _Reader, version: int, frame: Buffer, position: int) -> tuple[Any, int]:
    try:
        body, end = reader.decode(frame, position, len(frame))
        if end <= len(frame):
            return body, end
    except DECODE_ERRORS:
        pass
    kind = reader.kind
    where = where_decoding_fails(kind.schema, version, kind.api.is_flexible(version), frame, position)
    raise DecodeError(f"{kind.name} version {version}: {where}")


def decode_response(api_key: int, version: int, frame: Buffer) -> Response:
    """The response in a frame to a request of this API and version.

    A node that does not support the version of an ApiVersions request responds in version 0 (KIP-511). Raises
    KeyError for an API or version that the table does not have, DecodeError for malformed bytes.
    """
    if api_key == API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
        version = 0
    reader = _response_reader(api_key, version)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame, 0)
        position = _CORRELATION_ID.size
        tags: Tags = ()
        if reader.is_flexible:
            count, position = frame[position], position + 1
            if count:
                tags, position = read_unknown_tags(frame, position, count, len(frame))
    except DECODE_ERRORS as error:
        name = reader.kind.name
        raise DecodeError(f"{name} version {version}: header: {reason(error)}") from None
    body, end = _decode_body(reader, version, frame, position)
    return Response(version, correlation_id, body, end, tags)


def encode_request(header: RequestHeader, body: Any) -> list[Buffer]:
    """The chunks of a request's frame. Raises EncodeError if a value does not fit its field."""
    writer = _request_writer(header.api_key, header.version)
    out = Chunks()
    try:
        out += _HEADER.pack(header.api_key, header.version, header.correlation_id)
        out += b"\xff\xff" if header.client_id is None else write_string_classic(header.client_id)
        if writer.is_flexible:
            out += write_tags([], header.unknown_tags, _NO_TAGS) if header.unknown_tags else b"\0"
    except ENCODE_ERRORS as error:
        raise EncodeError(f"the header of a {writer.kind.name}: {error}") from None
    return _write_body(writer, header.version, body, out)


def encode_response(api_key: int, version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """The chunks of a response's frame. Raises EncodeError if a value does not fit its field."""
    out = Chunks()
    out += response_header(api_key, version, correlation_id)
    return _write_body(_response_writer(api_key, version), version, body, out)


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The part of a response's frame before the body; its header has no tagged fields."""
    head = _CORRELATION_ID.pack(correlation_id)
    return head + b"\0" if _response_writer(api_key, version).is_flexible else head


def encode_body(api_key: int, version: int, body: Any) -> bytes:
    """A response's body alone, for frames with several headers. Raises EncodeError like `encode_response`."""
    return b"".join(_write_body(_response_writer(api_key, version), version, body, Chunks()))


def _write_body(writer: _Writer, version: int, body: Any, out: Chunks) -> list[Buffer]:
    kind = writer.kind
    if not isinstance(body, writer.cls):
        raise EncodeError(f"{type(body).__name__} is not a {kind.name}")
    try:
        writer.write(body, out)
    except UnsupportedFieldError:
        raise
    except ENCODE_ERRORS as error:
        for field in kind.schema.fields:
            why = misfit(field, getattr(body, field.name), version)
            if why is not None:
                raise EncodeError(f"{kind.name} version {version}: {field.name} {why}") from None
        raise EncodeError(f"{kind.name} version {version}: {error}") from None
    return out.finish()


def reason(error: Exception) -> str:
    """The text for an error of generated code or of a primitive."""
    if isinstance(error, Malformed):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    return "it ends too early"
