"""Checks of whole logs: each rule where it breaks, snapshots against the log, nodes against each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import crc32c
import pytest

from metaquorum.metadata.inspect.checks.check import LogReport, check_log
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.nodes.matching import SNAPSHOT, QuorumReport, check_quorum, compare_logs
from metaquorum.metadata.inspect.nodes.merge import BYTES, EPOCHS
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.metadata.inspect.walk.states import steps
from metaquorum.metadata.invariants import check_changes, check_image
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import KRaftVersionRecord, Voter, VotersRecord
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.conftest import needs_shared_data, shared_data_path
from tests.unit.metadata.made_logs import (
    ORDERS,
    STORY,
    Batch,
    add_snapshot,
    flip,
    leads,
    make_node,
    memory_disk,
    strict,
    write,
)

ROOT = shared_data_path() or Path("absent")
CRC_AT, CRC_FROM = 17, 21
"""Where a batch holds its CRC32C, and from where it is taken."""


def fixed(batch: bytes) -> bytes:
    """A batch with the CRC that its bytes have."""
    return batch[:CRC_AT] + crc32c.crc32c(batch[CRC_FROM:]).to_bytes(4, "big") + batch[CRC_FROM:]


def tamper(content: bytes, batch: RecordBatch, at: int) -> bytes:
    """A file's content with one byte of a batch changed, its CRC right."""
    data = bytearray(batch.data)
    data[at] ^= 0x01
    start = batch.position
    return content[:start] + fixed(bytes(data)) + content[start + len(data) :]


def rules(report: LogReport) -> list[tuple[int, str, str]]:
    return [(found.offset, found.rule, found.where) for found in report.findings]


def log_of(path: Path) -> MetadataLog:
    return open_log(PosixDisk(), str(path))


@needs_shared_data
def test_the_recorded_scenario_keeps_every_rule_and_agrees_with_its_snapshots() -> None:
    report = check_log(log_of(ROOT / "kafka-3.7" / "controller-3000"))
    # kafka-configs and kafka-reassign-partitions remove settings that were not there: Kafka writes that down.
    idle = {found.where for found in report.findings if found.rule == "records-change-something"}
    assert "config/broker/0/leader.replication.throttled.rate" in idle
    assert all(where.startswith("config/broker/") for where in idle)
    assert [found for found in report.findings if found.rule != "records-change-something"] == []
    assert (report.problems, report.unknown) == ([], 0)
    assert (report.batches, report.records, report.end_offset, report.snapshots) == (1343, 4758, 4758, 15)


@needs_shared_data
def test_a_broker_that_led_while_fenced_is_a_warning_that_heals() -> None:
    report = check_log(log_of(ROOT / "kafka-3.7" / "upgrade" / "broker-0"))
    assert {found[:2] for found in rules(report)} == {(92, "leader-active"), (92, "isr-active")}
    assert report.errors == [] and report.lasting == frozenset()


@needs_shared_data
@pytest.mark.parametrize(
    ("folder", "lags"),
    [
        ("kraft-wild/kafka-3.3-three-nodes-lagging/data", [7, 3, 0]),
        ("kraft-wild/kafka-3.7-three-nodes-lagging/kafka-data", [1, 0, 0]),
    ],
)
def test_three_nodes_of_one_quorum_are_one_log_of_which_two_lag(folder: str, lags: list[int]) -> None:
    logs = [log_of(path) for path in sorted((ROOT / folder).iterdir())]
    report = check_quorum(logs)
    assert report.is_sound and report.divergences == []
    assert list(report.lags.values()) == lags
    assert report.compared > 1000


@needs_shared_data
def test_logs_of_two_clusters_are_checked_alone_and_not_compared() -> None:
    logs = [
        log_of(ROOT / "kafka-3.7" / "controller-3000"),
        log_of(ROOT / "kraft-wild" / "kafka-3.5" / "data" / "kafka"),
    ]
    report = check_quorum(logs)
    assert report.not_compared is not None and "ycvx3IyUTJ2ANvCy7N_YyA" in report.not_compared
    assert [one.batches for one in report.logs] == [1343, 1351]
    assert (report.compared, report.lags) == (0, {})


