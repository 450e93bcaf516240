"""Why bytes stop being a message, and why a value does not fit its field: the slow paths, which compose the
texts of errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metaquorum.wire.errors import Malformed
from metaquorum.wire.primitives import (
    Buffer,
    read_long_length,
    read_short_length,
    read_tag_head,
    read_uvarint,
)
from metaquorum.wire.schema import INT_RANGES, WIDTHS, Field, StructSchema

VALUES_MAX = 2_000
"""Values of arrays that are looked at: the bytes are a stranger's, and a walk takes long for each."""


class _Enough(Exception):
    """VALUES_MAX values are in order."""


def where_decoding_fails(
    schema: StructSchema, version: int, flexible: bool, buf: Buffer, position: int
) -> str:
    """`FIELD at byte N: REASON` for the first field that does not decode; N counts from `buf`'s start."""
    walk = _Walk(version, flexible, buf, position)
    try:
        walk.structure(schema)
    except _Enough:
        return f"a field after the first {VALUES_MAX} values does not decode"
    except Malformed as error:
        why = str(error)
    except IndexError:
        why = f"the frame ends after {len(buf)} bytes"
    else:
        return "a field does not decode"
    return f"{'.'.join(walk.path) or 'the message'} at byte {walk.field_start}: {why}"


class _Walk:
    """One walk over a message. `path` names the field being read, `field_start` is where it begins."""

    def __init__(self, version: int, flexible: bool, buf: Buffer, position: int) -> None:
        self.path: list[str] = []
        self.field_start = position
        self._version = version
        self._flexible = flexible
        self._buf = buf
        self._position = position
        self._values = 0

    def structure(self, schema: StructSchema) -> None:
        """Reads one structure from the current position."""
        for field in schema.fields_at(self._version):
            self._enter(field.kafka_name)
            self._field(field)
            self.path.pop()
        if self._flexible:
            self._enter("tagged fields")
            self._tags(schema)
            self.path.pop()

    def _enter(self, name: str) -> None:
        self.path.append(name)
        self.field_start = self._position

    def _field(self, field: Field) -> None:
        if field.type in WIDTHS:
            self._fixed(field.type)
        elif field.type == "struct" and field.struct is not None:
            if self._may_begin(field):
                self.structure(field.struct)
        elif field.is_array:
            self._array(field)
        else:
            length = self._length(field.type, field.nullable_at(self._version))
            data = self._take(length)
            if field.type == "string":
                _check_text(data)

    def _may_begin(self, field: Field) -> bool:
        """Whether a structure follows; reads the marker of a structure that may be null."""
        if not field.nullable_at(self._version):
            return True
        mark = self._take(1)[0]
        if mark not in (1, 255):
            raise Malformed(f"a structure that may be null begins with 1 or -1, not with {mark}")
        return mark == 1

    def _fixed(self, kind: str) -> None:
        data = self._take(WIDTHS[kind])
        if kind == "bool" and data[0] > 1:
            raise Malformed(f"a boolean is 0 or 1, not {data[0]}")

    def _array(self, field: Field) -> None:
        count = self._length("array", field.nullable_at(self._version))
        kind = field.element_type
        least = 1 if self._flexible else 2
        if field.struct is not None:
            least = max(field.struct.min_size(self._version, self._flexible), 1)
        least = WIDTHS.get(kind, least)
        left = len(self._buf) - self._position
        if count * least > left:
            raise Malformed(f"{count} elements do not fit into the {left} bytes left")
        name = self.path[-1]
        for place in range(count):
            self._count()
            self.path[-1] = f"{name}[{place}]"
            self.field_start = self._position
            if field.struct is not None:
                self.structure(field.struct)
            elif kind == "string":
                _check_text(self._take(self._length("string", nullable=False)))
            else:
                self._fixed(kind)
        self.path[-1] = name

    def _length(self, kind: str, nullable: bool) -> int:
        """Returns a length, 0 for null; raises for a null that is not allowed."""
        if self._flexible:
            length = self._uvarint()
        else:
            self._need(2 if kind == "string" else 4)
            read = read_short_length if kind == "string" else read_long_length
            length, self._position = read(self._buf, self._position)
        if length == 0 and not nullable:
            raise Malformed("it may not be null")
        return max(length - 1, 0)

    def _uvarint(self) -> int:
        value = self._take(1)[0]
        if value > 127:
            value, self._position = read_uvarint(self._buf, self._position, value)
        return value

    def _tags(self, schema: StructSchema) -> None:
        tagged_fields = {field.tag: field for field in schema.tagged_at(self._version)}
        last = -1
        for _ in range(self._uvarint()):
            self._count()
            self.field_start = self._position
            tag, stop, self._position = read_tag_head(self._buf, self._position, last, len(self._buf))
            field = tagged_fields.get(tag)
            if field is not None:
                self._enter(field.kafka_name)
                self._field(field)
                if self._position != stop:
                    raise Malformed(f"tagged field {tag} does not fill its size")
                self.path.pop()
            self._position = stop
            last = tag

    def _count(self) -> None:
        self._values += 1
        if self._values > VALUES_MAX:
            raise _Enough

    def _need(self, size: int) -> None:
        left = len(self._buf) - self._position
        if size > left:
            raise Malformed(f"it has {size} bytes, and {left} are left")

    def _take(self, size: int) -> Buffer:
        self._need(size)
        self._position += size
        return self._buf[self._position - size : self._position]


def _check_text(data: Buffer) -> None:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        raise Malformed("it is not UTF-8") from None


# Why a value does not fit its field: the slow path of encoding, which composes the error text.


def misfit(field: Field, value: Any, version: int | None = None) -> str | None:
    """Why a field cannot hold `value`, in `version` or in any; None if it can."""
    if value is None:
        nullable = field.nullable if version is None else field.nullable_at(version)
        return None if nullable or field.none_on_wire is not None else "may not be None"
    if field.is_array and not isinstance(value, tuple | list):
        return f"is {value!r}, not a tuple"
    values: Sequence[Any] = value if field.is_array else (value,)
    for item in values:
        reason = _misfit_of_one(field, item, version)
        if reason is not None:
            return reason
    return None


def _misfit_of_one(field: Field, item: Any, version: int | None) -> str | None:
    if field.struct is not None:
        if not isinstance(item, field.struct.cls):
            return f"is {item!r}, not a {field.struct.name}"
        for inner in field.struct.fields:
            reason = misfit(inner, getattr(item, inner.name), version)
            if reason is not None:
                return f"{inner.name} {reason}"
    elif field.element_type in INT_RANGES:
        low, high = INT_RANGES[field.element_type]
        if not isinstance(item, int) or not low <= item <= high:
            return f"is {item!r}, not a number from {low} to {high}"
    elif field.element_type == "string" and not isinstance(item, str):
        return f"is {item!r}, not text"
    elif field.element_type in ("bytes", "uuid") and not isinstance(item, bytes):
        return f"is {item!r}, not bytes"
    elif field.element_type == "records" and not isinstance(item, bytes | bytearray | memoryview):
        return f"is {item!r}, not bytes or a memoryview"
    elif field.element_type == "uuid" and len(item) != 16:
        return f"has {len(item)} bytes: a uuid has 16 bytes"
    return None
