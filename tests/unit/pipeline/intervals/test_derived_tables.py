"""Incidents, upgrades, placement and ids against what records and the other tables say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.pipeline.intervals.telling import (
    DAY_MS,
    ORDERS,
    Line,
    alive,
    batches,
    broker,
    change,
    feed,
    fence,
    leads,
    named,
    partition,
    read_log,
    replayed,
    tables_of,
    told,
)
from tests.unit.pipeline.intervals.test_violations import BASE, wild_record

GOLDEN = "kafka-3.7/controller-3000/__cluster_metadata-0"
Rows = dict[str, list[dict[str, Any]]]


def rows_of(given: list[RecordBatch]) -> Rows:
    return derived(replayed(given))


def derived(replay: ClusterReplay) -> Rows:
    return {
        name: named(name, rows)
        for name, rows in tables_of(replay).items()
        if name in ("incidents", "upgrades", "placement", "ids", "broker_sessions", "partition_states")
    }


def wild_story(seed: int) -> list[RecordBatch]:
    """Records that no correct controller writes, over some days."""
    rng, epochs = random.Random(f"derived {seed}"), {1: 1, 2: 2, 3: 3}
    lines: list[Line] = [
        (1000 + at * 7_000_000, [wild_record(rng, at, epochs) for _ in range(rng.choice((1, 1, 2, 30)))])
        for at in range(120)
    ]
    return batches([*BASE, *lines])


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> list[RecordBatch]:
    out = tmp_path_factory.mktemp("fleet")
    write_fleet(FleetPlan(clusters=1, records=6000, seed=5, damaged_every=0), out)
    (log,) = (out / CLUSTERS).glob("*/controller-3000/__cluster_metadata-0")
    return read_log(log)


@pytest.fixture(params=["golden", "synthetic", 0, 1, 2, 3])
def log(request: pytest.FixtureRequest) -> list[RecordBatch]:
    if request.param == "golden":
        return read_log(request.getfixturevalue("shared_data") / GOLDEN)
    if request.param == "synthetic":
        given: list[RecordBatch] = request.getfixturevalue("synthetic")
        return given
    return wild_story(request.param)


def out_of_service(sessions: list[dict[str, Any]]) -> Iterator[tuple[str, int, int | None, str | None]]:
    """(who, from, to, ended by) of each time that a broker was active and then not, or registered again."""
    by_broker: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(sessions, key=lambda row: row["from_offset"]):
        by_broker.setdefault(row["broker_id"], []).append(row)
    for broker_id, rows in by_broker.items():
        began = None
        for at, row in enumerate(rows):
            follows = at > 0 and rows[at - 1]["to_offset"] == row["from_offset"]
            was_active = follows and rows[at - 1]["state"] == "active"
            restarted = row["began_by"] == "REGISTER_BROKER_RECORD"
            if began is None and was_active and (row["state"] != "active" or restarted):
                began = row["from_offset"]
            if began is not None and row["state"] == "active":
                yield f"broker/{broker_id}", began, row["from_offset"], "returned"
                began = None
            goes_on = at + 1 < len(rows) and rows[at + 1]["from_offset"] == row["to_offset"]
            if row["to_offset"] is not None and not goes_on:
                if began is None and row["state"] == "active":
                    began = row["to_offset"]
                if began is not None:
                    yield f"broker/{broker_id}", began, row["to_offset"], "unregistered"
                began = None
        if began is not None:
            yield f"broker/{broker_id}", began, None, None


def test_every_time_that_a_broker_was_out_is_one_incident(log: list[RecordBatch]) -> None:
    rows = rows_of(log)
    found = [
        (row["who"], row["from_offset"], row["to_offset"], row["ended_by"])
        for row in rows["incidents"]
        if row["what"] == "broker-out"
    ]
    assert sorted(found, key=repr) == sorted(out_of_service(rows["broker_sessions"]), key=repr)
    assert found


def events_of(given: list[RecordBatch]) -> dict[tuple[int, str], set[str | None]]:
    """Rules of the events of `metaquorum log timeline`, by offset and entity."""
    timeline = Timeline()
    found: dict[tuple[int, str], set[str | None]] = {}
    for batch in given:
        header = batch.header
        records = [(at.offset, at.record) for at in decode_batch(batch, tolerant=True)]
        for event in timeline.batch(header.leader_epoch, header.max_timestamp_ms, records):
            found.setdefault((event.offset, event.entity), set()).add(event.rule)
    return found


@pytest.mark.parametrize("which", ["golden", "synthetic"])
def test_causes_are_those_of_the_log_tools(which: str, request: pytest.FixtureRequest) -> None:
    if which == "golden":
        given = read_log(request.getfixturevalue("shared_data") / GOLDEN)
    else:
        given = request.getfixturevalue("synthetic")
    events, compared = events_of(given), Counter[str]()
    by_record = ("controlled-shutdown", "broker-restarted", "registered-again", "broker-unregistered")
    for row in rows_of(given)["incidents"]:
        cause = row["cause"]
        if row["what"] == "quorum-silent":
            assert cause is None
            continue
        if row["what"] == "leader-changed":
            told_there = [found for (offset, _), found in events.items() if offset == row["to_offset"]]
            rules = set[str | None]().union(*told_there)
        else:
            rules = events[row["from_offset"], row["who"]]
        assert cause in rules or cause in by_record, (row, rules)
        compared[cause] += 1
    assert {"session-expired", "directory-failed", "controlled-shutdown"} <= compared.keys()
    assert compared.keys() & {"leader-lost", "leader-resigned", "leader-replaced"}


def test_partitions_are_counted_for_what_hurt_them() -> None:
    """A split fence: leaderships are taken in batches before the one that says why."""
    topic = b"T" * 16
    given = batches(
        [
            (0, [leads(3000)]),
            (0, [r.FeatureLevelRecord("metadata.version", 19)]),
            (0, [broker(1, 1), broker(2, 2), broker(3, 3)]),
            (0, [alive(1, 1), alive(2, 2), alive(3, 3)]),
            (0, [r.TopicRecord("t", topic), *[partition(at, (1, 2, 3), topic) for at in range(5)]]),
            (500, [change(4, topic, leader=2)]),  # by preference: broker 1 could have gone on
            (1000, [change(0, topic, isr=(2, 3), leader=2), change(1, topic, isr=(1,), leader=-1)]),
            (1200, [change(2, topic, isr=(2, 3), leader=2), fence(1, 1)]),
            (1300, [change(3, topic, isr=(2, 3), leader=2)]),
            (9000, [alive(1, 1), change(1, topic, leader=1)]),
            (9500, [change(0, topic, isr=(2,))]),
        ]
    )
    (row,) = told(given, "incidents")
    assert (row["who"], row["cause"], row["ended_by"]) == ("broker/1", "fenced-early", "returned")
    assert (row["partitions"], row["leaders"], row["leaderless"], row["leaderless_ms"]) == (4, 4, 1, 8000)


def test_a_lost_directory_hurts_what_was_in_it() -> None:
    dirs = (b"A" * 16, b"B" * 16)
    given = batches(
        [
            (0, [leads(3000)]),
            (0, [broker(1, 1, dirs=dirs), broker(2, 2), broker(3, 3)]),
            (0, [alive(1, 1), alive(2, 2), alive(3, 3)]),
            (
                0,
                [r.TopicRecord("orders", ORDERS), partition(0, (1, 2, 3)), partition(1, (1, 2, 3))],
            ),
            (
                5,
                [
                    r.BrokerRegistrationChangeRecord(1, 1, log_dirs=(b"B" * 16,)),
                    change(0, isr=(2, 3), leader=2),
                ],
            ),
            (50, [broker(1, 90, dirs=dirs)]),
        ]
    )
    lost, out = told(given, "incidents")
    assert (lost["what"], lost["cause"], lost["partitions"], lost["leaders"]) == (
        *("directory-lost", "directory-failed"),
        *(1, 1),
    )
    assert (lost["to_offset"], out["what"], out["cause"]) == (
        out["from_offset"],
        "broker-out",
        "registered-again",
    )


def test_the_placement_of_every_day_is_what_partitions_say(log: list[RecordBatch]) -> None:
    rows = rows_of(log)
    end_of = {batch.header.base_offset: batch.header.next_offset - 1 for batch in log}
    days: dict[int, list[dict[str, Any]]] = {}
    for row in rows["placement"]:
        days.setdefault(row["time"] // DAY_MS, []).append(row)
    assert len(days) > 0
    for told_rows in days.values():
        last = end_of[told_rows[0]["offset"]]

        def holds(row: dict[str, Any], last: int = last) -> bool:
            return row["from_offset"] <= last and (row["to_offset"] is None or row["to_offset"] > last)

        now = [row for row in rows["partition_states"] if holds(row)]
        sessions = {row["broker_id"]: row for row in rows["broker_sessions"] if holds(row)}
        leaders = Counter(row["leader"] for row in now)
        replicas = Counter(at for row in now for at in row["replicas"])
        stored = Counter(
            (at, where) for row in now for at, where in zip(row["replicas"], row["directories"], strict=False)
        )
        assert [row["broker_id"] for row in told_rows] == sorted({*sessions, *replicas})
        for row in told_rows:
            at = row["broker_id"]
            assert (row["leaders"], row["replicas"]) == (leaders[at], replicas[at])
            assert row["preferred"] == sum(one["replicas"][:1] == (at,) for one in now)
            assert row["in_sync"] == sum(one["isr"].count(at) for one in now)
            assert row["state"] == (sessions[at]["state"] if at in sessions else None)
            for name, count in zip(row["directories"], row["directory_replicas"], strict=True):
                assert count == stored[at, name]
            mean = sum(replicas[one["broker_id"]] for one in told_rows) / len(told_rows)
            assert row["replicas_to_mean"] == (pytest.approx(replicas[at] / mean) if mean else None)


def test_ids_and_upgrades_are_what_registrations_say(log: list[RecordBatch]) -> None:
    homes: dict[int, list[Any]] = {}
    levels: dict[str, list[int]] = {}
    open_now = set()
    engine = Replayer(ReplayState(MetadataImage()), on_error=lambda error: None)
    for batch in log:
        header, touched = batch.header, set()
        for at in decode_batch(batch, tolerant=True):
            if not header.is_control and not isinstance(at.record, r.UnknownRecord):
                engine.apply(at.record, at.offset, header.leader_epoch, header.max_timestamp_ms)
            if isinstance(at.record, r.BrokerRecord | r.UnregisterBrokerRecord):
                touched.add(at.record.broker_id)
        for name, level in engine.builder.finalized.items():
            if name not in levels or levels[name][-1] != level:
                levels.setdefault(name, []).append(level)
        for broker_id in touched:
            now = engine.builder.brokers.get(broker_id)
            if now is None:
                open_now.discard(broker_id)
                continue
            hosts = tuple(sorted({one.host for one in now.endpoints}))
            home = (hosts, now.rack, tuple(sorted(map(uuid_to_text, now.directories))))
            if broker_id not in open_now or homes[broker_id][-1] != home:
                homes.setdefault(broker_id, []).append(home)
            open_now.add(broker_id)
    rows = rows_of(log)
    found: dict[int, list[Any]] = {}
    for row in sorted(rows["ids"], key=lambda row: row["from_offset"]):
        home = (row["hosts"], row["rack"], row["directories"])
        before = found.setdefault(row["broker_id"], [])
        parts = zip(("hosts", "rack", "directories"), before[-1] if before else (), home, strict=False)
        assert row["moved"] == (",".join(name for name, was, now in parts if was != now) if before else None)
        before.append(home)
    assert found == homes
    features: dict[str, list[int]] = {}
    for row in sorted(rows["upgrades"], key=lambda row: row["from_offset"]):
        if row["what"] == "feature":
            assert row["level_before"] == (features.get(row["name"], [None])[-1])
            features.setdefault(row["name"], []).append(row["level"])
    assert features == levels


def test_a_snapshot_says_what_is_so_and_not_since_when(shared_data: Path) -> None:
    given = read_log(shared_data / GOLDEN)
    cut = next(at for at, batch in enumerate(given) if batch.header.base_offset >= 1_500)
    whole = replayed(given[:cut])
    image = whole.image
    later = feed(ClusterReplay("made", log_end=4758, snapshot=image), given[cut:])
    rows = derived(later)
    start = image.provenance.offset
    for name in ("incidents", "upgrades", "ids"):
        older = [row for row in rows[name] if row["from_offset"] == start]
        assert older and not any(row["from_known"] for row in older), name
    later_ones = [row for row in rows_of(given)["incidents"] if row["from_offset"] > start]
    brokers = {row["who"] for row in later_ones if row["what"] == "broker-out"}
    assert brokers <= {row["who"] for row in rows["incidents"] if row["from_offset"] > start}
    end = {row["broker_id"]: row["replicas"] for row in rows["placement"]}
    assert end == {0: 274, 1: 262, 2: 246}


# Settings go with their topic, and with no other one.


NAMES = ("a", "b", "c")
IDS = {name: name.encode() * 16 for name in NAMES}


@pytest.mark.parametrize("removed", NAMES)
def test_the_settings_of_a_topic_end_with_it_alone(removed: str) -> None:
    settings = [(2, name) for name in NAMES] + [(4, ""), (4, "1"), (32, "b"), (16, "c")]
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, [broker(1, 1)]),
        (0, [r.TopicRecord(name, IDS[name]) for name in NAMES]),
        (10, [r.ConfigRecord(kind, name, "min.insync.replicas", "2") for kind, name in settings]),
        (20, [r.ConfigRecord(2, removed, "retention.ms", "5")]),
        (30, [r.RemoveTopicRecord(IDS[removed])]),
    ]
    rows = told(batches(lines), "configs")
    ended = [
        (row["resource_type"], row["resource"], row["name"]) for row in rows if row["to_offset"] is not None
    ]
    assert len(rows) == len(settings) + 1
    assert sorted(ended) == [("topic", removed, name) for name in ("min.insync.replicas", "retention.ms")]
