"""Every rule that takes its clock from records, for records with a time, without one, and in the future."""

from __future__ import annotations

import pytest

from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.cleaner.cleaning import segment_facts
from metaquorum.storage.cleaner.plan import CleanerSettings, plan_cleaning
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.cleaner_bench import PLACE, clean, make_disk, settle

NO_TIME = -1
WEEK_MS = 7 * 86_400_000
START_MS = 1_700_000_000_000


class Log:
    """A log on a disk with a clock, whose segments hold two batches."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = START_MS
        self.disk: FaultyDisk = make_disk(5)
        self.disk.wall_ms = lambda: self.now_ms
        self.config = LogConfig(**{"segment_bytes": 2 * len(self.batch(0, 0)), **settings})
        self.warnings: list[str] = []
        self.open()

    def open(self) -> None:
        """As after a restart of the broker."""
        self.log = PartitionLog.load(
            self.disk, PLACE, self.config, FilePool(self.disk, 3), self.disk.file_system(parent_of(PLACE))
        )

    @staticmethod
    def batch(base: int, time_ms: int) -> bytes:
        return encode_batch(
            base_offset=base,
            leader_epoch=1,
            timestamp_ms=time_ms,
            keys=[b"k%d" % (base % 3)],
            values=[b"v" * 30],
        )

    def append(self, *times_ms: int, apart_ms: int = 0) -> None:
        for time_ms in times_ms:
            self.log.append(Batches.parse(self.batch(self.log.end_offset, time_ms)))
            self.now_ms += apart_ms

    def retain(self, retention_ms: int = WEEK_MS) -> int:
        """Where the log starts afterwards."""
        self.log.enforce_retention(
            retention_bytes=-1,
            retention_ms=retention_ms,
            below_offset=self.log.end_offset,
            wall_ms=self.now_ms,
            on_warning=self.warnings.append,
        )
        return self.log.start_offset

    @property
    def bases(self) -> list[int]:
        return [info.base_offset for info in self.log.segments()]


# ---- retention


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("times", "start"),
    [
        ((NO_TIME, NO_TIME, START_MS, START_MS, START_MS), 5),
        ((START_MS, START_MS, NO_TIME, NO_TIME, NO_TIME), 5),
        ((NO_TIME, NO_TIME, NO_TIME, NO_TIME, START_MS + 9 * WEEK_MS), 4),
        ((NO_TIME, START_MS + 9 * WEEK_MS, NO_TIME, NO_TIME, NO_TIME), 0),
        ((NO_TIME, START_MS - 9 * WEEK_MS, NO_TIME, NO_TIME, NO_TIME), 2),
        ((-WEEK_MS, -5, NO_TIME, NO_TIME, NO_TIME), 5),
    ],
)
def test_records_without_a_time_are_as_old_as_their_file(
    times: tuple[int, ...], start: int, restarts: bool
) -> None:
    log = Log()
    log.append(*times)
    early = 2 if times[1] == START_MS - 9 * WEEK_MS else 0
    log.now_ms += WEEK_MS
    assert log.retain() == early
    log.now_ms += 1
    if restarts:
        log.open()
    if early:
        start = 5
    assert log.retain() == start
    assert log.retain(-1) == start


def test_a_segment_in_the_future_that_blocks_retention_is_named_once() -> None:
    log = Log(segment_ms=2**60)
    future = START_MS + 99 * WEEK_MS
    log.append(START_MS, future, START_MS, START_MS, START_MS)
    log.now_ms += WEEK_MS
    assert log.retain() == 0 and log.warnings == [], "it is young by its first record too"
    log.now_ms += 1
    for _ in range(2):
        assert log.retain() == 0
    (line,) = log.warnings
    assert "00000000000000000000.log" in line and "in the future" in line
    log.now_ms = future + WEEK_MS + 1
    assert log.retain() == 5
    assert log.warnings == [line]


def test_a_first_record_in_the_future_is_named_at_once_and_only_if_records_expire() -> None:
    log = Log()
    log.append(START_MS + 5, START_MS + 5)
    log.retain(-1)
    assert log.warnings == []
    log.retain()
    assert len(log.warnings) == 1
    log = Log()
    log.append(START_MS, NO_TIME)
    log.retain()
    assert log.warnings == []


# ---- roll


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("times", "rolls"),
    [
        ((NO_TIME, NO_TIME), True),
        ((START_MS, NO_TIME), True),
        ((NO_TIME, START_MS), True),
        ((START_MS, START_MS), False),
    ],
)
def test_a_segment_without_times_is_rolled_by_the_clock(
    times: tuple[int, ...], rolls: bool, restarts: bool
) -> None:
    """With times, the next append sees that it is due."""
    log = Log(segment_bytes=10_000, segment_ms=WEEK_MS)
    log.append(*times)
    log.log.roll_if_due(log.now_ms)
    if restarts:
        log.log.close()
        log.open()
    log.now_ms += WEEK_MS
    log.log.roll_if_due(log.now_ms)
    assert log.bases == [0]
    log.now_ms += 1
    if restarts:
        log.log.roll_if_due(log.now_ms)
    log.log.roll_if_due(log.now_ms)
    assert log.bases == ([0, 2] if rolls else [0])
    log.log.roll_if_due(log.now_ms + 9 * WEEK_MS)
    assert log.bases == ([0, 2] if rolls else [0]), "an empty segment is not rolled"
    log.append(log.now_ms)
    assert log.bases == [0, 2]


# ---- compaction


@pytest.mark.parametrize("time_ms", [NO_TIME, START_MS])
def test_the_lags_of_compaction_have_a_clock_for_records_without_a_time(time_ms: int) -> None:
    log = Log()
    log.append(*[time_ms] * 5)
    settle(log.log)

    def due(**settings: int) -> bool:
        found = plan_cleaning(
            segment_facts(log.log),
            first_dirty=0,
            stable_to=5,
            settings=CleanerSettings(min_dirty_ratio=0.0 if "min_lag_ms" in settings else 1.0, **settings),
            now_ms=log.now_ms,
        )
        return found is not None

    assert not due(min_lag_ms=WEEK_MS) and not due(max_lag_ms=WEEK_MS)
    log.now_ms += WEEK_MS
    assert due(min_lag_ms=WEEK_MS) and not due(max_lag_ms=WEEK_MS)
    log.now_ms += 1
    assert due(max_lag_ms=WEEK_MS)


def test_cleaning_does_not_make_records_younger() -> None:
    log = Log()
    log.append(*[NO_TIME] * 6, apart_ms=1_000)
    settle(log.log)
    log.now_ms += WEEK_MS - 6_000
    clean(log.log, None, log.now_ms)
    assert log.log.size_bytes == 5 * len(log.batch(0, NO_TIME)), "it was cleaned"
    assert log.retain() == 0
    log.now_ms += 1_000
    assert log.retain() == 0
    log.now_ms += 1
    assert log.retain() == 2
