"""Every record type has a place in what would be silent without it: levels, causes, summary, console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from msgspec.structs import replace

from metaquorum.console.tables import TABLES
from metaquorum.metadata.features import VERSION_STEPS
from metaquorum.metadata.image import differing_parts
from metaquorum.metadata.inspect.causes.brokers import broker_causes
from metaquorum.metadata.inspect.causes.records import record_causes
from metaquorum.metadata.inspect.causes.rule import Scene
from metaquorum.metadata.inspect.causes.table import partition_causes
from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.entities.views import entities_of
from metaquorum.metadata.inspect.repair.repair import REFERRING
from metaquorum.metadata.inspect.summary import Summary
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.states import FoundState
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import Replayer, ReplayState
from tests.unit.metadata.test_parts_of_the_state import WRITTEN_BY, after
from tests.unit.pipeline.intervals.test_touched import MORE, NO_EFFECT

VAGUE = {"the record says so", "the registration changed", "nothing in the log says why"}
"""Causes of records that no rule knows."""

ALWAYS_A_CHANGE = {
    *(r.BrokerRecord, r.ControllerRecord),  # a process has started
    r.PartitionRecord,  # it says the whole state
    r.ZkMigrationStateRecord,  # a new cluster's first records have it
    r.ClearElrRecord,  # its partitions are what changes: without one, there is nothing to show
}
NOT_IN_A_SUMMARY = {
    *(r.ControllerRecord, r.ProducerIdsRecord, r.ZkMigrationStateRecord),
    *(r.BrokerRecord, r.BrokerRegistrationChangeRecord),
    *(r.PartitionChangeRecord, r.ClearElrRecord),
}
"""Their effects count where they make something worse: fences, partitions without a leader."""

SET_AGAIN_AS_IT_WAS = {"broker", "controller", "config", "quota", "feature"}
"""Kinds of entities whose removal a command or a restart undoes."""

NO_SIGN_OF_ANOTHER_LOG = {
    *(r.ClearElrRecord, r.UnregisterControllerRecord),
    *(r.RemoveAccessControlEntryRecord, r.RemoveUserScramCredentialRecord),
    *(r.EndTransactionRecord, r.AbortTransactionRecord),
}
"""Types that refer to others, and are too rare in a log to say whose it is."""

NOT_IN_THE_CONSOLE = {"migration", "topic"}
"""No cluster of today has the first; the tables of topics are built from the image's columns."""

STAY_WITHOUT_THEIR_TOPIC = {r.AccessControlEntryRecord}
"""As in Kafka: a topic's access control entries apply to the next one of that name."""

STAY_WITHOUT_THEIR_BROKER = {r.ProducerIdsRecord, r.ConfigRecord, r.AccessControlEntryRecord}
"""As in Kafka: ids are never given again, a broker's settings apply when it registers again, and no entry is
about a broker."""


def effects() -> Iterator[tuple[ReplayState, Any, ReplayState]]:
    """States around records of every type that changes the state (test_touched.py has one of each)."""
    state = after(ReplayState(), [record for name in WRITTEN_BY for record in WRITTEN_BY[name](3, 1)])
    records = [record for value in (2, 0, 1) for name in WRITTEN_BY for record in WRITTEN_BY[name](3, value)]
    for record in [*records, *MORE]:
        before, state = state, after(state, [record])
        if differing_parts(before.image, state.image, provenance=False):
            yield before, record, state


EFFECTS = list(effects())
FULL = after(ReplayState(), [*MORE[:-1], *(one for name in WRITTEN_BY for one in WRITTEN_BY[name](3, 1))])


def causes_of(before: ReplayState, record: Any) -> list[str]:
    feed = ChangeFeed(before.image)
    changes = feed.batch(1, 9, [(before.end_offset, record)])
    scene = Scene(batch=changes, feed=feed)
    found = [partition_causes(step, scene) for step in changes.partitions]
    found += [broker_causes(step, scene) for step in changes.brokers]
    return [cause.text for causes in found or [record_causes(record)] for cause in causes]


def test_every_type_has_a_first_level() -> None:
    missing = {one.__name__ for one in {*get_args(r.Record)} ^ VERSION_STEPS.keys()}
    assert not missing, (
        f"VERSION_STEPS (metadata/features.py) needs the levels at which they are written: {missing}"
    )


def test_every_type_has_a_cause_of_its_own() -> None:
    vague = {
        type(record).__name__
        for before, record, _ in EFFECTS
        if VAGUE.intersection(causes_of(before, record))
    }
    assert not vague, (
        f"log why has no cause of them (metadata/inspect/causes/records.py, brokers.py): {vague}"
    )


def test_a_record_of_any_type_that_repeats_what_is_set_changes_nothing() -> None:
    missed = set()
    for _, record, state in EFFECTS:
        feed = ChangeFeed(state.image)
        changes = feed.batch(1, 9, [(state.end_offset, record)])
        if changes.refused or differing_parts(state.image, feed.replayed().image, provenance=False):
            continue
        if state.end_offset not in changes.idle:
            missed.add(type(record))
    missing = {one.__name__ for one in missed ^ ALWAYS_A_CHANGE}
    assert not missing, (
        f"log why and timeline show it as a change: subject_key (changes/idle_records.py): {missing}"
    )


