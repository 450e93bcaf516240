"""Every part of the state: a delta names what differs in it, a snapshot says the quorum and has bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from metaquorum.broker.replica import topic_settings as reading
from metaquorum.cli.log.shell.session import Places
from metaquorum.metadata import snapshot
from metaquorum.metadata.delta import KeyChanges, MetadataDelta, diff
from metaquorum.metadata.features import LEVEL_ELR_RECORDS
from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataImage,
    differing_parts,
    images_equal,
)
from metaquorum.metadata.image.compare import PartitionChanges
from metaquorum.metadata.inspect.entities.views import (
    NO_QUORUM,
    changed_paths,
    entities_of,
    falls_with,
    fields_of,
    touched,
)
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import decode_control
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from metaquorum.metadata.records.types import ConfigRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.settings.configs import FILE_ONLY, NO_EFFECT, describe_resource, note_on, notes_on
from metaquorum.metadata.settings.resource_keys import TOPIC_KEYS
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.metadata.text.tree import image_tree
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.storage.types import LogPosition
from tests.unit.metadata.test_snapshot_files import image_of


def uuid(number: int) -> bytes:
    return number.to_bytes(2, "big") * 8


def topic(number: int, value: int) -> list[Any]:
    """Value 0 removes the topic, another one gives the name another id, with another number of partitions."""
    ids = [uuid(1 + number * 10 + each) for each in range(3)]
    made = [r.PartitionRecord(at, ids[value], (1, 2), (1,), leader=1, leader_epoch=0) for at in range(value)]
    return [*(r.RemoveTopicRecord(each) for each in ids), r.TopicRecord(f"t{number}", ids[value]), *made][
        : 3 if value == 0 else None
    ]


WRITTEN_BY: dict[str, Callable[[int, int], list[Any]]] = {
    "features": lambda n, v: [r.FeatureLevelRecord(f"f{n}", v)],
    "zk_migration_state_changed": lambda _, v: [r.ZkMigrationStateRecord(v)],
    "brokers": lambda n, v: [r.BrokerRecord(n, uuid(v), v) if v else r.UnregisterBrokerRecord(n, 1)],
    "controllers": lambda n, v: [
        r.ControllerRecord(n, uuid(v), False, (), ()) if v else r.UnregisterControllerRecord(n)
    ],
    "topics_added": topic,
    "topics_removed": topic,
    "partitions": lambda n, v: [
        r.PartitionChangeRecord(0, uuid(1 + n * 10 + at), leader=v) for at in range(3)
    ],
    "configs": lambda n, v: [r.ConfigRecord(2, f"c{n}", f"k{v % 2}", str(v) if v else None)],
    "quotas": lambda n, v: [
        r.ClientQuotaRecord((r.QuotaEntity("user", (None, "", "u", "w")[n]),), "rate", float(v), v == 0)
    ],
    "producer_ids_changed": lambda n, v: [r.ProducerIdsRecord(-1, -1, n * 3 + v)],
    "acls": lambda n, v: [
        r.AccessControlEntryRecord(uuid(n), v, "name", 3, "User:a", "*", 1, 2)
        if v
        else r.RemoveAccessControlEntryRecord(uuid(n))
    ],
    "scram": lambda n, v: [
        r.UserScramCredentialRecord(f"u{n}", 1, b"s", b"k", b"k", 4096 + v)
        if v
        else r.RemoveUserScramCredentialRecord(f"u{n}", 1)
    ],
    "delegation_tokens": lambda n, v: [
        r.DelegationTokenRecord("o", "r", (), 0, 1, v, f"t{n}")
        if v
        else r.RemoveDelegationTokenRecord(f"t{n}")
    ],
}
"""Records that change one part, by its name in the delta: entity 0 to 3, value 0 to 2, mostly 0 removes."""


def partitions_of(image: MetadataImage) -> dict[Any, Any]:
    every = (at for one in image.topics.all() for at in image.topics.partitions_of(one.topic_id))
    return {(at.topic_id, at.index): at for at in every}


SEEN: dict[str, Callable[[MetadataImage], Mapping[Any, Any]]] = {
    "features": lambda image: image.features.finalized,
    "brokers": lambda image: dict(image.brokers.items()),
    "controllers": lambda image: image.controllers,
    "partitions": partitions_of,
    **{
        name: lambda image, name=name: {  # type: ignore[misc]
            key: value for shard in getattr(image, name)._shards for key, value in shard.items()
        }
        for name in ("configs", "quotas", "acls", "scram", "delegation_tokens")
    },
}


def after(state: ReplayState, records: list[Any]) -> ReplayState:
    engine = Replayer(state, on_error=lambda error: None)
    engine.apply_records(base_offset=state.end_offset, epoch=1, timestamp_ms=5, records=records)
    return engine.state()


def assert_told(delta: MetadataDelta, old: MetadataImage, new: MetadataImage) -> None:
    told = {name: getattr(delta, name) for name in MetadataDelta.__struct_fields__}
    assert told.pop("old") is old and told.pop("new") is new
    some = []
    for name, seen in SEEN.items():
        changes: KeyChanges[Any] | PartitionChanges = told.pop(name)
        before, now = seen(old), seen(new)
        assert sorted(changes.added, key=repr) == sorted(now.keys() - before.keys(), key=repr), name
        assert sorted(changes.removed, key=repr) == sorted(before.keys() - now.keys(), key=repr), name
        both = [key for key in before.keys() & now.keys() if before[key] != now[key]]
        assert sorted(changes.changed, key=repr) == sorted(both, key=repr), name
        assert changes.is_empty == (before == now)
        some.append(before != now)
    names = [{one.name: one for one in image.topics.all()} for image in (old, new)]
    gone, came = ([one for name, one in a.items() if b.get(name) != one] for a, b in (names, names[::-1]))
    assert (list(told.pop("topics_removed")), list(told.pop("topics_added"))) == (gone, came)
    zk = old.features.zk_migration_state != new.features.zk_migration_state
    ids = old.producer_ids != new.producer_ids
    assert (told.pop("zk_migration_state_changed"), told.pop("producer_ids_changed")) == (zk, ids)
    assert told == {}
    assert delta.is_empty == (not any((*some, gone, came, zk, ids)))


@pytest.mark.parametrize("part", [*WRITTEN_BY, "all"])
def test_a_delta_names_in_every_part_what_differs(part: str) -> None:
    """A part alone, and all of them; against the image that it came from, and against a stranger."""
    rng = random.Random(part)
    every = list(WRITTEN_BY)
    differed = 0
    for _ in range(12):
        states = []
        first = [
            record for name in every for n in range(4) for record in WRITTEN_BY[name](n, rng.randrange(3))
        ]
        for start in (ReplayState(), after(ReplayState(), first), after(ReplayState(), first)):
            names = rng.choices(every, k=30) if part == "all" else [part] * rng.randrange(1, 6)
            records = [
                record for name in names for record in WRITTEN_BY[name](rng.randrange(4), rng.randrange(3))
            ]
            states.append(after(start, records))
            assert_told(diff(start.image, states[-1].image), start.image, states[-1].image)
            assert_told(diff(states[-1].image, start.image), states[-1].image, start.image)
            differed += differing_parts(start.image, states[-1].image, provenance=False) != []
        for old in states:
            for new in states:
                assert_told(diff(old.image, new.image), old.image, new.image)
    assert differed > 10


def test_every_part_has_records_that_change_it() -> None:
    parts = set(MetadataDelta.__struct_fields__) - {"old", "new"}
    assert WRITTEN_BY.keys() == parts, "WRITTEN_BY needs records of each part, SEEN how to read it"


# --- what people see


def changes_of(part: str) -> Iterator[tuple[MetadataImage, MetadataImage, list[Any]]]:
    """States before and after one entity of a part is set, changed or removed, and the records."""
    first = [record for name in WRITTEN_BY for n in range(4) for record in WRITTEN_BY[name](n, 1)]
    state = after(ReplayState(), first)
    for value in (2, 0, 1):
        records = WRITTEN_BY[part](3, value)
        before, state = state, after(state, records)
        if differing_parts(before.image, state.image, provenance=False):
            yield before.image, state.image, records


@pytest.mark.parametrize("part", WRITTEN_BY)
def test_the_tools_show_every_part(part: str) -> None:
    seen = 0
    for old, new, records in changes_of(part):
        is_shown = {**image_tree(old), "provenance": {}} != {**image_tree(new), "provenance": {}}
        assert is_shown, "log state does not show it: image_tree (metadata/text/tree.py)"
        paths = set(changed_paths(diff(old, new)))
        assert paths, "log diff does not show it: changed_paths (metadata/inspect/entities/views.py)"
        there = [(image, path) for image in (old, new) for path in paths if fields_of(image, path)]
        assert there, f"fields_of has none of {paths}: _READERS (metadata/inspect/entities/views.py)"
        for image, path in there:
            is_listed = path in entities_of(image)
            assert is_listed, f"{path} is not listed: entities_of (metadata/inspect/entities/views.py)"
            above, _, name = path.rpartition("/")
            places = Places(image, NO_QUORUM)
            assert name in places.children(above) and path.partition("/")[0] in places.children("")
        named = {path for record in records for path in touched(record, old, new)}
        named |= {path for record in records for one in named for path in falls_with(record, one, (old, new))}
        assert paths <= named, (
            f"log diff and history do not say that {records} changed {paths - named}: touched, or, of what "
            "goes with another entity, falls_with (metadata/inspect/entities/views.py)"
        )
        events = Timeline(old).batch(1, 9, list(enumerate(records, old.provenance.offset)))
        about = {name for event in events for name in (event.entity, *event.entities)}
        assert paths & about, (
            f"log timeline has no event of {paths}: security_event "
            "(metadata/inspect/timeline/event_groups.py)"
        )
        seen += 1
    assert seen > 0


# --- snapshots


def batches_in(content: list[bytes]) -> list[RecordBatch]:
    return list(iter_batches(b"".join(content), expected_offset=0))


def endpoint(number: int) -> VoterEndpoint:
    return VoterEndpoint(f"L{number}", f"host{number}", 9000 + number)


@pytest.mark.parametrize("voters", [0, 1, 2, 3, 5, 7, 130])
def test_a_snapshot_says_the_whole_quorum(voters: int) -> None:
    """After the header, in its batch, whatever the number of voters; two of them may share an id."""
    members = tuple(
        Voter(at // 2, uuid(at), tuple(endpoint(each) for each in range(at % 3))) for at in range(voters)
    )
    quorum = (KRaftVersionRecord(kraft_version=1), VotersRecord(voters=members))
    image = image_of(r.FeatureLevelRecord("metadata.version", 19), r.ConfigRecord(2, "t", "k", "v"))
    position = LogPosition(9, 50)
    for said in ((), quorum[:1], quorum):
        content = list(snapshot_batches(image, position=position, timestamp_ms=77, quorum=said))
        found = batches_in(content)
        assert {(one.header.leader_epoch, one.header.base_timestamp_ms) for one in found} == {(9, 77)}
        first, last = ([decode_control(raw.key, raw.value) for raw in found[at].records()] for at in (0, -1))
        assert first == [SnapshotHeaderRecord(77), *said]
        assert last == [SnapshotFooterRecord()]
        loaded = load_snapshot(content, position=position)
        assert images_equal(loaded, image, provenance=False)


@pytest.mark.parametrize("time", [-1, 0, 1, 2**41])
def test_a_snapshot_has_the_time_of_its_image_unless_another_is_given(time: int) -> None:
    image = image_of(r.ConfigRecord(2, "t", "k", "v"))
    image = image.with_provenance(msgspec.structs.replace(image.provenance, timestamp_ms=time))
    for given, expected in ((None, max(time, 0)), (time, max(time, 0)), (5, 5)):
        content = list(snapshot_batches(image, position=LogPosition(1, 9), timestamp_ms=given))
        found = batches_in(content)
        times = {
            each for one in found for each in (one.header.base_timestamp_ms, one.header.max_timestamp_ms)
        }
        assert times == {expected}
        assert load_snapshot(content, position=LogPosition(1, 9)).provenance.timestamp_ms == expected


def configs(sizes: list[int]) -> list[r.ConfigRecord]:
    return [r.ConfigRecord(2, f"t{at:05}", "k", "v" * size) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(("most_records", "most_bytes"), [(1, 10_000), (4, 10_000), (100, 120), (5, 110)])
def test_a_batch_of_plain_records_holds_as_many_as_it_may(
    monkeypatch: pytest.MonkeyPatch, most_records: int, most_bytes: int
) -> None:
    """The next record is one too many, or its bytes are; one that is too large by itself is alone."""
    monkeypatch.setattr(snapshot, "BATCH_RECORDS", most_records)
    monkeypatch.setattr(snapshot, "BATCH_BYTES", most_bytes)
    rng = random.Random(most_bytes)
    edges = [most_bytes - 40 + by for by in range(40)] if most_bytes < 1000 else []
    sizes = rng.choices([1, 2, 7, 30], k=60) + edges + [1, 1, 1]
    image = image_of(r.FeatureLevelRecord("metadata.version", LEVEL_ELR_RECORDS), *configs(sizes))
    content = list(snapshot_batches(image, position=LogPosition(1, 9)))
    assert images_equal(load_snapshot(content, position=LogPosition(1, 9)), image, provenance=False)
    plain = [one for one in batches_in(content) if not one.header.is_control][1:]  # without the level
    values = [[raw.value or b"" for raw in one.records()] for one in plain]
    full = []
    for batch, following in zip(values, [*values[1:], None], strict=True):
        held = sum(map(len, batch))
        assert len(batch) <= most_records and (held <= most_bytes or len(batch) == 1)
        if following is not None:
            many = len(batch) == most_records
            assert many or held + len(following[0]) > most_bytes
            full.append(many)
    assert any(full) or most_records == 100
    assert not all(full) or most_bytes == 10_000


# What is said about settings that are kept and change nothing yet.


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("cleanup.policy", "compact", None),
        ("min.cleanable.dirty.ratio", "0.1", None),
        ("cleanup.policy", "delete", None),
        ("cleanup.policy", "", None),
        ("compression.type", "zstd", None),
        ("compression.type", "producer", None),
        ("flush.messages", "1", "this is stored but has no effect yet"),
        ("flush.messages", "9223372036854775807", None),
        ("preallocate", "TRUE", "this is stored but has no effect yet"),
        ("retention.ms", "5", None),
        ("no.such.key", "5", None),
        ("compression.type", None, None),
    ],
)
def test_notes_on_topics(name: str, value: str | None, note: str | None) -> None:
    assert note_on(TOPIC_RESOURCE, name, value) == note


def test_notes_on_brokers_keys_behind_them() -> None:
    assert note_on(BROKER_RESOURCE, "log.cleanup.policy", "compact") == note_on(
        TOPIC_RESOURCE, "cleanup.policy", "compact"
    )
    assert note_on(BROKER_RESOURCE, "log.retention.hours", "5") is None


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("ssl.client.auth", "required", FILE_ONLY),
        ("listener.name.out.max.connections", "7", FILE_ONLY),
        ("max.connections", "7", FILE_ONLY),
        ("max.connections", str(2**31 - 1), None),
        ("num.io.threads", "9", NO_EFFECT),
        ("leader.replication.throttled.rate", "9", None),
        ("replica.alter.log.dirs.io.max.bytes.per.second", "9", None),
    ],
)
def test_what_brokers_take_only_from_their_files(name: str, value: str, note: str | None) -> None:
    assert note_on(BROKER_RESOURCE, name, value) == note
    assert note_on(BROKER_RESOURCE, name, value, in_file=True) == (None if note == FILE_ONLY else note)


def test_several_notes_are_one_line() -> None:
    values = [("flush.ms", "4"), ("retention.ms", "1"), ("preallocate", "true")]
    assert notes_on(TOPIC_RESOURCE, values) == (
        "flush.ms=4: this is stored but has no effect yet; "
        "preallocate=true: this is stored but has no effect yet"
    )
    assert notes_on(TOPIC_RESOURCE, [("retention.ms", "1")]) is None


def test_what_is_carried_out_is_what_brokers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what controllers act on, and what brokers' throttles read for themselves."""
    read: set[str] = set()
    plain = reading.topic_setting

    def noted(image: MetadataImage, topic: str, key: str, **more: object) -> str | None:
        read.add(key)
        return plain(image, topic, key, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "topic_setting", noted)
    reading.topic_settings(MetadataImage(), "t")
    throttled = {f"{side}.replication.throttled.replicas" for side in ("leader", "follower")}
    carried_out = {name for name, key in TOPIC_KEYS.items() if key.roles}
    assert read | throttled | {"unclean.leader.election.enable"} == carried_out < set(TOPIC_KEYS)


def test_a_description_says_so_whatever_the_source() -> None:
    """Also of a topic that has it from the default of all brokers."""
    record = ConfigRecord(resource_type=4, resource_name="", name="log.preallocate", value="true")
    image = image_of(record)
    topic = describe_resource(image, ConfigResource(TOPIC_RESOURCE, "t"), all_keys=True)
    noted = {entry.name: entry.note for entry in topic if entry.note}
    assert list(noted) == ["preallocate"] and "no effect" in noted["preallocate"]
    (shared,) = describe_resource(image, ConfigResource(BROKER_RESOURCE, ""))
    assert shared.note == noted["preallocate"]