@needs_shared_data
@pytest.mark.parametrize(
    ("offset", "entity", "text"),
    [
        (838, "topic/t18/1", "PARTITION_CHANGE_RECORD: "),
        (1921, "topic/unclean/0", "one of them cannot be read: offset 1921: PARTITION_CHANGE_RECORD"),
        (2047, "config/topic/t06", "CONFIG_RECORD: value 111110 and 111111"),
        (2323, "broker/3", "UNREGISTER_BROKER_RECORD: brokerEpoch"),
    ],
)
def test_one_changed_byte_is_found_by_offset_and_entity(
    tmp_path: Path, offset: int, entity: str, text: str
) -> None:
    source = ROOT / "kafka-3.7" / "controller-3000"
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    log = log_of(copy)
    batch = next(one for one in strict(log) if one.header.base_offset <= offset < one.header.next_offset)
    spans = {raw.offset: raw for raw in batch.records()}
    value = spans[offset].value or b""
    at = bytes(batch.data).index(value) + len(value) - 2
    path = Path(batch.file)
    path.chmod(0o644)
    path.write_bytes(tamper(path.read_bytes(), batch, at))
    report = compare_logs([log, log_of(source), log_of(source)])
    first = report.divergences[0]
    assert (first.kind, first.offset, first.entity) == (BYTES, offset, entity)
    assert first.path == log.path, "two against one"
    assert first.text.startswith(text)
    assert not report.is_sound


def damaged_copy(changes: list[Batch], **more: int) -> tuple[NodeFiles, NodeFiles]:
    """Two nodes of one quorum; the second one has other batches at the end."""
    disk = memory_disk()
    return (
        make_node(disk, home="/a", node_id=3000),
        make_node(disk, [*STORY[:-2], *changes], home="/b", node_id=3001, **more),
    )


def quorum(*nodes: NodeFiles) -> QuorumReport:
    return check_quorum([node.log for node in nodes])


def test_other_bytes_of_the_same_epoch_are_told_field_by_field() -> None:
    one, two = damaged_copy([(2, [r.PartitionChangeRecord(1, ORDERS, leader=1)]), STORY[-1]])
    (found,) = quorum(one, two).divergences
    assert (found.kind, found.offset, found.entity) == (BYTES, 13, "topic/orders/1")
    assert found.text == "PARTITION_CHANGE_RECORD: leader 1 and -1"
    assert (found.path, found.other) == (two.log.path, one.log.path)


def test_another_epoch_at_the_same_offset_is_told_as_such() -> None:
    one, two = damaged_copy([(3, [leads(3001)]), (3, list(STORY[-1][1]))])
    report = quorum(one, two)
    (found,) = report.divergences
    assert (found.kind, found.offset, found.epoch, found.other_epoch) == (EPOCHS, 13, 2, 3)
    assert list(report.lags.values()) == [0, 0]


def test_other_batch_boundaries_are_a_difference() -> None:
    one, two = damaged_copy([(2, [*STORY[-2][1], *STORY[-1][1]])])
    (found,) = quorum(one, two).divergences
    assert (found.kind, found.offset) == (BYTES, 14)
    assert found.text == "2 and 1 records in the batch"


def test_a_trimmed_node_is_compared_from_where_it_begins() -> None:
    disk = memory_disk()
    one = make_node(disk, home="/a")
    two = make_node(disk, home="/b", node_id=3001, per_segment=6)
    add_snapshot(two, 10)
    disk.remove(join(two.log.directory, "00000000000000000000.log"))
    report = quorum(one, two)
    assert report.is_sound and report.compared == 5
    assert report.logs[0].snapshots == 1, "its snapshot is tested by the log that reaches before it"
    assert report.logs[1].start_offset == 10
    other = add_snapshot(one, 7)
    assert other.topics.partition_count == 2
    write(
        disk,
        join(two.log.directory, snapshot_name(LogPosition(1, 10))),
        read_file(disk, join(one.log.directory, snapshot_name(LogPosition(1, 7)))),
    )
    wrong = quorum(one, two).logs[0]
    assert {found[:2] for found in rules(wrong)} == {(10, "snapshot-agrees")}
    assert {"topic/payments", "topic/payments/0"} <= {found.where for found in wrong.findings}


