"""The logs of a quorum's nodes side by side: what they have in common, where they part, and as one log."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from metaquorum.cli.log.input.nodes import nodes_lines
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import images_equal
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.nodes.merge import BYTES, EPOCHS, Departure, Lost, NodesReport, compare_nodes
from metaquorum.metadata.inspect.nodes.merged_log import MergedLog, _part
from metaquorum.metadata.inspect.nodes.nodes import find_logs, most_complete, require_one_quorum, short_names
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.storage.batches.batch import RecordBatch, encode_batch
from metaquorum.storage.batches.format import walk_batches
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.files.known_committed import FILE_NAME as KNOWN_COMMITTED
from metaquorum.storage.files.known_committed import encode as encode_known
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun, split_runs
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.metadata.made_logs import (
    STORY,
    Batch,
    add_snapshot,
    encoded,
    leads,
    make_node,
    memory_disk,
    write,
)

IDLE: list[Batch] = [*STORY, *((2, [r.NoOpRecord()]) for _ in range(100))]
"""Long enough for runs of batches."""


def make(disk: Disk, stories: Sequence[Sequence[Batch]], **more: int) -> list[MetadataLog]:
    return [
        make_node(disk, story, home=f"/q/controller-{3000 + at}", node_id=3000 + at, **more).log
        for at, story in enumerate(stories)
    ]


def merged(logs: Sequence[MetadataLog]) -> tuple[MergedLog, NodesReport]:
    report = compare_nodes(logs)
    return MergedLog(logs, report, "all"), report


def content(log: MetadataLog) -> list[tuple[int, bytes]]:
    return [
        (item.header.base_offset, bytes(item.data)) for item in log.batches() if isinstance(item, RecordBatch)
    ]


def spoil(disk: FaultyDisk, log: MetadataLog, number: int, *, segment: int = 0) -> None:
    """Flips a bit in the records of one batch, so that its CRC is wrong."""
    path = join(log.directory, segment_name(segment))
    data = bytearray(read_file(disk, path))
    at = 0
    for _ in range(number):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    if at + 64 < len(data):
        data[at + 64] ^= 1
    write(disk, path, bytes(data))


def test_shorter_logs_are_prefixes_and_lag() -> None:
    logs = make(memory_disk(), [IDLE[:50], IDLE, IDLE[:70]])
    log, report = merged(logs)
    ends = [one.end_offset for one in logs]
    assert [node.behind for node in report.nodes] == [max(ends) - end for end in ends]
    assert (report.common_end, report.end_offset, report.is_whole) == (min(ends), max(ends), True)
    assert content(log) == content(logs[1])
    assert [node.name for node in report.nodes] == ["controller-3000", "controller-3001", "controller-3002"]
    assert most_complete(logs) is logs[1]


@pytest.mark.parametrize("number", [0, 3, 12, 40])
def test_what_one_node_lost_is_read_from_another(number: int) -> None:
    disk = memory_disk()
    logs = make(disk, [IDLE, IDLE])
    kept = content(logs[1])
    spoil(disk, logs[0], number)
    log, report = merged(logs)
    start = kept[number][0]
    assert report.nodes[0].lost == [Lost(start=start, end=kept[number + 1][0], by="controller-3001")]
    assert not report.is_whole
    assert report.holes == []
    assert content(log) == kept
    assert not [item for item in log.batches() if isinstance(item, Damage)]
    assert images_equal(state_at(log).image, state_at(logs[1]).image)


def test_what_no_node_has_is_a_hole_and_damage() -> None:
    disk = memory_disk()
    logs = make(disk, [IDLE, IDLE])
    for log in logs:
        spoil(disk, log, 20)
    log, report = merged(logs)
    (hole,) = report.holes
    assert hole == (content(logs[0])[20][0] - 1, content(logs[0])[20][0])
    assert [node.lost[0].by for node in report.nodes] == [None, None]
    damages = [item for item in log.batches() if isinstance(item, Damage)]
    assert [at.reason for at in damages] == [f"offset {hole[0]} is on none of the nodes"]
    assert content(log) == content(logs[0])


def test_an_uncommitted_tail_gives_way_to_the_later_epoch() -> None:
    stale: list[Batch] = [*STORY, *((2, [r.NoOpRecord()]) for _ in range(30))]
    right: list[Batch] = [*STORY, (4, [leads(3002)]), (4, [r.RemoveTopicRecord(bytes(range(16)))])]
    logs = make(memory_disk(), [stale, right, right])
    log, report = merged(logs)
    end = logs[0].end_offset
    assert report.nodes[0].departure == Departure(
        kind=EPOCHS, offset=15, end_offset=end, epoch=2, other="controller-3001", other_epoch=4
    )
    assert report.is_whole
    assert content(log) == content(logs[1])
    assert most_complete(logs) is logs[1]
    assert report.common_end == logs[1].end_offset


def test_other_bytes_in_one_epoch_are_told_and_the_majority_is_followed() -> None:
    other: list[Batch] = [*STORY[:-1], (2, [r.ConfigRecord(2, "orders", "retention.ms", "9")])]
    logs = make(memory_disk(), [other, STORY, STORY])
    log, report = merged(logs)
    departure = report.nodes[0].departure
    assert departure is not None
    assert (departure.kind, departure.offset) == (BYTES, 14)
    assert not report.is_whole
    assert content(log) == content(logs[1])


def test_of_two_that_differ_in_one_epoch_the_newest_end_is_followed_as_by_the_other_tools() -> None:
    other: list[Batch] = [*STORY[:8], (2, [r.NoOpRecord()]), (2, [r.NoOpRecord()]), (5, [leads(3001)])]
    for stories in ([STORY, other], [other, STORY]):
        logs = make(memory_disk(), stories)
        log, _ = merged(logs)
        assert content(log) == content(most_complete(logs)) == content(logs[stories.index(other)])


@pytest.mark.parametrize("field", ["base offset", "epoch"])
def test_a_header_that_no_crc_covers_is_put_right(field: str) -> None:
    disk = memory_disk()
    logs = make(disk, [STORY, STORY])
    kept = content(logs[1])
    path = join(logs[0].directory, segment_name(0))
    data = bytearray(read_file(disk, path))
    at = sum(len(one) for one in encoded(STORY)[:3])
    data[at + (5 if field == "base offset" else 14)] = 7
    write(disk, path, bytes(data))
    log, report = merged(logs)
    assert report.nodes[0].departure is None
    assert report.nodes[0].problems
    assert content(log) == kept


def test_trimmed_logs_and_their_snapshots_go_together() -> None:
    disk = memory_disk()
    whole = make_node(disk, IDLE, home="/q/a", per_segment=20)
    trimmed = make_node(disk, IDLE, home="/q/b", per_segment=20)
    begins = trimmed.log.segments[2]
    add_snapshot(trimmed, begins)
    for base in trimmed.log.segments[:2]:
        disk.remove(join(trimmed.log.directory, segment_name(base)))
    logs = [trimmed.log, whole.log]
    assert trimmed.log.start_offset > 0
    log, report = merged(logs)
    assert (log.start_offset, log.end_offset) == (0, whole.log.end_offset)
    assert report.is_whole
    assert content(log) == content(whole.log)
    assert log.snapshots() == [LogPosition(2, begins)]
    assert state_at(log).end_offset == whole.log.end_offset
    for start in (1, 29, 50, 100):
        found = [item for item in log.batches(start) if isinstance(item, RecordBatch)]
        assert found[0].header.base_offset <= start < found[0].header.next_offset


def test_logs_with_nothing_in_common_are_refused() -> None:
    disk = memory_disk()
    other: list[Batch] = [(1, [leads(9)]), *STORY[1:]]
    logs = make(disk, [STORY, other])
    for log in logs:
        disk.remove("/q/" + log.path.split("/")[2] + "/meta.properties")
    with pytest.raises(
        InspectError, match="controller-3000 and controller-3001 differ from the first offset"
    ):
        compare_nodes([open_log(disk, log.path) for log in logs])


def test_two_clusters_are_named_with_their_nodes() -> None:
    disk = memory_disk()
    logs = [
        make_node(disk, home="/q/a").log,
        make_node(disk, home="/q/b", cluster_id="AAAAAAAAAAAAAAAAAAAAAA").log,
    ]
    with pytest.raises(
        InspectError, match=r"/q holds nodes of 2 clusters: \S+ \(a\), \S+ \(b\); give those of one cluster"
    ):
        require_one_quorum(logs, "/q")


def test_logs_are_found_below_a_directory_and_those_of_partitions_are_not() -> None:
    disk = memory_disk()
    make_node(disk, home="/q/a/data")
    make_node(disk, home="/q/deep/er/b")
    disk.make_directory("/q/copied")
    write(disk, "/q/copied/" + segment_name(0), b"".join(encoded(STORY)))
    disk.make_directory("/q/a/data-1/orders-0")
    user = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=1, values=[b"hello"])
    write(disk, "/q/a/data-1/orders-0/" + segment_name(0), user)
    logs = find_logs(disk, "/q")
    assert short_names(logs) == ["a", "copied", "deep/er/b"]


def test_hidden_directories_are_looked_into_where_no_other_has_a_log() -> None:
    disk = memory_disk()
    make_node(disk, home="/q/.data/kafka")
    assert short_names(find_logs(disk, "/q")) == ["kafka"]
    make_node(disk, home="/q/now")
    assert short_names(find_logs(disk, "/q")) == ["now"]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_cut_and_spoilt_on_each_node_what_is_read_is_the_true_log(seed: int) -> None:
    """Three copies, each ended, trimmed and damaged at random: every batch of the merged log is the true one,
    and what is missing is what nobody has."""
    rng = random.Random(seed)
    disk = memory_disk()
    truth = dict(content(make_node(disk, IDLE, home="/truth").log))
    logs = []
    for at in range(3):
        ended = IDLE[: rng.randint(20, len(IDLE))]
        log = make_node(disk, ended, home=f"/q/{at}", per_segment=15).log
        for _ in range(rng.randint(0, 4)):
            spoil(disk, log, rng.randrange(5), segment=rng.choice(log.segments))
        if rng.random() < 0.5:
            for base in log.segments[: rng.randint(0, 2)]:
                disk.remove(join(log.directory, segment_name(base)))
        logs.append(MetadataLog(disk, log.path))
    log, report = merged(logs)
    found = content(log)
    held = {base for one in logs for base, _ in content(one)}
    assert [base for base, _ in found] == sorted(held)
    assert all(truth[base] == data for base, data in found)
    assert not any(node.departure for node in report.nodes)


def test_what_a_node_knew_to_be_committed_is_not_called_never_committed() -> None:
    """A directory was replaced by an older copy: the later epoch went on without the committed records."""
    disk = memory_disk()
    stale: list[Batch] = [*STORY, *((2, [r.NoOpRecord()]) for _ in range(30))]
    right: list[Batch] = [*STORY, (4, [leads(3002)]), (4, [r.RemoveTopicRecord(bytes(range(16)))])]
    logs = make(disk, [stale, right, right])
    write(disk, join(logs[0].directory, KNOWN_COMMITTED), encode_known(LogPosition(2, 20)))
    report = compare_nodes(logs)
    departure = report.nodes[0].departure
    assert departure is not None and departure.is_fault
    assert (departure.offset, departure.committed) == (15, 20)
    assert not report.is_whole
    told = "\n".join(nodes_lines(report))
    assert "committed records were lost: controller-3000 knew offsets 15 to 19 to be committed" in told
    assert "never committed" not in told


def test_a_bound_below_the_place_where_logs_part_is_no_loss() -> None:
    disk = memory_disk()
    stale: list[Batch] = [*STORY, (2, [r.NoOpRecord()])]
    logs = make(disk, [stale, [*STORY, (4, [leads(3002)])]])
    write(disk, join(logs[0].directory, KNOWN_COMMITTED), encode_known(LogPosition(2, 15)))
    report = compare_nodes(logs)
    assert report.nodes[0].departure is not None and report.nodes[0].departure.committed == 0
    assert report.is_whole


def test_of_a_run_a_part_between_two_offsets_is_a_run() -> None:
    """Each of its batches as in the whole: bytes, offsets, epochs, place in the file."""
    base, count = 5, MIN_BATCHES + 8
    data = b"".join(
        encode_batch(base_offset=base + at, leader_epoch=1 + at // 7, timestamp_ms=at, values=[b"v"])
        for at in range(count)
    )
    walk = walk_batches(data, expected_offset=base, min_epoch=0)
    (run,) = split_runs(data, walk, 1000, "f")
    assert isinstance(run, BatchRun)
    whole = list(run.batches())
    for low in range(0, base + count + 2, 3):
        for end in range(low, base + count + 3, 2):
            part = _part(run, low, end)
            wanted = [one for one in whole if low <= one.header.base_offset < end]
            assert part is None or isinstance(part, BatchRun)
            assert (list(part.batches()) if part is not None else []) == wanted
            if part is not None:
                assert (part.base_offset, part.next_offset, part.epoch) == (
                    wanted[0].header.base_offset,
                    wanted[-1].header.next_offset,
                    wanted[-1].header.leader_epoch,
                )
    two = RecordBatch(whole[0].header._replace(last_offset_delta=1), whole[0].data)
    for low in range(9):
        for end in range(9):
            assert (_part(two, low, end) is two) == (low < 7 and end > 5)
