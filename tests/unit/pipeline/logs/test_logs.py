"""Finding logs, hopping over headers, reading pieces, choosing one history, telling damage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.pipeline.arrow import record_batches
from metaquorum.pipeline.logs import follow
from metaquorum.pipeline.logs.cut import record_pieces
from metaquorum.pipeline.logs.damage import Dialect, log_damage, parse_dialect
from metaquorum.pipeline.logs.follow import LogEnd, log_ends, pieces_between
from metaquorum.pipeline.logs.merged import merge_logs
from metaquorum.pipeline.logs.pieces import DamagedError, Piece, Selection, read_piece
from metaquorum.pipeline.logs.places import Identities, LogPlace, NoLogsError, find_logs
from metaquorum.pipeline.logs.survey import LogSurvey, hop, survey
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.metadata.made_logs import make_node
from tests.unit.pipeline.intervals.telling import Line, batches, leads, read_log

DISK = PosixDisk()
STORY: list[Line] = [(0, [leads(3000)]), *[(at, [r.NoOpRecord()] * 5) for at in range(1, 40)]]


def node(
    home: Path, lines: list[Line] = STORY, *, epochs: list[int] | None = None, cluster: str = "one"
) -> Path:
    """A node's directory with a log of one segment."""
    log = home / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (home / "meta.properties").write_text(f"version=1\nnode.id={home.name[1:]}\ncluster.id={cluster}\n")
    data = b"".join(batch.data for batch in batches(lines, epochs))
    (log / f"{0:020d}.log").write_bytes(data)
    return log


def place(log: Path) -> LogPlace:
    (found,) = find_logs(DISK, [str(log)])
    return found


def surveyed(log: Path, split_bytes: int = 1 << 30) -> LogSurvey:
    (found,) = survey(DISK, place(log), split_bytes)
    return found


def offsets(pieces: list[Piece]) -> list[int]:
    found = []
    for piece in pieces:
        for item in read_piece(DISK, piece):
            assert isinstance(item, RecordBatch)
            inside = range(
                piece.from_offset or 0, piece.to_offset if piece.to_offset is not None else 1 << 62
            )
            found += [at.offset for at in decode_batch(item) if at.offset in inside]
    return found


def test_logs_are_found_below_any_directory_and_named_by_meta_properties(tmp_path: Path) -> None:
    node(tmp_path / "fleet" / "a" / "n1")
    node(tmp_path / "fleet" / "b" / "n2", cluster="two")
    found = find_logs(DISK, [str(tmp_path / "fleet"), str(tmp_path / "fleet" / "a" / "n1")])
    assert [(at.cluster, at.node_id) for at in found] == [("one", 1), ("two", 2)]
    assert {at.cluster for at in find_logs(DISK, [str(tmp_path)], "named")} == {"named"}


def test_a_log_that_nothing_names_goes_by_its_path(tmp_path: Path) -> None:
    log = node(tmp_path / "n1")
    (tmp_path / "n1" / "meta.properties").unlink()
    assert place(log).cluster == f"file:{log}"
    assert place(log).node_id is None


@pytest.mark.parametrize("path", ["", "absent", "empty"])
def test_a_path_without_a_log_is_refused_by_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoLogsError, match=str(tmp_path / path)):
        find_logs(DISK, [str(tmp_path / path)])


def test_partitions_of_topics_are_no_metadata_logs(tmp_path: Path) -> None:
    node(tmp_path / "n1")
    data = tmp_path / "n1" / "orders-0"
    data.mkdir()
    (data / f"{0:020d}.log").write_bytes(b"")
    assert [at.path for at in find_logs(DISK, [str(tmp_path)])] == [
        str(tmp_path / "n1" / "__cluster_metadata-0")
    ]


@pytest.mark.parametrize("split_bytes", [1, 100, 700, 1 << 20])
def test_pieces_hold_every_record_once(tmp_path: Path, split_bytes: int) -> None:
    log = node(tmp_path / "n1")
    expected = [at.offset for batch in read_log(log) for at in decode_batch(batch)]
    for one_history in (False, True):
        pieces = record_pieces(
            [place(log)],
            Selection(),
            checkpoints="false",
            one_history=one_history,
            split_bytes=split_bytes,
        )
        assert offsets(pieces) == expected
        assert (len(pieces) > 3) == (split_bytes <= 700)


@pytest.mark.shared_data
def test_pieces_of_recorded_segments(shared_data: Path) -> None:
    log = shared_data / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"
    pieces = record_pieces(
        [place(log)], Selection(), checkpoints="false", one_history=False, split_bytes=20_000
    )
    assert len(pieces) > 10
    assert offsets(pieces) == list(range(4758))


