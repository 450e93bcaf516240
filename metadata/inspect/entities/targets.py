"""The target of a user's question: an entity and optionally one of its fields, as text."""

from __future__ import annotations

import difflib
import re

import msgspec

from metaquorum.metadata.inspect.log.entities import entity_problem
from metaquorum.metadata.settings.keys import MAX_INT, whole_number

_PARTITION = re.compile(r"(topic/.+/\d+)\.([A-Za-z_]+)")
_NODE = re.compile(r"((?:broker|controller)/\d+|quorum)\.([A-Za-z_]+)")
PARTITION_FIELDS = (
    *("leader", "leaderEpoch", "partitionEpoch", "replicas", "isr", "directories", "leaderRecoveryState"),
    *("removingReplicas", "addingReplicas", "eligibleLeaderReplicas", "lastKnownElr"),
)
BROKER_FIELDS = (
    *("epoch", "incarnationId", "fenced", "inControlledShutdown", "isMigratingZkBroker", "rack"),
    *("endPoints", "features", "logDirs"),
)
QUORUM_FIELDS = ("leader", "voters", "voterSet", "epoch", "kraftVersion")


class EntityTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a question: an entity path, and one of its fields or None."""

    entity: str
    field: str | None = None

    def __str__(self) -> str:
        return self.entity + (f".{self.field}" if self.field else "")

    @property
    def partition(self) -> tuple[str, int] | None:
        """(topic name, index) if the entity is a partition."""
        head, _, index = self.entity.rpartition("/")
        number = whole_number(index, MAX_INT)
        if head.startswith("topic/") and number is not None:
            return head.removeprefix("topic/"), number
        return None


def parse_target(text: str) -> EntityTarget:
    """`topic/orders/7.leader`, `broker/3`, `config/topic/orders/retention.ms`... Raises ValueError, which
    says what to write instead."""
    text = text.removesuffix("/") if text.count("/") > 1 else text
    match = _PARTITION.fullmatch(text) or _NODE.fullmatch(text)
    entity, name = (match[1], match[2]) if match else (text, None)
    problem = entity_problem(entity)
    if problem is not None:
        raise ValueError(problem)
    if name is None:
        return EntityTarget(entity=entity)
    first, *rest = name.split("_")
    wanted = first + "".join(word.capitalize() for word in rest)
    known = fields_of_target(entity)
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
        raise ValueError(f"{entity} has no field {name!r}; {hint}")
    return EntityTarget(entity=entity, field=wanted)


def fields_of_target(entity: str) -> tuple[str, ...]:
    """The names of an entity's fields that a target may use; empty if the fields are not fixed."""
    match entity.partition("/")[0]:
        case "topic":
            return PARTITION_FIELDS
        case "broker":
            return BROKER_FIELDS
        case "quorum":
            return QUORUM_FIELDS
    return ()
