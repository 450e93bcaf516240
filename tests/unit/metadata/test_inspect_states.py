"""The state at a place of a log: from the beginning, and what happens at gaps, damage and the future."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.coverage import (
    MISSING,
    NOT_IN_LOG,
    STATE_UNKNOWN,
    Coverage,
    Uncovered,
    before_the_log,
    before_the_state,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line, open_log, require_one_cluster
from metaquorum.metadata.inspect.log.points import END, Point, parse_point, utc_text
from metaquorum.metadata.inspect.log.quorum import quorum_at
from metaquorum.metadata.inspect.walk.states import SHOWN_PROBLEMS, state_at, steps
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import LeaderChangeMessage, LeaderVoter
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import FileMissingError, NotALogError
from metaquorum.storage.log.segment import segment_name
from tests.unit.metadata.made_logs import (
    HOME,
    STORY,
    add_snapshot,
    images_equal,
    leads,
    make_node,
    memory_disk,
    strict,
    write,
)

T0 = 1_795_000_000_000
TOPIC = bytes(range(16))
FUTURE = bytes([1, 99, 0, 0])
"""Frame version 1, api key 99, version 0: a type that nobody knows."""


class Maker:
    """Batches one after the other, each a second later, in segments of a directory."""

    def __init__(self, directory: Path, base: int = 0) -> None:
        self.directory = directory
        self.base = self.offset = base
        self.time_ms = T0
        self.places: list[tuple[int, int]] = []

    def batch(self, *records: object, epoch: int = 1, raw: Sequence[bytes] = ()) -> int:
        """Appends one; its base offset."""
        values = [encode(record, 0) for record in records] + list(raw)  # type: ignore[arg-type]
        return self._put(values, None, epoch)

    def leader(self, node: int, epoch: int) -> int:
        voters = tuple(LeaderVoter(voter) for voter in (1, 2, 3))
        key, value = encode_control(LeaderChangeMessage(node, voters, voters))
        return self._put([value], [key], epoch)

    def _put(self, values: list[bytes], keys: list[bytes] | None, epoch: int) -> int:
        first = self.offset
        data = encode_batch(
            base_offset=first,
            leader_epoch=epoch,
            timestamp_ms=self.time_ms,
            values=values,
            keys=keys,
            is_control=keys is not None,
        )
        path = self.directory / segment_name(self.base)
        self.places.append((path.stat().st_size if path.exists() else 0, len(data)))
        with path.open("ab") as file:
            file.write(data)
        self.offset += len(values)
        self.time_ms += 1000
        return first

    def roll(self) -> None:
        self.base = self.offset

    def log(self) -> MetadataLog:
        return open_log(PosixDisk(), str(self.directory))


def feature(level: int) -> r.FeatureLevelRecord:
    return r.FeatureLevelRecord("metadata.version", level)


def level_at(log: MetadataLog, point: Point = END, *, past: bool = False) -> int:
    return state_at(log, point, past_corruption=past).image.features.level("metadata.version")


def story(directory: Path) -> Maker:
    """Levels 1 to 9 at offsets 0, 2, 4 ..: two records a batch."""
    maker = Maker(directory)
    for level in range(1, 10):
        maker.batch(r.NoOpRecord(), feature(level))
    return maker


def test_a_place_is_an_offset_a_time_or_the_end() -> None:
    assert parse_point("17") == Point(offset=17)
    assert parse_point("@17") == Point(time_ms=17)
    assert parse_point("1970-01-01T00:00:01Z") == parse_point("1970-01-01T01:00:01+01:00")
    assert parse_point("1970-01-01T00:00:01") == Point(time_ms=1000)
    assert parse_point(None) == parse_point("end") == END
    assert END.is_end
    with pytest.raises(ValueError, match=r"is neither a time nor an offset; write .*, or end"):
        parse_point("yesterday")
    assert utc_text(1001) == "1970-01-01T00:00:01.001Z"
    assert utc_text(10**18) == f"{10**18}ms"


def test_a_batch_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    log = story(tmp_path).log()
    for offset in range(19):
        found = state_at(log, Point(offset=offset))
        assert found.end_offset == offset - offset % 2
        assert found.image.features.level("metadata.version") == offset // 2
        assert (found.problems, found.notes, found.unknown, found.stopped) == ([], [], 0, None)
    assert log.start_offset == 0
    assert log.end_offset == 18


def test_a_time_is_the_state_before_the_first_later_batch(tmp_path: Path) -> None:
    maker = story(tmp_path)
    log = maker.log()
    assert level_at(log, Point(time_ms=T0 + 3000)) == 4
    assert level_at(log, Point(time_ms=T0 + 3999)) == 4
    late = state_at(log, Point(time_ms=maker.time_ms))
    assert late.end_offset == 18
    assert "this is the state at its end, offset 18" in late.notes[0]
    with pytest.raises(InspectError, match="give a later time"):
        state_at(log, Point(time_ms=T0 - 1))


def test_an_offset_past_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InspectError, match="ends at offset 18, before 19; give 18 or less"):
        state_at(story(tmp_path).log(), Point(offset=19))


def test_steps_are_the_batches_between_two_places(tmp_path: Path) -> None:
    log = story(tmp_path).log()
    walked = list(steps(log, Point(offset=5), Point(time_ms=T0 + 5500)))
    assert [(step.offset, step.next_offset) for step in walked] == [(4, 6), (6, 8), (8, 10), (10, 12)]
    for step in walked:
        level = step.offset // 2
        assert step.before.features.level("metadata.version") == level
        assert step.after.features.level("metadata.version") == level + 1
        assert [record.offset for record in step.records] == [step.offset, step.offset + 1]
        assert (step.epoch, step.time_ms) == (1, T0 + 1000 * level)


def test_replay_stops_at_a_corrupt_batch_or_goes_on(tmp_path: Path) -> None:
    maker = story(tmp_path)
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    position, size = maker.places[4]
    data[position + size - 3] ^= 0xFF
    path.write_bytes(data)
    log = maker.log()
    told: list[str] = []
    found = state_at(log, END, told.append)
    assert found.end_offset == 8
    assert found.stopped is not None
    assert (found.stopped.position, found.stopped.offset) == (position, 8)
    assert told == found.problems
    assert "expected CRC" in told[0]
    assert "stopped at offset 8: offsets 8 to 9 are missing, the next batch begins at 10" in told[1]
    assert damage_line(found.stopped) == told[0]
    beyond = state_at(log, END, past_corruption=True)
    assert beyond.end_offset == 18
    assert beyond.stopped is None
    assert "continued at offset 10" in beyond.problems[1]
    assert level_at(log, END, past=True) == 9
    assert state_at(log, Point(offset=8)).problems == []
    assert [step.offset for step in steps(log)] == [0, 2, 4, 6]
    assert [step.offset for step in steps(log, past_corruption=True)] == [0, 2, 4, 6, 10, 12, 14, 16]


def test_a_gap_between_segments_stops_the_replay(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    for level in range(1, 7):
        maker.batch(feature(level))
        if level % 2 == 0:
            maker.roll()
    (tmp_path / segment_name(2)).unlink()
    (tmp_path / "00000000000000000002.index").touch()
    log = maker.log()
    told: list[str] = []
    found = state_at(log, END, told.append)
    assert (found.end_offset, level_at(log)) == (2, 2)
    assert "00000000000000000002.index" in told[0]
    assert "is an index without its log" in told[0]
    assert "expected a segment at offset 2, found 4" in told[1]
    assert "stopped at offset 2: offsets 2 to 3 are missing" in told[2]
    assert level_at(log, END, past=True) == 6
    assert state_at(log, Point(offset=2)).problems == []


def test_a_torn_tail_is_told_and_stops_nothing(tmp_path: Path) -> None:
    maker = story(tmp_path)
    with (tmp_path / segment_name(0)).open("ab") as file:
        file.write(bytes(30))
    found = state_at(maker.log())
    assert (found.end_offset, found.stopped) == (18, None)
    assert "expected a batch header of 61 bytes, found 30" in found.problems[0]


def test_records_from_the_future_are_counted_and_garbage_is_told(tmp_path: Path) -> None:
    maker = story(tmp_path)
    maker.batch(feature(10), raw=[FUTURE, b"\x01\x0c\x00\xff"])
    maker.batch(raw=[FUTURE] * 40)
    maker.batch(feature(11))
    found = state_at(maker.log())
    assert found.image.features.level("metadata.version") == 11
    assert found.unknown == 41
    assert len(found.problems) == 1
    assert "skipped: offset 20:" in found.problems[0]
    walked = list(steps(maker.log(), Point(offset=18)))
    assert walked[0].problems == tuple(found.problems)
    assert [record.offset for record in walked[0].records] == [18, 19]
    assert {type(record.record) for record in walked[1].records} == {r.UnknownRecord}


def test_problems_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    for _ in range(50):
        maker.batch(r.RemoveTopicRecord(TOPIC))
    told: list[str] = []
    found = state_at(maker.log(), END, told.append)
    assert len(told) == 50
    assert len(found.problems) == SHOWN_PROBLEMS + 1
    assert "more problems follow" in found.problems[-1]


def test_the_inside_of_a_transaction_is_not_visible(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.batch(feature(1))
    maker.batch(r.BeginTransactionRecord("t"))
    maker.batch(feature(2))
    open_place = maker.offset
    maker.batch(r.EndTransactionRecord())
    log = maker.log()
    assert level_at(log, Point(offset=open_place)) == 1
    assert level_at(log) == 2
    levels = [step.after.features.level("metadata.version") for step in steps(log)]
    assert levels == [1, 1, 1, 2]
    inside = state_at(log, Point(offset=open_place))
    assert inside.end_offset == open_place
    assert inside.state.newest.features.level("metadata.version") == 2


def test_who_leads_is_read_from_control_records(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.leader(2, 4)
    maker.batch(feature(1), epoch=4)
    election = maker.leader(3, 7)
    maker.batch(feature(2), epoch=7)
    log = maker.log()
    quorum = state_at(log).quorum
    assert (quorum.leader_id, quorum.epoch, quorum.offset, quorum.voters) == (3, 7, election, (1, 2, 3))
    assert state_at(log, Point(offset=election)).quorum.leader_id == 2
    assert quorum_at(log, maker.offset) == quorum
    assert quorum_at(log, election).epoch == 4
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n4 0\n7 2\n")
    assert quorum_at(log, maker.offset) == quorum
    assert quorum_at(log, election).epoch == 4
    (tmp_path / "leader-epoch-checkpoint").write_text("broken")
    assert quorum_at(log, maker.offset) == quorum


def test_what_is_no_log_says_so(tmp_path: Path) -> None:
    disk = PosixDisk()
    with pytest.raises(FileMissingError):
        open_log(disk, str(tmp_path / "nowhere"))
    with pytest.raises(NotALogError, match="holds no metadata log; give"):
        open_log(disk, str(tmp_path))
    index = tmp_path / "00000000000000000000.index"
    index.touch()
    with pytest.raises(NotALogError, match=r"holds no metadata log .*index is present without its log"):
        open_log(disk, str(tmp_path))
    with pytest.raises(NotALogError, match="which is missing; the log is lost here"):
        open_log(disk, str(index))
    story(tmp_path)
    with pytest.raises(NotALogError, match=r"is an index of 00000000000000000000\.log"):
        open_log(disk, str(index))


def test_a_log_without_its_beginning_needs_a_snapshot(tmp_path: Path) -> None:
    maker = Maker(tmp_path, base=100)
    maker.batch(feature(5))
    with pytest.raises(
        InspectError, match="begins at offset 100, and no snapshot beside it reaches that offset"
    ):
        state_at(maker.log())
    found = state_at(maker.log(), past_corruption=True)
    assert (found.end_offset, found.image.features.level("metadata.version")) == (101, 5)
    assert "nothing earlier is known" in found.problems[0]


def test_logs_of_two_clusters_are_not_mixed(tmp_path: Path) -> None:
    logs = []
    for name in ("one", "two"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "meta.properties").write_text(f"version=1\ncluster.id={name}\nnode.id=7\n")
        logs.append(story(directory).log())
    assert logs[0].identity is not None
    assert (logs[0].identity.cluster_id, logs[0].identity.node_id) == ("one", 7)
    require_one_cluster([logs[0], logs[0]])
    with pytest.raises(InspectError, match=r"belongs to cluster one, but .* to two"):
        require_one_cluster(logs)


def test_a_start_in_the_middle_reads_only_from_there(tmp_path: Path) -> None:
    maker = story(tmp_path)
    log = maker.log()
    read: list[int] = []
    log.on_read = read.append
    assert [found.header.base_offset for found in log.batches(9) if not hasattr(found, "reason")] == [
        8, 10, 12, 14, 16
    ]  # fmt: skip
    assert read == [size for _, size in maker.places[4:]]
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    data[maker.places[1][0] + 70] ^= 0xFF
    path.write_bytes(data)
    assert len(list(log.batches(9))) == 5
    assert len(list(log.batches())) == 9


@pytest.mark.parametrize("bit", [(0, 0x10), (6, 0x01)])
def test_a_damaged_base_offset_is_named_and_put_back_when_asked(bit: tuple[int, int]) -> None:
    """The number stands outside of the CRC; the batch behind it tells what it was."""
    node = make_node(memory_disk())
    path = join(node.log.directory, segment_name(0))
    (batch,) = (one for one in strict(node.log) if one.header.base_offset == 7)
    data = bytearray(read_file(node.log.disk, path))
    whole = state_at(node.log)
    data[batch.position + bit[0]] ^= bit[1]
    write(node.log.disk, path, bytes(data))
    found = state_at(node.log)
    assert found.end_offset == 7
    line = found.problems[-1]
    assert f"{path} at byte {batch.position}" in line and "7 matches" in line
    assert "--past-corruption" in line and "metaquorum log repair" in line
    past = state_at(node.log, past_corruption=True)
    assert images_equal(past.image, whole.image) and past.end_offset == whole.end_offset
    assert any("it was corrected" in one for one in past.problems)
    assert 7 in [step.offset for step in steps(node.log, past_corruption=True)]


@pytest.mark.parametrize("per_segment", [1, 4, 100])
@pytest.mark.parametrize("table", [None, "0\n2\n1 0\n2 11\n", "0\n1\n1 0\n", "garbage"])
def test_the_election_in_force_is_the_newest_below_an_offset(per_segment: int, table: str | None) -> None:
    """Whatever the table of epochs says, and wherever segments end."""
    disk = memory_disk()
    story = [*STORY, (3, [leads(3002, (3000, 3002))]), (3, [r.NoOpRecord()]), (4, [leads(3000)])]
    log = make_node(disk, story, per_segment=per_segment).log
    if table is not None:
        write(disk, f"{log.directory}/leader-epoch-checkpoint", table.encode())
    elections = ((0, 1, 3000), (11, 2, 3001), (15, 3, 3002), (17, 4, 3000))
    for end in range(19):
        newest = [one for one in elections if one[0] < end][-1:]
        view = quorum_at(log, end)
        found = [(view.offset, view.epoch, view.leader_id)] if view.has_leader else []
        assert found == newest, end


# What an answer does not cover: the stretch before the first known state, and the shape all tools print.


def trimmed(*snapshots: int, first: int = 4) -> MetadataLog:
    """The story with segments of two batches each, without what is before `first`, with those snapshots."""
    disk = memory_disk()
    node = make_node(disk, per_segment=2)
    for offset in snapshots:
        add_snapshot(node, offset)
    for base in [one for one in node.log.segments if one < first]:
        disk.remove(f"{HOME}/__cluster_metadata-0/{segment_name(base)}")
    return node.log


@pytest.mark.parametrize(
    "snapshots, known",
    [((12,), 12), ((11, 13), 11), ((2,), None), ((), None), ((2, 4), 4), ((4, 12), 4)],
)
def test_a_state_is_known_from_the_first_snapshot_that_is_not_before_the_log(
    snapshots: tuple[int, ...], known: int | None
) -> None:
    log = trimmed(*snapshots)
    assert log.start_offset == 4
    assert known_from(log) == known
    found = before_the_state(log, None, END, "nothing is told")
    if known == 4:
        assert found is None
    else:
        assert found is not None and found.reason == STATE_UNKNOWN
        assert (found.from_offset, found.to_offset) == (4, known)


def test_a_snapshot_without_its_end_is_no_state() -> None:
    log = trimmed(11, 13)
    first = log.snapshot(log.snapshots()[0]).path
    file = log.disk.open_append(first)
    file.truncate(file.size() - 40)
    file.close()
    assert known_from(log) == 13


def test_what_was_asked_about_bounds_it() -> None:
    log = trimmed(12)
    found = before_the_state(log, Point(offset=5), Point(offset=7), "x")
    assert found is not None and (found.from_offset, found.to_offset) == (5, 7)
    assert before_the_state(log, Point(offset=12), END, "x") is None
    before = before_the_log(log, Point(offset=1))
    assert before is not None and before.tree() == {
        "path": log.path,
        "fromOffset": 1,
        "toOffset": 4,
        "reason": NOT_IN_LOG,
        "text": "the log begins at offset 4: earlier records were deleted, or are on another node",
    }
    assert before_the_log(log, None) is None and before_the_log(log, Point(offset=4)) is None


def test_neighbours_are_one_range_and_nothing_is_told_twice() -> None:
    coverage = Coverage()
    assert not coverage
    for start, end in ((3, 5), (5, 9), (3, 9), (9, 9), (20, None), (20, None)):
        coverage.add(Uncovered(from_offset=start, to_offset=end, reason=MISSING, text="lost"))
    assert [one.line for one in coverage] == [
        "offsets 3 to 8 (missing): lost",
        "offsets from 20 on (missing): lost",
    ]


def test_only_neighbours_of_one_log_one_reason_and_one_text_become_one() -> None:
    def lost(start: int, end: int | None, **other: str) -> Uncovered:
        told = {"reason": MISSING, "text": "lost", "path": "/log"} | other
        return Uncovered(from_offset=start, to_offset=end, **told)

    coverage = Coverage()
    first, apart = lost(0, 5), lost(10, 12)
    coverage.extend((first, apart, lost(12, 12), lost(12, 14), apart))
    assert coverage.ranges == [first, lost(10, 14), apart], "a range is told again only where it is another"
    for other in ({"path": "/later"}, {"reason": NOT_IN_LOG}, {"text": "trimmed"}, {"text": "aa"}):
        coverage = Coverage()
        coverage.extend((first, lost(5, 7, **other), lost(7, None, **other)))
        assert coverage.ranges == [first, lost(5, None, **other)]
