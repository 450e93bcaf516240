"""The codec against kio, another implementation of Kafka's messages: each decodes what the other encodes."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import pkgutil
import random
import typing
import uuid
from dataclasses import MISSING
from enum import IntEnum
from types import NoneType
from typing import Any

import kio.schema
import pytest
from kio.serial import entity_reader, entity_writer

from metaquorum.wire import codec
from metaquorum.wire.table import APIS, MessageType, python_name, request_type, response_type
from tests.properties.wire_values import filled, kafkas_fields

KINDS = [kind for key in APIS for kind in (request_type(key), response_type(key))]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MS = datetime.timedelta(milliseconds=1)


def kio_class(kind: MessageType, version: int) -> Any:
    """kio's class for a message; None where kio does not have the version."""
    part = "request" if kind.name.endswith("Request") else "response"
    try:
        module = importlib.import_module(f"kio.schema.{python_name(kind.api.name)}.v{version}.{part}")
    except ModuleNotFoundError:
        return None
    return getattr(module, kind.name)


def plain(value: Any) -> Any:
    """A value of either side as tuples, numbers, text and bytes, the fields of a structure in their order."""
    match value:
        case uuid.UUID():
            return value.bytes
        case datetime.timedelta():
            return value // MS
        case datetime.datetime():
            return (value - EPOCH) // MS
        case IntEnum():
            return int(value)
        case memoryview():
            return bytes(value)
        case tuple():
            return tuple(plain(item) for item in value)
    if dataclasses.is_dataclass(value):
        return {
            name_key(field.name): plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value


def name_key(name: str) -> str:
    """kio leaves the unit out of names and splits words its own way."""
    return name.replace("_", "").removesuffix("ms")


def ours_as_plain(value: Any, schema: Any, version: int) -> Any:
    if value is None:
        return None
    made = {}
    for field in kafkas_fields(schema, version):
        item = getattr(value, field.name)
        if field.struct is not None:
            inner = item if field.is_array else (item,)
            done = tuple(ours_as_plain(one, field.struct, version) for one in inner)
            item = done if field.is_array else done[0]
        made[name_key(field.name)] = item
    return made


def written(kind: MessageType, version: int, body: Any) -> bytes:
    """The body's bytes behind whatever header the frame has."""
    if kind.name.endswith("Request"):
        frame = b"".join(codec.encode_request(codec.RequestHeader(kind.api.key, version, 1), body))
        return frame[11 if kind.api.is_flexible(version) else 10 :]
    frame = b"".join(codec.encode_response(kind.api.key, version, 1, body))
    return frame[5 if kind.api.is_flexible(version) and kind.api.name != "ApiVersions" else 4 :]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kio_reads_what_is_written_and_writes_what_is_read(kind: MessageType) -> None:
    rng = random.Random(kind.name)
    compared = 0
    for version in kind.api.versions:
        theirs = kio_class(kind, version)
        if theirs is None:
            continue
        for _ in range(3):
            body = filled(kind.schema, version, rng)
            data = written(kind, version, body)
            entity, size = entity_reader(theirs)(data, 0)
            assert size == len(data)
            assert plain(entity) == ours_as_plain(body, kind.schema, version)
            out = io.BytesIO()
            entity_writer(theirs)(out, entity)
            assert out.getvalue() == data
            decoded, end = kind.decoder(version)(data, 0, len(data))
            assert (decoded, end) == (body, len(data))
            compared += 1
    assert compared


def parts(kind: Any) -> list[Any]:
    """A type, and those that it is made of."""
    return [kind, *(part for each in typing.get_args(kind) for part in parts(each))]


ZERO = {"string": "", "bytes": b"", "records": b"", "uuid": bytes(16)}
NONE_OF_KIO = {"uuid": bytes(16), "int64": -1}
"""What kio reads as None in a UUID and in a time."""


def differences(ours: Any, theirs: Any, version: int) -> list[str]:
    """The fields of a structure, and of those in it, whose default is another one for kio, or that may be
    null for one side alone. kio has no default where Kafka's definition has none: it is then a zero."""
    found = []
    fields = {name_key(each.name): each for each in dataclasses.fields(theirs)}
    for field in kafkas_fields(ours, version):
        named = fields[name_key(field.name)]
        accepted = parts(named.type)
        zero = () if field.is_array else ZERO.get(field.type, 0)
        default = zero if named.default is MISSING else plain(named.default)
        inner = next((each for each in accepted if dataclasses.is_dataclass(each)), None)
        if default is None:
            default = NONE_OF_KIO.get(field.type)
        if field.element_type not in NONE_OF_KIO and field.nullable_at(version) != (NoneType in accepted):
            found.append(f"{field.kafka_name}: null")
        if (inner is None or named.default is None) and field.default != default:
            found.append(f"{field.kafka_name}: {default!r}, not {field.default!r}")
        if inner is not None:
            found += [f"{field.kafka_name}.{each}" for each in differences(field.struct, inner, version)]
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_defaults_and_what_may_be_null_are_kafkas(kind: MessageType) -> None:
    for version in kind.api.versions:
        theirs = kio_class(kind, version)
        if theirs is not None:
            assert not differences(kind.schema, theirs, version), f"version {version}"


NOT_OFFERED = ("share_", "streams_", "alter_share_", "delete_share_", "describe_share_", "initialize_share_")
NOT_OFFERED += ("read_share_", "write_share_", "get_telemetry_subscriptions", "push_telemetry")


def kio_versions() -> dict[str, int]:
    """The newest version of every API of kio."""
    found = {}
    for module in pkgutil.iter_modules(kio.schema.__path__):
        folder = importlib.import_module(f"kio.schema.{module.name}")
        names = [name for _, name, _ in pkgutil.iter_modules(getattr(folder, "__path__", []))]
        newest = max((int(name[1:]) for name in names if name[1:].isdigit()), default=None)
        if newest is not None:
            version = importlib.import_module(f"kio.schema.{module.name}.v{newest}")
            if "request" in {name for _, name, _ in pkgutil.iter_modules(version.__path__)}:
                found[module.name] = newest
    return found


def test_the_table_has_every_newest_version_of_kio_but_share_and_streams_groups() -> None:
    ours = {python_name(api.name): api.max_version for api in APIS.values()}
    theirs = {name: newest for name, newest in kio_versions().items() if not name.startswith(NOT_OFFERED)}
    assert ours == theirs
