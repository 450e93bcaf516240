"""A recovery point that another program (Kafka) has left behind: the log opens, and what was lost is damage.

Kafka neither reads nor writes `recovery-point`, but keeps `leader-epoch-checkpoint` true.
"""

from __future__ import annotations

import pytest

from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.disk.interface import join, read_file, write_atomically
from metaquorum.storage.errors import CorruptLogError
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import RecoveryPoint
from metaquorum.storage.log.segment import list_segments
from tests.unit.storage.test_segmented_log import DIRECTORY, Bench, batch, offsets


def left_behind(bench: Bench, log: SegmentedLog) -> bytes:
    """Closes the log, and returns the recovery point that stays."""
    log.clean_close()
    return read_file(bench.disk, join(DIRECTORY, POINT_FILE))


def by_kafka(bench: Bench, point: bytes, log: SegmentedLog) -> None:
    """Closes a log that Kafka has written meanwhile: its epoch table is new, our point is the old one."""
    log.clean_close()
    write_atomically(bench.disk, join(DIRECTORY, EPOCHS_FILE), log.epochs.encode())
    write_atomically(bench.disk, join(DIRECTORY, POINT_FILE), point)


@pytest.mark.parametrize("trimmed_to", [1, 2, 4, -1])
def test_a_log_whose_beginning_kafka_deleted_is_verified_and_opened(trimmed_to: int) -> None:
    bench = Bench()
    point = left_behind(bench, bench.filled())
    log = bench.open()
    for offset in range(60, 80):
        log.append(Batches.parse(batch(offset, 7)))
    start = log.segments()[trimmed_to].base_offset
    log.delete_segments_before(start)
    by_kafka(bench, point, log)
    again = bench.open()
    assert (again.start_offset, offsets(again)) == (start, list(range(start, 80)))
    assert "another program has written this log since" in bench.warnings[-1]
    again.clean_close()
    warned = len(bench.warnings)
    assert bench.open().end_offset == 80 and len(bench.warnings) == warned  # the point is right again


@pytest.mark.parametrize("size", [20, 21, 300])
@pytest.mark.parametrize("cut_to", [0, 7, 31, 58])
@pytest.mark.parametrize("written", [1, 3, 40])
def test_a_log_that_kafka_truncated_and_wrote_on_is_verified_and_opened(
    cut_to: int, written: int, size: int
) -> None:
    """Wherever the new batches begin, the old position is not taken for a torn tail."""
    bench = Bench()
    point = left_behind(bench, bench.filled())
    log = bench.open()
    log.truncate_to(cut_to)
    for offset in range(cut_to, cut_to + written):
        log.append(Batches.parse(batch(offset, 9, size=size)))
    by_kafka(bench, point, log)
    again = bench.open()
    assert offsets(again) == list(range(cut_to + written))
    assert (again.epochs, again.last_position.epoch) == (log.epochs, 9)


@pytest.mark.parametrize("size", [21, 300])
def test_a_point_of_an_earlier_release_lies_inside_of_a_batch(size: int) -> None:
    """It has no epoch; the batches from the log's start on lead past it."""
    bench = Bench()
    bench.config = bench.config.__class__(segment_bytes=1 << 20)
    stored = RecoveryPoint.decode(left_behind(bench, bench.filled()), POINT_FILE)
    log = bench.open()
    log.truncate_to(30)
    for offset in range(30, 90):
        log.append(Batches.parse(batch(offset, 9, size=size)))
    by_kafka(bench, stored.encode().replace(b'"epoch": 6', b'"epoch": -1'), log)
    again = bench.open()
    assert offsets(again) == list(range(90)) and "no batch begins at byte" in bench.warnings[-1]


@pytest.mark.parametrize(
    "what", ["the first file", "a middle file", "the last file", "half of the last file"]
)
def test_what_was_synced_and_is_gone_is_damage_still(what: str) -> None:
    """Nobody has written a newer epoch, or the beginning of the epoch table."""
    bench = Bench()
    log = bench.filled()
    log.clean_close()
    bases = list_segments(bench.disk, DIRECTORY)
    match what:
        case "the first file":
            bench.disk.remove(bench.path(bases[0]))
        case "a middle file":
            bench.disk.remove(bench.path(bases[2]))
        case "the last file":
            bench.disk.remove(bench.path(bases[-1]))
        case _:
            file = bench.disk.open_append(bench.path(bases[-1]))
            file.truncate(file.size() // 2)
            file.close()
    with pytest.raises(CorruptLogError):
        offsets(bench.open())


def test_a_log_whose_beginning_kafka_deleted_and_whose_end_is_lost_is_damage() -> None:
    bench = Bench()
    point = left_behind(bench, bench.filled())
    log = bench.open()
    log.delete_segments_before(log.segments()[2].base_offset)
    by_kafka(bench, point, log)
    bench.disk.remove(bench.path(list_segments(bench.disk, DIRECTORY)[-1]))
    with pytest.raises(CorruptLogError, match="expected the segment that recovery-point names"):
        bench.open()


def test_an_older_epoch_table_is_rebuilt_from_the_log() -> None:
    bench = Bench()
    log = bench.filled()
    log.clean_close()
    older = EpochTable(log.epochs.entries[:3])
    write_atomically(bench.disk, join(DIRECTORY, EPOCHS_FILE), older.encode())
    assert bench.open().epochs == log.epochs
