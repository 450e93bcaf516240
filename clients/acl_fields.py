"""Access control entries and their filters in Kafka's messages: the names of the fields here and there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaquorum.metadata.image import Acl

_RESOURCE = ("resource_type", "resource_name", "pattern_type")
_RIGHT = ("principal", "host", "operation", "permission_type")
RESOURCE: Mapping[str, str] = {name: name for name in _RESOURCE}
RIGHT: Mapping[str, str] = {name: name for name in _RIGHT}
ENTRY: Mapping[str, str] = {**RESOURCE, **RIGHT}
CREATION: Mapping[str, str] = {
    "resource_pattern_type" if name == "pattern_type" else name: name for name in ENTRY
}
FILTER: Mapping[str, str] = {
    name if name in ("operation", "permission_type") else f"{name}_filter": name for name in ENTRY
}


def in_message(value: object, fields: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an entry or filter by their names in the message."""
    return {theirs: getattr(value, ours) for theirs, ours in fields.items()}


def from_message(part: object, fields: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a part of a message by their names here."""
    return {ours: getattr(part, theirs) for theirs, ours in fields.items()}


def entry(part: object, fields: Mapping[str, str] = ENTRY) -> Acl:
    """The entry in a part of a message."""
    return Acl(**from_message(part, fields))
