"""Which field of a value belongs to which field of a protobuf message, by name and annotation.

A field that fits no rule and has no deviation raises `TypeError`: a bug in the program, never an error in a
message.

| Field of the value | Field of the message |
| --- | --- |
| a number, text or bytes; an enum | the same; its number or text |
| a value | a message, by the same rules |
| `tuple[X, ...]` | `repeated` |
| `X \\| None` | `optional`; without presence, what is empty is None |
| never None, though the message's field is `optional` | absent stands for the value's default |
| `error` and `message` | one `Error`, absent for ErrorCode.NONE |
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.proto import metadata_pb2 as common

Fields = Mapping[str, "FieldRule | str"]
"""Deviations by the value's field; a string is the path in the message."""

_ERROR = common.Error.DESCRIPTOR
UNSET: Any = object()
"""Marks an absent value where None is a valid one."""


class FieldRule(msgspec.Struct, frozen=True, kw_only=True):
    """How one field deviates from the rules.

    `path`: what the message calls it, with dots through nested messages.
    `spread`: its parts are in these fields of the message around it; `()`: under their own names.
    `check` takes each of its bytes (ids), and returns or refuses them.
    `nested`: deviations of the value inside.
    `local`: the message does not have it; decoding leaves the default.
    `decode` makes it of the whole message.
    """

    path: str = ""
    spread: tuple[str, ...] | None = None
    check: Callable[[bytes], bytes] | None = None
    nested: Fields = {}
    local: bool = False
    decode: Callable[[Any], Any] | None = None


class PartKind(Enum):
    """How the generated code converts a part."""

    SCALAR = auto()
    SCALARS = auto()
    MESSAGE = auto()
    MESSAGES = auto()
    SPREAD = auto()
    ERROR = auto()
    NOWHERE = auto()


class Part(msgspec.Struct, kw_only=True):
    """One field of a value, and its place in the message.

    `get` follows the value in an expression, `put` precedes the part in a constructor. `type` is its
    annotation without None (`optional`). `absent`: what an absent field stands for, UNSET: nothing.
    `has_presence` and `path` are those of the message's field, `shape` that of the message inside.
    """

    name: str
    type: Any
    default: Any
    rule: FieldRule
    optional: bool = False
    kind: PartKind = PartKind.NOWHERE
    path: tuple[str, ...] = ()
    has_presence: bool = False
    absent: Any = UNSET
    shape: Shape | None = None

    @property
    def inner(self) -> Shape:
        assert self.shape is not None, f"{self.name} has no inner shape"
        return self.shape

    @property
    def is_plain_enum(self) -> bool:
        """True for an enum whose members are not numbers themselves."""
        return self.is_enum and not issubclass(self.type, int)

    @property
    def is_enum(self) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, Enum)


class Shape(msgspec.Struct, kw_only=True):
    """A value and its message. `make` is the value's class."""

    make: Any
    descriptor: Any
    parts: list[Part]


def shape_of(annotation: Any, descriptor: Any, fields: Fields) -> Shape:
    """The shape of a class in a message. Raises TypeError."""
    class_fields = _class_fields(annotation, descriptor)
    strange = set(fields) - {name for name, _, _ in class_fields}
    if strange:
        raise TypeError(f"{annotation.__name__} has no fields {sorted(strange)}: correct the table")
    shape = Shape(make=annotation, descriptor=descriptor, parts=[])
    for name, hint, default in class_fields:
        rule = fields.get(name, "")
        rule = FieldRule(path=rule) if isinstance(rule, str) else rule
        part = Part(name=name, type=hint, default=default, rule=rule)
        shape.parts.append(_placed(part, descriptor))
    return shape


def _class_fields(cls: Any, descriptor: Any) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of each field of a Struct, except the text of an error."""
    hints = typing.get_type_hints(cls)
    defaults = {each.name: each.default for each in msgspec.structs.fields(cls)}
    refusal = descriptor.fields_by_name.get("error")
    if refusal is not None and refusal.message_type is _ERROR and hints.get("error") is ErrorCode:
        del defaults["message"]
    return [(name, hints[name], UNSET if at is msgspec.NODEFAULT else at) for name, at in defaults.items()]


def _placed(part: Part, descriptor: Any) -> Part:
    """The part with its place in the message and all that the rules determine."""
    rule = part.rule
    part.type, part.optional = _without_none(part.type)
    if rule.local:
        return part
    if rule.spread is not None:
        part.kind = PartKind.SPREAD
        part.shape = _spread(part.type, rule, descriptor)
        return part
    part.path = tuple((rule.path or part.name).split("."))
    field = _field_at(part, descriptor)
    part.has_presence = field.has_presence
    nested = field.message_type
    if nested is None:
        part.kind = PartKind.SCALARS if field.is_repeated else PartKind.SCALAR
        _settle_none(part, descriptor)
    elif nested is _ERROR and part.type is ErrorCode:
        part.kind = PartKind.ERROR
    else:
        part.kind = PartKind.MESSAGES if field.is_repeated else PartKind.MESSAGE
        element = typing.get_args(part.type)[0] if field.is_repeated else part.type
        part.shape = shape_of(element, nested, rule.nested)
    return part


def _settle_none(part: Part, descriptor: Any) -> None:
    """Determines the value of an absent field, and how None is sent."""
    if part.kind is PartKind.SCALARS:
        return
    if part.has_presence and not part.optional:
        part.absent = part.default
        if part.absent is UNSET:
            raise TypeError(f"{descriptor.full_name}.{part.name} may be absent: say what that stands for")
    if part.optional and not part.has_presence and part.type in (int, bool, float):
        raise TypeError(f"{descriptor.full_name}.{part.name} has no presence: None would read as 0")


def _spread(annotation: Any, rule: FieldRule, descriptor: Any) -> Shape:
    """The parts of a value whose fields are in the enclosing message."""
    paths = rule.spread or ()
    names = [name for name, _, _ in _class_fields(annotation, descriptor)] if paths else []
    return shape_of(annotation, descriptor, {**dict(zip(names, paths, strict=True)), **rule.nested})


def _field_at(part: Part, descriptor: Any) -> Any:
    """The descriptor of the field at the part's path."""
    for step in part.path[:-1]:
        descriptor = descriptor.fields_by_name[step].message_type
    field = descriptor.fields_by_name.get(part.path[-1])
    if field is None:
        text = f"{descriptor.full_name} has no field {part.name}: add it to the .proto, or say where it goes"
        raise TypeError(text)
    return field


def _without_none(hint: Any) -> tuple[Any, bool]:
    """An annotation without `None`, and whether it had `None`."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    return kinds[0] if len(kinds) == 1 else hint, len(kinds) < len(typing.get_args(hint))
