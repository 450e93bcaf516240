"""Bounds of time leave out whole segments, and never a record that is in time."""

from __future__ import annotations

import datetime
import operator
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.pipeline.arrow import record_batches
from metaquorum.pipeline.logs.cut import record_pieces
from metaquorum.pipeline.logs.pieces import Piece, Selection
from metaquorum.pipeline.logs.places import find_logs
from metaquorum.pipeline.source import MetadataLogReader, Options
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.archive_writer import ArchiveSource, write_archive
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.posix import PosixDisk

# Of each segment the stamps of its batches: one clock is ahead for a while, one batch has no time.
STAMPS = ([100, 200, 300], [350, 900, 400], [380, 500, 600], [700, -1, 800], [850, 860, 870])


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The log without indexes, with Kafka's, and in an archive."""
    top = tmp_path_factory.mktemp("times")
    for name in ("plain", "indexed"):
        home = top / name / "__cluster_metadata-0"
        home.mkdir(parents=True)
        for number, stamps in enumerate(STAMPS):
            base = 3 * number
            value = encode(r.NoOpRecord(), 0)
            made = [
                encode_batch(base_offset=base + at, leader_epoch=1, timestamp_ms=stamp, values=[value])
                for at, stamp in enumerate(stamps)
            ]
            (home / f"{base:020}.log").write_bytes(b"".join(made))
            if name == "indexed":
                highest = max(stamps)
                (home / f"{base:020}.timeindex").write_bytes(
                    struct.pack(">qi", highest, stamps.index(highest))
                )
    archive = top / "a.mqa"
    sources = [
        ArchiveSource(PosixDisk(), str(at), f"n/__cluster_metadata-0/{at.name}")
        for at in (top / "plain" / "__cluster_metadata-0").iterdir()
    ]
    write_archive(PosixDisk(), str(archive), sources, "1")
    return {"plain": top / "plain", "indexed": top / "indexed", "archive": archive}


def chosen(path: Path, selection: Selection) -> list[Piece]:
    places = find_logs(StoreDisk(), [str(path)])
    return record_pieces(places, selection, checkpoints="false", one_history=False, split_bytes=1 << 30)


def offsets(path: Path, selection: Selection) -> list[int]:
    return [
        offset
        for piece in chosen(path, selection)
        for batch in record_batches("all", piece, selection)
        for offset in batch.column("offset").to_pylist()
    ]


@pytest.mark.parametrize("form", ["plain", "indexed", "archive"])
def test_no_record_in_time_is_left_out(logs: dict[str, Path], form: str) -> None:
    stamps = [stamp for segment in STAMPS for stamp in segment]
    bounds = (None, -1, 200, 351, 601, 850, 901)
    for low in bounds:
        for high in bounds:
            wanted = [
                at
                for at, stamp in enumerate(stamps)
                if (low is None or stamp >= low) and (high is None or stamp <= high)
            ]
            assert offsets(logs[form], Selection(from_ms=low, to_ms=high)) == wanted


@pytest.mark.parametrize(
    ("form", "low", "high", "read"),
    [
        ("plain", 860, None, [0, 3, 6, 9, 12]),
        (
            "indexed",
            601,
            None,
            [3, 9, 12],
        ),  # the second's index does not reach its end: nothing follows from it
        ("indexed", 901, None, [3, 12]),
        ("indexed", None, 50, [0, 3, 6, 9, 12]),
        ("archive", 601, None, [3, 9, 12]),
        ("archive", 901, None, []),
        ("archive", None, 360, [0, 3, 9]),
        ("archive", 410, 650, [3, 6, 9]),
    ],
)
def test_segments_of_other_times_are_not_read(
    logs: dict[str, Path], form: str, low: int | None, high: int | None, read: list[int]
) -> None:
    pieces = chosen(logs[form], Selection(from_ms=low, to_ms=high))
    assert [int(Path(piece.file).stem) for piece in pieces] == read


def test_an_archived_segment_with_damage_is_always_read(logs: dict[str, Path], tmp_path: Path) -> None:
    source = logs["plain"] / "__cluster_metadata-0" / f"{3:020}.log"
    hurt = tmp_path / f"{3:020}.log"
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    hurt.write_bytes(data)
    archive = f"{tmp_path}/a.mqa"
    named = ArchiveSource(PosixDisk(), str(hurt), f"n/__cluster_metadata-0/{hurt.name}")
    write_archive(PosixDisk(), archive, [named], "1")
    assert len(chosen(Path(archive), Selection(from_ms=5000))) == 1


def test_filters_on_the_timestamp_are_taken_to_the_microsecond(logs: dict[str, Path]) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

    compared: dict[Any, Callable[[int, int], bool]] = {
        EqualTo: operator.eq,
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt,
        LessThanOrEqual: operator.le,
    }
    stamps = [stamp for segment in STAMPS for stamp in segment]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    for kind, holds in compared.items():
        for bound_us in (0, 399_999, 400_000, 400_001, 900_000):
            reader = MetadataLogReader(Options({"path": str(logs["archive"])}))
            one = kind(("timestamp",), epoch + datetime.timedelta(microseconds=bound_us))
            assert list(reader.pushFilters([one])) == []
            found = [
                offset
                for part in reader.partitions()
                for batch in reader.read(part)
                for offset in batch.column("offset").to_pylist()
            ]
            assert found == [
                at for at, stamp in enumerate(stamps) if stamp >= 0 and holds(1000 * stamp, bound_us)
            ], (kind, bound_us)
    other = EqualTo(("timestamp",), "yesterday")
    assert list(MetadataLogReader(Options({"path": "/x"})).pushFilters([other])) == [other]


@pytest.mark.shared_data
def test_kafkas_own_indexes_say_when_its_segments_end(shared_data: Path) -> None:
    log = shared_data / "kafka-3.7" / "controller-3000" / "__cluster_metadata-0"
    bases = [int(Path(one.file).stem) for one in chosen(log, Selection(from_ms=1_795_230_958_344))]
    assert bases == [3299]
    assert len(chosen(log, Selection(from_ms=1_795_230_958_343))) == 2
