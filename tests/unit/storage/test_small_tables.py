"""Epoch tables, headers on the way to an offset, markers and small files: every value at every bound."""

from __future__ import annotations

import json
import random
from itertools import combinations

import pytest

from metaquorum.storage.batches.batch import (
    Batches,
    EndMarker,
    encode_batch,
    encode_marker,
    parse_header,
    read_marker,
)
from metaquorum.storage.batches.encode import control_key
from metaquorum.storage.batches.format import CONTROL, TRANSACTIONAL
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.errors import CorruptLogError, StorageError
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.segment import Segment
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(5))
    made.make_directory("/d")
    return made


# ---- epochs ---------------------------------------------------------------------------------


TABLES = [
    tuple(zip(epochs, starts, strict=True))
    for size in range(4)
    for epochs in combinations((0, 1, 3), size)
    for starts in combinations((0, 2, 5), size)
]


@pytest.mark.parametrize("entries", TABLES)
def test_an_epoch_table_against_a_list_of_every_offset(entries: tuple[tuple[int, int], ...]) -> None:
    end = 8
    table = EpochTable(entries)
    of = {at: max((e for e, start in entries if start <= at), default=None) for at in range(end)}
    assert [table.epoch_at(at) for at in range(end)] == [of[at] for at in range(end)]
    assert table.first_epoch == (entries[0][0] if entries else None)
    assert table.last_epoch == (entries[-1][0] if entries else 0)
    assert EpochTable.decode(table.encode()) == table
    for at in range(end + 1):
        cut = tuple((e, start) for e, start in entries if start < at)
        assert table.truncate_to(at).entries == cut
        left = tuple((e, start) for e, start in entries if start > at)
        covering = of.get(at, table.last_epoch if entries else None)
        expected = left if covering is None else ((covering, at), *left)
        assert table.truncate_start(at).entries == expected
        for above in range(5):
            inside = [each for each in entries if above < each[0] <= at]
            assert list(table.between(above, at)) == inside
    for epoch in range(-1, 5):
        known = [e for e, _ in entries if e <= epoch]
        following = [start for e, start in entries if e > epoch]
        place = LogPosition(known[-1], following[0] if following else end) if known else None
        assert table.end_offset_for(epoch, end) == place
        for start in range(end):
            appended = appended_to(entries, epoch, start)
            if appended is None:
                with pytest.raises(StorageError):
                    table.append(epoch, start)
            else:
                assert table.append(epoch, start).entries == appended


def appended_to(
    entries: tuple[tuple[int, int], ...], epoch: int, start: int
) -> tuple[tuple[int, int], ...] | None:
    if entries and epoch == entries[-1][0]:
        return entries
    if entries and (epoch < entries[-1][0] or start < entries[-1][1]):
        return None
    return (*(each for each in entries if each[1] != start), (epoch, start))


# ---- headers on the way ---------------------------------------------------------------------


def batch(base: int, count: int = 2) -> bytes:
    return encode_batch(base_offset=base, leader_epoch=0, timestamp_ms=0, values=[b"v" * 20] * count)


def segment(disk: FaultyDisk, kind: str, bases: list[int], interval: int) -> Segment:
    """With batches of two records at these offsets in the file."""
    file = disk.open_append(f"/d/{10:020d}.log")
    file.append(b"".join(batch(base) for base in bases))
    file.close()
    if kind == "whole":
        return Segment(disk, "/d", 10, index_interval_bytes=interval)
    return TimedSegment(disk, "/d", 10, FilePool(disk, 2), index_interval_bytes=interval)


