"""Who may do what: the authorizer's answer at a moment, with the entries that decide it."""

from __future__ import annotations

from collections.abc import Container
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

_NAMED_HOSTS = 3


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
    own = [
        (entry_id, acl)
        for entry_id, acl in list_acls(image, matching)
        if acl.principal in (principal, WILDCARD_PRINCIPAL)
    ]
    hosts = {acl.host for _, acl in own if _denies(acl, asked) or _allows(acl, kinds)}
    entries = [entry for entry in own if entry[1].host in (host, WILDCARD)]
    denies = [entry for entry in entries if _denies(entry[1], asked)]
    allows = [entry for entry in entries if _allows(entry[1], kinds)]
    is_allowed = Authorizer().allows(image, Caller(principal, host), asked, wanted, name)
    deciding = denies or allows
    verdict = "may" if is_allowed else "may not"
    sentence = f"{principal} {verdict} {asked.name} {kind.lower()}/{name}"
    if denies:
        sentence += ": an entry denies it"
    elif not allows:
        sentence += ": no entry allows it, unless the brokers are set to allow what has no entry"
    if host == WILDCARD and (elsewhere := sorted(hosts - {WILDCARD})):
        sentence += (
            f"; there are other entries for single hosts: ask for {' or '.join(elsewhere[:_NAMED_HOSTS])}"
        )
    return {
        "allowed": is_allowed,
        "sentence": sentence,
        "entries": [{"path": f"acl/{uuid_to_text(entry_id)}", **acl_tree(acl)} for entry_id, acl in deciding],
        "operations": [each.name for each in OPERATIONS_ON[wanted]],
    }


def entries_about(image: MetadataImage, text: str) -> list[tuple[bytes, Acl]]:
    """(id, entry) of the entries that have a text in their principal or resource, and of those that apply to
    what it names: those for everyone if it is a principal, those with a prefix or for all if it is a topic.
    Denials first: they decide."""
    part, for_everyone = text.lower(), _is_principal(image, text)
    topic = None
    if image.topics.topic_named(text) is not None:
        topic = AclFilter(
            resource_type=ResourceType.TOPIC, resource_name=text, pattern_type=PatternType.MATCH
        )
    entries = [
        (entry_id, acl)
        for entry_id, acl in image.acls.items_sorted()
        if part in acl.principal.lower()
        or part in acl.resource_name.lower()
        or (for_everyone and acl.principal == WILDCARD_PRINCIPAL)
        or (topic is not None and topic.matches(acl))
    ]
    return sorted(entries, key=lambda entry: entry[1].permission_type == Permission.ALLOW)


def _is_principal(image: MetadataImage, text: str) -> bool:
    """Whether a text is a user, as User:alice or by a name that an entry or a credential has."""
    name = text.removeprefix("User:")
    if name != text:
        return bool(name)
    users = {user for (_, user), _ in image.scram.items_sorted()}
    return text in users or any(acl.principal == f"User:{text}" for _, acl in image.acls.items_sorted())


def _denies(acl: Acl, operation: Operation) -> bool:
    return acl.permission_type != Permission.ALLOW and acl.operation in (Operation.ALL, operation)


def _allows(acl: Acl, operations: Container[int]) -> bool:
    return acl.permission_type == Permission.ALLOW and acl.operation in operations


def _word(kind: type[IntEnum], text: str) -> Any:
    name = text.upper().replace("-", "_")
    if name not in kind.__members__:
        known = ", ".join(each.lower() for each in kind.__members__ if each != "ANY")
        raise InspectError(f"{text!r} is not one of {known}")
    return kind[name]
