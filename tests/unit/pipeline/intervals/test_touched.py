"""What a record of any type changes is compared with what the tables have: `Touched` names it."""

from __future__ import annotations

from typing import Any, get_args

from metaquorum.metadata.delta import MetadataDelta, diff
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.replay import ReplayState
from metaquorum.pipeline.intervals.touched import Touched
from tests.unit.metadata.test_parts_of_the_state import WRITTEN_BY, after, uuid

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
    r.UnregisterBrokerRecord(1, 5),
]
"""Types that `WRITTEN_BY` does not need for a part, each with an effect."""
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


def test_every_part_of_the_state_is_in_tables_or_known_not_to_be() -> None:
    parts = {*WRITTEN_BY} - {"topics_added", "topics_removed"}
    missing = parts - NOT_IN_TABLES - {"brokers", "controllers", "features", "configs", "partitions"}
    assert not missing, f"Touched (pipeline/intervals/touched.py), or NOT_IN_TABLES here, needs {missing}"
