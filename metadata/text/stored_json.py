"""Records of the internal topics as JSON, in the form in which kafka-dump-log prints them from Kafka 3.8 on.

Owns names and structure: `type` is the version of the key, which identifies the record's type. A consumer's
own data in a group's record is decoded too. Does not know batches: `partition_text` has their lines.
"""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.text.dump import struct_json
from metaquorum.wire.embedded import consumer_assignment, consumer_subscription
from metaquorum.wire.messages import GroupMetadataValue
from metaquorum.wire.stored import StoredRecord, stored_structures

_TAKEN_APART = {"subscription": consumer_subscription, "assignment": consumer_assignment}


def stored_json(stored: StoredRecord) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Key and value; the value is None for a record that deletes."""
    key = {"type": str(stored.key_version), "data": _plain(stored.key, stored.key_version)}
    if stored.value is None:
        return key, None
    data = _plain(stored.value, stored.value_version)
    if isinstance(stored.value, GroupMetadataValue) and stored.value.protocol_type == "consumer":
        for shown, member in zip(data["members"], stored.value.members, strict=True):
            for name, decode in _TAKEN_APART.items():
                found = decode(getattr(member, name))
                if found is not None:
                    shown[name] = struct_json(found.schema, found.version)(found.value)
    return key, {"version": str(stored.value_version), "data": data}


def _plain(value: Any, version: int) -> dict[str, Any]:
    data: dict[str, Any] = struct_json(stored_structures()[type(value).__name__], version)(value)
    return data
