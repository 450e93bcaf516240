"""The single authorization decision, over an image: Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-801).

Owns the order of the rules: super users, then denials, then permissions, then the default for resources
without entries. Pure: the same image and request give the same answer, whatever was requested before. Knows
no requests of Kafka's protocol: their handlers name the operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.access.acl_index import AclIndex, bit
from metaquorum.metadata.settings.acls import WILDCARD, Operation, ResourceType

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage

ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated client."""
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
