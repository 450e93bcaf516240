"""Salvage: who knows most, what may be missing, and whether a controller starts on what is written."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.checks.check import check_log
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.repair.log_copy import node_files
from metaquorum.metadata.inspect.repair.salvage import (
    EPOCH_MARGIN,
    NewVoter,
    Ranking,
    Survivor,
    examine,
    rank,
    what_is_missing,
    write_voters,
)
from metaquorum.metadata.inspect.walk.states import state_at, with_quorum
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    store_meta_properties,
)
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.conftest import needs_shared_data, shared_data_path
from tests.unit.metadata.made_logs import (
    CLUSTER,
    START_MS,
    STORY,
    Batch,
    add_snapshot,
    all_files,
    flip,
    image_of,
    images_equal,
    leads,
    make_node,
    memory_disk,
    strict,
    write,
)

ROOT = shared_data_path() or Path("absent")
RECORDED = sorted({path.parent for path in ROOT.rglob("__cluster_metadata-0/partition.metadata")})
NO_OP: Batch = (2, [r.NoOpRecord()])


def survivor(disk: Disk, node_id: int, batches: list[Batch], **more: object) -> Survivor:
    node = make_node(disk, batches, home=f"/{node_id}", node_id=node_id, **more)  # type: ignore[arg-type]
    return examine(node)


def voter(node_id: int) -> NewVoter:
    return NewVoter(node_id=node_id, host="127.0.0.1", port=9093, directory_id=node_id.to_bytes(16, "little"))


def test_a_later_epoch_counts_more_than_a_longer_log() -> None:
    disk = memory_disk()
    long = survivor(disk, 3000, [*STORY[:7], *[(1, [r.NoOpRecord()])] * 20])
    newer = survivor(disk, 3001, STORY)
    shorter = survivor(disk, 3002, STORY[:-2])
    ranking = rank([long, shorter, newer])
    assert [one.node_id for one in ranking.survivors] == [3001, 3002, 3000]
    assert [one.end for one in ranking.survivors] == [
        LogPosition(2, 15),
        LogPosition(2, 13),
        LogPosition(1, 31),
    ]
    assert ranking.voters == (3000, 3001, 3002)
    (warning,) = ranking.warnings
    assert "/3000 has offsets 11 to 30 of epoch 1 that the best log lacks" in warning


def test_a_prefix_is_no_divergence() -> None:
    disk = memory_disk()
    ranking = rank([survivor(disk, 3000, STORY), survivor(disk, 3001, STORY[:5])])
    assert ranking.warnings == []


def test_with_a_majority_nothing_committed_is_missing() -> None:
    disk = memory_disk()
    ranking = rank([survivor(disk, 3000, STORY), survivor(disk, 3001, STORY[:-1])])
    assert ranking.has_majority
    assert "no committed record: 2 of the 3 voters" in what_is_missing(ranking)[0]


def test_without_a_majority_it_says_from_where_and_when_records_may_be_missing() -> None:
    ranking = rank([survivor(memory_disk(), 3001, STORY, quorum_epoch=5)])
    assert not ranking.has_majority
    lines = what_is_missing(ranking)
    assert "from offset 15 on: voters 3000, 3002 are gone, and the 2 of 3" in lines[0]
    assert "the newest record here is from 2026-11-18T" in lines[1]
    assert "know of epoch 5, but the best log ends in epoch 2" in lines[2]
    assert ranking.first_epoch == 5 + EPOCH_MARGIN


def test_only_whole_logs_of_more_than_half_of_the_voters_hold_all_that_was_committed() -> None:
    disk, ids = memory_disk(), (3000, 3001, 3002, 3003, 3004)
    found = [survivor(disk, node_id, STORY) for node_id in ids]
    damage = Damage(file="x.log", position=0, offset=15, reason="torn")
    for voters, here in itertools.product(range(1, 6), range(1, 6)):
        for damaged in range(here + 1):
            left = [replace(each, damage=damage) for each in found[:damaged]] + found[damaged:here]
            ranking = Ranking(survivors=left, voters=ids[:voters])
            whole = max(0, min(here, voters) - damaged)
            assert ranking.has_majority is (whole >= voters // 2 + 1), (voters, here, damaged)


def test_the_new_quorum_begins_after_every_epoch_that_a_survivor_has_heard_of() -> None:
    """From its log, from a vote, or from its table of epochs; also a survivor that lags."""
    disk = memory_disk()
    best = survivor(disk, 3000, STORY, quorum_epoch=3)
    assert rank([best]).first_epoch == 3 + EPOCH_MARGIN
    voted = survivor(disk, 3001, STORY[:-2], quorum_epoch=9)
    assert rank([best, voted]).best is best
    assert rank([best, voted]).first_epoch == 9 + EPOCH_MARGIN
    node = make_node(disk, STORY[:-2], home="/3002", node_id=3002)
    table = EpochTable(((1, 0), (2, 11), (12, 13)))
    write_atomically(disk, join(node.log.directory, EPOCHS_FILE), table.encode())
    assert rank([best, examine(node)]).first_epoch == 12 + EPOCH_MARGIN


def test_a_broker_counts_as_an_observer_and_may_know_most() -> None:
    disk = memory_disk()
    controller, broker = survivor(disk, 3000, STORY[:-1]), survivor(disk, 7, STORY)
    ranking = rank([controller, broker])
    assert ranking.best.node_id == 7
    assert ranking.found_voters == [3000]
    assert not any("may never have been committed" in line for line in what_is_missing(ranking))


def test_only_what_lies_before_damage_counts() -> None:
    disk = memory_disk()
    node = make_node(disk, STORY, home="/3000")
    flip(node, 4)
    found = examine(node)
    assert found.end == LogPosition(1, 4)
    whole = survivor(disk, 3001, STORY[:6])
    ranking = rank([found, whole])
    assert ranking.best is whole
    assert "/3000: nothing after offset 4 is used" in ranking.warnings[0]
    assert "metaquorum log repair /3000 --past-corruption --to NEW" in ranking.warnings[0]


def test_an_index_whose_log_is_gone_ends_nothing() -> None:
    disk = memory_disk()
    node = make_node(disk, STORY, home="/3000")
    whole = examine(node)
    for suffix in (".index", ".timeindex", ".snapshot"):
        write(disk, join(node.log.directory, segment_name(3).replace(".log", suffix)), b"left")
    found = examine(node_files(open_log(disk, "/3000")))
    assert (found.end, found.damage) == (whole.end, None)


def test_what_cannot_be_salvaged_is_refused() -> None:
    disk = memory_disk()
    one = survivor(disk, 3000, STORY)
    with pytest.raises(InspectError, match="there is no directory"):
        rank([])
    other = make_node(disk, STORY, home="/other", cluster_id="5CFVjtVmQeSY-MmKFTuhYA")
    with pytest.raises(InspectError, match="belong to different clusters"):
        rank([one, examine(other)])
    empty = node_files(open_log(disk, "/3000"))
    disk.remove(join(empty.log.directory, segment_name(0)))
    disk.open_append(join(empty.log.directory, segment_name(0))).close()
    with pytest.raises(InspectError, match="holds no complete record"):
        examine(empty)


def test_a_vote_for_dynamic_voters_in_the_log_is_seen() -> None:
    batches: list[Batch] = [(1, [leads(3000)]), (1, [KRaftVersionRecord(1)])]
    made = make_node(memory_disk(), [batches[0]])
    assert isinstance(leads(1), LeaderChangeMessage)
    assert examine(made).quorum.voters == (3000, 3001, 3002)
    assert QuorumView().after(1, ()).kraft_version == 0


def test_new_voters_hold_the_best_log_and_no_vote() -> None:
    disk = memory_disk()
    best = survivor(disk, 3001, STORY, per_segment=4)
    add_snapshot(best.files, 10)
    ranking = rank([examine(best.files), survivor(disk, 3000, STORY[:3])])
    homes = ["/new/controller-1", "/new/controller-2"]
    image = write_voters(ranking, [voter(1), voter(2)], homes, CLUSTER)
    assert images_equal(image, image_of(best.files.log))
    for node_id, home in zip((1, 2), homes, strict=True):
        inner = join(home, METADATA_DIRECTORY)
        assert load_quorum_state(disk, inner) == QuorumState(epoch=2 + EPOCH_MARGIN, voters=(1, 2))
        identity = load_meta_properties(disk, home)
        assert (identity.cluster_id, identity.node_id) == (CLUSTER, node_id)
        assert identity.directory_id == voter(node_id).directory_id
        log = open_log(disk, home)
        assert [one.data for one in strict(log)] == [one.data for one in strict(best.files.log)]
        assert log.snapshots() == [LogPosition(1, 10)]
        warnings: list[str] = []
        store = ReplicaStore.open(disk, home, None, warnings.append, voter_ids=(1, 2))
        assert store.recovered().epoch == 2 + EPOCH_MARGIN
        assert store.recovered().voted_id is None
        assert store.recovered().log_end_offset == 15
        store.close()
        assert warnings == []


def test_a_torn_tail_is_left_out_of_what_is_written() -> None:
    disk = memory_disk()
    node = make_node(disk, [*STORY, NO_OP], home="/3000")
    path = join(node.log.directory, segment_name(0))
    file = disk.open_append(path)
    file.truncate(file.size() - 3)
    file.sync()
    file.close()
    write_voters(rank([examine(node)]), [voter(1)], ["/new"], CLUSTER)
    assert open_log(disk, "/new").end_offset == 15
    assert strict(open_log(disk, "/new"))


def test_a_state_that_cannot_be_replayed_is_to_be_repaired_first() -> None:
    poison: list[Batch] = [*STORY, (2, [r.PartitionChangeRecord(9, bytes(16), leader=1)])]
    ranking = rank([survivor(memory_disk(), 3000, poison)])
    with pytest.raises(InspectError, match=r"repair that directory first \(metaquorum log repair\)"):
        write_voters(ranking, [voter(1)], ["/new"], CLUSTER)


@needs_shared_data
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: "/".join(path.relative_to(ROOT).parts[:-1]))
def test_every_recorded_log_can_be_the_last_survivor(path: Path, tmp_path: Path) -> None:
    kept = all_files(path)
    disk = PosixDisk()
    node = node_files(open_log(disk, str(path)))
    try:
        ranking = rank([examine(node)])
    except InspectError as error:
        assert "synthetic-oddities" in str(path) or "dynamic" in str(error)
        return
    home = str(tmp_path / "new")
    write_voters(ranking, [voter(1)], [home], CLUSTER)
    assert all_files(path) == kept
    log = open_log(disk, home)
    assert images_equal(state_at(log).image, state_at(node.log).image)
    assert log.snapshots() == node.log.snapshots()
    for base in log.segments:
        name = segment_name(base)
        assert read_file(disk, join(log.directory, name)) == kept[name]
    with ReplicaStoreClosed(disk, home) as store:
        assert store.recovered().epoch == ranking.first_epoch


class ReplicaStoreClosed:
    """A directory opened as a controller opens it, and closed."""

    def __init__(self, disk: Disk, home: str) -> None:
        self._store = ReplicaStore.open(disk, home, None, voter_ids=(1,))

    def __enter__(self) -> ReplicaStore:
        return self._store

    def __exit__(self, *failure: object) -> None:
        self._store.close()


@needs_shared_data
@pytest.mark.parametrize("folder", ["kafka-3.3-three-nodes-lagging", "kafka-3.7-three-nodes-lagging"])
def test_members_that_lag_rank_behind_and_diverge_nowhere(folder: str) -> None:
    paths = [path for path in RECORDED if folder in str(path)]
    ranking = rank([examine(node_files(open_log(PosixDisk(), str(path)))) for path in paths])
    ends = [one.end for one in ranking.survivors]
    assert len(ends) == 3
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > ends[-1]
    assert ranking.warnings == []
    assert ranking.has_majority


def test_a_snapshot_behind_damage_is_as_new_as_its_last_record() -> None:
    node = make_node(memory_disk(), STORY, home="/3000")
    (last,) = (one for one in strict(node.log) if one.header.next_offset == 10)
    add_snapshot(node, 10)
    flip(node, 4)
    found = examine(node)
    assert found.end == LogPosition(1, 10)
    assert found.time_ms == last.header.max_timestamp_ms


# ---- dynamic voters

NOW_MS = START_MS + 60_000
OLD_VOTERS = tuple(
    Voter(
        node_id,
        bytes([node_id]) * 16,
        (VoterEndpoint("QUORUM", f"old{node_id}", 9093),),
        KRaftVersionFeature(0, 1),
    )
    for node_id in (1, 2, 3)
)
DYNAMIC: list[Batch] = [
    (1, [leads(1, (1, 2, 3))]),
    (1, [KRaftVersionRecord(1), VotersRecord(OLD_VOTERS)]),
    (1, [r.FeatureLevelRecord("metadata.version", 21)]),
    (1, [r.NoOpRecord()]),
]


def test_new_dynamic_voters_are_the_last_record_of_the_log() -> None:
    disk = memory_disk()
    ranking = rank([survivor(disk, 1, DYNAMIC)])
    assert ranking.voters == (1, 2, 3)
    homes = ["/new/8", "/new/7"]
    write_voters(ranking, [voter(8), voter(7)], homes, CLUSTER, kraft_version=1, now_ms=NOW_MS)
    first_epoch = 1 + EPOCH_MARGIN
    ends = []
    for home in homes:
        inner = join(home, METADATA_DIRECTORY)
        stored = read_file(disk, join(inner, "quorum-state"))
        assert stored == QuorumState(epoch=first_epoch).encode(1) and b"currentVoters" not in stored
        log = open_log(disk, home)
        *copied, last = strict(log)
        assert [one.data for one in copied] == [one.data for one in strict(ranking.best.files.log)]
        assert (last.header.leader_epoch, last.header.base_offset) == (first_epoch, 5)
        assert last.header.max_timestamp_ms == NOW_MS
        found = with_quorum(log, state_at(log)).quorum
        assert (found.kraft_version, found.voters, found.leader_id) == (1, (7, 8), 1)
        ids = [one.voter_directory_id for one in found.voter_set]
        assert ids == [voter(7).directory_id, voter(8).directory_id]
        assert found.voter_set[0].endpoints == (VoterEndpoint("QUORUM", "127.0.0.1", 9093),)
        warnings = [(one.rule, one.severity) for one in check_log(log).findings]
        assert warnings == [("voters-have-a-leader", "warning")]
        store = ReplicaStore.open(disk, home, None, warnings.append)  # type: ignore[arg-type]
        assert (store.recovered().epoch, store.recovered().log_end_offset) == (first_epoch, 7)
        store.close()
        ends.append(last.data)
    assert ends[0] == ends[1]
    # What was salvaged can be salvaged again.
    again = rank([examine(node_files(open_log(disk, home))) for home in homes])
    assert (again.voters, again.has_majority, again.warnings) == ((7, 8), True, [])
    assert again.best.end == LogPosition(first_epoch, 7)


@pytest.mark.parametrize("kraft_version", [0, 1])
@pytest.mark.parametrize("log", ["damaged", "empty"])
def test_a_snapshot_beyond_the_log_is_what_new_voters_begin_with(log: str, kraft_version: int) -> None:
    disk = memory_disk()
    node = make_node(disk, [*DYNAMIC, NO_OP, NO_OP], home="/1", node_id=1)
    add_snapshot(node, 6)
    if log == "damaged":
        flip(node, 3)  # sound batches are between it and the snapshot's end
    else:
        disk.remove(join(node.log.directory, segment_name(0)))
        write(disk, join(node.log.directory, segment_name(6)), b"")
    survivor = examine(node_files(open_log(disk, "/1")))
    assert (survivor.end, survivor.holds_batches) == (LogPosition(2, 6), False)
    write_voters(rank([survivor]), [voter(1)], ["/new"], CLUSTER, kraft_version=kraft_version, now_ms=NOW_MS)
    warnings: list[str] = []
    static = () if kraft_version else (1,)
    store = ReplicaStore.open(disk, "/new", None, warnings.append, voter_ids=static)
    found = store.recovered()
    store.close()
    assert (found.log_start_offset, found.snapshots) == (6, (LogPosition(2, 6),))
    first_epoch = 2 + EPOCH_MARGIN
    assert (found.epochs, found.log_end_offset) == (
        (((first_epoch, 6),), 8) if kraft_version else (((2, 6),), 6)
    )
    assert warnings == []
    assert not [one for one in check_log(open_log(disk, "/new")).findings if one.severity != "warning"]


def test_static_voters_become_dynamic_when_the_level_allows_it() -> None:
    disk = memory_disk()
    static = [DYNAMIC[0], *DYNAMIC[2:]]
    write_voters(rank([survivor(disk, 1, static)]), [voter(7)], ["/new/7"], CLUSTER, kraft_version=1)
    found = with_quorum(open_log(disk, "/new/7"), state_at(open_log(disk, "/new/7"))).quorum
    assert (found.kraft_version, found.voters) == (1, (7,))
    assert found.voter_set[0].endpoints[0].name == "CONTROLLER"
    older: Batch = (1, [r.FeatureLevelRecord("metadata.version", 20)])
    low = rank([survivor(memory_disk(), 1, [DYNAMIC[0], older])])
    with pytest.raises(InspectError, match=r"needs metadata.version 3.9-IV0, but this log is at 3.8-IV0"):
        write_voters(low, [voter(7)], ["/new/8"], CLUSTER, kraft_version=1)


def test_a_majority_is_counted_by_directories() -> None:
    disk = memory_disk()
    nodes = [make_node(disk, DYNAMIC, home=f"/{one}", node_id=one) for one in (1, 2, 3)]
    for node, own in zip(nodes, (1, 2, 9), strict=True):
        node_id, directory_id = min(own, 3), bytes([own]) * 16
        identity = MetaProperties(cluster_id=CLUSTER, node_id=node_id, directory_id=directory_id)
        store_meta_properties(disk, node.home, identity)
    one, two, three = (examine(node_files(open_log(disk, node.home))) for node in nodes)
    replaced = rank([one, three])
    assert (replaced.found_voters, replaced.has_majority) == ([1], False)
    assert any("not the voter's directory" in line for line in replaced.warnings)
    assert any("voters 2, 3 are gone" in line for line in what_is_missing(replaced))
    assert rank([one, two]).has_majority