def test_a_stream_reads_what_came_since(tmp_path: Path) -> None:
    log, made = node(tmp_path / "n1", STORY[:10]), batches(STORY)
    first = log_ends([place(log)], {})
    assert first == {str(log): LogEnd(46, 0, made[10].position)}
    (log / f"{0:020d}.log").write_bytes(b"".join(batch.data for batch in made))
    second = log_ends([place(log)], first)
    assert second == {str(log): LogEnd(196, 0, sum(len(batch.data) for batch in made))}
    start, end = first[str(log)], second[str(log)]
    for given in (start, LogEnd(46)):  # a checkpoint of an earlier build has no byte
        assert offsets(pieces_between(place(log), given, end, 1 << 20)) == list(range(46, 196))
        assert offsets(pieces_between(place(log), given, end, 200)) == list(range(46, 196))
    assert len(pieces_between(place(log), start, end, 200)) > 1
    assert pieces_between(place(log), end, end, 1 << 20) == []


def test_a_trigger_looks_at_what_is_new_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, made = node(tmp_path / "n1", STORY[:10]), batches(STORY)
    known = log_ends([place(log)], {})
    looked: list[tuple[str, int]] = []

    def noted(file: str, expected: int | None, position: int = 0) -> Any:
        for header in hop(file, expected, position):
            looked.append((Path(file).name, header.base_offset))
            yield header

    monkeypatch.setattr(follow, "hop", noted)
    with (log / f"{0:020d}.log").open("ab") as segment:
        segment.write(made[10].data + made[11].data)
    rest = [batch for batch in made if batch.header.base_offset >= made[12].header.base_offset]
    (log / f"{made[12].header.base_offset:020d}.log").write_bytes(b"".join(batch.data for batch in rest))
    ends = log_ends([place(log)], known)
    pieces = pieces_between(place(log), known[str(log)], ends[str(log)], 100)
    assert offsets(pieces) == list(range(46, 196))
    assert min(offset for _, offset in looked) == 46
    looked.clear()
    assert log_ends([place(log)], ends) == ends
    assert looked == []


def test_a_log_that_was_cut_back_and_grew_again_is_read_from_a_batch_on(tmp_path: Path) -> None:
    """The byte that a stream kept is inside another batch now."""
    log, made = node(tmp_path / "n1", STORY[:10]), batches(STORY)
    known = log_ends([place(log)], {})[str(log)]
    (log / f"{0:020d}.log").write_bytes(b"".join(batch.data for batch in made))
    inside = known._replace(position=known.position - 7)
    ends = log_ends([place(log)], {str(log): inside})
    assert ends[str(log)].offset == 196
    assert offsets(pieces_between(place(log), inside, ends[str(log)], 1 << 20)) == list(range(46, 196))
    shorter = tmp_path / "n2"
    node(shorter, STORY[:4])
    cut = place(shorter / "__cluster_metadata-0")
    assert log_ends([cut], {cut.path: known}) == {cut.path: known}


