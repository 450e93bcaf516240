"""What the cluster remembers about broker ids: which key (a host name) belongs to which id (S0.13-S0.15).

The entries are configuration of all brokers (resource '' of type BROKER), so that every release replays them
and every tool that reads configurations sees them:

    broker.id.binding.<key>   {"version":0,"broker.id":10}: a broker that starts with this key and no id is 10
    broker.id.current.<id>    the key with which that broker has last registered
    broker.id.claim.<id>      {"version":0,"request":"<uuid>","source":"new"}: allocated, not registered yet
    broker.id.next            the lowest id that was never allocated

A value of a higher version is read as far as it is understood and never refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource
from metaquorum.metadata.records.types import ConfigRecord
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

BINDING_PREFIX = "broker.id.binding."
CURRENT_PREFIX = "broker.id.current."
CLAIM_PREFIX = "broker.id.claim."
NEXT_ID = "broker.id.next"

ALL_BROKERS = ConfigResource(BROKER_RESOURCE, "")
VALUE_VERSION = 0
KEY_MAX_CHARACTERS = 255
MAX_BROKER_ID = 2**31 - 1

_KEYS_OF_FILES = frozenset({"key"})
"""`broker.id.binding.key` is a setting of a node's own file; a host with that name is written differently."""
_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class IdSource(Enum):
    """Where an id came from (S0.1); the active controller decides the last three."""

    EXPLICIT = "explicit"
    FILE = "file"
    BINDING = "binding"
    MISSING = "missing"
    NEW = "new"


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `broker_id` is None if this release does not understand the form of the value."""

    key: str
    broker_id: int | None
    version: int | None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An id that was allocated and has not registered since. `request_id` is 16 bytes."""

    broker_id: int
    request_id: bytes
    source: IdSource


def escape_key(key: str) -> str:
    """A key as part of a configuration's name: anything but letters, digits, `.`, `_`, `-`
    and `~` becomes %XX."""
    escaped = quote(key, safe="")
    return f"%{ord(escaped[0]):02X}{escaped[1:]}" if escaped in _KEYS_OF_FILES else escaped


def unescape_key(text: str) -> str:
    """The key that `escape_key` turned into `text`; any other text is returned unchanged."""
    return unquote(text, errors="replace")


def key_problem(key: str) -> str | None:
    """What is wrong with a binding key; None if it is valid."""
    if not key.strip():
        return "the binding key is empty: give a host name or another stable text"
    if len(key) > KEY_MAX_CHARACTERS:
        return f"the binding key has {len(key)} characters: give at most {KEY_MAX_CHARACTERS}"
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return "the binding key is not UTF-8 text: give a host name or another stable text"
    return None


def _entry(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ALL_BROKERS.resource_type, resource_name=ALL_BROKERS.name, name=name, value=value
    )


def binding_record(key: str, broker_id: int | None) -> ConfigRecord:
    """Binds `key` to an id; None removes the binding."""
    value = None
    if broker_id is not None:
        value = msgspec.json.encode({"version": VALUE_VERSION, "broker.id": broker_id}).decode()
    return _entry(BINDING_PREFIX + escape_key(key), value)


def current_key_record(broker_id: int, key: str | None) -> ConfigRecord:
    """States which key the broker registered with; with None, the key is no longer known."""
    return _entry(f"{CURRENT_PREFIX}{broker_id}", key)


def claim_record(broker_id: int, request_id: bytes | None, source: IdSource = IdSource.NEW) -> ConfigRecord:
    """Allocates an id to a request; with `request_id` None, ends the allocation."""
    value = None
    if request_id is not None:
        fields = {"version": VALUE_VERSION, "request": uuid_to_text(request_id), "source": source.value}
        value = msgspec.json.encode(fields).decode()
    return _entry(f"{CLAIM_PREFIX}{broker_id}", value)


def next_id_record(next_id: int) -> ConfigRecord:
    """States that no id from `next_id` on was ever allocated."""
    return _entry(NEXT_ID, str(next_id))


# ---- reading -------------------------------------------------------------------------------------


def remembered(image: MetadataImage) -> Mapping[str, str]:
    """The configuration of all brokers, which contains these entries. The same object as long as
    nothing in it changes."""
    return image.configs.get(ALL_BROKERS) or _NOTHING


_NOTHING: Mapping[str, str] = {}


def binding_of(entries: Mapping[str, str], key: str) -> Binding | None:
    """The binding of one key."""
    value = entries.get(BINDING_PREFIX + escape_key(key))
    return None if value is None else _binding(key, value)


def bindings(entries: Mapping[str, str]) -> list[Binding]:
    """Every binding, by key. O(entries)."""
    bound = [
        _binding(unescape_key(name[len(BINDING_PREFIX) :]), value)
        for name, value in entries.items()
        if name.startswith(BINDING_PREFIX)
    ]
    return sorted(bound, key=lambda binding: binding.key)


def _binding(key: str, value: str) -> Binding:
    fields = _fields(value)
    version, broker_id = fields.get("version"), fields.get("broker.id")
    return Binding(
        key=key,
        broker_id=broker_id if _is_id(broker_id) else None,
        version=version if type(version) is int else None,
    )


def current_key(entries: Mapping[str, str], broker_id: int) -> str | None:
    """The key that the broker last registered with, if it sent one."""
    return entries.get(f"{CURRENT_PREFIX}{broker_id}")


def current_keys(entries: Mapping[str, str]) -> dict[int, str]:
    """Keys by broker id."""
    return dict(_by_id(entries, CURRENT_PREFIX))


def claims(entries: Mapping[str, str]) -> dict[int, Claim]:
    """Ids that are allocated and not registered, with the request they were allocated to; unreadable ones are
    left out (see `claimed_values`)."""
    by_id: dict[int, Claim] = {}
    for broker_id, value in _by_id(entries, CLAIM_PREFIX):
        fields = _fields(value)
        try:
            request_id, source = uuid_from_text(fields["request"]), IdSource(fields["source"])
        except (KeyError, ValueError, TypeError, AttributeError):
            continue
        by_id[broker_id] = Claim(broker_id=broker_id, request_id=request_id, source=source)
    return by_id


def claimed_values(entries: Mapping[str, str]) -> dict[int, str]:
    """The claims' raw values by broker id, readable or not."""
    return dict(_by_id(entries, CLAIM_PREFIX))


def next_id(entries: Mapping[str, str]) -> int:
    """The lowest id that was never allocated; 0 if no entry has it."""
    text = entries.get(NEXT_ID, "")
    return int(text) if _ID.fullmatch(text) else 0


def _by_id(entries: Mapping[str, str], prefix: str) -> Iterator[tuple[int, str]]:
    for name, value in entries.items():
        if name.startswith(prefix) and _ID.fullmatch(name[len(prefix) :]):
            yield int(name[len(prefix) :]), value


def _fields(value: str) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_BROKER_ID
