"""The schema of a message: fields, the versions that have them, and how they are encoded."""

from __future__ import annotations

from typing import Any

import msgspec

ZERO: dict[str, Any] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "int64": 0,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": bytes(16),
}
"""The default of every scalar type."""

INT_RANGES: dict[str, tuple[int, int]] = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
"""Lowest and highest value of every integer type."""

WIDTHS = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
"""Size in bytes of every type of fixed width."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field. `type` is a name from Kafka's definitions, `[]x` for an array, `struct` or `[]struct`.

    The field exists from version `since` to `until`, both included, and a nullable one is nullable from
    version `nullable_since`. `default`, a Python value, is used for versions without the field; a tagged
    field with this value is omitted. An `ignorable` field may be set in a version without it, and is then
    omitted. `none_on_wire` is the sentinel that stands for None if the wire format has no null.
    """

    name: str
    kafka_name: str
    type: str
    default: Any
    since: int = 0
    until: int | None = None
    nullable: bool
    nullable_since: int = 0
    tag: int | None = None
    ignorable: bool = False
    none_on_wire: Any = None
    struct: StructSchema | None = None
    secret: bool | str = False
    """Set by the table's owner: the value is never shown unless requested."""

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element_type(self) -> str:
        return self.type.removeprefix("[]")

    def exists_at(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable_at(self, version: int) -> bool:
        return self.nullable and self.nullable_since <= version


class StructSchema(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The fields of a message or record, or of a structure inside one."""

    cls: type[Any]
    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        return self.cls.__name__

    def fields_at(self, version: int) -> tuple[Field, ...]:
        """The untagged fields that `version` has, in wire order."""
        return tuple(field for field in self.fields if field.tag is None and field.exists_at(version))

    def tagged_at(self, version: int) -> tuple[Field, ...]:
        """The tagged fields that `version` has, in ascending order of their tags."""
        tagged = [field for field in self.fields if field.tag is not None and field.exists_at(version)]
        return tuple(sorted(tagged, key=lambda field: field.tag or 0))

    def absent_at(self, version: int) -> tuple[Field, ...]:
        """The fields that `version` cannot carry."""
        return tuple(field for field in self.fields if not field.exists_at(version))

    def min_size(self, version: int, flexible: bool) -> int:
        """The minimum size of such a structure in bytes."""
        size = 1 if flexible else 0
        for field in self.fields_at(version):
            if field.type in WIDTHS:
                size += WIDTHS[field.type]
            elif field.type == "struct" and field.struct is not None:
                size += 1 if field.nullable_at(version) else field.struct.min_size(version, flexible)
            elif flexible:
                size += 1
            else:
                size += 2 if field.type == "string" else 4
        return size


def kafka_field_name(name: str) -> str:
    """Converts a name with underscores to camel case."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
