"""The single authorization decision, over an image: Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-801)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from metaquorum.metadata.image import Acl, ShardedMap
from metaquorum.metadata.settings.acls import WILDCARD, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage


# An index of access control entries by principal and resource name, updated from image to image.
# The index follows the entries that changed between two images; its answers equal those of the plain rule
# over all entries (KIP-11, KIP-290), which a property test compares.

WILDCARD_PRINCIPAL = "User:*"
_KNOWN_OPERATIONS = frozenset(Operation) - {Operation.ANY}

Hosts = dict[str, list[int]]
"""By host: the operations that are denied and those that are allowed, one bit per operation."""


def bit(operation: int) -> int:
    """The bit of an operation; 0 for an unknown one, which no request uses."""
    return 1 << operation if operation in _KNOWN_OPERATIONS else 0


class _Names:
    """The entries of one principal for one resource type, by resource name."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, Hosts] = {}
        self.prefixed: dict[str, Hosts] = {}
        self.lengths: tuple[int, ...] = ()
        """Existing lengths of prefixes, ascending; no others are looked up."""

    def applying_to(self, name: str) -> Iterator[Hosts]:
        """The entries that apply to a resource."""
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            entries = self.literal.get(literal)
            if entries is not None:
                yield entries
        for length in self.lengths:
            if length > len(name):
                return
            entries = self.prefixed.get(name[:length])
            if entries is not None:
                yield entries

    def put(self, entry: Entry, *, is_there: bool) -> None:
        """Adds or removes an entry; called once for all equal entries."""
        names = self.literal if entry.is_literal else self.prefixed
        hosts = names.setdefault(entry.name, {})
        bits = hosts.setdefault(entry.host, [0, 0])
        bits[entry.side] ^= bit(entry.operation)
        if not any(bits):
            del hosts[entry.host]
        if not hosts:
            del names[entry.name]
        if not entry.is_literal and (not is_there or len(entry.name) not in self.lengths):
            self.lengths = tuple(sorted({len(each) for each in names}))


_DENY, _ALLOW, _NEITHER = 0, 1, 2


class Entry(NamedTuple):
    """The effective content of an entry. A newer release's entries never grant anything: an unknown
    permission and an unknown pattern type can deny but not allow. Kafka, too, reads an unknown
    permission as a denial."""

    resource_type: int
    is_literal: bool
    name: str
    principal: str
    host: str
    operation: int
    side: int

    @classmethod
    def of(cls, acl: Acl) -> Entry:
        is_literal = acl.pattern_type == PatternType.LITERAL
        side = _DENY
        if acl.permission_type == Permission.ALLOW:
            side = _ALLOW if is_literal or acl.pattern_type == PatternType.PREFIXED else _NEITHER
        return cls(
            acl.resource_type, is_literal, acl.resource_name, acl.principal, acl.host, acl.operation, side
        )


