"""What a record of any type changes is compared with what the tables have: `Touched` names it."""

from __future__ import annotations

from typing import Any, get_args

from metaquorum.metadata.delta import MetadataDelta, diff
from metaquorum.metadata.image import MetadataImage, differing_parts
from metaquorum.metadata.inspect.log.entities import BROKER_RECORDS
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.replay import ReplayState
from metaquorum.pipeline.intervals.tables.brokers import Heard, heard_of, state_of
from metaquorum.pipeline.intervals.touched import Touched
from tests.unit.metadata.test_parts_of_the_state import WRITTEN_BY, after, uuid
from tests.unit.pipeline.intervals.telling import batches, leads, replayed, tables_of

NOT_IN_TABLES = {
    *("quotas", "acls", "scram", "delegation_tokens"),
    *("producer_ids_changed", "zk_migration_state_changed"),
}
"""Parts of the state of which no table is made."""
TOPIC = uuid(1)
MORE: list[Any] = [
    r.BrokerRecord(1, uuid(7), 5, fenced=True),
    r.UnfenceBrokerRecord(1, 5),
    r.FenceBrokerRecord(1, 5),
    r.BrokerRegistrationChangeRecord(1, 5, in_controlled_shutdown=1),
    r.TopicRecord("elr", TOPIC),
    r.PartitionRecord(
        0, TOPIC, (1, 2), (), leader=-1, leader_epoch=0, eligible_leader_replicas=(1,), last_known_elr=(2,)
    ),
    r.ClearElrRecord("elr"),
    r.ControllerRecord(2, uuid(7), False, (), (r.ControllerFeature("metadata.version", 1, 20),)),
    r.UnregisterControllerRecord(2),
    r.ConfigRecord(4, "1", "log.cleaner.threads", "2"),
    r.ConfigRecord(4, "1", "log.cleaner.threads", None),
    r.UnregisterBrokerRecord(1, 5),
]
"""Types, and a removal, that `WRITTEN_BY` does not need for a part, each with an effect."""
SAID_OF_A_BROKER: list[Any] = [
    r.BrokerRegistrationChangeRecord(1, 5, fenced=-1),
    r.BrokerRegistrationChangeRecord(1, 5, log_dirs=(uuid(4), uuid(2))),
    r.BrokerRegistrationChangeRecord(1, 5, in_controlled_shutdown=1),
    r.BrokerRegistrationChangeRecord(1, 5, fenced=1),
    r.UnregisterBrokerRecord(1, 5),
]
NO_ROW = {
    *(r.ClientQuotaRecord, r.ProducerIdsRecord, r.ZkMigrationStateRecord),
    *(r.AccessControlEntryRecord, r.RemoveAccessControlEntryRecord),
    *(r.UserScramCredentialRecord, r.RemoveUserScramCredentialRecord),
    *(r.DelegationTokenRecord, r.RemoveDelegationTokenRecord),
}
"""Types of `NOT_IN_TABLES`."""
NO_EFFECT = {r.NoOpRecord, r.BeginTransactionRecord, r.EndTransactionRecord, r.AbortTransactionRecord}


def missed(delta: MetadataDelta, touched: Touched, old: MetadataImage, new: MetadataImage) -> set[Any]:
    """What the delta has and `touched` does not."""
    found: set[Any] = set()
    for name in ("brokers", "controllers", "features", "configs", "partitions"):
        changes = getattr(delta, name)
        found |= {(name, key) for key in (*changes.added, *changes.changed, *changes.removed)}
    found |= {("topics", topic.topic_id) for topic in delta.topics_added}
    found |= {("removed", topic.topic_id) for topic in delta.topics_removed}
    known = {
        (name, key)
        for name in ("brokers", "controllers", "features", "configs", "partitions", "topics", "removed")
        for key in getattr(touched, name)
    }
    gone = {topic.topic_id: topic.name for topic in delta.topics_removed if topic.topic_id in touched.removed}
    cleared = [image.topics.topic_named(name) for image in (old, new) for name in touched.cleared]
    topics = {*gone, *(topic.topic_id for topic in cleared if topic is not None)}
    return {
        (name, key)
        for name, key in found - known
        if not (name == "partitions" and key[0] in topics)
        and not (name == "configs" and key.resource_type == 2 and key.name in gone.values())
    }


