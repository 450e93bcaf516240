"""Which files are read, and which of their bytes: by selection, by snapshots, by what a stream has read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.pipeline.logs.cut import damage_places, record_pieces
from metaquorum.pipeline.logs.follow import LogEnd, log_ends, pieces_between
from metaquorum.pipeline.logs.pieces import Piece, Selection, read_piece
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition
from tests.unit.pipeline.intervals.telling import Line, batches, leads

STORY: list[Line] = [(0, [leads(3000)]), *[(at, [r.NoOpRecord()] * 5) for at in range(1, 9)]]
STARTS = (0, 6, 21, 31)
"""The base offsets of the segments; the log ends at 41."""
SNAPSHOTS = ((1, 6), (1, 16), (1, 26))


def log_of(folder: Path, node_id: int, snapshots: tuple[tuple[int, int], ...]) -> LogPlace:
    folder.mkdir(parents=True)
    for base, end in zip(STARTS, (*STARTS[1:], 41), strict=True):
        data = [batch.data for batch in batches(STORY) if base <= batch.header.base_offset < end]
        (folder / f"{base:020d}.log").write_bytes(b"".join(data))
    for epoch, offset in snapshots:
        (folder / snapshot_name(LogPosition(epoch, offset))).write_bytes(b"")
    return LogPlace(path=str(folder), cluster=f"c{node_id % 2}", node_id=node_id)


def pieces_of(places: list[LogPlace], selection: Selection | None = None, **other: str | bool) -> list[Piece]:
    checkpoints = str(other.get("checkpoints", "false"))
    one_history = bool(other.get("one_history", False))
    return record_pieces(
        places,
        selection or Selection(),
        checkpoints=checkpoints,
        one_history=one_history,
        split_bytes=1 << 20,
    )


def files(pieces: list[Piece]) -> list[tuple[str, int | None, str]]:
    """Cluster, node and file of each piece, the file below the folder of all logs."""
    return [(at.cluster, at.node_id, "/".join(at.file.split("/")[-2:])) for at in pieces]


@pytest.fixture(name="places")
def fixture_places(tmp_path: Path) -> list[LogPlace]:
    """Three logs: two of one cluster, whose snapshots differ, and one without a snapshot."""
    return [
        log_of(tmp_path / "a", 1, SNAPSHOTS),
        log_of(tmp_path / "b", 2, ()),
        log_of(tmp_path / "c", 3, SNAPSHOTS[:2]),
    ]


SEGMENTS = [
    (f"c{node_id % 2}", node_id, f"{name}/{base:020d}.log")
    for node_id, name in ((1, "a"), (2, "b"), (3, "c"))
    for base in STARTS
]
NEWEST_A, NEWEST_C = (
    ("c1", node_id, f"{name}/{end:020d}-{1:010d}.checkpoint")
    for node_id, name, end in ((1, "a", 26), (3, "c", 16))
)


@pytest.mark.parametrize(
    ("checkpoints", "one_history", "expected"),
    [
        ("false", False, SEGMENTS),
        ("true", False, [*SEGMENTS, NEWEST_A, NEWEST_C]),
        ("only", False, [NEWEST_A, NEWEST_C]),
        ("only", True, [NEWEST_A]),
    ],
)
def test_each_log_has_its_newest_snapshot_read_and_each_cluster_one(
    places: list[LogPlace],
    checkpoints: str,
    one_history: bool,
    expected: list[tuple[str, int | None, str]],
) -> None:
    found = pieces_of(places, checkpoints=checkpoints, one_history=one_history)
    assert files(found) == expected
    assert all(at.checkpoint == at.file.endswith(".checkpoint") for at in found)


@pytest.mark.parametrize("one_history", [True, False])
def test_a_snapshot_that_is_named_is_read_without_being_asked_for(
    places: list[LogPlace], one_history: bool
) -> None:
    path = f"{places[0].path}/{16:020d}-{1:010d}.checkpoint"
    named = LogPlace(path=path, cluster="c1", node_id=1)
    for checkpoints in ("false", "true", "only"):
        found = pieces_of([named], checkpoints=checkpoints, one_history=one_history)
        assert [(at.file, at.checkpoint) for at in found] == [(path, True)]


@pytest.mark.parametrize("suffix", [".log", ".log.deleted", ".index"])
def test_a_segment_that_is_named_is_a_log_by_itself(
    places: list[LogPlace], tmp_path: Path, suffix: str
) -> None:
    copy = tmp_path / f"copy{suffix}"
    copy.write_bytes(Path(places[0].path, f"{6:020d}.log").read_bytes())
    named = LogPlace(path=str(copy), cluster="c", node_id=None)
    expected = [] if suffix == ".index" else [str(copy)]
    assert [at.file for at in pieces_of([named])] == expected
    assert pieces_of([named], checkpoints="only") == []


@pytest.mark.parametrize("low", [None, *range(42)])
def test_segments_without_selected_offsets_are_not_opened(places: list[LogPlace], low: int | None) -> None:
    ends = (*STARTS[1:], None)
    for high in (None, *range(42)):
        found = pieces_of(places[1:2], Selection(from_offset=low, to_offset=high))
        assert [at.file[-24:] for at in found] == [
            f"{base:020d}.log"
            for base, end in zip(STARTS, ends, strict=True)
            if (low is None or end is None or end > low) and (high is None or base <= high)
        ]


def test_snapshots_can_be_damaged_too(places: list[LogPlace]) -> None:
    assert damage_places(places[1:2]) == places[1:2]
    snapshots = [
        LogPlace(path=f"{at.path}/{end:020d}-{epoch:010d}.checkpoint", cluster="c1", node_id=at.node_id)
        for at, known in ((places[0], SNAPSHOTS), (places[2], SNAPSHOTS[:2]))
        for epoch, end in known
    ]
    assert damage_places(places) == [*places, *snapshots]
    assert damage_places(snapshots) == snapshots


def offsets(pieces: list[Piece]) -> list[int]:
    found = []
    for piece in pieces:
        for item in read_piece(PosixDisk(), piece):
            assert isinstance(item, RecordBatch)
            found += [at.offset for at in decode_batch(item) if at.offset >= (piece.from_offset or 0)]
    return found


def test_a_stream_reads_one_renamed_segment_as_it_reads_a_directory(
    places: list[LogPlace], tmp_path: Path
) -> None:
    renamed = tmp_path / "renamed.log"
    renamed.write_bytes(Path(places[0].path, f"{21:020d}.log").read_bytes())
    alone = LogPlace(path=str(renamed), cluster="c", node_id=None)
    (end,) = log_ends([alone], {}).values()
    assert end == LogEnd(31, 21, renamed.stat().st_size)
    for start in range(21, 31):
        assert offsets(pieces_between(alone, LogEnd(start), end, 1 << 20)) == list(range(start, 31))
    whole = log_ends(places[:1], {})[places[0].path]
    assert whole == LogEnd(41, 31, Path(places[0].path, f"{31:020d}.log").stat().st_size)
    assert offsets(pieces_between(places[0], LogEnd(21), whole, 1 << 20)) == list(range(21, 41))


def test_a_stream_takes_nothing_from_a_snapshot_or_an_empty_file(
    places: list[LogPlace], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.log"
    empty.write_bytes(b"")
    snapshot = f"{places[0].path}/{16:020d}-{1:010d}.checkpoint"
    at = [LogPlace(path=path, cluster="c", node_id=None) for path in (snapshot, str(empty))]
    assert log_ends(at, {}) == {snapshot: LogEnd(), str(empty): LogEnd()}
    assert pieces_between(at[0], LogEnd(), LogEnd(9), 1 << 20) == []