def test_a_summary_has_what_a_record_of_any_type_does() -> None:
    def sections(events: Any) -> list[Any]:
        summary = Summary()
        for event in events:
            summary.take(event)
        return [(one.name, one.text, one.rows) for one in summary.finish()]

    shown = set()
    for before, record, _ in EFFECTS:
        events = Timeline(before.image).batch(1, 9, [(before.end_offset, record)])
        if sections(events) != sections([]):
            shown.add(type(record))
    missing = {one.__name__ for one in {type(record) for _, record, _ in EFFECTS} - shown ^ NOT_IN_A_SUMMARY}
    assert not missing, f"_CHANGES or _ROWS (metadata/inspect/summary.py) needs the event of: {missing}"


def test_a_summary_counts_every_removal_and_names_those_that_cannot_be_undone() -> None:
    kinds, listed = set(), set()
    for before, record, state in EFFECTS:
        paths = {*entities_of(before.image)} - {*entities_of(state.image)}
        gone = {path.partition("/")[0] for path in paths} - {"migration"}  # it is over, not removed
        summary = Summary()
        for event in Timeline(before.image).batch(1, 9, [(before.end_offset, record)]):
            summary.take(event)
        sections = {one.name: one for one in summary.finish()}
        if gone:
            assert sections["changes"].figures, f"_CHANGES (summary/summary.py) lacks the end of {gone}"
            kinds |= gone
            if "removed" in sections:
                listed |= {"topic"} if "topic" in gone else gone  # its configuration goes with it
    assert kinds - listed == SET_AGAIN_AS_IT_WAS, "_removed (summary/summary.py)"


def test_what_fits_only_behind_another_record_shows_a_segment_of_another_log() -> None:
    refused = set()
    for record in [*(record for _, record, _ in EFFECTS), *(one() for one in NO_EFFECT)]:
        errors: list[Any] = []
        Replayer(on_error=errors.append).apply(record, 0, 1, 9)
        refused |= {type(record)} if errors else set()
    missing = {one.__name__ for one in refused - {*REFERRING} ^ NO_SIGN_OF_ANOTHER_LOG}
    assert not missing, f"REFERRING (metadata/inspect/repair/repair.py) lacks {missing}"


def effects_on(given: list[Any], removal: Any, **names: Any) -> Iterator[tuple[type, bool]]:
    """The types of which a record about an entity (its fields have these values) changes something, and
    whether that is gone when the entity is removed. `given`: what makes the entity."""
    start = after(ReplayState(), given)
    without = after(start, [removal])
    samples = [*MORE, *(one for name in WRITTEN_BY for one in WRITTEN_BY[name](3, 1))]
    for sample in samples:
        fields = {name: value for name, value in names.items() if hasattr(sample, name)}
        if not {*names} - {"resource_type", "broker_epoch", "epoch"} & {*fields}:
            continue
        changed = after(start, [replace(sample, **fields)])
        if type(sample) is type(removal) or not differing_parts(start.image, changed.image, provenance=False):
            continue
        left = after(changed, [removal]).image
        yield type(sample), not differing_parts(without.image, left, provenance=False)


def test_what_belongs_to_a_topic_goes_with_it() -> None:
    given = [
        r.TopicRecord("mine", b"m" * 16),
        r.PartitionRecord(0, b"m" * 16, (1,), (1,), leader=1, eligible_leader_replicas=(1,)),
    ]
    names = {"topic_id": b"m" * 16, "topic_name": "mine", "resource_type": 2, "resource_name": "mine"}
    found = [*effects_on(given, r.RemoveTopicRecord(b"m" * 16), **names)]
    assert {r.PartitionRecord, r.PartitionChangeRecord, r.ConfigRecord} <= {kind for kind, _ in found}
    left = {kind.__name__ for kind in {kind for kind, gone in found if not gone} ^ STAY_WITHOUT_THEIR_TOPIC}
    assert not left, f"remove_topic (metadata/meanings.py) leaves what they say of the topic: {left}"


def test_what_belongs_to_a_broker_goes_with_it() -> None:
    given = [r.BrokerRecord(4, b"b" * 16, 5)]
    names = {"broker_id": 4, "id": 4, "broker_epoch": 5, "epoch": 5, "resource_type": 4, "resource_name": "4"}
    found = [*effects_on(given, r.UnregisterBrokerRecord(4, 5), **names)]
    assert {r.UnfenceBrokerRecord, r.BrokerRegistrationChangeRecord} <= {kind for kind, _ in found}
    left = {kind.__name__ for kind in {kind for kind, gone in found if not gone} ^ STAY_WITHOUT_THEIR_BROKER}
    assert not left, f"what they say of a broker stays when it is unregistered (metadata/meanings.py): {left}"


def test_the_console_lists_every_kind_of_entity() -> None:
    found = FoundState(state=FULL)
    listed = {str(row["path"]).partition("/")[0] for _, rows in TABLES.values() for row in rows(found)}
    kinds = {path.partition("/")[0] for path in entities_of(FULL.image)}
    missing = kinds - listed ^ NOT_IN_THE_CONSOLE
    assert not missing, f"TABLES (console/tables.py) has no table of {missing}"
