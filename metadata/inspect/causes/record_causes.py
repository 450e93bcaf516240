"""Causes of self-explanatory records: settings, quotas, features, users, ACLs, topics.

Owns the rules about them, and when such a record changed nothing. The log does not say which client requested
it.
"""

from __future__ import annotations

from metaquorum.metadata.inspect.causes.cause_types import Cause
from metaquorum.metadata.inspect.changes.record_texts import acl_text, quota_text, scram_text
from metaquorum.metadata.records import types as r
from metaquorum.metadata.secrets import setting_shown


def record_causes(
    record: object, *, said: str = "", is_idle: bool = False, secrets: bool = False
) -> tuple[Cause, ...]:
    """Never empty. `said` describes what a removal names by id only. With `is_idle`, the state already
    matched the record. With `secrets`, values of secret settings are not redacted."""
    rule, text = _cause(record, said, secrets)
    if is_idle:
        return (Cause(rule="changed-nothing", text=f"{text}, which changed nothing"),)
    return (Cause(rule=rule, text=text),)


def _cause(record: object, said: str, secrets: bool) -> tuple[str, str]:  # noqa: C901, PLR0911
    match record:
        case r.ConfigRecord(value=None, name=name):
            return "removed", f"{name} was removed"
        case r.ConfigRecord(name=name, value=str(value)):
            return "set", f"{name} was set to {value if secrets else setting_shown(name, value)}"
        case r.ClientQuotaRecord(remove=gone):
            return "removed" if gone else "set", quota_text(record)
        case r.FeatureLevelRecord(name=name, feature_level=level):
            return "set", f"{name} was set to level {level}"
        case r.TopicRecord(name=name):
            return "created", f"topic {name} was created"
        case r.AccessControlEntryRecord():
            return "set", acl_text(record)
        case r.RemoveTopicRecord():
            return "deleted", "the topic was deleted"
        case r.ControllerRecord(controller_id=node):
            return "set", f"controller {node} registered"
        case r.UnregisterControllerRecord(controller_id=node):
            return "removed", f"controller {node} was unregistered"
        case r.UserScramCredentialRecord(iterations=iterations):
            return "set", f"{scram_text(record)} set, {iterations} iterations"
        case r.RemoveUserScramCredentialRecord():
            return "removed", f"{scram_text(record)} removed"
        case r.DelegationTokenRecord(owner=owner):
            return "set", f"the token of {owner} was set"
        case r.RemoveAccessControlEntryRecord() | r.RemoveDelegationTokenRecord():
            return "removed", f"it was removed{f': {said}' if said else ''}"
    return _of_nodes(record)


def _of_nodes(record: object) -> tuple[str, str]:
    match record:
        case r.UnregisterBrokerRecord(broker_id=broker):
            return "broker-unregistered", f"broker {broker} was unregistered"
        case r.ProducerIdsRecord(broker_id=broker, next_producer_id=following):
            return "set", f"broker {broker} was given ids below {following}"
        case r.ZkMigrationStateRecord(zk_migration_state=state):
            return "set", f"ZooKeeper migration state {state}"
    return "set", "the record says so"