@pytest.mark.parametrize("wrong", [b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_a_stream_sees_past_a_bad_batch_length(tmp_path: Path, wrong: bytes) -> None:
    """The end goes on behind it; what is read between is named, or left out where that is asked for."""
    log = node(tmp_path / "n1")
    file = log / f"{0:020d}.log"
    made = batches(STORY)
    at = made[12].position
    data = bytearray(file.read_bytes())
    data[at + 8 : at + 12] = wrong
    file.write_bytes(bytes(data) + b"torn")
    end = log_ends([place(log)], {str(log): LogEnd(30)})[str(log)]
    assert end.offset == 196
    pieces = pieces_between(place(log), LogEnd(30), end, 1 << 20)
    lost = range(made[12].header.base_offset, made[12].header.next_offset)
    found = [
        offset
        for piece in pieces
        for part in record_batches("all", piece, Selection())
        for offset in part.column("offset").to_pylist()
    ]
    assert found == [offset for offset in range(30, 196) if offset not in lost]
    with pytest.raises(DamagedError, match=rf"{file} at byte {at} \(offset {lost[0]}\)"):
        for piece in pieces:
            list(record_batches("all", piece, Selection(), whole_to=196))
    for piece in pieces_between(place(log), LogEnd(100), end, 1 << 20):
        assert list(record_batches("all", piece, Selection(), whole_to=196)), "what was passed is passed"


def test_an_executor_that_does_not_see_a_log_says_so(tmp_path: Path) -> None:
    gone = LogPlace(path=str(tmp_path / "n1"), cluster="one", node_id=1)
    with pytest.raises(FileNotFoundError, match="n1"):
        survey(DISK, gone)


def test_a_survey_tells_epochs_ends_and_places_to_cut(tmp_path: Path) -> None:
    log = node(tmp_path / "n1", epochs=[1] * 10 + [3] * 30)
    found = surveyed(log, 700)
    assert (found.start_offset, found.end_offset, found.last_epoch, found.records) == (0, 196, 3, 196)
    assert found.epochs == [(1, 0), (3, 46)]
    assert [found.epoch_at(at) for at in (0, 45, 46, 195, 196)] == [1, 1, 3, 3, None]
    (segment,) = found.segments
    assert len(segment.splits) > 3
    assert [split.end for split in segment.splits[:-1]] == [split.position for split in segment.splits[1:]]


def test_a_survey_goes_on_behind_damage(tmp_path: Path) -> None:
    log = node(tmp_path / "n1")
    file = log / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    data[300:420] = bytes(120)
    file.write_bytes(bytes(data) + b"\0\0\0\0")
    assert surveyed(log).end_offset == 196
    kinds = [row.kind for row in log_damage(DISK, place(log))]
    assert kinds == ["corrupt", "tail"]


def test_the_most_recent_log_is_read_and_its_lost_beginning_from_another(tmp_path: Path) -> None:
    whole, late = node(tmp_path / "n1", STORY[:30]), node(tmp_path / "n2")
    made = batches(STORY)
    (late / f"{0:020d}.log").unlink()
    (late / f"{96:020d}.log").write_bytes(b"".join(at.data for at in made if at.header.base_offset >= 96))
    merged = merge_logs("one", [surveyed(whole), surveyed(late)])
    assert [(at.log.location.node_id, at.start, at.end) for at in merged.sections] == [
        (1, 0, 96),
        (2, 96, 196),
    ]
    assert merged.conflicts == []


def test_a_tail_that_was_replaced_is_superseded(tmp_path: Path) -> None:
    old = node(tmp_path / "n1", epochs=[1] * 40)
    new = node(tmp_path / "n2", STORY[:35], epochs=[1] * 30 + [2] * 5)
    merged = merge_logs("one", [surveyed(old), surveyed(new)])
    assert [at.log.location.node_id for at in merged.sections] == [2]
    (conflict,) = merged.conflicts
    assert (conflict.kind, conflict.offset, conflict.log.location.node_id) == ("superseded", 146, 1)


def test_a_survey_survives_its_trip_to_an_executor(tmp_path: Path) -> None:
    found = surveyed(node(tmp_path / "n1"), 700)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=LogSurvey) == found


def test_a_dialect_names_what_a_release_cannot_have_written(tmp_path: Path) -> None:
    record = r.PartitionRecord(0, b"t" * 16, replicas=(1,), isr=(1,), leader=1)
    log = node(tmp_path / "n1", [(0, [leads(3000)]), (0, [record])])
    (row,) = log_damage(DISK, place(log), parse_dialect("3.3"))
    assert (row.kind, row.offset) == ("dialect", 1)
    assert "up to version" in row.reason
    assert list(log_damage(DISK, place(log), parse_dialect("4.0"))) == []
    assert list(log_damage(DISK, place(log), Dialect())) == []
    with pytest.raises(ValueError, match=r"metadata\.version"):
        parse_dialect("99")


def test_records_from_the_future_are_told_once_a_type(tmp_path: Path) -> None:
    log = node(tmp_path / "n1")
    file = log / f"{0:020d}.log"
    from metaquorum.storage.batches.batch import encode_batch

    future = encode_batch(base_offset=196, leader_epoch=1, timestamp_ms=1, values=[b"\x01\x70\x00\x00"] * 3)
    file.write_bytes(file.read_bytes() + future)
    (row,) = log_damage(DISK, place(log))
    assert (row.kind, row.offset) == ("unknown", 196)
    assert "type 112 version 0" in row.reason
    assert "3 times" in row.reason


def test_a_directory_of_another_cluster_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    """Also if its file is as long as that of the one before."""
    known, file = Identities(), tmp_path / "n1" / "meta.properties"
    make_node(PosixDisk(), home=str(file.parent), cluster_id="one")
    for changed_s, cluster in ((1, "one"), (2, "two")):
        file.write_text(file.read_text().replace("one", cluster))
        os.utime(file, (changed_s, changed_s))
        (found,) = find_logs(StoreDisk(), [str(file.parent)], earlier=known)
        assert found.cluster == cluster


@pytest.mark.shared_data
def test_every_log_from_the_wild_is_found_and_surveyed(shared_data: Path, tmp_path: Path) -> None:
    places = find_logs(DISK, [str(shared_data)])
    assert len(places) >= 16
    for at in places:
        parts = survey(DISK, at)
        found = parts[-1]
        read = read_log(Path(at.path))
        assert found.end_offset == (read[-1].header.next_offset if read else found.start_offset)
        assert sum(part.records for part in parts) >= sum(batch.header.records_count for batch in read) - 3
