"""Access control entries: the numbers of Kafka's protocol by name, valid entries, and filters (KIP-290)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.image import Acl

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """ANY and MATCH are for filters; MATCH finds every entry that applies to a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


def protocol_name(kind: type[IntEnum], number: int) -> str:
    """The protocol's word for a number; the number itself if unknown."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects entries; None and ANY leave a field open."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission_type: int = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether the filter selects the entry."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self._matches_pattern(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission_type in {Permission.ANY, acl.permission_type}
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in {PatternType.ANY, PatternType.MATCH, acl.pattern_type}:
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name in {self.resource_name, WILDCARD}
        return self.resource_name.startswith(acl.resource_name)


def acl_problem(acl: Acl) -> str | None:  # noqa: PLR0911
    """Why an entry cannot be added; None if it can."""
    if acl.resource_type not in set(ResourceType) - {ResourceType.ANY}:
        return f"an entry cannot be for resource type {_name(ResourceType, acl.resource_type)}: name one type"
    if acl.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        given = _name(PatternType, acl.pattern_type)
        return f"an entry cannot have pattern type {given}: use literal or prefixed"
    if acl.operation not in set(Operation) - {Operation.ANY}:
        return f"an entry cannot be for operation {_name(Operation, acl.operation)}: name one, or ALL"
    if acl.permission_type not in {Permission.DENY, Permission.ALLOW}:
        return "an entry either allows or denies: choose one"
    if not acl.resource_name:
        return "the resource name is empty: name the resource, or * for all"
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"the cluster's resource name is {CLUSTER_NAME}, not {acl.resource_name}: use that"
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        return f"principal {acl.principal!r} is not type:name: write for example User:alice"
    if not acl.host:
        return "the host is empty: name an address, or * for all"
    return None


def filter_problem(wanted: AclFilter) -> str | None:
    """Why a filter is invalid; None if it is valid."""
    enums: tuple[tuple[type[IntEnum], int], ...] = (
        (ResourceType, wanted.resource_type),
        (PatternType, wanted.pattern_type),
        (Operation, wanted.operation),
        (Permission, wanted.permission_type),
    )
    for kind, value in enums:
        if value not in set(kind):
            return f"{value} is not a {kind.__name__}: use one of {', '.join(each.name for each in kind)}"
    return None


def list_acls(image: MetadataImage, wanted: AclFilter) -> list[tuple[bytes, Acl]]:
    """(id, entry) of every entry that the filter selects, by id."""
    return [(acl_id, acl) for acl_id, acl in image.acls.items_sorted() if wanted.matches(acl)]


class AclsByName:
    """The entries of an image, for many filters: one with a name is compared with those of that name."""

    def __init__(self, image: MetadataImage) -> None:
        self._all = image.acls.items_sorted()
        self._named: dict[str, list[tuple[bytes, Acl]]] = {}
        for entry in self._all:
            self._named.setdefault(entry[1].resource_name, []).append(entry)

    def candidates(self, wanted: AclFilter) -> Sequence[tuple[bytes, Acl]]:
        """All that the filter may select, by id."""
        if wanted.resource_name is None or wanted.pattern_type == PatternType.MATCH:
            return self._all
        return self._named.get(wanted.resource_name, ())


def _name(kind: type[IntEnum], value: int) -> str:
    return kind(value).name if value in set(kind) else str(value)
