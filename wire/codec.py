"""Frames to requests and responses, and back: headers and bodies, without the length in front.

Owns the headers and the errors about frames. Bodies come from code that is compiled at a version's first use.
Records are memoryviews of the frame: whatever keeps them keeps the frame.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from metaquorum.wire.apis import API_VERSIONS, APIS, MessageType, request_type, response_type
from metaquorum.wire.errors import (
    ENCODE_ERRORS,
    DecodeError,
    EncodeError,
    Malformed,
    UnknownApiError,
    UnsupportedFieldError,
)
from metaquorum.wire.explain import where_decoding_fails
from metaquorum.wire.misfits import misfit
from metaquorum.wire.primitives import (
    Buffer,
    Chunks,
    Tags,
    read_short_length,
    read_unknown_tags,
    write_string_classic,
    write_tags,
)

_HEADER = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_UNSUPPORTED_VERSION = b"\0\x23"
"""Kafka's error code 35, as the first field of an ApiVersions response."""

DECODE_ERRORS = (IndexError, struct.error, Malformed, UnicodeDecodeError)
"""What generated code may raise on bytes that are not the message."""


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request. `client_id` None is null."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    unknown_tags: Tags = ()


class Request(msgspec.Struct, frozen=True, gc=False):
    """A decoded request. Bytes from `end` on belong to no field; some clients send such bytes."""

    header: RequestHeader
    body: Any
    end: int


class Response(msgspec.Struct, frozen=True, gc=False):
    """A decoded response, in the version in which it came. Bytes from `end` on belong to no field."""

    version: int
    correlation_id: int
    body: Any
    end: int
    unknown_tags: Tags = ()


def decode_request(frame: Buffer) -> Request:
    """The request in a frame.

    Raises UnknownApiError when the table does not have the API or the version, DecodeError for malformed
    bytes.
    """
    header, position = _decode_request_header(frame)
    kind = request_type(header.api_key)
    body, end = _decode_body(kind, header.version, frame, position)
    return Request(header, body, end)


def _decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    if len(frame) < _HEADER.size:
        raise DecodeError(f"a frame of {len(frame)} bytes ends inside the header of its request")
    api_key, version, correlation_id = _HEADER.unpack_from(frame, 0)
    api = APIS.get(api_key)
    if api is None or version not in api.versions:
        known = "the key is unknown"
        if api is not None:
            known = f"{api.name} has versions {api.min_version} to {api.max_version}"
        raise UnknownApiError(
            f"request of API {api_key} version {version}: {known}",
            api_key=api_key,
            version=version,
            correlation_id=correlation_id,
        )
    try:
        length, position = read_short_length(frame, _HEADER.size)
        stop = position + length - 1 if length else position
        if stop > len(frame):
            raise Malformed(f"the client id ends {stop - len(frame)} bytes after the end")
        client_id = str(frame[position:stop], "utf-8") if length else None
        tags: Tags = ()
        if api.is_flexible(version):
            tags, stop = read_unknown_tags(frame, stop + 1, frame[stop], len(frame))
    except DECODE_ERRORS as error:
        raise DecodeError(f"{api.name}Request version {version}: header: {reason(error)}") from None
    return RequestHeader(api_key, version, correlation_id, client_id, tags), stop


def _decode_body(kind: MessageType, version: int, frame: Buffer, position: int) -> tuple[Any, int]:
    try:
        body, end = kind.decoder(version)(frame, position, len(frame))
        if end <= len(frame):
            return body, end
    except DECODE_ERRORS:
        pass
    where = where_decoding_fails(kind.schema, version, kind.api.is_flexible(version), frame, position)
    raise DecodeError(f"{kind.name} version {version}: {where}")


def decode_response(api_key: int, version: int, frame: Buffer) -> Response:
    """The response in a frame to a request of this API and version.

    A node that does not have the version of an ApiVersions request answers in version 0 (KIP-511).
    Raises KeyError for an API or version that the table does not have, DecodeError for malformed bytes.
    """
    kind = response_type(api_key)
    if api_key == API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
        version = 0
    if version not in kind.api.versions:
        raise KeyError(version)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame, 0)
        position = _CORRELATION_ID.size
        tags: Tags = ()
        if kind.api.is_flexible(version) and api_key != API_VERSIONS:
            tags, position = read_unknown_tags(frame, position + 1, frame[position], len(frame))
    except DECODE_ERRORS as error:
        raise DecodeError(f"{kind.name} version {version}: header: {reason(error)}") from None
    body, end = _decode_body(kind, version, frame, position)
    return Response(version, correlation_id, body, end, tags)


def encode_request(header: RequestHeader, body: Any) -> list[Buffer]:
    """The chunks of a request's frame. Raises EncodeError when a value does not fit its field."""
    kind = request_type(header.api_key)
    out = Chunks()
    try:
        out += _HEADER.pack(header.api_key, header.version, header.correlation_id)
        out += b"\xff\xff" if header.client_id is None else write_string_classic(header.client_id)
        if kind.api.is_flexible(header.version):
            out += write_tags([], header.unknown_tags, frozenset())
    except ENCODE_ERRORS as error:
        raise EncodeError(f"the header of a {kind.name}: {error}") from None
    return _write_body(kind, header.version, body, out)


def encode_response(
    api_key: int, version: int, correlation_id: int, body: Any, unknown_tags: Tags = ()
) -> list[Buffer]:
    """The chunks of a response's frame. Raises EncodeError when a value does not fit its field."""
    out = Chunks()
    out += response_header(api_key, version, correlation_id, unknown_tags)
    return _write_body(response_type(api_key), version, body, out)


def response_header(api_key: int, version: int, correlation_id: int, unknown_tags: Tags = ()) -> bytes:
    """What is before the body in a response's frame."""
    head = _CORRELATION_ID.pack(correlation_id)
    if response_type(api_key).api.is_flexible(version) and api_key != API_VERSIONS:
        head += write_tags([], unknown_tags, frozenset())
    return head


def encode_body(api_key: int, version: int, body: Any) -> bytes:
    """A response's body alone, for frames with several headers. Raises EncodeError as `encode_response`."""
    return b"".join(_write_body(response_type(api_key), version, body, Chunks()))


def _write_body(kind: MessageType, version: int, body: Any, out: Chunks) -> list[Buffer]:
    if not isinstance(body, kind.cls):
        raise EncodeError(f"{type(body).__name__} is not a {kind.name}")
    if version not in kind.api.versions:
        raise EncodeError(
            f"{kind.name} has no version {version}; write {kind.api.min_version} to {kind.api.max_version}"
        )
    try:
        kind.writer(version)(body, out)
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
    """The words for an error of generated code or of a primitive."""
    if isinstance(error, Malformed):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    return "it ends too early"
