"""Rules about self-explanatory records: settings, quotas, features, users, ACLs, topics."""

from __future__ import annotations

from typing import NamedTuple

from metaquorum.metadata.image.types import ControllerRegistration
from metaquorum.metadata.inspect.causes.rule import Cause, CauseRules, Reason
from metaquorum.metadata.records import types as r
from metaquorum.metadata.secrets import setting_shown
from metaquorum.metadata.text.tree import acl_text, quota_text, scram_text


class RecordChange(NamedTuple):
    """One record that says itself what it does."""

    record: object
    said: str
    """Describes what a removal names by id only."""
    before: object
    """A controller's registration before the record; None if it had none, or if that is unknown."""
    is_idle: bool
    """The state already matched the record."""
    shows_secrets: bool


RECORDS: CauseRules[RecordChange] = CauseRules("settings, quotas, features, users, ACLs, topics")


def record_causes(
    record: object,
    *,
    said: str = "",
    before: object = None,
    is_idle: bool = False,
    secrets: bool = False,
) -> tuple[Cause, ...]:
    """Why a record did what it says. Never empty; see `RecordChange`. With `secrets`, values of secret
    settings are not redacted."""
    cause = RECORDS.first(RecordChange(record, said, before, is_idle, secrets))
    if cause is None:
        raise RuntimeError("the last rule fits every record")
    return (cause,)


@RECORDS.rule("changed-nothing", "the state already matched the record", precedence=10)
def changed_nothing(change: RecordChange) -> Reason | None:
    if not change.is_idle:
        return None
    cause = RECORDS.first(change._replace(is_idle=False))
    return Reason(f"{'' if cause is None else cause.text}, which changed nothing")


@RECORDS.rule("created", "the record creates it", precedence=11)
def created(change: RecordChange) -> Reason | None:
    match change.record:
        case r.TopicRecord(name=name):
            return Reason(f"topic {name} was created")
        case r.PartitionRecord(partition_id=number, replicas=replicas):
            return Reason(f"partition {number} on {list(replicas)}")
    return None


@RECORDS.rule(
    "deleted", "a RemoveTopicRecord removes the topic with its partitions and settings", precedence=12
)
def deleted(change: RecordChange) -> Reason | None:
    return Reason("the topic was deleted") if isinstance(change.record, r.RemoveTopicRecord) else None


@RECORDS.rule("broker-unregistered", "the record removes the broker's registration", precedence=13)
def unregistered(change: RecordChange) -> Reason | None:
    if not isinstance(change.record, r.UnregisterBrokerRecord):
        return None
    return Reason(f"broker {change.record.broker_id} was unregistered")


@RECORDS.rule("removed", "the record removes it", precedence=14)
def removed(change: RecordChange) -> Reason | None:
    match change.record:
        case r.ConfigRecord(value=None, name=name):
            return Reason(f"{name} was removed")
        case r.ClientQuotaRecord(remove=True):
            return Reason(quota_text(change.record))
        case r.UnregisterControllerRecord(controller_id=node):
            return Reason(f"controller {node} was unregistered")
        case r.RemoveUserScramCredentialRecord():
            return Reason(f"{scram_text(change.record)} removed")
        case r.RemoveAccessControlEntryRecord() | r.RemoveDelegationTokenRecord():
            return Reason(f"it was removed{f': {change.said}' if change.said else ''}")
    return None


@RECORDS.rule(
    "controller-restarted",
    "the record registers a new incarnation of the controller",
    precedence=15,
    word="restarted",
)
def controller_restarted(change: RecordChange) -> Reason | None:
    record, before = change.record, change.before
    if not isinstance(record, r.ControllerRecord) or not isinstance(before, ControllerRegistration):
        return None
    if record.incarnation_id == before.incarnation_id:
        return None
    node = record.controller_id
    return Reason(f"controller {node} was started again (or another process with its id)")


@RECORDS.rule("set", "the record sets it", precedence=16)
def set_by_record(change: RecordChange) -> Reason | None:
    return Reason(_set_text(change.record, change.shows_secrets))


def _set_text(record: object, shows_secrets: bool) -> str:
    text = "the record says so"
    match record:
        case r.ConfigRecord(name=name, value=str(value)):
            text = f"{name} was set to {value if shows_secrets else setting_shown(name, value)}"
        case r.ClientQuotaRecord():
            text = quota_text(record)
        case r.FeatureLevelRecord(name=name, feature_level=level):
            text = f"{name} was set to level {level}"
        case r.AccessControlEntryRecord():
            text = acl_text(record)
        case r.ControllerRecord(controller_id=node):
            text = f"controller {node} registered"
        case r.UserScramCredentialRecord(iterations=iterations):
            text = f"{scram_text(record)} set, {iterations} iterations"
        case r.DelegationTokenRecord(owner=owner):
            text = f"the token of {owner} was set"
        case r.ProducerIdsRecord(broker_id=broker, next_producer_id=following):
            text = f"broker {broker} was given ids below {following}"
        case r.ZkMigrationStateRecord(zk_migration_state=state):
            text = f"ZooKeeper migration state {state}"
    return text