def test_the_tables_are_compared_with_what_any_record_changes() -> None:
    state = after(ReplayState(), [record for name in WRITTEN_BY for record in WRITTEN_BY[name](3, 1)])
    records = [record for value in (2, 0, 1) for name in WRITTEN_BY for record in WRITTEN_BY[name](3, value)]
    seen: set[type] = set()
    for record in [*records, *MORE]:
        before, state = state.image, after(state, [record])
        touched = Touched()
        touched.add([DecodedRecord(before.provenance.offset, 5, 0, record)])
        delta = diff(before, state.image)
        if delta.is_empty:
            continue
        seen.add(type(record))
        left = missed(delta, touched, before, state.image)
        assert not left, (
            f"{type(record).__name__} changes {left}, and the tables of the pipeline do not show it: Touched "
            "(pipeline/intervals/touched.py), or broker_of (metadata/inspect/log/entities.py)"
        )
    missing = {each.__name__ for each in {*get_args(r.Record)} - seen - NO_EFFECT}
    assert not missing, f"add one that has an effect to MORE: {missing}"


def rows_after(records: list[Any], last: Any) -> Any:
    return tables_of(replayed(batches([(0, [leads(3000)]), (1, records), (2, [last])])))


def test_the_tables_show_what_a_record_of_any_type_changes() -> None:
    """Beside a record at the same place that changes nothing."""
    said = [record for name in WRITTEN_BY for record in WRITTEN_BY[name](3, 1)]
    records = [record for value in (2, 0, 1) for name in WRITTEN_BY for record in WRITTEN_BY[name](3, value)]
    shown: set[type] = set()
    hidden: set[type] = set()
    for record in [*records, *MORE]:
        before, now = after(ReplayState(), said), after(ReplayState(), [*said, record])
        if type(record) not in shown and differing_parts(before.image, now.image, provenance=False):
            differs = rows_after(said, record) != rows_after(said, r.NoOpRecord())
            (shown if differs else hidden).add(type(record))
        said.append(record)
    missing = {each.__name__ for each in hidden - shown ^ NO_ROW}
    assert not missing, f"no table (pipeline/intervals/tables/) shows what they change: {missing}"


def test_what_is_heard_of_a_broker_is_what_a_record_of_any_type_makes_of_it() -> None:
    """Of a broker without a registration in the log; a record that says nothing of its state keeps it."""
    said: list[Any] = [r.BrokerRecord(1, uuid(7), 5, fenced=True, log_dirs=(uuid(3),))]
    for record in [r.UnfenceBrokerRecord(1, 5), r.FenceBrokerRecord(1, 5), *SAID_OF_A_BROKER]:
        old, new = (after(ReplayState(), lines).image.brokers.get(1) for lines in (said, [*said, record]))
        said.append(record)
        assert old is not None
        heard = heard_of(record, Heard(old.epoch, state_of(old), old.directories))
        assert heard is None or (new is not None and heard.fits(new)), (
            f"heard_of (pipeline/intervals/tables/brokers.py) does not know what {record} says"
        )
    missing = {each.__name__ for each in {*BROKER_RECORDS} - {type(record) for record in said}}
    assert not missing, f"add what they say of a broker to SAID_OF_A_BROKER: {missing}"


def test_every_part_of_the_state_is_in_tables_or_known_not_to_be() -> None:
    parts = {*WRITTEN_BY} - {"topics_added", "topics_removed"}
    missing = parts - NOT_IN_TABLES - {"brokers", "controllers", "features", "configs", "partitions"}
    assert not missing, f"Touched (pipeline/intervals/touched.py), or NOT_IN_TABLES here, needs {missing}"
