"""Who may do what: the authorizer's answer at a moment, with the entries that decide it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from metaquorum.metadata.authorizer import IMPLIED_BY, OPERATIONS_ON, WILDCARD_PRINCIPAL, Authorizer, Caller
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import Acl, MetadataImage
from metaquorum.metadata.settings.acls import (
    WILDCARD,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    list_acls,
)
from metaquorum.metadata.text.tree import acl_tree
from metaquorum.storage.uuids import uuid_to_text


def access(image: MetadataImage, principal: str, operation: str, resource: str, host: str) -> dict[str, Any]:
    """Whether `principal` (`User:alice`) at `host` may perform `operation` on `resource` (`topic/orders`),
    with the entries that decide. Super users and `allow.everyone.if.no.acl.found` are settings of brokers,
    which the log does not have. Raises InspectError for words that Kafka does not know."""
    kind, _, name = resource.partition("/")
    wanted = _word(ResourceType, kind)
    asked = _word(Operation, operation)
    if wanted == ResourceType.ANY or asked in (Operation.ANY, Operation.ALL):
        raise InspectError("name one kind of resource and one operation, such as topic/orders and READ")
    if not name or ":" not in principal:
        raise InspectError("write the principal as User:alice and the resource as topic/orders")
    kinds = {Operation.ALL, asked, *IMPLIED_BY.get(asked, ())}
    matching = AclFilter(resource_type=wanted, resource_name=name, pattern_type=PatternType.MATCH)
    entries = [
        (entry_id, acl)
        for entry_id, acl in list_acls(image, matching)
        if acl.principal in (principal, WILDCARD_PRINCIPAL) and acl.host in (host, WILDCARD)
    ]
    denies = [entry for entry in entries if _denies(entry[1], asked)]
    allows = [
        entry
        for entry in entries
        if entry[1].permission_type == Permission.ALLOW and entry[1].operation in kinds
    ]
    is_allowed = Authorizer().allows(image, Caller(principal, host), asked, wanted, name)
    deciding = denies or allows
    verdict = "may" if is_allowed else "may not"
    sentence = f"{principal} {verdict} {asked.name} {kind.lower()}/{name}"
    if denies:
        sentence += ": an entry denies it"
    elif not allows:
        sentence += ": no entry allows it, unless the brokers are set to allow what has no entry"
    return {
        "allowed": is_allowed,
        "sentence": sentence,
        "entries": [{"path": f"acl/{uuid_to_text(entry_id)}", **acl_tree(acl)} for entry_id, acl in deciding],
        "operations": [each.name for each in OPERATIONS_ON[wanted]],
    }


def _denies(acl: Acl, operation: Operation) -> bool:
    return acl.permission_type != Permission.ALLOW and acl.operation in (Operation.ALL, operation)


def _word(kind: type[IntEnum], text: str) -> Any:
    name = text.upper().replace("-", "_")
    if name not in kind.__members__:
        known = ", ".join(each.lower() for each in kind.__members__ if each != "ANY")
        raise InspectError(f"{text!r} is not one of {known}")
    return kind[name]
