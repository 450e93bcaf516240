"""The recorded quorum's scenario as tables: each of its steps, at the offsets that its README names."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.replay import ReplayState
from metaquorum.storage.uuids import uuid_to_text
from tests.images import replay_all
from tests.unit.pipeline.intervals.telling import named, read_log, replayed, tables_of, told

pytestmark = pytest.mark.shared_data
GOLDEN = "kafka-3.7/controller-3000/__cluster_metadata-0"


@pytest.fixture(scope="module")
def tables(shared_data: Path) -> Any:
    given = read_log(shared_data / GOLDEN)
    return {
        name: told(given, name)
        for name in (
            *("quorum_epochs", "broker_sessions", "partition_states", "topics", "configs"),
            *("log_dir_events", "failovers", "violations"),
        )
    }


def test_no_row_ends_before_it_begins(shared_data: Path) -> None:
    seen = set()
    tables = tables_of(replayed(read_log(shared_data / GOLDEN)))
    del tables["availability"]  # rows of days
    for name, rows in tables.items():
        for row in named(name, rows):
            if row.get("to_offset") is not None and row.get("from_offset") is not None:
                seen.add(name)
                assert row["to_offset"] >= row["from_offset"], (name, row)
    assert {"failovers", "partition_states", "broker_sessions", "topics", "configs"} <= seen


def test_the_epochs_and_their_leaders(tables: Any) -> None:
    found = [(row["epoch"], row["leader_id"], row["from_offset"]) for row in tables["quorum_epochs"]]
    assert found == [(3, 3000, 0), (5, 3001, 2016), (6, 3000, 2070)]


def test_the_lost_directory(tables: Any) -> None:
    (lost,) = [row for row in tables["log_dir_events"] if row["event"] == "offline" and row["offset"] < 2000]
    assert (lost["offset"], lost["broker_id"]) == (1319, 0)
    at = [
        row for row in tables["failovers"] if row["cause"] == "directory-failed" and row["from_offset"] < 1320
    ]
    leaderless = [row for row in at if row["duration_ms"] != 0]
    assert len(leaderless) == 4


def test_the_unclean_election(tables: Any) -> None:
    (found,) = [row for row in tables["partition_states"] if row["unclean"]]
    assert (found["topic"], found["partition"], found["leader"], found["recovering"]) == (
        "unclean",
        0,
        2,
        True,
    )


def test_the_unregistered_broker(tables: Any) -> None:
    last = [row for row in tables["broker_sessions"] if row["broker_id"] == 3][-1]
    assert (last["to_offset"], last["ended_by"]) == (2323, "UNREGISTER_BROKER_RECORD")


def test_the_states_at_the_end_are_those_of_the_replay(tables: Any, shared_data: Path) -> None:
    image = replay_all(ReplayState(), read_log(shared_data / GOLDEN)).image
    expected = {
        (uuid_to_text(topic.topic_id), at.index): (at.leader, at.isr, at.replicas, at.partition_epoch)
        for topic in image.topics.all()
        for at in image.topics.partitions_of(topic.topic_id)
    }
    found = {
        (row["topic_id"], row["partition"]): (
            row["leader"],
            row["isr"],
            row["replicas"],
            row["partition_epoch"],
        )
        for row in tables["partition_states"]
        if row["to_offset"] is None
    }
    assert found == expected
    topics = {row["topic"] for row in tables["topics"] if row["to_offset"] is None}
    assert topics == {topic.name for topic in image.topics.all()}


def test_intervals_of_one_partition_follow_each_other(tables: Any) -> None:
    by_key: dict[Any, list[Any]] = {}
    for row in tables["partition_states"]:
        by_key.setdefault((row["topic_id"], row["partition"]), []).append(row)
    for rows in by_key.values():
        rows.sort(key=lambda row: row["from_offset"])
        for before, after in itertools.pairwise(rows):
            assert before["to_offset"] == after["from_offset"]
            assert after["partition_epoch"] > before["partition_epoch"]


def test_nothing_in_it_is_broken(tables: Any) -> None:
    assert tables["violations"] == []