def test_snapshots_of_one_name_must_hold_the_same() -> None:
    disk = memory_disk()
    one, two = make_node(disk, home="/a"), make_node(disk, home="/b", node_id=3001)
    add_snapshot(one, 10)
    add_snapshot(two, 10)
    assert quorum(one, two).is_sound
    assert quorum(one, two).snapshots_compared == 1
    add_snapshot(two, 7)
    path = join(two.log.directory, snapshot_name(LogPosition(1, 10)))
    write(disk, path, read_file(disk, join(two.log.directory, snapshot_name(LogPosition(1, 7)))))
    report = quorum(one, two)
    assert {found.kind for found in report.divergences} == {SNAPSHOT}
    assert report.divergences[0].entity == "topic/payments"
    assert [found[1] for found in rules(report.logs[1])][:1] == ["snapshot-agrees"]


def test_the_order_of_the_voters_in_a_snapshot_does_not_matter() -> None:
    """Apache Kafka's nodes write a set in any order, other voters are an error."""
    level = KRaftVersionRecord(kraft_version=1)
    one, two, three = (Voter(each, bytes(15) + bytes([each])) for each in (1, 2, 3))
    node = make_node(memory_disk(), [*STORY, (2, [level, VotersRecord(voters=(one, two))])])
    end = strict(node.log)[-1].header.next_offset
    path = join(node.log.directory, snapshot_name(LogPosition(2, end)))
    for voters, broken in (((two, one), []), ((one, three), [(end, "snapshot-agrees", "quorum")])):
        image = add_snapshot(node, end)
        said = (level, VotersRecord(voters=voters))
        content = b"".join(snapshot_batches(image, position=LogPosition(2, end), quorum=said))
        write(node.log.disk, path, content)
        report = check_log(node.log)
        assert [found for found in rules(report) if found[1] == "snapshot-agrees"] == broken


def checked(*more: Batch) -> LogReport:
    return check_log(make_node(memory_disk(), [*STORY, *more]).log)


# (what is written, the rules that it breaks)
def on(path: str, *names: str) -> list[tuple[int, str, str]]:
    return [(15, name, path) for name in names]


P0, P1 = "topic/orders/0", "topic/orders/1"
NEW = r.PartitionRecord(5, ORDERS, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0)
GONE = [*on(P0, "leader-active", "replicas-registered"), *on(P1, "replicas-registered")]
BROKEN: list[tuple[object, list[tuple[int, str, str]]]] = [
    (r.PartitionChangeRecord(0, ORDERS, isr=(1, 7)), on(P0, "isr-within-replicas", "isr-active")),
    (r.PartitionChangeRecord(0, ORDERS, isr=()), on(P0, "leader-in-isr", "isr-not-empty")),
    (r.PartitionChangeRecord(0, ORDERS, leader=4), on(P0, "leader-in-isr", "leader-active")),
    (r.PartitionChangeRecord(0, ORDERS, adding_replicas=(9,)), on(P0, "reassignment-within-replicas")),
    (NEW, on("topic/orders", "partition-indexes-dense")),
    (r.FenceBrokerRecord(1, 2), on(P0, "leader-active")),
    (r.UnregisterBrokerRecord(1, 2), GONE),
    (
        r.BrokerRecord(1, ORDERS, 1),
        [*on("broker/1", "broker-epoch-is-offset", "broker-epoch-grows"), *on(P0, "leader-active")],
    ),
    (r.ConfigRecord(2, "nope", "x", "y"), on("config/topic/nope", "config-of-topic")),
    (r.RemoveTopicRecord(bytes(16)), on("log", "record-applies")),
    (r.FenceBrokerRecord(9, 1), on("broker/9", "record-applies")),
]


@pytest.mark.parametrize(("record", "expected"), BROKEN)
def test_each_kind_of_broken_rule_is_found_where_it_breaks(
    record: object, expected: list[tuple[int, str, str]]
) -> None:
    report = checked((2, [record]))
    assert sorted(rules(report)) == sorted(expected)
    assert checked().findings == []


