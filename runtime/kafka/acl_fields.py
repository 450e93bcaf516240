"""Access control entries and their filters in Kafka's messages: which field is which.

Each table has the field's name here by that in the message.
"""

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
    """The fields of an entry or filter under the message's names."""
    return {theirs: getattr(value, ours) for theirs, ours in fields.items()}


def from_message(part: object, fields: Mapping[str, str]) -> dict[str, Any]:
    """Those of a message's part under the names here."""
    return {ours: getattr(part, theirs) for theirs, ours in fields.items()}


def entry(part: object, fields: Mapping[str, str] = ENTRY) -> Acl:
    """The entry that a message's part has."""
    return Acl(**from_message(part, fields))
