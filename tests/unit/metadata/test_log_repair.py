"""Repair: what is taken out, what stays where it was, from where a new log begins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, open_log
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles, node_files
from metaquorum.metadata.inspect.repair.repair import RepairReport, RepairRequest, plan_repair, write_repair
from metaquorum.metadata.inspect.walk.rewrite import NO_OP
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.files.quorum_state import load_quorum_state
from metaquorum.storage.files.snapshots import list_snapshots, snapshot_path
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_file import PowerLossError
from tests.conftest import needs_shared_data, shared_data_path
from tests.images import replay_all
from tests.unit.metadata.made_logs import (
    HOME,
    ORDERS,
    PAYMENTS,
    STORY,
    Batch,
    add_snapshot,
    all_files,
    encoded,
    flip,
    image_of,
    images_equal,
    leads,
    make_node,
    memory_disk,
    strict,
    write,
)

NEW = "/new"
ROOT = shared_data_path() or Path("absent")
RECORDED = sorted({path.parent for path in ROOT.rglob("__cluster_metadata-0/*.log")})


def repaired(node: NodeFiles, **request: object) -> tuple[RepairReport, MetadataLog]:
    """A repair to NEW; what it said, and the log that it made."""
    wanted = RepairRequest(**request)  # type: ignore[arg-type]
    report = write_repair(node, wanted, NEW)
    return report, open_log(node.log.disk, NEW)


def records_of(log: MetadataLog) -> dict[int, object]:
    return {one.offset: one.record for batch in strict(log) for one in decode_batch(batch)}


def contents(disk: Disk, directory: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list_directory(directory):
        path = join(directory, name)
        if disk.is_directory(path):
            found |= contents(disk, path)
        else:
            found[path] = read_file(disk, path)
    return found


# --- records taken out


def test_a_record_is_replaced_and_everything_else_stays_where_and_what_it_was() -> None:
    disk = memory_disk()
    node = make_node(disk, per_segment=4)
    kept = contents(disk, HOME)
    report, log = repaired(node, drop=frozenset({12}))
    assert contents(disk, HOME) == kept
    assert isinstance(records_of(log)[12], r.NoOpRecord)
    before, after = strict(node.log), strict(log)
    assert [one.data for one in before if one.header.base_offset != 12] == [
        one.data for one in after if one.header.base_offset != 12
    ]
    (old,), (new,) = ([one for one in batches if one.header.base_offset == 12] for batches in (before, after))
    assert new.header._replace(crc=0, batch_length=0) == old.header._replace(crc=0, batch_length=0)
    assert log.segments == node.log.segments
    image = image_of(log)
    assert [topic.name for topic in image.topics.all()] == ["orders", "payments"]
    assert images_equal(report.after, image)
    assert [(one.kind, one.offset, one.text) for one in report.changes] == [
        ("dropped", 12, "REMOVE_TOPIC_RECORD (named)")
    ]
    assert report.end == LogPosition(2, 15)


def test_one_record_of_a_batch_leaves_the_others_in_it() -> None:
    node = make_node(memory_disk())
    _, log = repaired(node, drop=frozenset({6}), drop_failing=True)
    found = records_of(log)
    assert isinstance(found[5], r.PartitionRecord)
    assert isinstance(found[6], r.NoOpRecord)
    assert image_of(log).topics.partition(ORDERS, 0) is not None
    assert image_of(log).topics.partition(ORDERS, 1) is None


def test_records_that_no_longer_fit_are_told_and_taken_out_only_when_asked() -> None:
    node = make_node(memory_disk())
    with pytest.raises(InspectError, match=r"the record at offset 8 no longer applies .*--drop-failing"):
        plan_repair(node, RepairRequest(drop=frozenset({7})))
    report, log = repaired(node, drop=frozenset({7}), drop_failing=True)
    assert [one.offset for one in report.changes] == [7, 8, 9, 12]
    assert [one.text.split(" (")[1] for one in report.changes] == ["named)", *["it cannot be applied)"] * 3]
    assert [topic.name for topic in image_of(log).topics.all()] == ["orders"]


POISON: list[Batch] = [*STORY, (2, [r.PartitionChangeRecord(0, PAYMENTS, leader=2)]), (2, [r.NoOpRecord()])]


def test_poison_is_named_when_it_stays_and_gone_when_asked() -> None:
    node = make_node(memory_disk(), POISON)
    with pytest.raises(InspectError, match=r"nothing would change.*offset 15: PartitionChangeRecord"):
        plan_repair(node, RepairRequest(past_corruption=True))
    report = plan_repair(node, RepairRequest(drop=frozenset({14})))
    assert len(report.remaining) == 1
    assert "--drop 15" in report.remaining[0]
    report, log = repaired(node, drop_failing=True)
    assert [one.offset for one in report.changes] == [15]
    assert report.remaining == []
    assert images_equal(image_of(log), state_at(node.log).image)


def test_an_election_cannot_be_taken_out() -> None:
    with pytest.raises(InspectError, match="the record at offset 11 is the quorum's own"):
        plan_repair(make_node(memory_disk()), RepairRequest(drop=frozenset({11})))


def test_a_record_that_is_not_there_is_refused() -> None:
    with pytest.raises(InspectError, match="there is no record at offset 99; the log has offsets 0 to 14"):
        plan_repair(make_node(memory_disk()), RepairRequest(drop=frozenset({99})))


def test_a_level_without_no_op_records_is_told() -> None:
    old: list[Batch] = [(1, [r.FeatureLevelRecord("metadata.version", 1)]), (1, [r.TopicRecord("t", ORDERS)])]
    report = plan_repair(make_node(memory_disk(), old), RepairRequest(drop=frozenset({1})))
    assert "Kafka before 3.3 cannot read the new log" in report.notes[0]
    assert plan_repair(make_node(memory_disk()), RepairRequest(drop=frozenset({14}))).notes == []


# --- lost bytes


def test_lost_bytes_become_no_op_records_and_the_rest_goes_on() -> None:
    node = make_node(memory_disk())
    flip(node, 12)
    with pytest.raises(InspectError, match=r"offset 12 is lost .*expected CRC.*--past-corruption"):
        plan_repair(node, RepairRequest(drop=frozenset({14})))
    report, log = repaired(node, past_corruption=True)
    assert [(one.kind, one.offset, one.end_offset) for one in report.changes] == [("filled", 12, 13)]
    assert isinstance(records_of(log)[12], r.NoOpRecord)
    assert [batch.header.leader_epoch for batch in strict(log)][-3:] == [2, 2, 2]
    assert [topic.name for topic in image_of(log).topics.all()] == ["orders", "payments"]


def test_an_epoch_that_began_in_the_lost_bytes_begins_there_again() -> None:
    disk = memory_disk()
    node = make_node(disk)
    flip(node, 10)
    flip_also = make_node(disk, home="/other")
    flip(flip_also, 10)
    write(disk, join(node.log.directory, "leader-epoch-checkpoint"), EpochTable(((1, 0), (2, 11))).encode())
    content = bytearray(read_file(disk, join(node.log.directory, segment_name(0))))
    (batch,) = (one for one in strict(make_node(memory_disk()).log) if one.header.base_offset == 11)
    content[batch.position + len(batch.data) - 1] ^= 0xFF
    write(disk, join(node.log.directory, segment_name(0)), bytes(content))
    _, log = repaired(node, past_corruption=True)
    epochs = {one.header.base_offset: one.header.leader_epoch for one in strict(log)}
    assert (epochs[7], epochs[10], epochs[11], epochs[12]) == (1, 1, 2, 2)
    table = EpochTable.decode(read_file(disk, join(log.directory, "leader-epoch-checkpoint")))
    assert table.entries == ((1, 0), (2, 11))


def test_a_snapshot_behind_the_lost_bytes_keeps_the_whole_state() -> None:
    node = make_node(memory_disk(), per_segment=4)
    sound = image_of(node.log)
    add_snapshot(node, 10)
    add_snapshot(node, 13)
    flip(node, 4)
    report, log = repaired(node, past_corruption=True)
    assert report.base == LogPosition(1, 10)
    assert (log.start_offset, log.end_offset) == (10, 15)
    assert [one.offset for one in report.kept_snapshots] == [10, 13]
    assert images_equal(report.after, sound)
    assert images_equal(state_at(log).image, sound)
    assert [one.kind for one in report.changes] == ["begins"]
    with ReplicaStoreOpened(node.log.disk, NEW) as store:
        assert (store.log.start_offset, store.log.end_offset) == (10, 15)
        assert store.log.epochs.entries == ((1, 10), (2, 11))


def test_a_damaged_snapshot_is_not_relied_on() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 10)
    path = node.log.snapshot(LogPosition(1, 10)).path
    write(node.log.disk, path, read_file(node.log.disk, path)[:-3])
    flip(node, 4)
    report, log = repaired(node, past_corruption=True, drop_failing=True)
    assert report.base is None
    assert list_snapshots(node.log.disk, log.directory) == []
    assert any("is left out" in one.text for one in report.changes)


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_damaged_newest_snapshot_alone_is_left_out(left: int) -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 10)
    add_snapshot(node, 14)
    path = node.log.snapshot(LogPosition(2, 14)).path
    before = [one.data for one in strict(node.log)]
    write(node.log.disk, path, read_file(node.log.disk, path)[:left])
    report, log = repaired(node, past_corruption=True)
    assert [(one.kind, one.text) for one in report.changes] == [
        ("snapshot", f"{path.rpartition('/')[2]} is left out: it is damaged")
    ]
    assert [one.offset for one in report.kept_snapshots] == [10]
    assert [one.data for one in strict(log)] == before
    with ReplicaStoreOpened(node.log.disk, NEW) as store:
        assert store.log.end_offset == 15


def test_a_damaged_snapshot_that_nothing_else_covers_is_not_left_out() -> None:
    node = make_node(memory_disk(), per_segment=4)
    add_snapshot(node, 14)
    for base in node.log.segments[:-1]:
        node.log.disk.remove(join(node.log.directory, segment_name(base)))
    path = node.log.snapshot(LogPosition(2, 14)).path
    write(node.log.disk, path, read_file(node.log.disk, path)[:-1])
    with pytest.raises(InspectError, match="no complete snapshot beside it reaches that offset"):
        plan_repair(node, RepairRequest(past_corruption=True))


def test_a_torn_tail_is_cut_on_the_way() -> None:
    node = make_node(memory_disk())
    path = join(node.log.directory, segment_name(0))
    write(node.log.disk, path, read_file(node.log.disk, path)[:-7])
    report, log = repaired(node, past_corruption=True)
    assert [one.kind for one in report.changes] == ["cut"]
    assert log.end_offset == 14
    assert strict(log)


def test_a_hole_as_large_as_a_segment_is_refused() -> None:
    disk = memory_disk()
    node = make_node(disk, per_segment=4)
    disk.remove(join(node.log.directory, segment_name(4)))
    report = plan_repair(node, RepairRequest(past_corruption=True))
    assert report.changes[0].end_offset > 4
    far = b"".join(one.data for one in strict(make_node(memory_disk(), [(3, [r.NoOpRecord()])]).log))
    write(disk, join(node.log.directory, segment_name(20_000_000)), (20_000_000).to_bytes(8, "big") + far[8:])
    with pytest.raises(InspectError, match="a segment is missing"):
        plan_repair(node, RepairRequest(past_corruption=True))


# --- an end, snapshots, refusals


def test_a_log_can_end_earlier_at_a_batch() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 10)
    add_snapshot(node, 14)
    report, log = repaired(node, end_at=13)
    assert log.end_offset == 13
    assert report.end == LogPosition(2, 13)
    assert [one.offset for one in report.kept_snapshots] == [10]
    assert images_equal(image_of(log), report.after)
    inside = plan_repair(node, RepairRequest(end_at=5))
    assert inside.end.offset == 4


def test_snapshots_from_before_the_change_are_kept_byte_for_byte_and_later_ones_are_left_out() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 10)
    add_snapshot(node, 14)
    report, log = repaired(node, drop=frozenset({12}))
    assert [one.offset for one in report.kept_snapshots] == [10]
    assert report.changes[-1].kind == "snapshot"
    position = LogPosition(1, 10)
    disk = node.log.disk
    assert read_file(disk, log.snapshot(position).path) == read_file(disk, node.log.snapshot(position).path)
    assert images_equal(state_at(log).image, report.after)


def test_a_trimmed_log_is_repaired_from_its_oldest_snapshot_on() -> None:
    disk = memory_disk()
    node = make_node(disk, per_segment=5)
    add_snapshot(node, 10)
    disk.remove(join(node.log.directory, segment_name(0)))
    node = node_files(open_log(disk, HOME))
    report, log = repaired(node, drop=frozenset({12}))
    assert (log.start_offset, log.end_offset) == (7, 15)
    assert report.base == LogPosition(1, 10)
    assert sorted(topic.name for topic in state_at(log).image.topics.all()) == ["orders", "payments"]
    with pytest.raises(InspectError, match=r"offset 8 precedes the oldest snapshot \(10\)"):
        plan_repair(node, RepairRequest(drop=frozenset({8})))
    with pytest.raises(InspectError, match="its oldest state is at offset 10"):
        plan_repair(node, RepairRequest(end_at=9))
    disk.remove(node.log.snapshot(LogPosition(1, 10)).path)
    with pytest.raises(InspectError, match="no complete snapshot beside it reaches that offset"):
        plan_repair(node, RepairRequest(drop=frozenset({12})))


def test_a_target_that_is_not_empty_is_refused_and_left_alone() -> None:
    disk = memory_disk()
    node = make_node(disk)
    disk.make_directory(NEW)
    write(disk, join(NEW, "somebody's"), b"x")
    with pytest.raises(InspectError, match="/new exists and is not empty"):
        repaired(node, drop=frozenset({12}))
    assert contents(disk, NEW) == {"/new/somebody's": b"x"}


def test_what_a_voter_must_not_forget_goes_with_it() -> None:
    disk = memory_disk()
    node = make_node(disk)
    write(disk, join(node.log.directory, "configured-voters"), b"voters")
    write(disk, join(node.log.directory, "recovery-point"), b"not for the new log")
    write(disk, join(HOME, "bootstrap.checkpoint"), b"bootstrap")
    repaired(node, drop=frozenset({12}))
    made = contents(disk, NEW)
    inner = f"{NEW}/{METADATA_DIRECTORY}"
    assert load_quorum_state(disk, inner) == node.quorum
    assert load_meta_properties(disk, NEW) == node.identity
    assert made[f"{inner}/configured-voters"] == b"voters"
    assert made[f"{NEW}/bootstrap.checkpoint"] == b"bootstrap"
    assert f"{inner}/recovery-point" not in made


def test_the_same_request_gives_the_same_bytes() -> None:
    made = []
    for _ in range(2):
        node = make_node(memory_disk(), per_segment=5)
        flip(node, 4)
        repaired(node, past_corruption=True, drop_failing=True)
        made.append(contents(node.log.disk, NEW))
    assert made[0] == made[1]


def test_a_repair_that_a_power_loss_ends_leaves_no_identity() -> None:
    finished = 0
    for operation in range(200):
        disk = memory_disk()
        node = make_node(disk)
        add_snapshot(node, 10)
        kept = contents(disk, HOME)
        disk.crash_after = operation
        try:
            repaired(node, drop=frozenset({12}))
            finished += 1
        except PowerLossError:
            pass
        after = disk.crash()
        assert contents(after, HOME) == kept
        if after.exists(join(NEW, "meta.properties")):
            assert len(strict(open_log(after, NEW))) == len(strict(open_log(after, HOME)))
            assert list_snapshots(after, join(NEW, METADATA_DIRECTORY)) == [LogPosition(1, 10)]
        if finished:
            break
    assert finished == 1


# --- real logs


class ReplicaStoreOpened:
    """A repaired directory as a controller opens it; a warning is a failure."""

    def __init__(self, disk: Disk, home: str) -> None:
        self._warnings: list[str] = []
        self._store = ReplicaStore.open(disk, home, None, self._warnings.append)

    def __enter__(self) -> ReplicaStore:
        return self._store

    def __exit__(self, *failure: object) -> None:
        self._store.close()
        assert self._warnings == []


def strict_image(log: MetadataLog) -> MetadataImage:
    """The state of a log in which everything can be applied, from its snapshot if it was trimmed."""
    state = ReplayState()
    if log.start_offset:
        position = next(one for one in log.snapshots() if one.offset >= log.start_offset)
        reader = log.snapshot(position).reader()
        batches = [item for item in reader if isinstance(item, RecordBatch)]
        reader.close()
        state = ReplayState(load_snapshot(batches, position=position))
    return replay_all(state, (one for one in strict(log) if one.header.next_offset > state.end_offset)).image


@needs_shared_data
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: "/".join(path.relative_to(ROOT).parts))
def test_every_recorded_log_is_repaired_and_never_touched(path: Path, tmp_path: Path) -> None:
    kept = all_files(path)
    node = node_files(open_log(PosixDisk(), str(path)))
    try:
        plan = plan_repair(node, RepairRequest(past_corruption=True, drop_failing=True))
    except InspectError as error:
        assert "nothing would change" in str(error)
        found = state_at(node.log)
        assert found.problems == []
        plan = None
    data = [
        one
        for item in node.log.items()
        if isinstance(item, ReadBatch)
        for one in item.records
        if not item.batch.header.is_control
    ]
    if not data:
        return
    end = node.log.end_offset
    last = max(one.offset for one in data if one.offset < end)
    target = str(tmp_path / "new")
    request = RepairRequest(drop=frozenset({last}), past_corruption=plan is not None, drop_failing=True)
    report = write_repair(node, request, target)
    assert all_files(path) == kept
    log = open_log(PosixDisk(), target)
    image = strict_image(log) if not report.remaining else state_at(log).image
    assert images_equal(image, report.after)
    assert log.end_offset == end
    (dropped,) = [
        batch for batch in strict(log) if batch.header.base_offset <= last < batch.header.next_offset
    ]
    assert NO_OP in dropped.data


@needs_shared_data
@pytest.mark.parametrize(("at", "how"), [(0.3, "begins"), (0.7, "adjusted")])
def test_a_golden_log_with_a_flipped_byte_is_usable_again(tmp_path: Path, at: float, how: str) -> None:
    """The second byte is one of a base offset, which no CRC covers: it is put back from its neighbours."""
    source = ROOT / "kafka-3.7" / "controller-3000"
    disk = PosixDisk()
    damaged = tmp_path / "damaged" / METADATA_DIRECTORY
    damaged.mkdir(parents=True)
    for name, content in all_files(source / METADATA_DIRECTORY).items():
        if name.endswith((".log", ".checkpoint")) or name == "quorum-state":
            (damaged / name).write_bytes(content)
    (damaged.parent / "meta.properties").write_bytes((source / "meta.properties").read_bytes())
    first = damaged / segment_name(0)
    content = bytearray(first.read_bytes())
    content[int(len(content) * at)] ^= 0xFF
    first.write_bytes(content)
    node = node_files(open_log(disk, str(damaged.parent)))
    report = write_repair(node, RepairRequest(past_corruption=True), str(tmp_path / "new"))
    assert report.changes[0].kind == how
    log = open_log(disk, str(tmp_path / "new"))
    assert images_equal(state_at(log).image, state_at(open_log(disk, str(source))).image)
    with ReplicaStoreOpened(disk, str(tmp_path / "new")) as store:
        assert store.log.end_offset == log.end_offset


@pytest.mark.parametrize(("position", "name"), [(3, "base offset"), (12, "leader epoch")])
def test_a_number_that_no_crc_covers_is_put_back(position: int, name: str) -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 14)
    path = join(node.log.directory, segment_name(0))
    (batch,) = (one for one in strict(node.log) if one.header.base_offset == 7)
    sound = read_file(node.log.disk, path)
    damaged = bytearray(sound)
    damaged[batch.position + position] ^= 0x40
    write(node.log.disk, path, bytes(damaged))
    with pytest.raises(InspectError, match=f"{name} .* is put back to .*--past-corruption"):
        plan_repair(node, RepairRequest(drop=frozenset({14})))
    report, log = repaired(node, past_corruption=True)
    assert [one.kind for one in report.changes] == ["adjusted"]
    assert read_file(node.log.disk, join(log.directory, segment_name(0))) == sound
    assert [one.offset for one in report.kept_snapshots] == [14]


# --- segments of another log


def two_segments(first: list[Batch], second: list[Batch], base: int, name: int | None = None) -> NodeFiles:
    """A node whose second segment holds what another log has from `base` on, under `name`."""
    disk = memory_disk()
    node = make_node(disk, first)
    data = b"".join(encoded(second, base))
    write(disk, join(node.log.path, segment_name(base if name is None else name)), data)
    return node_files(open_log(disk, HOME))


STRANGE = [(5, [r.PartitionChangeRecord(0, bytes([7]) * 16, leader=at)]) for at in range(12)]


@pytest.mark.parametrize(
    ("second", "base", "name", "why"),
    [
        (STORY, 9, None, "offsets 9 to 14 are in 00000000000000000000.log already"),
        (STORY, 0, 15, "its name says offset 15, but its batches begin at 0"),
        ([(1, [r.NoOpRecord()]), (1, [r.NoOpRecord()])], 15, None, "its leader epochs end at 1, those of"),
        ([(2, [leads(1, (1, 2))]), (2, [r.NoOpRecord()])], 15, None, "its voters are [1, 2], but those of"),
        (STRANGE, 40, None, "none of the 12 records that refer to others applies"),
    ],
)
def test_a_segment_of_another_log_is_refused_and_not_merged(
    second: list[Batch], base: int, name: int | None, why: str
) -> None:
    node = two_segments(list(STORY), second, base, name)
    for request in (RepairRequest(past_corruption=True), RepairRequest(drop=frozenset({12}))):
        with pytest.raises(InspectError) as refused:
            plan_repair(node, request)
        text = str(refused.value)
        assert why in text and "does not belong to this log" in text and "\n" not in text


FITS = (5, [r.PartitionChangeRecord(0, ORDERS, leader=1)])
MADE_ITSELF = (5, [r.TopicRecord("own", bytes([7]) * 16), r.PartitionRecord(0, bytes([7]) * 16, (1,), (1,))])


@pytest.mark.parametrize(
    ("second", "is_refused"),
    [
        (STRANGE[:10], True),
        (STRANGE[:9], False),
        ([*STRANGE, FITS], False),
        ([MADE_ITSELF, *STRANGE], False),
        ([(2, [leads(1, (3001,))]), *STRANGE[:2]], False),
    ],
    ids=["strangers", "few strangers", "one fits", "of a topic of its own", "one voter is the same"],
)
@pytest.mark.parametrize("behind", ["a hole", "damage", "a snapshot"])
def test_what_must_come_together_before_a_segment_is_refused(
    second: list[Batch], is_refused: bool, behind: str
) -> None:
    """Behind damage and before a snapshot, what does not fit may build on records that are lost."""
    node = two_segments(list(STORY), second, 40)
    path = join(node.log.directory, segment_name(0))
    if behind == "damage":
        content = bytearray(read_file(node.log.disk, path))
        content[-1] ^= 0xFF
        write(node.log.disk, path, bytes(content))
    if behind == "a snapshot":
        position = LogPosition(3, 40)
        written = b"".join(snapshot_batches(image_of(make_node(memory_disk()).log), position=position))
        write(node.log.disk, snapshot_path(node.log.directory, position), written)
    node = node_files(open_log(node.log.disk, HOME))
    if is_refused and behind == "a hole":
        with pytest.raises(InspectError, match="does not belong to this log"):
            plan_repair(node, RepairRequest(past_corruption=True))
    else:
        assert plan_repair(node, RepairRequest(past_corruption=True)).end.offset >= 40


def test_a_segment_that_goes_on_is_no_stranger() -> None:
    more: list[Batch] = [(2, [r.PartitionChangeRecord(0, ORDERS, leader=1)]) for _ in range(12)]
    report = plan_repair(two_segments(list(STORY), more, 15), RepairRequest(drop=frozenset({12})))
    assert report.end.offset == 27
