"""Logs of one cluster id as histories: sections with holes, snapshots alone, two clusters with one id."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import types as r
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.pipeline.logs.clusters import CLOCK_MS, Facts, Relation, by_order, merge_histories, read_facts
from metaquorum.pipeline.logs.merged import MergedHistory
from metaquorum.pipeline.logs.places import LogPlace, find_logs
from metaquorum.pipeline.logs.survey import LogSurvey, survey
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.types import LogPosition
from tests.unit.pipeline.intervals.telling import Line, alive, batches, broker, leads
from tests.unit.pipeline.intervals.test_what_nobody_saw import image_at

DISK = PosixDisk()


def cluster(topic: bytes, incarnation: bytes = b"p", count: int = 30) -> list[RecordBatch]:
    """A history of 2 + 2 + 5 * count records: a broker, a topic, and nothing else."""
    first = msgspec.structs.replace(broker(1, 1), incarnation_id=incarnation * 16)
    lines: list[Line] = [
        (0, [leads(3000), leads(3000)]) if topic < b"m" else (7, [leads(3001)]),
        *([] if topic < b"m" else [(7, [r.NoOpRecord()])]),
        (10, [msgspec.structs.replace(first, broker_epoch=2), r.TopicRecord("orders", topic * 16)]),
        *[(20 + at + topic[0], [r.NoOpRecord()] * 5) for at in range(count)],
    ]
    return batches(lines, [1] * (len(lines) - 10) + [3] * 10)


def put(home: Path, given: Sequence[RecordBatch], *, snapshot: MetadataImage | None = None) -> Path:
    """A node's directory with a log of these batches, and perhaps a snapshot."""
    log = home / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (home / "meta.properties").write_text(f"version=1\nnode.id={home.name[1:]}\ncluster.id=MkU3OEVBNTcwNTJ\n")
    if given:
        file = log / f"{given[0].header.base_offset:020d}.log"
        file.write_bytes(b"".join(batch.data for batch in given))
    if snapshot is not None:
        at = LogPosition(max(snapshot.provenance.epoch, 0), snapshot.provenance.offset)
        data = b"".join(snapshot_batches(snapshot, position=at, metadata_version=20))
        (log / f"{at.offset:020d}-{at.epoch:010d}.checkpoint").write_bytes(data)
    return home


def told(*homes: Path) -> list[MergedHistory]:
    surveys = [one for at in find_logs(DISK, [str(home) for home in homes]) for one in survey(DISK, at)]

    def facts(logs: list[LogSurvey]) -> list[Facts]:
        found = [read_facts(DISK, log) for log in logs]
        return [msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Facts) for one in found]

    return merge_histories(surveys, facts)


def sections(merged: MergedHistory) -> list[tuple[int | None, int, int]]:
    return [(at.log.location.node_id, at.start, at.end) for at in merged.sections]


def test_logs_that_neither_overlap_nor_join_are_stretches_of_one_history(tmp_path: Path) -> None:
    whole = cluster(b"a")
    put(tmp_path / "n1", whole[:10])
    put(tmp_path / "n2", whole[20:])
    (merged,) = told(tmp_path)
    low, high = whole[10].header.base_offset, whole[20].header.base_offset
    assert sections(merged) == [(1, 0, low), (2, high, whole[-1].header.next_offset)]
    assert (merged.holes, merged.conflicts) == ([(low, high)], [])


def test_logs_that_join_are_one_stretch_after_the_other(tmp_path: Path) -> None:
    whole = cluster(b"a")
    put(tmp_path / "n1", whole[:10])
    put(tmp_path / "n2", whole[10:])
    (merged,) = told(tmp_path)
    assert (len(merged.sections), merged.holes, merged.conflicts) == (2, [], [])
    assert len(list(merged.runs())) == 1


