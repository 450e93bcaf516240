"""Payloads directly as JSON text: the same as `dump.payload_json`, several times as fast.

Owns functions generated from the schema table, one per structure and version, and caches for the texts of
recurring ids and lists. Does not define the form: `dump` does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, cast

import msgspec

from metaquorum.metadata.records.batches import AnyRecord
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.text.dump import converter, payload_json
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.schema import Field, StructSchema

Texter = Callable[[Any], str]

CACHED_TEXTS = 1 << 16
"""Entries of each cache; a full one is emptied."""

_INTEGERS = frozenset({"int8", "int16", "uint16", "int32", "int64"})


def payload_text(record: AnyRecord, version: int, *, secrets: bool = False) -> str:
    """`"type":...,"version":...,"data":{...}`: the members of the payload object, as compact JSON."""
    return payload_texter(cast(Hashable, record.__class__), version, secrets)(record)


@cache
def payload_texter(kind: Any, version: int, secrets: bool = False) -> Texter:
    """`payload_text` for records of one type and version, for code that has many of them in a row."""
    hides = (
        kind not in _UNKNOWN and not secrets and any(one.secret for one in SCHEMA_BY_CLASS[kind].body.fields)
    )
    maker = _payload_maker(kind, version) if kind not in _UNKNOWN and not hides else None
    if maker is None:
        return lambda record: _json(payload_json(record, version, secrets=secrets))[1:-1]
    return maker


_UNKNOWN = frozenset({UnknownRecord, UnknownControlRecord})


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class TextCache(dict[Any, str]):
    """Texts by value; empties itself when it is full."""

    def __init__(self, make: Texter) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, value: Any) -> str:
        if len(self) >= CACHED_TEXTS:
            self.clear()
        text = self[value] = self._make(value)
        return text


def _uuid(value: bytes) -> str:
    return f'"{uuid_to_text(value)}"'


@cache
def _payload_maker(kind: Any, version: int) -> Texter | None:
    """The generated function for a record type; None if the general way is needed."""
    body = _struct_source(SCHEMA_BY_CLASS[kind].body, version)
    if body is None:
        return None
    source, names = body
    head = f'"type":{_json(kind.type_name)},"version":{version},"data":'
    return _compiled(f"dump_{kind.__name__}_v{version}", _literal(head) + source, names)


def _compiled(name: str, source: str, names: dict[str, Any]) -> Texter:
    scope = dict(names)
    exec(f"def {name}(r):\n    return f'''{source}'''", scope)  # the source comes only from the table
    made: Texter = scope[name]
    return made


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@cache
def _struct_source(schema: StructSchema, version: int) -> tuple[str, dict[str, Any]] | None:
    """(inside of an f-string, names in it) for a structure `r`; None if a tagged field comes first."""
    parts: list[str] = []
    names: dict[str, Any] = {}
    for at, field in enumerate(field for field in schema.fields if field.since <= version):
        label = f'"{field.kafka_name}":'
        value = f"r.{field.name}"
        if field.tag is not None:
            if not parts:
                return None
            names |= {f"t{at}": _tagged(field, version, label), f"d{at}": field.default, "nothing": ""}
            parts.append(f"{{nothing if {value} == d{at} else t{at}({value})}}")
            continue
        comma = "," if parts else ""
        maker = _texter(field, version)
        if field.element_type in _INTEGERS and not field.is_array and not _may_be_none(field):
            use = value
        elif isinstance(maker, dict):
            names[f"f{at}"], use = maker, f"f{at}[{value}]"
        else:
            names[f"f{at}"], use = maker, f"f{at}({value})"
        parts.append(_literal(comma + label) + f"{{{use}}}")
    return "{{" + "".join(parts) + "}}", names


def _may_be_none(field: Field) -> bool:
    return field.nullable or field.none_on_wire is not None or field.default is None


def _tagged(field: Field, version: int, label: str) -> Texter:
    """Writes a tagged field that differs from its default."""
    make = _call(_texter(field, version))
    return lambda value: f",{label}{make(value)}"


def _call(maker: Texter | TextCache) -> Texter:
    return maker.__getitem__ if isinstance(maker, dict) else maker


def _texter(field: Field, version: int) -> Texter | TextCache:
    """Writes any value of a field, None included."""
    if field.struct is not None:
        return _structs(field, version)
    match field.element_type:
        case "uuid" if field.is_array:
            return TextCache(_listed(TextCache(_uuid).__getitem__))
        case "uuid":
            return TextCache(_or_null(_uuid))
        case kind if field.is_array and kind in _INTEGERS:
            return TextCache(_listed(str))
        case "bool" if not field.is_array:
            return TextCache(_json)
        case "string" if not field.is_array:
            return TextCache(_json)
    return _general(field, version)


def _general(field: Field, version: int) -> Texter:
    convert = converter(field, version)
    return lambda value: "null" if value is None else _json(convert(value))


def _or_null(make: Texter) -> Texter:
    return lambda value: "null" if value is None else make(value)


def _listed(make: Texter) -> Texter:
    return lambda values: "null" if values is None else "[" + ",".join(map(make, values)) + "]"


def _structs(field: Field, version: int) -> Texter:
    if field.struct is None:
        raise RuntimeError("a structure's text was asked for a plain field")
    made = _struct_source(field.struct, version)
    if made is None:
        return _general(field, version)
    one = _compiled(f"dump_{field.struct.name}_v{version}", *made)
    return _listed(one) if field.is_array else _or_null(one)
