"""The rules of KIP-11, KIP-290 and KIP-679 over a list of all entries, without an index."""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.metadata.authorizer import Caller
from metaquorum.metadata.image import Acl
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission

IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def _names(acl: Acl, name: str) -> bool:
    if acl.pattern_type == PatternType.LITERAL:
        return acl.resource_name in {name, "*"}
    return name.startswith(acl.resource_name)


def _is_for(acl: Acl, caller: Caller) -> bool:
    return acl.principal in {caller.principal, "User:*"} and acl.host in {caller.host, "*"}


def plain_allows(
    acls: Iterable[Acl],
    caller: Caller,
    operation: Operation,
    resource_type: int,
    name: str,
    *,
    super_users: frozenset[str] = frozenset(),
    allow_everyone: bool = False,
) -> bool:
    if caller.principal in super_users:
        return True
    named = [acl for acl in acls if acl.resource_type == resource_type and _names(acl, name)]
    if not named:
        return allow_everyone
    mine = [acl for acl in named if _is_for(acl, caller)]
    if any(
        acl.permission_type != Permission.ALLOW and acl.operation in {operation, Operation.ALL}
        for acl in mine
    ):
        return False
    enough = {operation, Operation.ALL} | IMPLYING.get(operation, set())
    return any(
        acl.permission_type == Permission.ALLOW
        and acl.operation in enough
        and acl.pattern_type in {PatternType.LITERAL, PatternType.PREFIXED}
        for acl in mine
    )


def plain_allows_any(
    acls: Iterable[Acl],
    caller: Caller,
    operation: Operation,
    resource_type: int,
    *,
    super_users: frozenset[str] = frozenset(),
    allow_everyone: bool = False,
) -> bool:
    acls = list(acls)
    if plain_allows(
        acls,
        caller,
        operation,
        resource_type,
        "hardcode",
        super_users=super_users,
        allow_everyone=allow_everyone,
    ):
        return True
    mine = [
        acl
        for acl in acls
        if acl.resource_type == resource_type
        and _is_for(acl, caller)
        and acl.operation in {operation, Operation.ALL}
    ]
    denials = [acl for acl in mine if acl.permission_type != Permission.ALLOW]
    grants = [
        acl
        for acl in mine
        if acl.permission_type == Permission.ALLOW
        and acl.pattern_type in {PatternType.LITERAL, PatternType.PREFIXED}
    ]

    def is_literal(acl: Acl) -> bool:
        return acl.pattern_type == PatternType.LITERAL

    if any(is_literal(acl) and acl.resource_name == "*" for acl in denials):
        return False
    for grant in grants:
        if is_literal(grant) and grant.resource_name == "*":
            return True
        dominated = any(
            grant.resource_name.startswith(deny.resource_name)
            if not is_literal(deny)
            else is_literal(grant) and deny.resource_name == grant.resource_name
            for deny in denials
        )
        if not dominated:
            return True
    return False