class AclIndex:
    """See the module. `follow` updates it to the entries of an image; after that it can be queried."""

    def __init__(self) -> None:
        self._acls: ShardedMap[bytes, Acl] = ShardedMap()
        self._entries: Counter[Entry] = Counter()
        """How many ids have an equal entry."""
        self._names: dict[tuple[int, str], _Names] = {}
        self._resources: Counter[tuple[int, bool, str]] = Counter()
        """Entries by type, whether they are literal, and name, whatever the principal."""
        self._lengths: Counter[int] = Counter()
        """How many of these are prefixes of each length: a name may be long, and no others are looked up."""

    def follow(self, acls: ShardedMap[bytes, Acl]) -> None:
        """Updates the index to these entries, looking only at what changed."""
        if acls is self._acls:
            return
        for acl_id in acls.changed_keys(self._acls):
            before, after = self._acls.get(acl_id), acls.get(acl_id)
            if before is not None:
                self._count(before, -1)
            if after is not None:
                self._count(after, 1)
        self._acls = acls

    def _count(self, acl: Acl, change: int) -> None:
        entry = Entry.of(acl)
        self._entries[entry] += change
        if self._entries[entry] != (1 if change > 0 else 0):
            return
        if entry.side != _NEITHER and bit(entry.operation):
            key = (entry.resource_type, entry.principal)
            self._names.setdefault(key, _Names()).put(entry, is_there=change > 0)
        resource = (entry.resource_type, entry.is_literal, entry.name)
        self._resources[resource] += change
        if not entry.is_literal:
            self._lengths[len(entry.name)] += change
            if not self._lengths[len(entry.name)]:
                del self._lengths[len(entry.name)]
        if change < 0:
            del self._entries[entry]
            if not self._resources[resource]:
                del self._resources[resource]

    def _of(self, resource_type: int, principal: str) -> Iterator[_Names]:
        names = self._names
        for each in (principal, WILDCARD_PRINCIPAL) if principal != WILDCARD_PRINCIPAL else (principal,):
            found = names.get((resource_type, each))
            if found is not None:
                yield found

    def found(self, principal: str, host: str, resource_type: int, name: str) -> tuple[int, int]:
        """The operations on one resource that entries deny, and those that they allow."""
        deny = allow = 0
        for names in self._of(resource_type, principal):
            for hosts in names.applying_to(name):
                for where in (host, WILDCARD):
                    bits = hosts.get(where)
                    if bits is not None:
                        deny |= bits[_DENY]
                        allow |= bits[_ALLOW]
        return deny, allow

    def has_any(self, resource_type: int, name: str) -> bool:
        """Whether any entry applies to a resource, whatever the principal and operation."""
        resources = self._resources
        if (resource_type, True, name) in resources or (resource_type, True, WILDCARD) in resources:
            return True
        return any(
            (resource_type, False, name[:end]) in resources for end in self._lengths if end <= len(name)
        )

    def patterns(
        self, principal: str, host: str, resource_type: int, operations: int
    ) -> Iterator[tuple[bool, bool, str]]:
        """(whether it allows, whether it is literal, name) of the entries for any of these operations."""
        for names in self._of(resource_type, principal):
            for is_literal, by_name in ((True, names.literal), (False, names.prefixed)):
                for name, hosts in by_name.items():
                    for bits in (hosts[each] for each in {host, WILDCARD} & hosts.keys()):
                        if bits[_DENY] & operations:
                            yield False, is_literal, name
                        if bits[_ALLOW] & operations:
                            yield True, is_literal, name


ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated client."""


def type_and_name(principal: str) -> tuple[str, str]:
    """The parts of `User:alice`."""
    principal_type, _, name = principal.partition(":")
    return principal_type, name


_ALL = bit(Operation.ALL)
IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Operations that are implied by permission for others. A denial covers only the operation that it names."""
_ALLOWING = {
    operation: _ALL | bit(operation) | sum(map(bit, IMPLIED_BY.get(operation, ()))) for operation in Operation
}

OPERATIONS_ON = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations of a resource type (Kafka's AclEntry.supportedOperations)."""


class Caller(msgspec.Struct, frozen=True):
    """The client: `principal` such as `User:alice`, `host` its address as text."""

    principal: str
    host: str


class Authorizer:
    """See the module. `super_users`: principals that may do everything. `allow_everyone`: resources without
    entries are open (`allow.everyone.if.no.acl.found`)."""

    def __init__(self, *, super_users: Iterable[str] = (), allow_everyone: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self._index = AclIndex()

    def allows(
        self, image: MetadataImage, caller: Caller, operation: Operation, resource_type: int, name: str
    ) -> bool:
        """Whether the caller may perform this operation on the resource of this name."""
        if caller.principal in self._super_users:
            return True
        index = self._index
        index.follow(image.acls)
        deny, allow = index.found(caller.principal, caller.host, resource_type, name)
        if deny & (_ALL | bit(operation)):
            return False
        if allow & _ALLOWING[operation]:
            return True
        return self._allow_everyone and not index.has_any(resource_type, name)

    def allows_any(
        self, image: MetadataImage, caller: Caller, operation: Operation, resource_type: int
    ) -> bool:
        """Whether there is any resource name of this type on which the caller may perform this operation
        (KIP-679).

        As in Kafka, no operation implies another here, and denied prefixes deny what they contain.
        """
        if self.allows(image, caller, operation, resource_type, "hardcode"):
            return True
        literal: dict[bool, set[str]] = {False: set(), True: set()}
        prefixed: dict[bool, set[str]] = {False: set(), True: set()}
        wanted = _ALL | bit(operation)
        for allows, is_literal, name in self._index.patterns(
            caller.principal, caller.host, resource_type, wanted
        ):
            (literal if is_literal else prefixed)[allows].add(name)
        if WILDCARD in literal[False]:
            return False
        if WILDCARD in literal[True]:
            return True
        denied = prefixed[False]
        return any(
            not any(name[:end] in denied for end in range(1, len(name) + 1))
            for name in (literal[True] - literal[False]) | prefixed[True]
        )

    def operations(self, image: MetadataImage, caller: Caller, resource_type: ResourceType, name: str) -> int:
        """The operations that the caller may perform on a resource, one bit per operation (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS_ON[resource_type]
            if self.allows(image, caller, operation, resource_type, name)
        )
