"""What opening, appending and reading make of what lies on the limit: points, sizes, offsets, names."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from metaquorum.storage.batches.batch import (
    Batches,
    batch_record_spans,
    encode_batch,
    iter_batches,
    parse_header,
    seal_batch,
)
from metaquorum.storage.batches.format import HEADER_BYTES
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import BatchError, CorruptFileError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.recovery import RecoveryPoint, find_valid_batch
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.log.timed_segment import parse_index_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.test_storage_edges import (
    DIRECTORY,
    SMALL,
    batch,
    filled,
)


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(5))
    made.make_directory("/data")
    made.sync_directory("/")
    return made


def with_bytes(disk: Any, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.append(data)
    file.close()


def test_a_segment_that_nothing_leads_to_is_removed_if_it_is_empty(disk: Any) -> None:
    """A crash may leave the next segment without what was to lie before it."""
    filled(disk, 5).close()
    stray = join(DIRECTORY, segment_name(9))
    with_bytes(disk, stray, b"")
    warnings: list[str] = []
    log = SegmentedLog.open(disk, DIRECTORY, SMALL, warnings.append)
    assert log.end_offset == 5
    assert any(stray in warning for warning in warnings)
    assert not disk.exists(stray)
    assert log.append(Batches.parse(batch(5))) == 6
    log.sync()
    log.close()
    again = SegmentedLog.open(disk, DIRECTORY, SMALL)
    assert (again.start_offset, again.end_offset) == (0, 6)
    again.close()


@pytest.mark.parametrize(("epoch", "end"), [(8, 100), (9, 101), (10, 101)])
def test_a_log_that_was_reset_takes_no_batch_of_an_older_epoch(disk: Any, epoch: int, end: int) -> None:
    """What lies behind a snapshot's end cannot be of an epoch before the snapshot's."""
    log = filled(disk, 5)
    log.reset_to(LogPosition(9, 100))
    log.close()
    path = join(DIRECTORY, segment_name(100))
    with_bytes(disk, path, batch(100, epoch))
    warnings: list[str] = []
    again = SegmentedLog.open(disk, DIRECTORY, SMALL, warnings.append)
    assert again.end_offset == end
    assert bool(warnings) == (end == 100)
    assert again.last_position == LogPosition(epoch if end == 101 else 9, end)
    again.close()


@pytest.mark.parametrize(("place", "fits"), [(0, False), (1, False), (2, False), (None, True)])
def test_every_batch_of_an_append_is_held_against_the_limit(disk: Any, place: int | None, fits: bool) -> None:
    limit = len(batch(0, size=200))
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(max_batch_bytes=limit))
    sizes = [200, 200, 200]
    if place is not None:
        sizes[place] = 201
    data = b"".join(batch(at, size=size) for at, size in enumerate(sizes))
    if fits:
        assert log.append(Batches.parse(data)) == 3
    else:
        with pytest.raises(BatchError, match=f"the batch at offset {place} has"):
            log.append(Batches.parse(data))
        assert log.end_offset == 0
    log.close()


def test_the_recovery_point_is_written_once_for_its_bytes(disk: Any) -> None:
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig(recovery_point_interval_bytes=500))
    moved = []
    for offset in range(40):
        before = log.recovery_point.offset
        log.append(Batches.parse(batch(offset)))
        log.sync()
        moved.append(log.recovery_point.offset != before)
    every = -(-500 // len(batch(0)))
    assert [at for at, one in enumerate(moved) if one] == list(range(every - 1, 40, every))
    log.close()


@pytest.mark.parametrize("version", [-1, 1, 2, "0", None])
def test_a_recovery_point_of_another_version_is_refused(version: object) -> None:
    point = RecoveryPoint(offset=5, segment=0, position=100, start_offset=0, start_epoch=-1)
    whole = point.encode()
    assert RecoveryPoint.decode(whole, "f") == point
    other = whole.replace(b'"version": 0', f'"version": {json.dumps(version)}'.encode())
    assert other != whole
    with pytest.raises(CorruptFileError, match="has version"):
        RecoveryPoint.decode(other, "f")


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({}, True),
        ({"startEpoch": -1}, True),
        ({"startEpoch": -2}, False),
        ({"position": -1}, False),
        ({"offset": 3, "segment": 3, "startOffset": 3}, True),
        ({"offset": 2, "segment": 3, "startOffset": 3}, False),
        ({"offset": 4, "segment": 2, "startOffset": 3}, False),
        ({"offset": 4, "segment": 0, "startOffset": -1}, False),
        ({"offset": True}, False),
        ({"position": 1.0}, False),
        ({"resetting": 0}, False),
        ({"resetting": True}, True),
    ],
)
def test_a_recovery_point_is_believed_only_if_it_can_be_one(fields: dict[str, object], fits: bool) -> None:
    point = RecoveryPoint(offset=5, segment=0, position=100, start_offset=0, start_epoch=-1)
    data = json.dumps({**json.loads(point.encode()), **fields}).encode()
    if fits:
        decoded = json.loads(RecoveryPoint.decode(data, "f").encode())
        assert decoded == json.loads(data)
    else:
        with pytest.raises(CorruptFileError):
            RecoveryPoint.decode(data, "f")


@pytest.mark.parametrize(
    ("distance", "is_found"), [(0, True), (2**31 - 1, True), (2**31, False), (-1, False)]
)
def test_a_batch_behind_damage_counts_if_its_offset_can_follow(
    disk: Any, distance: int, is_found: bool
) -> None:
    floor = 50
    with_bytes(disk, "/data/f", b"\2damage\2" + batch(floor + distance))
    file = disk.open_read("/data/f")
    found = find_valid_batch(file, 0, floor)
    assert (found is not None) == is_found
    if found is not None:
        assert found[0] == 8
        assert found[1].base_offset == floor + distance
    file.close()


def test_a_read_that_is_cut_by_its_limit_is_no_damage(disk: Any) -> None:
    """The last batch of the file, too, may lie half inside what was read."""
    log = SegmentedLog.open(disk, DIRECTORY, LogConfig())
    for offset in range(6):
        log.append(Batches.parse(batch(offset)))
    size = len(batch(0))
    for start in range(6):
        for limit in range(size * 6 + 2):
            data = log.read(start, limit).data
            assert len(data) == size * max(1, min(limit // size, 6 - start)), (start, limit)
    log.close()


def test_a_record_under_a_wrong_number_is_no_value() -> None:
    """Long records are read by another way than short ones; both look at the numbers of the records."""
    for size in (20, 100, 9000):
        one = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"v" * size])
        two = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"v" * size] * 2)
        # The second record of the one batch is the first of the other: its number is 0 where 1 is due.
        record = one[HEADER_BYTES:]
        header = parse_header(two)
        (wrong,) = iter_batches(seal_batch(header, record + record))
        with pytest.raises(BatchError):
            batch_record_spans(wrong)


def test_names_of_indexes_are_names_of_segments() -> None:
    assert parse_index_name(segment_name(7).replace(".log", ".index")) == 7
    assert parse_index_name(segment_name(7).replace(".log", ".timeindex")) == 7
    for other in (
        "0000000000000000000x.index",
        "7.index",
        "x" * 20 + ".index",
        segment_name(7),
        "٣" * 20 + ".index",
    ):
        assert parse_index_name(other) is None
