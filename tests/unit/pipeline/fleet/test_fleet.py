"""A synthetic fleet is what it says: its logs replay without an error and agree with its truth."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import metaquorum.pipeline.fleet.cluster as fleet_batches
from metaquorum.metadata.delta import diff
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.pipeline.fleet import files
from metaquorum.pipeline.fleet import plan as module
from metaquorum.pipeline.fleet.cluster import FleetCluster
from metaquorum.pipeline.fleet.files import CLUSTERS, TRUTH, write_fleet
from metaquorum.pipeline.fleet.partitions import Change
from metaquorum.pipeline.fleet.plan import DAMAGES, KINDS, FleetPlan, cluster_plans
from metaquorum.pipeline.fleet.script import live
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.files.snapshots import list_snapshots, snapshot_path
from tests.unit.pipeline.fleet.account import Account, account

PLAN = FleetPlan(clusters=6, records=9000, seed=11, nodes=2, damaged_every=2, segment_bytes=40_000)


class Fleet:
    def __init__(self, out: Path) -> None:
        self.out = out
        self.summary = write_fleet(PLAN, out)
        self.truths: dict[str, dict[str, Any]] = {
            path.stem: json.loads(path.read_text()) for path in (out / TRUTH).glob("cluster-*.json")
        }
        self.accounts: dict[str, Account] = {name: account(self.log(name)) for name in self.truths}

    def log(self, name: str, node: int = 3000) -> Path:
        return self.out / CLUSTERS / name / f"controller-{node}" / "__cluster_metadata-0"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet") / "out")


def each(fleet: Fleet) -> list[tuple[dict[str, Any], Account]]:
    return [(truth, fleet.accounts[name]) for name, truth in sorted(fleet.truths.items())]


def test_records_are_exactly_as_many_as_planned(fleet: Fleet) -> None:
    planned = {plan.name: plan.records for plan in cluster_plans(PLAN)}
    assert sum(planned.values()) == 9000 == fleet.summary["records"]
    for truth, seen in each(fleet):
        assert seen.records == truth["records"] == planned[truth["name"]]
        assert seen.batches == truth["batches"]
        assert dict(seen.types) == truth["records_by_type"]


def test_every_kind_of_incident_happens(fleet: Fleet) -> None:
    kinds = {incident["kind"] for truth, _ in each(fleet) for incident in truth["incidents"]}
    assert kinds == {*KINDS, "lost_broker"}


def test_sums_agree_with_the_replay(fleet: Fleet) -> None:
    for truth, seen in each(fleet):
        totals = truth["totals"]
        for name in (
            "leaderless_partition_ms",
            "under_min_isr_partition_ms",
            "leader_changes",
            "isr_shrinks",
            "isr_expands",
            "unclean_elections",
            "partition_changes",
        ):
            assert seen.totals[name] == totals[name], (truth["name"], name)
        assert seen.end_ms == truth["end_ms"]
    assert all(truth["totals"]["leaderless_partition_ms"] > 0 for truth, _ in each(fleet))
    assert any(truth["totals"]["unclean_elections"] for truth, _ in each(fleet))
    assert any(truth["totals"]["under_min_isr_partition_ms"] for truth, _ in each(fleet))


def test_epochs_and_brokers_agree_with_the_replay(fleet: Fleet) -> None:
    for truth, seen in each(fleet):
        assert seen.epochs == [(one["epoch"], one["leader"], one["offset"]) for one in truth["epochs"]]
        told = [(one["broker"], one["state"], one["offset"]) for one in truth["broker_states"]]
        assert sorted(seen.broker_states) == sorted(told)
        image = seen.image
        assert image is not None
        assert {str(at) for at in image.brokers} == set(truth["brokers"])
        for at, broker in image.brokers.items():
            assert broker.fenced == (truth["brokers"][str(at)]["state"] == "fenced")


def test_incidents_say_where_their_broker_went_and_came_back(fleet: Fleet) -> None:
    places = (("fenced_offset", "fenced"), ("unfenced_offset", "active"))
    kinds = set()
    for truth, seen in each(fleet):
        for one in truth["incidents"]:
            for name, state in places:
                if one["kind"] == "broker_crash" or name in one:
                    assert (one["broker"], state, one[name]) in seen.broker_states, one
                    kinds.add(one["kind"])
    assert "broker_crash" in kinds


def test_the_end_agrees_with_the_replay(fleet: Fleet) -> None:
    for truth, seen in each(fleet):
        image, final = seen.image, truth["final"]
        assert image is not None
        assert (len(image.topics), image.topics.partition_count) == (final["topics"], final["partitions"])
        assert seen.totals["leaderless_partition_ms_open"] == final["leaderless"]
        assert seen.totals["under_min_isr_partition_ms_open"] == final["under_min_isr"]
        leaders: dict[str, int] = {}
        for topic in image.topics.all():
            for partition in image.topics.partitions_of(topic.topic_id):
                leaders[str(partition.leader)] = leaders.get(str(partition.leader), 0) + 1
        assert leaders == final["leaders"]


def test_sampled_partitions_agree_with_the_replay(fleet: Fleet) -> None:
    compared = 0
    for truth, seen in each(fleet):
        image = seen.image
        assert image is not None
        for sample in truth["samples"]:
            topic_id = image.topics.by_name[sample["topic"]]
            told = [{**state, "isr": sorted(state["isr"])} for state in sample["states"]]
            assert seen.states[topic_id, sample["partition"]] == told
            compared += len(told)
    assert compared > 100


def test_invariants_hold_but_where_a_bug_was_planted(fleet: Fleet) -> None:
    planted = 0
    for truth, seen in each(fleet):
        told = [one for one in truth["incidents"] if one["kind"] == "broken_invariant"]
        planted += len(told)
        for offset, rule, where in seen.errors:
            assert any(
                one["broken_offset"] <= offset < (one["mended_offset"] or truth["records"])
                and (rule, where) == (one["rule"], one["where"])
                for one in told
            ), (truth["name"], offset, rule, where)
        assert {offset for offset, _, _ in seen.errors} >= {one["broken_offset"] for one in told}
    assert planted


def test_unclean_elections_are_told_where_they_are(fleet: Fleet) -> None:
    for truth, seen in each(fleet):
        told = [
            election["offset"]
            for one in truth["incidents"]
            if one["kind"] == "unclean_election"
            for election in one["elections"]
        ]
        assert seen.unclean == told


def test_damage_is_where_the_truth_says(fleet: Fleet) -> None:
    kinds = set()
    for truth, seen in each(fleet):
        assert len(seen.damage) == len(truth["damage"])
        for told, found in zip(truth["damage"], seen.damage, strict=True):
            kinds.add(told["kind"])
            assert found.file.endswith(told["file"])
            assert (found.position, found.offset) == (told["position"], told["offset"])
    assert kinds == set(DAMAGES)


def test_snapshots_hold_what_the_log_replays_to(fleet: Fleet) -> None:
    disk, compared = PosixDisk(), 0
    for name in sorted(fleet.truths)[:3]:
        directory = str(fleet.log(name))
        for position in list_snapshots(disk, directory):
            data = Path(snapshot_path(directory, position)).read_bytes()
            stored = load_snapshot(iter_batches(data, file="checkpoint"), position=position)
            replayed = account(fleet.log(name), until=position.offset).image
            assert replayed is not None
            assert diff(stored, replayed).is_empty
            compared += 1
    assert compared >= 4


def test_nodes_of_one_cluster_hold_prefixes_of_one_log(fleet: Fleet) -> None:
    for name, truth in fleet.truths.items():
        whole = b"".join(path.read_bytes() for path in sorted(fleet.log(name).glob("*.log")))
        behind = b"".join(path.read_bytes() for path in sorted(fleet.log(name, 3001).glob("*.log")))
        assert behind and len(behind) < len(whole) and whole.startswith(behind)
        identity = load_meta_properties(PosixDisk(), str(fleet.log(name, 3001).parent))
        assert (identity.cluster_id, identity.node_id) == (truth["cluster_id"], 3001)
        assert len(list(fleet.log(name).glob("*.log"))) > 1, "the log should have several segments"


def digest(root: Path) -> str:
    summed = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        summed.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return summed.hexdigest()


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    plan = FleetPlan(clusters=2, records=3000, seed=5)
    for name, jobs in (("one", 1), ("two", 2)):
        write_fleet(plan, tmp_path / name, jobs=jobs)
    write_fleet(FleetPlan(clusters=2, records=3000, seed=6), tmp_path / "other")
    assert digest(tmp_path / "one") == digest(tmp_path / "two") != digest(tmp_path / "other")


def test_a_cluster_that_ends_with_a_broker_down_keeps_room_for_its_fence() -> None:
    """Many partitions a broker: the fence at the end takes more records than small things leave free."""
    plans = list(cluster_plans(FleetPlan(clusters=3, records=60_000, seed=1, brokers=4, partitions=1500)))
    assert plans[2].ends_open
    for cluster in live(plans[2]):
        cluster.log.take()
    assert cluster.room == 0
    assert cluster.incidents[-1]["kind"] == "lost_broker"


@pytest.mark.parametrize("seed", range(8))
def test_any_seed_and_size_gives_exactly_the_records(seed: int, tmp_path: Path) -> None:
    plan = FleetPlan(clusters=3, records=1200 + 900 * seed, seed=seed, partitions=None if seed % 2 else 40)
    assert write_fleet(plan, tmp_path / "out")["records"] == 1200 + 900 * seed


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"clusters": 0}, "at least 1 cluster"),
        ({"clusters": 3, "records": 1000}, "too few"),
        ({"brokers": 2}, "4 to 1000 brokers"),
        ({"partitions": 90_000}, "more records or fewer partitions"),
        ({"kinds": ("earthquake",)}, "earthquake is not an incident"),
    ],
)
def test_plans_that_cannot_be_are_refused(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FleetPlan(**numbers)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(FileExistsError, match="is not empty"):
        write_fleet(PLAN, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_ends_early_leaves_nothing(tmp_path: Path, jobs: int, is_there: bool) -> None:
    out = tmp_path / "fleet"
    if is_there:
        out.mkdir()

    def interrupt(summary: dict[str, Any]) -> None:
        assert (out / "clusters" / summary["name"]).is_dir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_fleet(FleetPlan(clusters=2, records=3_000), out, jobs=jobs, on_cluster=interrupt)
    assert list(tmp_path.rglob("*")) == ([out] if is_there else [])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_a_change_of_many_partitions_is_cut_into_parts_that_are_all_of_it(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(fleet_batches, "MAX_BATCH_RECORDS", 3)
    leaders = np.arange(count, dtype=np.int32)
    change = Change(np.arange(count) + 50, np.eye(count, 4, dtype=bool), leaders)
    pieces = fleet_batches.chunks(change.rows)
    parts = [FleetCluster._part(change, pieces, at) for at in range(len(pieces))]
    assert all(len(rows) == len(isr) == len(leader) <= 3 for rows, isr, leader in parts)
    for whole, cut in zip(change, zip(*parts, strict=True), strict=True):
        assert np.array_equal(np.concatenate(cut), whole)


def test_what_ends_early_does_not_wait_for_clusters_that_are_being_written(tmp_path: Path) -> None:
    """They may have millions of records, and nothing of them is kept."""
    others = set(multiprocessing.active_children())

    def interrupt(summary: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    plans = list(cluster_plans(FleetPlan(clusters=2, records=3_000)))
    slow = msgspec.structs.replace(plans[1], records=100_000_000)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files, "cluster_plans", lambda plan: [plans[0], slow])
        write_fleet(FleetPlan(clusters=2), tmp_path / "fleet", jobs=2, on_cluster=interrupt)
    assert set(multiprocessing.active_children()) <= others
    assert list(tmp_path.rglob("*")) == []


# What each cluster of a fleet is to be: sizes within their bounds, and what happens to which of them.


MIN_RECORDS = module.MIN_RECORDS


def plans(clusters: int, **more: Any) -> list[module.ClusterPlan]:
    return list(
        cluster_plans(FleetPlan(**{"clusters": clusters, "records": clusters * 6_000, "seed": 5, **more}))
    )


@pytest.mark.parametrize("every", [0, 1, 2, 3, 5])
def test_each_so_many_clusters_end_open_and_are_damaged(every: int) -> None:
    found = plans(11, open_every=every, damaged_every=every)
    last = {at for at in range(11) if every and at % every == every - 1}
    assert {one.number for one in found if one.ends_open} == last
    assert {one.number: one.damage for one in found if one.damage} == {
        at: DAMAGES[at // every % len(DAMAGES)] for at in last
    }


@pytest.mark.parametrize("every", [0, 1, 2, 3])
@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_rule_stays_broken_where_it_may(every: int, broken: bool) -> None:
    kinds = KINDS if broken else tuple(each for each in KINDS if each != "broken_invariant")
    found = {one.number for one in plans(7, open_every=every, kinds=kinds) if one.ends_broken}
    assert found == {at for at in range(7) if broken and every > 1 and at % every == 0}
    assert not {one.number for one in plans(7, open_every=every, kinds=kinds) if one.ends_open} & found


def test_every_kind_is_first_once_and_one_in_five_has_another_default() -> None:
    found = plans(len(KINDS))
    assert [one.kinds[0] for one in found] == list(KINDS)
    assert all(sorted(one.kinds) == sorted(KINDS) for one in found)
    assert [one.default_min_isr for one in found[:10]] == [None, None, None, None, 2] * 2
    assert [one.kinds for one in plans(2, kinds=())] == [(), ()]


@pytest.mark.parametrize(("clusters", "records"), [(1, 6_000), (4, 40_000), (9, 9_000_000)])
def test_records_add_up_and_sizes_are_within_bounds(clusters: int, records: int) -> None:
    found = plans(clusters, records=records)
    assert sum(one.records for one in found) == records
    assert all(one.records >= MIN_RECORDS for one in found)
    for one in found:
        share = int(one.records * 0.012), int(one.records * 0.02)
        low, high = (max(16, min(module._MAX_PARTITIONS, each)) for each in share)
        assert low <= one.partitions <= min(high, one.records // 2)
        root = one.partitions**0.5
        fewest, most = (max(4, min(module._MAX_BROKERS, 4 + int(root * each))) for each in (0.2, 0.5))
        assert fewest <= one.brokers <= most
    given = plans(2, partitions=33, brokers=7)
    assert [(one.partitions, one.brokers) for one in given] == [(33, 7)] * 2
    assert len({one.cluster_id for one in found}) == clusters
    assert [one.name for one in found[:2]] == ["cluster-0000", "cluster-0001"][:clusters]


# A generated fleet, byte for byte as it was recorded: what others measure does not change unnoticed.
# `pytest tests/unit/pipeline/fleet --rewrite` records it anew.


pytest.importorskip("pyarrow")


RECORDED = Path(__file__).with_name("fleet.txt")
PLANS: dict[str, dict[str, Any]] = {
    "every kind": {"clusters": len(KINDS), "records": 1_500 * len(KINDS), "seed": 3},
    "several nodes": {"clusters": 1, "records": 3_000, "seed": 4, "nodes": 3, "segment_bytes": 50_000},
    "closed and whole": {"clusters": 2, "records": 3_000, "seed": 5, "damaged_every": 0, "open_every": 0},
}


def digests(out: Path, **plan: Any) -> list[str]:
    """A line for each file: its name, bytes and digest."""
    write_fleet(FleetPlan(**plan), out)
    lines = []
    for path in sorted(out.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            lines.append(f"{path.relative_to(out)} {len(data)} {sha256(data).hexdigest()[:12]}")
    return lines


def test_a_fleet_is_what_was_recorded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    actual = ""
    for number, (name, plan) in enumerate(PLANS.items()):
        actual += "\n".join([f"---- {name}", *digests(tmp_path / str(number), **plan)]) + "\n"
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual)
    assert actual == RECORDED.read_text(), "record it with: pytest tests/unit/pipeline/fleet --rewrite"


@pytest.mark.parametrize("rows", [1, 3])
def test_the_size_of_its_batches_does_not_change_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    from metaquorum.metadata.inspect.log.log import open_log
    from metaquorum.metadata.inspect.log.points import END
    from metaquorum.metadata.inspect.walk.states import state_at
    from metaquorum.storage.disk.posix import PosixDisk

    plan: dict[str, Any] = {"clusters": 1, "records": 1_500, "seed": 6, "damaged_every": 0}
    images = []
    for size in (files._ROWS, rows):
        monkeypatch.setattr(files, "_ROWS", size)
        out = tmp_path / str(size)
        write_fleet(FleetPlan(**plan), out)
        (found,) = sorted(out.rglob("*.checkpoint"))[-1:]
        state = state_at(open_log(PosixDisk(), str(found)), END)
        assert state.problems == []
        counts = json.loads(next((out / files.TRUTH).glob("cluster-*.json")).read_text())
        images.append((state.image, counts["records"], found.stat().st_size))
    (whole, records, whole_size), (cut, again, cut_size) = images
    assert (whole, records) == (cut, again)
    assert cut_size > whole_size
