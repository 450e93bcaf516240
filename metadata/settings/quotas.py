"""Client quotas (KIP-546, KIP-612): entities, keys, which quota applies to a client, and filters.

Kafka answers what it keeps in Java's HashMap by hash, not by name or age, and people compare the printed
answers of its tools. Source of the order: the documentation of `String.hashCode`, `Map.hashCode` and
`Objects.hash`; the layout of OpenJDK's HashMap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

import msgspec

from metaquorum.metadata.image import QuotaEntity, quota_sort_key
from metaquorum.metadata.settings.keys import MAX_INT, MAX_LONG

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage


USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
MUTATIONS = "controller_mutation_rate"

_CLIENT_KEYS: Mapping[str, int | None] = {
    "producer_byte_rate": MAX_LONG,
    "consumer_byte_rate": MAX_LONG,
    "request_percentage": None,
    MUTATIONS: None,
}
_IP_KEYS: Mapping[str, int | None] = {"connection_creation_rate": MAX_INT}
"""The largest value of a whole number; None: any positive number."""

_FRACTION_MAX = 1e-6

QuotaKey = tuple[str, str | None, str | None]
"""A quota together with the user and client id that share it; None where all users or client ids do."""


class QuotaFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects entities by their parts: type to a name, None for the default, `...` for any name.

    `strict`: excludes entities with further parts.
    """

    parts: tuple[tuple[str, str | ellipsis | None], ...] = ()  # noqa: F821
    strict: bool = False


def sorted_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The key of an entity in an image."""
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


def entity_title(entity: QuotaEntity) -> str:
    """`user alice, client-id default`."""
    parts = [f"{kind} {'default' if name is None else name}" for kind, name in entity]
    return ", ".join(parts) or "nobody"


def entity_problem(parts: tuple[tuple[str, str | None], ...]) -> str | None:
    """Why this entity cannot have quotas; None if it can."""
    kinds = [kind for kind, _ in parts]
    if not kinds:
        return "quotas need an entity: name a user, a client-id, both, or an ip"
    for kind, name in parts:
        if kind not in {USER, CLIENT_ID, IP}:
            return f"{kind!r} is not an entity type: use {USER}, {CLIENT_ID} or {IP}"
        if kinds.count(kind) > 1:
            return f"{kind} is named twice: name it once"
        if name == "":
            return f"the name of a {kind} is empty: give one, or use the default entity"
    if IP in kinds and len(kinds) > 1:
        return "an ip cannot be combined with a user or a client-id: set its quotas separately"
    address = dict(parts).get(IP)
    if address is not None and not _is_address(address):
        return f"{address!r} is not an IP address: write for example 127.0.0.1"
    return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def value_problem(entity: QuotaEntity, key: str, value: float) -> str | None:
    """Why an entity cannot have this quota; None if it can."""
    keys = _IP_KEYS if entity and entity[0][0] == IP else _CLIENT_KEYS
    if key not in keys:
        return f"there is no quota {key} for this entity: choose from {', '.join(keys)}"
    if not value > 0 or value == float("inf"):
        return f"{key} cannot be {value}: a quota must be above 0"
    largest = keys[key]
    if largest is None:
        return None
    if value > largest:
        return f"{key} cannot be {value:g}: the largest is {largest}"
    if value % 1.0 > _FRACTION_MAX:
        return f"{key} cannot be {value}: give a whole number"
    return None


def describe_quotas(
    image: MetadataImage, wanted: QuotaFilter | None = None
) -> tuple[tuple[QuotaEntity, Mapping[str, float]], ...]:
    """(entity, quotas by key) of all entities that the filter selects, in Kafka's order."""
    every = hash_order(image.quotas.items_sorted(quota_sort_key), lambda item: 31 + map_hash(dict(item[0])))
    return tuple(
        (
            tuple(hash_order(entity, lambda part: string_hash(part[0]), capacity=DEFAULT_CAPACITY)),
            dict(hash_order(sorted(quotas.items()), lambda item: string_hash(item[0]))),
        )
        for entity, quotas in every
        if wanted is None or _is_meant(wanted, entity)
    )


def _is_meant(wanted: QuotaFilter, entity: QuotaEntity) -> bool:
    parts = dict(entity)
    if wanted.strict and len(parts) != len(wanted.parts):
        return False
    return all(kind in parts and (name is ... or parts[kind] == name) for kind, name in wanted.parts)


def quota_of(image: MetadataImage, kind: str, user: str, client_id: str) -> tuple[float, QuotaKey] | None:
    """The quota that applies to a client, and the key under which its use is counted: that of the most
    specific entity, users before client ids (KIP-546)."""
    if not image.quotas:
        return None
    for entity, (of_user, of_client) in _entities(user, client_id):
        bound = (image.quotas.get(entity) or {}).get(kind)
        if bound is not None:
            return bound, (kind, of_user, of_client)
    return None


def _entities(user: str, client_id: str) -> tuple[tuple[QuotaEntity, tuple[str | None, str | None]], ...]:
    """The entities whose quota may apply to a client, of which the first with a quota counts, each with the
    user and client id that share it."""
    both, of_user, of_client = (user, client_id), (user, None), (None, client_id)
    return (
        (((CLIENT_ID, client_id), (USER, user)), both),
        (((CLIENT_ID, None), (USER, user)), both),
        (((USER, user),), of_user),
        (((CLIENT_ID, client_id), (USER, None)), both),
        (((CLIENT_ID, None), (USER, None)), both),
        (((USER, None),), of_user),
        (((CLIENT_ID, client_id),), of_client),
        (((CLIENT_ID, None),), of_client),
    )


T = TypeVar("T")

DEFAULT_CAPACITY = 16


def string_hash(text: str | None) -> int:
    """`String.hashCode`, over UTF-16; 0 for null."""
    value = 0
    data = (text or "").encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


def map_hash(entries: Mapping[str, str | None]) -> int:
    """`Map.hashCode` of strings."""
    return sum(string_hash(key) ^ string_hash(value) for key, value in entries.items()) & 0xFFFFFFFF


def hash_order(items: Iterable[T], hash_of: Callable[[T], int], *, capacity: int = 1) -> list[T]:
    """The items, whose order is that of their insertion, as HashMap iterates over them. `capacity`: that of
    the empty map; it doubles while more than three quarters are used."""
    ordered = list(items)
    while len(ordered) > capacity * 3 // 4:
        capacity *= 2

    def place(item: T) -> int:
        value = hash_of(item)
        return (value ^ value >> 16) & (capacity - 1)

    return sorted(ordered, key=place)
