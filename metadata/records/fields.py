"""The wire form of a record, read from the annotations of its class.

A class states once what a field is in Python and on the wire: its type is one of the names below, a class of
fields, or a tuple of either; `| None` makes it nullable; `Annotated[..., Wire(...)]` says what else Kafka's
message definitions say. The wire order is that of the class, but for `Wire.position`: a field with a
default in Python cannot precede one without.
"""

from __future__ import annotations

from inspect import get_annotations
from types import NoneType
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import msgspec

from metaquorum.wire.schema import ZERO, Field, StructSchema, kafka_field_name

Bool: TypeAlias = Annotated[bool, "bool"]
Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
UInt16: TypeAlias = Annotated[int, "uint16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]
Float64: TypeAlias = Annotated[float, "float64"]
String: TypeAlias = Annotated[str, "string"]
Bytes: TypeAlias = Annotated[bytes, "bytes"]
Uuid: TypeAlias = Annotated[bytes, "uuid"]

UnknownTags: TypeAlias = tuple[tuple[int, bytes], ...]

SETTING_VALUE = "setting value"
"""Marks a field that is secret depending on the record's `name`."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """What a field is on the wire beyond its type; `wire.schema.Field` explains the same names."""

    since: int = 0
    tag: int | None = None
    none_on_wire: Any = None
    default: Any = ...
    """The default on the wire, where it differs from the class's or the class has none."""
    position: int | None = None
    """The field's place in wire order, counted from 0."""
    kafka_name: str | None = None
    secret: bool | str = False


_PLAIN = Wire()


def structure(cls: type[Any]) -> StructSchema:
    """The fields of a class, in wire order. Raises TypeError for an annotation that says no wire type."""
    hints = get_annotations(cls, eval_str=True)
    fields: list[Field] = []
    moved: list[tuple[int, Field]] = []
    for name, default in zip(cls.__struct_fields__, _defaults(cls), strict=True):
        if name == "unknown_tags":
            continue
        wire, field = _field(name, hints[name], default)
        if wire.position is None:
            fields.append(field)
        else:
            moved.append((wire.position, field))
    for position, field in moved:
        fields.insert(position, field)
    return StructSchema(cls=cls, fields=tuple(fields))


def _defaults(cls: type[Any]) -> tuple[Any, ...]:
    """The default of every field of the class; `...` if it has none."""
    given = tuple(... if value is msgspec.NODEFAULT else value for value in cls.__struct_defaults__)
    return (...,) * (len(cls.__struct_fields__) - len(given)) + given


def _field(name: str, hint: Any, default: Any) -> tuple[Wire, Field]:
    wire = _PLAIN
    if get_origin(hint) is Annotated and isinstance(hint.__metadata__[-1], Wire):
        wire = hint.__metadata__[-1]
        hint = _without_wire(hint)
    arguments = [argument for argument in get_args(hint) if argument is not NoneType]
    can_be_none = NoneType in get_args(hint)
    if can_be_none:
        (hint,) = arguments
    kind, struct = _kind(name, hint)
    if wire.default is not ...:
        default = wire.default
    if default is ...:
        default = _zero(kind, struct, is_nullable=can_be_none)
    return wire, Field(
        name=name,
        kafka_name=wire.kafka_name or kafka_field_name(name),
        type=kind,
        since=wire.since,
        nullable=can_be_none and wire.none_on_wire is None,
        tag=wire.tag,
        default=default,
        none_on_wire=wire.none_on_wire,
        struct=struct,
        secret=wire.secret,
    )


def _without_wire(hint: Any) -> Any:
    """The annotation without its last part, which is a `Wire`."""
    rest = hint.__metadata__[:-1]
    return Annotated[(hint.__origin__, *rest)] if rest else hint.__origin__


def _kind(name: str, hint: Any) -> tuple[str, StructSchema | None]:
    """The wire type of an annotation, and the structure if it is one or has some."""
    origin = get_origin(hint)
    if origin is tuple:
        kind, struct = _kind(name, get_args(hint)[0])
        return f"[]{kind}", struct
    if origin is Annotated:
        return hint.__metadata__[0], None
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "struct", structure(hint)
    raise TypeError(f"{name}: {hint} says no wire type: use a name of metadata.records.fields")


def _zero(kind: str, struct: StructSchema | None, *, is_nullable: bool) -> Any:
    if is_nullable:
        return None
    if kind.startswith("[]"):
        return ()
    return struct.cls() if struct is not None else ZERO[kind]
