"""Records that change nothing: what they say was already set."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from metaquorum.metadata.image import ConfigResource, ImageBuilder
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.inspect.log.entities import broker_of
from metaquorum.metadata.meanings import quota_entity
from metaquorum.metadata.records import types as r

NOT_JUDGED = object()
"""For records that always count as a change: registrations, topics, the quorum's own."""


def subject_key(record: object) -> tuple[str, Hashable, str] | None:
    """What the record sets or removes: (kind, which one, key of it); None if it is not compared."""
    match record:
        case r.ConfigRecord():
            return "config", ConfigResource(record.resource_type, record.resource_name), record.name
        case r.ClientQuotaRecord():
            return "quota", quota_entity(record), record.key
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            return "scram", (record.mechanism, record.name), ""
        case r.AccessControlEntryRecord() | r.RemoveAccessControlEntryRecord():
            return "acl", record.id, ""
        case r.DelegationTokenRecord() | r.RemoveDelegationTokenRecord():
            return "token", record.token_id, ""
        case r.FeatureLevelRecord():
            return "feature", record.name, ""
        case r.BrokerRegistrationChangeRecord() | r.FenceBrokerRecord() | r.UnfenceBrokerRecord():
            return "broker", broker_of(record), ""
    return None


def subject(record: object, state: ImageBuilder) -> object:
    """The state of what the record is about; None if it does not exist."""
    if isinstance(record, r.ControllerRecord):
        return state.controllers.get(record.controller_id)
    found = subject_key(record)
    if found is None:
        return NOT_JUDGED
    kind, which, key = found
    held: Any = getattr(state, _HELD[kind]).get(which)
    return (held or {}).get(key) if kind in ("config", "quota") else held


_HELD = {
    "config": "configs",
    "quota": "quotas",
    "scram": "scram",
    "acl": "acls",
    "token": "tokens",
    "feature": "finalized",
    "broker": "brokers",
}
"""The part of the state that has each kind."""


def only_epoch_differs(before: PartitionInfo, after: PartitionInfo) -> bool:
    """Whether a change only raised the partition epoch. Raising the leader epoch is a change: the replicas
    must start over with the same leader."""
    return all(
        getattr(before, name) == getattr(after, name)
        for name in before.__struct_fields__
        if name != "partition_epoch"
    )
