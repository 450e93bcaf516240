"""The voters of a quorum as a table: static, upgraded, changed, older than the log, and behind holes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.control import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.pipeline.intervals.tables.quorum import VoterPeriods
from metaquorum.storage.batches.batch import RecordBatch
from tests.unit.pipeline.intervals.telling import Line, batches, feed, leads, named, tables_of, told

NOOP: Line = (500, [r.NoOpRecord()])


def voter(node_id: int, port: int = 9093) -> Voter:
    endpoint = VoterEndpoint("CONTROLLER", f"c{node_id}", port)
    return Voter(node_id, bytes([node_id % 256]) * 16, (endpoint,), KRaftVersionFeature(0, 1))


def voters(*given: int | Voter) -> VotersRecord:
    return VotersRecord(tuple(one if isinstance(one, Voter) else voter(one) for one in given))


HISTORY: list[Line] = [
    (0, [leads(3000)]),  # 0: the static voters 3000, 3001
    NOOP,  # 1
    (510, [KRaftVersionRecord(1), voters(3000, 3001)]),  # 2, 3
    (520, [voters(3000, 3001, 3002)]),  # 4
    NOOP,  # 5
    (530, [voters(3000, voter(3001, 9193), 3002)]),  # 6
    (540, [leads(3001)]),  # 7: its voters are those that are known
    (550, [KRaftVersionRecord(1), voters(3000, voter(3001, 9193), 3002)]),  # 8, 9: the same again
    (560, [voters(voter(3001, 9193), 3002)]),  # 10
    NOOP,  # 11
]
EPOCHS = [1] * 6 + [2] * 4


def history() -> list[RecordBatch]:
    return batches(HISTORY, EPOCHS)


def facts(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("from_offset", "to_offset", "voters", "kraft_version", "epoch", "leader_id")
    return [tuple(row[name] for name in names) for row in rows]


def test_a_set_has_a_row_from_its_record_to_the_next() -> None:
    rows = told(history(), "voter_sets")
    assert facts(rows) == [
        (0, 3, (3000, 3001), 0, 1, 3000),
        (3, 4, (3000, 3001), 1, 1, 3000),
        (4, 6, (3000, 3001, 3002), 1, 1, 3000),
        (6, 10, (3000, 3001, 3002), 1, 1, 3000),
        (10, None, (3001, 3002), 1, 2, 3001),
    ]
    assert [row["changed"] for row in rows] == [
        None,
        "kraft.version 0 -> 1",
        "added 3002 (directory urq6urq6urq6urq6urq6ug) at c3002:9093",
        "3001 is at CONTROLLER://c3001:9193, before at CONTROLLER://c3001:9093",
        "removed 3000 (directory uLi4uLi4uLi4uLi4uLi4uA)",
    ]
    assert rows[0]["voter_set"] is None
    assert rows[-1]["voter_set"] == (
        "3001@c3001:9193:ubm5ubm5ubm5ubm5ubm5uQ",
        "3002@c3002:9093:urq6urq6urq6urq6urq6ug",
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_snapshot_says_is_older_than_the_log(dynamic: bool) -> None:
    """A trimmed log of a quorum: the epochs' row has the version and the voters, too."""
    lines: list[Line] = [(0, [r.NoOpRecord()] * 10), NOOP, (600, [voters(3000, 3001, 3002, 3003)])]
    given = batches(lines if dynamic else lines[:-1])
    view = QuorumView(kraft_version=1, voter_set=voters(3000, 3001, 3002).voters) if dynamic else QuorumView()
    replay = ClusterReplay("made", log_end=given[-1].header.next_offset)
    replay.begins(10)
    replay.learn(MetadataImage().with_provenance(Provenance(10, 1, 0)), view)
    rows = tables_of(feed(replay, given[1:]))
    sets = named("voter_sets", rows["voter_sets"])
    (epoch,) = named("quorum_epochs", rows["quorum_epochs"])
    if not dynamic:
        assert (sets, epoch["kraft_version"], epoch["last_voters"]) == ([], 0, ())
        return
    assert facts(sets) == [
        (10, 11, (3000, 3001, 3002), 1, None, None),
        (11, None, (3000, 3001, 3002, 3003), 1, 1, None),
    ]
    assert [row["from_known"] for row in sets] == [False, True]
    assert sets[1]["changed"] == "added 3003 (directory u7u7u7u7u7u7u7u7u7u7uw) at c3003:9093"
    assert (epoch["kraft_version"], epoch["last_voters"]) == (1, (3000, 3001, 3002, 3003))


def test_behind_a_hole_the_version_is_unknown_until_something_names_it() -> None:
    lines: list[Line] = [*HISTORY[:6], (600, [leads(3001)]), NOOP, (700, [voters(3000, 3002)])]
    given = batches(lines)
    replay = feed(ClusterReplay("made", log_end=1 << 62), given[:3])
    replay.begins(given[6].header.base_offset)
    rows = named("voter_sets", tables_of(feed(replay, given[6:]))["voter_sets"])
    assert facts(sorted(rows, key=lambda row: row["from_offset"])) == [
        (0, 3, (3000, 3001), 0, 1, 3000),
        (3, 4, (3000, 3001), 1, 1, 3000),
        (7, 9, (3000, 3001), None, 1, 3001),
        (9, None, (3000, 3002), 1, 1, 3001),
    ]
    assert [row["to_known"] for row in sorted(rows, key=lambda row: row["from_offset"])][:2] == [True, False]


def test_a_snapshot_without_voters_says_that_static_ones_are_configured() -> None:
    given = batches([(0, [r.NoOpRecord()] * 10), (10, [leads(3000)]), NOOP])
    replay = ClusterReplay("made", log_end=1 << 62)
    replay.begins(10)
    feed(replay, given[1:2])
    replay.learn(MetadataImage().with_provenance(Provenance(11, 1, 0)))
    rows = named("voter_sets", tables_of(feed(replay, given[2:]))["voter_sets"])
    assert facts(rows) == [(10, None, (3000, 3001), 0, 1, 3000)]


@pytest.mark.parametrize("cut", range(len(HISTORY)))
def test_a_later_run_goes_on_where_this_one_ended(cut: int) -> None:
    def run(sets: VoterPeriods, given: list[RecordBatch]) -> None:
        clock = ClusterReplay("made", log_end=0).trackers.clock
        for batch in given:
            if batch.header.is_control:
                moment = clock.moment(batch.header.base_offset, batch.header.max_timestamp_ms)
                sets.control(batch.header.leader_epoch, decode_batch(batch), moment)

    given, whole, before, after = history(), VoterPeriods(), VoterPeriods(), VoterPeriods()
    run(whole, given)
    run(before, given[:cut])
    after.load(msgspec.msgpack.decode(msgspec.msgpack.encode(before.save())))
    run(after, given[cut:])
    assert [*before.take(), *after.take(), *after.open_rows()] == [*whole.take(), *whole.open_rows()]
