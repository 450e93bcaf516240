"""Bytes to records and back: every metadata record and every control record, all versions.

The fields are in `schema`; `wire.generator` creates the functions from it. Decoding is strict: every byte
must be accounted for. Tools that must continue use the tolerant variants.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from metaquorum.metadata.errors import (
    RecordDecodeError,
    RecordEncodeError,
    UnknownRecordError,
    UnsupportedVersionError,
)
from metaquorum.metadata.records.control import ControlRecord, LeaderChangeMessage, UnknownControlRecord
from metaquorum.metadata.records.schema import (
    CONTROL_SCHEMA_BY_TYPE,
    RECORD_SCHEMAS,
    SCHEMA_BY_API_KEY,
    SCHEMA_BY_CLASS,
    RecordSchema,
)
from metaquorum.metadata.records.types import Record, UnknownRecord
from metaquorum.wire.errors import Malformed, UnsupportedFieldError
from metaquorum.wire.explain import misfit
from metaquorum.wire.generator import Decoder, Encoder, compile_decoder, compile_encoder
from metaquorum.wire.primitives import Buffer, read_uvarint

FRAME_VERSION = 1
_CONTROL_KEY = struct.Struct(">hh")
_LEADER_CHANGE = LeaderChangeMessage.control_type

# What generated code may raise on bytes that are not a record, and on values that fit no field.
_DECODE_ERRORS = (IndexError, struct.error, Malformed, UnicodeDecodeError)
_ENCODE_ERRORS = (struct.error, Malformed, UnicodeEncodeError, TypeError, AttributeError, OverflowError)

_HINT = ", or raise the metadata.version"
_FRAME_BYTES = 3

# Code is compiled when a type is first met: a tool meets few of them, and all together take 50 ms.
# Api keys and versions are below 128, one byte of the frame each: (api key << 8 | version) finds a decoder.
_DECODERS: dict[int, Decoder] = {}
_ENCODERS: dict[type[Any], list[Encoder | None]] = {
    schema.body.cls: [None] * len(schema.versions) for schema in RECORD_SCHEMAS
}


def _decoder(api_key: int, version: int) -> Decoder | None:
    """Compiles a decoder that is missing; None for an unknown type or version."""
    schema = SCHEMA_BY_API_KEY.get(api_key)
    if schema is None or version not in schema.versions:
        return None
    return _DECODERS.setdefault(api_key << 8 | version, compile_decoder(schema.body, version))


def _encoder(cls: type[Any], version: int) -> Encoder:
    """Compiles an encoder that is missing."""
    schema = SCHEMA_BY_CLASS[cls]
    frame = bytes((FRAME_VERSION, schema.key, version))
    encoder = _ENCODERS[cls][version] = compile_encoder(schema.body, version, frame, _HINT)
    return encoder


@cache
def _control_decoder(control_type: int, version: int) -> Decoder:
    return compile_decoder(CONTROL_SCHEMA_BY_TYPE[control_type].body, version)


@cache
def _control_encoder(control_type: int, version: int) -> Encoder:
    return compile_encoder(CONTROL_SCHEMA_BY_TYPE[control_type].body, version, hint=_HINT)


def decode(buf: Buffer, start: int = 0, end: int | None = None) -> tuple[int, Record]:
    """(version, record) of the framed record in buf[start:end].

    Raises UnknownRecordError for a newer type or version, and RecordDecodeError for bytes that are short,
    trailing or malformed.
    """
    if end is None:
        end = len(buf)
    try:
        if buf[start] == FRAME_VERSION:
            version = buf[start + 2]
            decoder = _DECODERS.get(buf[start + 1] << 8 | version) or _decoder(buf[start + 1], version)
            if decoder is not None:
                record, position = decoder(buf, start + 3, end)
                if position == end:
                    return version, record
    except _DECODE_ERRORS as error:
        reason: Exception | None = error
    else:
        reason = None
    if end < len(buf) and end - start >= _FRAME_BYTES:
        # The decoder may have read past the record, and the reason must not depend on what is there.
        return decode(bytes(buf[start:end]))
    raise _decode_error(buf, start, end, reason) from None


def decode_tolerant(
    buf: Buffer, start: int = 0, end: int | None = None
) -> tuple[int, Record | UnknownRecord]:
    """Like `decode`, but a well-formed record of an unknown type or version is returned as UnknownRecord."""
    try:
        return decode(buf, start, end)
    except UnknownRecordError as error:
        stop = len(buf) if end is None else end
        _, _, position = _read_frame(buf, start, stop)
        return error.version, UnknownRecord(error.api_key, error.version, bytes(buf[position:stop]))


def encode(record: Record, version: int) -> bytes:
    """The framed record.

    Raises UnsupportedVersionError if the version does not exist or cannot carry a field that is set,
    RecordEncodeError if a value does not fit its field.
    """
    encoders = _ENCODERS.get(type(record))
    if encoders is None:
        raise RecordEncodeError(f"{type(record).__name__} is not a metadata record")
    if not 0 <= version < len(encoders):
        raise UnsupportedVersionError(
            f"{type(record).__name__} has no version {version}; write 0 to {len(encoders) - 1}"
        )
    try:
        return (encoders[version] or _encoder(type(record), version))(record)
    except UnsupportedFieldError as error:
        raise UnsupportedVersionError(str(error)) from None
    except _ENCODE_ERRORS as error:
        raise _encode_error(record, version, error) from error


def decode_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """The control record of a record in a control batch.

    LeaderChangeMessage is read in the version in its own first field (1, or 0 for anything else, as Kafka's
    reader does); the others have a single version. Raises UnknownRecordError and RecordDecodeError.
    """
    if key is None or len(key) != _CONTROL_KEY.size or value is None:
        raise RecordDecodeError("a control record has a key of 4 bytes (version, type) and a value")
    key_version, control_type = _CONTROL_KEY.unpack(key)
    schema = CONTROL_SCHEMA_BY_TYPE.get(control_type)
    if schema is None or key_version != 0:
        raise UnknownRecordError(
            f"control record type {control_type} (key version {key_version}) is unknown to this release; "
            "read the log with a newer one",
            api_key=control_type,
            version=key_version,
        )
    version = 1 if control_type == _LEADER_CHANGE and value[:2] == b"\0\1" else 0
    return _decode_control_body(schema, version, value)


def _decode_control_body(schema: RecordSchema, version: int, value: bytes) -> ControlRecord:
    try:
        record, position = _control_decoder(schema.key, version)(value, 0, len(value))
    except _DECODE_ERRORS as error:
        raise RecordDecodeError(
            f"{schema.type_name} control record, {len(value)} bytes: {_reason(error)}"
        ) from None
    if position != len(value):
        raise RecordDecodeError(
            f"{schema.type_name} control record has {len(value)} bytes, but its fields end at {position}"
        )
    decoded: ControlRecord = record
    return decoded


def decode_control_tolerant(key: bytes | None, value: bytes | None) -> ControlRecord | UnknownControlRecord:
    """Like `decode_control`, but an unknown type is returned as UnknownControlRecord."""
    try:
        return decode_control(key, value)
    except UnknownRecordError as error:
        return UnknownControlRecord(error.api_key, key or b"", value or b"")


def control_schema_version(record: ControlRecord | UnknownControlRecord) -> int:
    """The version in which the message of `record` is written."""
    return 1 if isinstance(record, LeaderChangeMessage) and record.version == 1 else 0


def encode_control(record: ControlRecord) -> tuple[bytes, bytes]:
    """(key, value) of a control record. Raises the same errors as `encode`."""
    schema = SCHEMA_BY_CLASS.get(type(record))
    if schema is None or CONTROL_SCHEMA_BY_TYPE.get(schema.key) is not schema:
        raise RecordEncodeError(f"{type(record).__name__} is not a control record")
    version = control_schema_version(record)
    try:
        value = _control_encoder(schema.key, version)(record)
    except UnsupportedFieldError as error:
        raise UnsupportedVersionError(str(error)) from None
    except _ENCODE_ERRORS as error:
        raise _encode_error(record, version, error) from error
    return _CONTROL_KEY.pack(0, schema.key), value


def _read_frame(buf: Buffer, start: int, end: int) -> tuple[int, int, int]:
    """(api key, version, position of the body). Raises RecordDecodeError."""
    numbers = []
    position = start
    for name in ("frame version", "api key", "version"):
        try:
            number = buf[position]
            position += 1
            if number > 127:
                number, position = read_uvarint(buf, position, number)
        except (IndexError, Malformed) as error:
            raise RecordDecodeError(f"record of {end - start} bytes: {name}: {_reason(error)}") from None
        if position > end:
            raise RecordDecodeError(f"record of {end - start} bytes: it ends inside its {name}")
        numbers.append(number)
    if numbers[0] != FRAME_VERSION:
        raise RecordDecodeError(
            f"record has frame version {numbers[0]}, not {FRAME_VERSION}; this is not a metadata record, "
            "or a newer release wrote it"
        )
    return numbers[1], numbers[2], position


def _reason(error: Exception) -> str:
    if isinstance(error, Malformed):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    return "it ends inside its last field"


def _decode_error(buf: Buffer, start: int, end: int, cause: Exception | None) -> RecordDecodeError:
    """Why buf[start:end] is not a record; the slow path, which finds the explanation."""
    try:
        api_key, version, _ = _read_frame(buf, start, end)
    except RecordDecodeError as error:
        return error
    schema = SCHEMA_BY_API_KEY.get(api_key)
    if schema is None:
        return UnknownRecordError(
            f"record has api key {api_key}, which this release does not know; read the log with a newer one",
            api_key=api_key,
            version=version,
        )
    if version not in schema.versions:
        return UnknownRecordError(
            f"{schema.type_name} has version {version}, and this release knows 0 to "
            f"{schema.latest_version}; read the log with a newer release",
            api_key=api_key,
            version=version,
        )
    reason = _reason(cause) if cause is not None else "there are bytes after its last field"
    return RecordDecodeError(f"{schema.type_name} version {version}, {end - start} bytes: {reason}")


def _encode_error(record: Any, version: int, cause: Exception) -> RecordEncodeError:
    """Which field does not fit; the slow path, which finds the explanation."""
    name = type(record).__name__
    schema = SCHEMA_BY_CLASS[type(record)]
    for field in schema.body.fields:
        reason = misfit(field, getattr(record, field.name))
        if reason is not None:
            return RecordEncodeError(f"{name} version {version}: {field.name} {reason}")
    return RecordEncodeError(f"{name} version {version}: {cause}")