def test_a_missing_segment_of_one_log_is_taken_from_another_or_is_a_hole(tmp_path: Path) -> None:
    whole = cluster(b"a")
    home = put(tmp_path / "n1", whole[:10])
    rest = home / "__cluster_metadata-0" / f"{whole[20].header.base_offset:020d}.log"
    rest.write_bytes(b"".join(batch.data for batch in whole[20:]))
    (merged,) = told(tmp_path)
    assert merged.holes == [(whole[10].header.base_offset, whole[20].header.base_offset)]
    put(tmp_path / "n2", whole[:25])
    (merged,) = told(tmp_path)
    assert (merged.holes, merged.conflicts) == ([], [])


@pytest.mark.parametrize("end", [25, 32])
def test_a_snapshot_alone_hides_no_log(tmp_path: Path, end: int) -> None:
    """The snapshot is of a higher offset and epoch than the log of another node."""
    whole = cluster(b"a")
    put(tmp_path / "n1", whole[:15])
    put(tmp_path / "n2", [], snapshot=image_at(whole, end))
    (merged,) = told(tmp_path)
    there = whole[end - 1].header.next_offset
    assert sections(merged) == [(1, 0, whole[15].header.base_offset), (2, there, there)]
    assert [(run.start, run.end, len(run.snapshots)) for run in merged.runs()][1] == (there, there, 1)
    assert merged.conflicts == []


def test_a_snapshot_alone_of_another_cluster_is_another_cluster(tmp_path: Path) -> None:
    put(tmp_path / "n1", cluster(b"a")[:15])
    put(tmp_path / "n2", [], snapshot=image_at(cluster(b"z", b"q"), 30))
    first, second = told(tmp_path)
    assert (first.cluster, second.cluster) == ("MkU3OEVBNTcwNTJ", "MkU3OEVBNTcwNTJ~2")
    (conflict,) = second.conflicts
    assert conflict.kind == "shared-id"
    assert "no registration of broker 1 at offset 2" in conflict.reason or "topic orders" in conflict.reason
    assert first.conflicts == []


@pytest.mark.parametrize("known", [True, False])
def test_a_log_that_removes_a_topic_of_another_is_of_its_cluster(tmp_path: Path, known: bool) -> None:
    """Each has created a topic, none in common; what one removes, the other has created, or not."""
    mine, other, strange = b"a" * 16, b"b" * 16, b"c" * 16
    lines: list[Line] = [
        (0, [leads(3000)]),
        (100, [r.TopicRecord("orders", mine)]),
        (200, [r.RemoveTopicRecord(mine if known else strange)]),
        (300, [r.TopicRecord("paid", other)]),
    ]
    log = batches(lines, [1] * 4)
    put(tmp_path / "n1", log[:2])
    put(tmp_path / "n2", log[2:])
    assert len(told(tmp_path)) == (1 if known else 2)


def test_two_clusters_with_one_id_are_told_apart(tmp_path: Path) -> None:
    """Three nodes that lag of one, two of the other, which is shorter."""
    mine, theirs = cluster(b"a"), cluster(b"z", b"q", 20)
    for number, end in ((1, 32), (2, 30), (3, 25)):
        put(tmp_path / "a" / f"n{number}", mine[:end])
    for number, end in ((1, 15), (2, 22)):
        put(tmp_path / "b" / f"n{number}", theirs[:end])
    first, second = told(tmp_path)
    assert [len(first.logs), len(second.logs)] == [3, 2]
    assert (first.end_offset, second.end_offset) == (
        mine[-1].header.next_offset,
        theirs[21].header.next_offset,
    )
    assert [at.kind for at in second.conflicts] == ["shared-id"]
    reason = second.conflicts[0].reason
    assert reason.startswith("another cluster has the id ") and "(other bytes at offset 0 " in reason
    assert {log.location.cluster for log in second.logs} == {"MkU3OEVBNTcwNTJ~2"}