def test_a_violation_is_told_once_and_said_to_last() -> None:
    wrong = [r.PartitionChangeRecord(0, ORDERS, isr=(1, 7))]
    again = [r.PartitionChangeRecord(0, ORDERS, isr=(1, 8))]
    healed = [r.PartitionChangeRecord(0, ORDERS, isr=(1,))]
    lasting = checked((2, wrong), (2, again))
    assert [found[0] for found in rules(lasting)] == [15, 15]
    assert ("isr-within-replicas", "topic/orders/0") in lasting.lasting
    over = checked((2, wrong), (2, healed))
    assert len(over.findings) == 2 and over.lasting == frozenset()


def test_damage_ends_the_check_and_is_told() -> None:
    node = make_node(memory_disk())
    flip(node, 12)
    told: list[str] = []
    report = check_log(node.log, told.append)
    assert report.end_offset == 12
    assert told == report.problems and any("--past-corruption" in line for line in told)
    past = check_log(node.log, past_corruption=True)
    assert (past.end_offset, past.findings) == (15, [])


def test_behind_damage_the_check_goes_on_from_the_next_whole_snapshot() -> None:
    """As `state` and `timeline` do; what is between them was not looked at."""
    node = make_node(memory_disk())
    for end in (10, 12, 14):
        add_snapshot(node, end)
    broken = join(node.log.directory, snapshot_name(LogPosition(2, 12)))
    write(node.log.disk, broken, read_file(node.log.disk, broken)[:-1])
    flip(node, 10)
    report = check_log(node.log)
    assert (report.end_offset, report.findings) == (15, [])
    assert [(one.from_offset, one.to_offset) for one in report.coverage if one.reason == "not-looked-at"] == [
        (11, 14)
    ]
    assert any("continue with --past-corruption" in line for line in report.problems)


def test_a_snapshot_inside_a_batch_or_of_another_epoch_is_wrong() -> None:
    disk: FaultyDisk = memory_disk()
    node = make_node(disk)
    add_snapshot(node, 10)
    good = read_file(disk, join(node.log.directory, snapshot_name(LogPosition(1, 10))))
    write(disk, join(node.log.directory, snapshot_name(LogPosition(1, 8))), good)
    write(disk, join(node.log.directory, snapshot_name(LogPosition(7, 10))), good)
    report = check_log(node.log)
    texts = [found.text for found in report.findings if found.where == "snapshot"]
    assert any("inside a batch" in text for text in texts)
    assert any("its name says epoch 7" in text for text in texts)


@needs_shared_data
def test_a_checkpoint_and_a_segment_can_be_checked_alone() -> None:
    folder = ROOT / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"
    one = check_log(log_of(folder / "00000000000000002280-0000000006.checkpoint"))
    assert (one.end_offset, one.findings) == (2280, [])
    segment = check_log(log_of(folder / "00000000000000001850.log"))
    told = {found.rule for found in segment.findings}
    assert (segment.end_offset, told, segment.start_offset >= 1850) == (
        3299,
        {"records-change-something"},
        True,
    )


@needs_shared_data
@pytest.mark.parametrize(
    "folder",
    ["kafka-3.7/upgrade/broker-0", "kraft-wild/kafka-3.7-three-nodes-lagging/kafka-data/broker-1"],
)
def test_what_a_step_can_have_broken_is_what_a_full_check_finds_new(folder: str) -> None:
    found_any = False
    for step in steps(log_of(ROOT / folder)):
        old, new = set(check_image(step.before)), set(check_image(step.after))
        found = set(check_changes(step.before, step.after))
        assert new - old <= found <= new, step.offset
        found_any = found_any or bool(found)
    assert found_any is (folder == "kafka-3.7/upgrade/broker-0")


@pytest.mark.parametrize(("record", "expected"), BROKEN[:-2])
def test_the_same_for_made_up_steps(record: object, expected: list[tuple[int, str, str]]) -> None:
    log = make_node(memory_disk(), [*STORY, (2, [record])]).log
    *_, last = steps(log)
    old, new = set(check_image(last.before)), set(check_image(last.after))
    assert new - old <= set(check_changes(last.before, last.after)) <= new
