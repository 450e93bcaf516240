"""Which entities a record is about, as paths: broker/3, topic/orders, topic/orders/7.

Partition records carry only topic ids, so an `EntityNamer` must see the topics' records first; a topic whose
name it has not seen is `topic/<id>`.
"""

from __future__ import annotations

import difflib
from typing import Any

from metaquorum.metadata.image.types import (
    RESOURCE_KINDS,
)
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.text.tree import SCRAM_MECHANISMS
from metaquorum.storage.uuids import uuid_to_text

KINDS = (
    "broker",
    "controller",
    "topic",
    "config",
    "quota",
    "user",
    "client-id",
    "ip",
    "client-metrics",
    "group",
    "scram",
    "acl",
    "token",
    "feature",
    "producer-ids",
    "migration",
    "transaction",
    "quorum",
)
"""First parts of paths, in the order of help texts."""


_BROKER_ID_FIELDS: dict[type[Any], str] = {
    r.BrokerRecord: "broker_id",
    r.UnregisterBrokerRecord: "broker_id",
    r.FenceBrokerRecord: "id",
    r.UnfenceBrokerRecord: "id",
    r.BrokerRegistrationChangeRecord: "broker_id",
}
BROKER_RECORDS: tuple[type[Any], ...] = tuple(_BROKER_ID_FIELDS)
"""Records about one broker."""


def broker_of(record: object) -> int | None:
    """The broker that a record is about; None for any record but `BROKER_RECORDS`."""
    field = _BROKER_ID_FIELDS.get(type(record))
    return None if field is None else getattr(record, field)


def entity_problem(path: str) -> str | None:
    """What is wrong with an entity path from a user, and what to write instead; None if it is valid."""
    kind, _, rest = path.partition("/")
    if kind not in KINDS:
        close = difflib.get_close_matches(kind.lower(), KINDS, n=1)
        if close:
            return f"there is no entity {path!r}; did you mean {close[0]}{path[len(kind) :]}?"
        known = ", ".join(KINDS)
        return f"there is no entity {path!r}; begin with one of {known}, as in broker/3 or topic/orders/7"
    if rest == "" and "/" in path:
        return f"{path!r} ends in a slash; write {kind} for all of them, or {kind}/NAME for one"
    return None


def is_below(entity: str, wanted: str) -> bool:
    """Whether `entity` is `wanted` or a part of it: topic/orders/7 is below topic/orders and below topic."""
    return entity == wanted or entity.startswith(wanted + "/")


class EntityNamer:
    """Names the entities of records and learns topic names on the way. Feed it every record in log order."""

    def __init__(self, topic_names: dict[bytes, str] | None = None) -> None:
        self._names = dict(topic_names or {})

    def topic_name(self, topic_id: bytes) -> str:
        """The topic's name, or its id if the name is unknown."""
        return self._names.get(topic_id) or uuid_to_text(topic_id)

    def learn(self, topic_id: bytes, name: str) -> None:
        """Adds a topic's name that no record has."""
        self._names[topic_id] = name

    def names(self) -> dict[bytes, str]:
        """All known names, by topic id."""
        return dict(self._names)

    def topic_names(self) -> list[str]:
        """Every topic seen."""
        return sorted(set(self._names.values()))

    def entities(self, record: object) -> tuple[str, ...]:
        """Paths of everything that the record is about; empty for a NoOp or an unknown record."""
        match record:
            case r.TopicRecord(name=name, topic_id=topic_id):
                self._names[topic_id] = name
                return self._topic(topic_id)
            case r.RemoveTopicRecord(topic_id=topic_id):
                return self._topic(topic_id)
            case r.PartitionRecord() | r.PartitionChangeRecord():
                return tuple(f"{path}/{record.partition_id}" for path in self._topic(record.topic_id))
            case r.ClearElrRecord(topic_name=name):
                return (f"topic/{name}" if name else "topic",)
            case r.ConfigRecord():
                return _config_entities(record)
            case r.ClientQuotaRecord(entity=parts):
                names = sorted((part.entity_type, part.entity_name or "<default>") for part in parts)
                together = ",".join(f"{kind}={name}" for kind, name in names)
                return (*(f"{kind}/{name}" for kind, name in names), f"quota/{together}")
        return _plain_entities(record)

    def _topic(self, topic_id: bytes) -> tuple[str, ...]:
        name = self._names.get(topic_id)
        by_id = f"topic/{uuid_to_text(topic_id)}"
        return (by_id,) if name is None else (f"topic/{name}", by_id)


def _config_entities(record: r.ConfigRecord) -> tuple[str, ...]:
    kind = RESOURCE_KINDS.get(record.resource_type, str(record.resource_type))
    name = record.resource_name or "<default>"
    return (f"{kind}/{name}", f"config/{kind}/{name}/{record.name}")


def _plain_entities(record: object) -> tuple[str, ...]:
    match record:
        case r.ProducerIdsRecord(broker_id=broker_id):
            return (*own_entity(record), f"broker/{broker_id}")
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            mechanism = SCRAM_MECHANISMS.get(record.mechanism, record.mechanism)
            return (f"user/{record.name}", f"scram/{mechanism}/{record.name}")
        case r.BeginTransactionRecord() | r.EndTransactionRecord() | r.AbortTransactionRecord():
            return ("transaction",)
        case control.LeaderChangeMessage(leader_id=leader_id):
            return (*own_entity(record), f"controller/{leader_id}")
    return own_entity(record)


def own_entity(record: object) -> tuple[str, ...]:  # noqa: PLR0911
    """The path of the one entity that a record sets or removes, if the record names it; else empty."""
    if (broker_id := broker_of(record)) is not None:
        return (f"broker/{broker_id}",)
    match record:
        case (
            r.ControllerRecord(controller_id=controller_id)
            | r.UnregisterControllerRecord(controller_id=controller_id)
        ):
            return (f"controller/{controller_id}",)
        case r.ProducerIdsRecord():
            return ("producer-ids",)
        case r.FeatureLevelRecord(name=name):
            return (f"feature/{name}",)
        case r.DelegationTokenRecord(token_id=token_id) | r.RemoveDelegationTokenRecord(token_id=token_id):
            return (f"token/{token_id}",)
        case r.AccessControlEntryRecord(id=acl_id) | r.RemoveAccessControlEntryRecord(id=acl_id):
            return (f"acl/{uuid_to_text(acl_id)}",)
        case r.ZkMigrationStateRecord():
            return ("migration",)
        case control.LeaderChangeMessage() | control.KRaftVersionRecord() | control.VotersRecord():
            return ("quorum",)
    return ()