def test_trimmed_logs_of_two_clusters_with_one_id_are_told_apart_by_their_brokers(tmp_path: Path) -> None:
    """No offset in common: what the later log's snapshot says of the earlier one's range is not there."""
    mine, theirs = cluster(b"a"), cluster(b"z", b"q")
    put(tmp_path / "n1", mine[:12])
    put(tmp_path / "n2", theirs[20:], snapshot=image_at(theirs, 21))
    assert [merged.cluster for merged in told(tmp_path)] == ["MkU3OEVBNTcwNTJ", "MkU3OEVBNTcwNTJ~2"]
    other = tmp_path / "other"
    put(other / "n1", mine[:12])
    put(other / "n2", mine[20:], snapshot=image_at(mine, 21))
    assert [merged.cluster for merged in told(other)] == ["MkU3OEVBNTcwNTJ"]


def test_epochs_that_fall_are_no_history(tmp_path: Path) -> None:
    whole = cluster(b"a")
    put(tmp_path / "n1", [batch for batch in whole if batch.header.leader_epoch == 3][:3])
    late = batches([(0, [alive(1, 1)])] * 200, [2] * 200)
    put(tmp_path / "n2", late[180:])
    _, second = told(tmp_path)
    assert "after epoch 3" in second.conflicts[0].reason


def test_a_log_of_another_past_of_the_same_cluster_is_left_out_with_a_reason(tmp_path: Path) -> None:
    """A tail that was replaced, and a copy whose bytes differ in the middle."""
    whole = cluster(b"a")
    other: list[Any] = [*whole[:20], *batches([(99, [r.NoOpRecord()])] * 200, [2] * 200)[94:99]]
    put(tmp_path / "n1", whole)
    put(tmp_path / "n2", other)
    (merged,) = told(tmp_path)
    (conflict,) = merged.conflicts
    assert (conflict.kind, conflict.log.location.node_id) == ("superseded", 2)
    (lagging,) = [log for log in merged.logs if log.location.node_id == 2]
    assert "superseded" in str(merged.why_unused(lagging, lagging.segments[0]))


def later_cluster(topic: bytes, name: str, incarnation: bytes, broker_id: int = 1) -> MetadataImage:
    """The state of a cluster whose broker registered, and whose topic was created, after offset 1,000."""
    made = msgspec.structs.replace(broker(broker_id, 1001), incarnation_id=incarnation * 16)
    lines: list[Line] = [
        (0, [leads(3000)]),
        *[(10_000_000 + at, [r.NoOpRecord()] * 10) for at in range(100)],
        (10_001_000, [made, r.TopicRecord(name, topic * 16)]),
    ]
    return image_at(batches(lines, [1, *[3] * 101]), 102)


@pytest.mark.parametrize(
    ("snapshot", "clusters"),
    [
        (later_cluster(b"z", "payments", b"q"), 2),
        (later_cluster(b"z", "payments", b"p"), 1),
        (later_cluster(b"a", "orders", b"q"), 1),
    ],
    ids=["nothing in common", "one process of a broker", "one topic"],
)
def test_what_nothing_contradicts_is_one_cluster_only_if_something_supports_it(
    tmp_path: Path, snapshot: MetadataImage, clusters: int
) -> None:
    put(tmp_path / "n1", cluster(b"a")[:12])
    put(tmp_path / "n2", [], snapshot=snapshot)
    found = told(tmp_path)
    assert [merged.cluster for merged in found] == ["MkU3OEVBNTcwNTJ", "MkU3OEVBNTcwNTJ~2"][:clusters]
    for merged in found[1:]:
        assert "no topic, no log directory and no process of a broker in common" in merged.conflicts[0].reason


def test_names_of_clusters_that_share_an_id_do_not_change_when_one_outgrows_the_other(tmp_path: Path) -> None:
    mine, theirs = cluster(b"a"), cluster(b"z", b"q", 20)
    ends = []
    for run, mine_end in (("first", 15), ("second", 32)):
        put(tmp_path / run / "x" / "n1", mine[:mine_end])
        put(tmp_path / run / "y" / "n1", theirs[:22])
        ends.append([merged.end_offset for merged in told(tmp_path / run)])
    their_end = theirs[21].header.next_offset
    assert ends == [[mine[15].header.base_offset, their_end], [mine[-1].header.next_offset, their_end]]