@pytest.mark.parametrize("interval", [0, 10**6], ids=["indexed", "no index"])
@pytest.mark.parametrize("kind", ["whole", "gaps"])
@pytest.mark.parametrize(
    ("bases", "fails"),
    [
        ([10, 12, 14, 16], set()),
        ([10, 12, 15, 17], {"whole"}),
        ([11, 13, 15, 17], {"whole"}),
        ([10, 12, 13, 15], {"whole", "gaps"}),
        ([10, 12, 11, 13], {"whole", "gaps"}),
        ([9, 11, 13, 15], {"whole", "gaps"}),
        ([10, 12, 12, 14], {"whole", "gaps"}),
    ],
)
def test_headers_lead_to_an_offset_or_are_refused(
    disk: FaultyDisk, kind: str, bases: list[int], fails: set[str], interval: int
) -> None:
    size = len(batch(0))
    last = bases[-1] + 1
    if kind in fails:
        with pytest.raises(CorruptLogError) as caught:
            segment(disk, kind, bases, interval).locate(last)
        expected = [10, *(base + 2 for base in bases)]
        wrong = [
            base < due if kind == "gaps" else base != due for base, due in zip(bases, expected, strict=False)
        ]
        at = wrong.index(True)
        assert (caught.value.position, caught.value.offset) == (at * size, expected[at])
        return
    made = segment(disk, kind, bases, interval)
    for offset in [last, *range(10, last + 1)] * 2:
        at = next(at for at, base in enumerate(bases) if offset < base + 2)
        assert made.locate(offset) == (at * size, bases[at])
        before = bases[at - 1] + 2 if at else 10
        position, end = made.cut_place(offset)
        assert position == at * size
        assert end in (before, min(offset, bases[at]))
    if kind == "gaps":
        assert made.locate(last + 1) == (4 * size, last + 1)


def test_what_was_just_written_need_not_be_read_again(disk: FaultyDisk) -> None:
    made = TimedSegment(disk, "/d", 10, FilePool(disk, 2), index_interval_bytes=100, new=True)
    for base in (10, 12, 14):
        data = batch(base)
        made.append(Batches.parse(data))
        made.note_appended(Batches.parse(data))
        assert (made.untimed_bytes, made.size) == (0, len(data) * (base - 8) // 2)


# ---- markers --------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("coordinator", [0, 1, 2**31 - 1])
def test_a_marker_and_what_only_looks_like_one(committed: bool, coordinator: int) -> None:
    end = EndMarker(committed, coordinator)
    data = encode_marker(end, producer_id=0, producer_epoch=3, timestamp_ms=7)
    header = parse_header(data)
    assert read_marker(header, data) == end
    assert read_marker(header._replace(attributes=TRANSACTIONAL), data) is None
    assert read_marker(header._replace(producer_id=-1), data) is None
    for key, value in (
        (control_key(2), b"\0" * 6),
        (control_key(-1), b"\0" * 6),
        (control_key(int(committed)), b"\0" * 5),
        (control_key(int(committed)), None),
        (b"\0", b"\0" * 6),
        (None, b"\0" * 6),
    ):
        other = encode_batch(
            base_offset=0,
            leader_epoch=0,
            timestamp_ms=0,
            keys=[key],
            values=[value],
            producer_id=5,
            producer_epoch=0,
            attributes=CONTROL | TRANSACTIONAL,
        )
        assert read_marker(parse_header(other), other) is None


# ---- small files ----------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1, 2, 3, 100])
def test_what_an_interrupted_write_left_is_no_part_of_the_next(disk: FaultyDisk, left: int) -> None:
    file = disk.open_append("/d/f.tmp")
    file.append(b"x" * left)
    file.close()
    write_atomically(disk, "/d/f", b"new")
    assert read_file(disk, "/d/f") == b"new"
    assert disk.list_directory("/d") == ["f"]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("leader", "epoch", "voted"), [(0, 0, 0), (-1, -1, -1), (1, 1, 1), (-1, 0, 0)])
def test_ids_of_a_quorum_state_begin_at_0(version: int, leader: int, epoch: int, voted: int) -> None:
    fields = {
        "leaderId": leader,
        "leaderEpoch": epoch,
        "votedId": voted,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
        "currentVoters": [{"voterId": 0}],
        "data_version": version,
    }
    found = QuorumState.decode(json.dumps(fields).encode(), "f")
    assert found.leader_id == (None if leader < 0 else leader)
    assert found.voted_id == (None if voted < 0 else voted)
    assert (found.epoch, found.voters) == (max(epoch, 0), (0,) if version == 0 else ())
