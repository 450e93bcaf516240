"""Why a value does not fit its field: the slow path of encoding, which composes the error text.

Owns the reasons for one field and its value. Does not know bytes: `explain` has the reasons for decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metaquorum.wire.schema import INT_RANGES, Field


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