def test_the_order_in_which_logs_are_found_does_not_matter(tmp_path: Path) -> None:
    """Nor does it decide where a log belongs that fits two clusters: to neither."""
    whole = cluster(b"a")
    put(tmp_path / "n1", whole[:10])
    put(tmp_path / "n2", whole[20:])
    put(tmp_path / "n3", [], snapshot=later_cluster(b"z", "payments", b"q"))
    put(tmp_path / "n4", cluster(b"z", b"q")[:12])
    found = [told(*homes) for homes in itertools.permutations(sorted(tmp_path.iterdir()))]
    names = [
        [(merged.cluster, sorted(str(log.location.node_id) for log in merged.logs)) for merged in one]
        for one in found
    ]
    assert names == [names[0]] * len(names)
    assert names[0] == [
        ("MkU3OEVBNTcwNTJ", ["1"]),
        ("MkU3OEVBNTcwNTJ~2", ["2"]),
        ("MkU3OEVBNTcwNTJ~3", ["3", "4"]),
    ]


def order(
    low: tuple[int, int, list[tuple[int, int]]],
    low_ms: int,
    high: tuple[int, int, list[tuple[int, int]]],
    high_ms: int,
) -> Relation:
    logs = []
    for start, end, epochs in (low, high):
        place = LogPlace(path=f"/{start}", cluster="c", node_id=1)
        logs.append(
            LogSurvey(
                location=place,
                start_offset=start,
                end_offset=end,
                epochs=epochs,
                segments=[],
                sums={},
                snapshots=[] if end > start else [(end, epochs[0][0])],
            )
        )
    if not logs[1].has_records:
        logs[1].epochs = []
    facts = Facts(first_ms=low_ms, last_ms=low_ms), Facts(first_ms=high_ms, last_ms=high_ms)
    relation, why = by_order(logs[0], facts[0], logs[1], facts[1])
    assert (relation, why) == by_order(logs[1], facts[1], logs[0], facts[0])
    return relation


def test_epochs_and_times_must_rise_from_one_log_to_the_next() -> None:
    low = (0, 10, [(3, 0)])
    hour = CLOCK_MS
    assert order(low, 5 * hour, (10, 20, [(3, 10)]), 5 * hour) is Relation.LIKELY
    assert order(low, 5 * hour, (90, 99, [(4, 90)]), 4 * hour) is Relation.LIKELY
    assert order(low, 5 * hour, (90, 99, [(4, 90)]), 4 * hour - 1) is Relation.OPEN
    assert order(low, -1, (90, 99, [(4, 90)]), 4 * hour) is Relation.OPEN
    assert order(low, 5 * hour, (90, 99, [(2, 90)]), 9 * hour) is Relation.OTHER
    assert order(low, 5 * hour, (9, 20, [(3, 9)]), 9 * hour) is Relation.OPEN
    assert order(low, 5 * hour, (8, 8, [(3, 8)]), 1) is Relation.LIKELY
    assert order(low, 5 * hour, (8, 8, [(4, 8)]), 9 * hour) is Relation.OPEN


@pytest.mark.shared_data
def test_ids_from_the_wild_that_two_clusters_share(shared_data: Path) -> None:
    histories = told(shared_data / "kraft-wild")
    ends = {merged.cluster: (len(merged.logs), merged.end_offset) for merged in histories}
    assert ends["5L6g3nShT-eMCtK--X86sw"] == (1, 8565)
    assert ends["5L6g3nShT-eMCtK--X86sw~2"] == (1, 3513)
    assert ends["EP6hyiddQNW5FPrAvR9kWw"] == (3, 2989)
    assert ends["EP6hyiddQNW5FPrAvR9kWw~2"] == (1, 7)
    assert sum(len(merged.logs) for merged in histories) == len(
        find_logs(DISK, [str(shared_data / "kraft-wild")])
    )
