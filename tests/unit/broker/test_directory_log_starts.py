"""Records that were deleted within a segment: they never come back, and nothing else is hidden with them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    ChangeLogSettings,
    CutPartition,
    EnforceRetention,
    FindOffset,
    LogSettings,
    OffsetFound,
    PartitionRead,
    ReadPartition,
    ReplicaLog,
    ReplicaLogTrimmed,
    TrimTo,
)
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.disk.interface import join, read_file, write_atomically
from tests.unit.broker.directory_bench import DIRECTORY_ID, PATH, SMALL, Bench, walked
from tests.unit.broker.kafka_directories import every_record, kafka_directory, opened

STARTS = join(PATH, "log-start-offset-checkpoint")
LARGE = LogSettings(segment_bytes=10**6, retention_ms=-1, file_delete_delay_ms=100)
COUNT = 20


def batch(base: int, records: int = 1, *, epoch: int = 1) -> bytes:
    """Of 10 ms a record."""
    values = [b"v"] * records
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=base * 10, values=values)


def filled(bench: Bench, *, records: int = 1, settings: LogSettings = LARGE) -> PartitionKey:
    key = bench.create()
    bench.do(ChangeLogSettings, key, settings=settings)
    for base in range(0, COUNT, records):
        bench.do(AppendPartition, key, batches=walked(batch(base, records)), sync=True)
    prepared = bench.opened().prepare_sync()
    assert prepared is not None
    prepared.run()
    bench.opened().sync_completed(prepared)
    return key


def trim(bench: Bench, key: PartitionKey, start: int) -> list[int]:
    events = bench.do(TrimTo, key, start_offset=start)
    return [event.start_offset for event in events if isinstance(event, ReplicaLogTrimmed)]


def log_of(bench: Bench, key: PartitionKey) -> ReplicaLog:
    bench.opened()
    assert bench.found is not None
    return next(one.log for one in bench.found.replicas if one.key == key)


def visible(bench: Bench, key: PartitionKey) -> list[int]:
    """Base offsets of what a reader gets from the start on."""
    log = bench.opened()._replicas[key].log
    (event,) = bench.do(
        ReadPartition,
        key,
        token=1,
        from_offset=log.log_start_offset,
        to_offset=log.end_offset,
        max_bytes=10**6,
    )
    assert isinstance(event, PartitionRead) and event.problem is None and event.data is not None
    return [one.header.base_offset for one in iter_batches(event.data)]


@pytest.mark.parametrize("how", ["restart", "kill", "power_loss_now"])
def test_an_empty_log_goes_back_to_where_its_first_batch_begins(how: str) -> None:
    bench = Bench()
    key = filled(bench, records=5)
    bench.do(CutPartition, key, end_offset=8, start_over=True)
    for base in (5, 10):
        bench.do(AppendPartition, key, batches=walked(batch(base, 5)), sync=True)
    assert trim(bench, key, 8) == [8]
    prepared = bench.opened().prepare_sync()
    assert prepared is not None
    prepared.run()
    bench.opened().sync_completed(prepared)
    assert visible(bench, key) == [5, 10]
    getattr(bench, how)()
    log = log_of(bench, key)
    assert (log.start_offset, log.end_offset) == (8, 15)
    assert visible(bench, key) == [5, 10]


@pytest.mark.parametrize("how", ["restart", "kill", "power_loss_now"])
def test_deleted_records_do_not_come_back(how: str) -> None:
    bench = Bench()
    key = filled(bench)
    assert trim(bench, key, 7) == [7]
    assert read_file(bench.disk, STARTS) == b"0\n1\nt1 0 7\n"
    (event,) = bench.do(ReadPartition, key, token=1, from_offset=6, to_offset=9, max_bytes=100)
    assert isinstance(event, PartitionRead) and event.data is None
    getattr(bench, how)()
    log = log_of(bench, key)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (7, COUNT, 7)
    assert log.epochs.entries == ((1, 7),)
    assert visible(bench, key) == list(range(7, COUNT))


def test_a_start_is_never_lowered_and_never_above_the_end() -> None:
    bench = Bench()
    key = filled(bench)
    assert [trim(bench, key, start) for start in (7, 7, 5, 99, 30)] == [[7], [], [], [COUNT], []]
    bench.restart()
    log = log_of(bench, key)
    assert (log.start_offset, log.end_offset) == (COUNT, COUNT)
    assert log.epochs.last_epoch == 1
    bench.do(AppendPartition, key, batches=walked(batch(COUNT)), sync=True)
    bench.restart()
    assert visible(bench, key) == [COUNT]


@pytest.mark.parametrize("after", range(6))
def test_a_crash_on_the_way_leaves_the_old_start_or_the_new(after: int) -> None:
    bench = Bench()
    key = filled(bench)
    trim(bench, key, 3)
    bench.disk.crash_after = after
    told: list[int] = []
    with suppress(Exception):
        told = trim(bench, key, 9)
    bench.power_loss_now()
    assert log_of(bench, key).start_offset in ((9,) if told else (3, 9))


def test_a_batch_that_the_start_divides_is_read_whole_and_searched_from_the_start() -> None:
    bench = Bench()
    key = filled(bench, records=5)
    trim(bench, key, 7)
    assert visible(bench, key) == [5, 10, 15]
    found = []
    for time_ms in (0, 50, 60, 100, 101):
        (event,) = bench.do(FindOffset, key, token=1, timestamp_ms=time_ms, below_offset=COUNT)
        assert isinstance(event, OffsetFound)
        found.append(event.offset)
    # All records of a batch have its time here: 50 ms those of 5 to 9, 100 ms those of 10 to 14.
    assert found == [7, 7, 10, 10, 15]


def test_times_of_deleted_records_are_not_found() -> None:
    """The newest record was deleted, also where it shares a segment or a batch with older ones."""
    bench = Bench()
    key = bench.create()
    for base, time_ms in ((0, 900), (1, 100), (2, 200)):
        data = encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=time_ms, values=[b"v"])
        bench.do(AppendPartition, key, batches=walked(data), sync=True)
    trim(bench, key, 1)
    for time_ms, expected in ((150, 2), (50, 1), (300, None)):
        (event,) = bench.do(FindOffset, key, token=1, timestamp_ms=time_ms, below_offset=3)
        assert isinstance(event, OffsetFound) and event.offset == expected


def test_no_file_is_written_where_a_segment_begins() -> None:
    bench = Bench()
    key = filled(bench, settings=SMALL)
    segments = [name for name in bench.disk.list_directory(join(PATH, "t1-0")) if name.endswith(".log")]
    second = int(segments[1][:20])
    assert trim(bench, key, second) == [second]
    assert not bench.disk.exists(STARTS)
    assert trim(bench, key, second + 1) == [second + 1]
    assert trim(bench, key, int(segments[2][:20])) == [int(segments[2][:20])]
    assert read_file(bench.disk, STARTS) == b"0\n0\n"


def test_trims_in_a_row_share_a_write() -> None:
    bench = Bench()
    keys = [filled(bench) for _ in range(5)]
    before = bench.disk.operations
    works = [
        TrimTo(
            directory_id=DIRECTORY_ID, key=key, incarnation=bench.models[key].incarnation, start_offset=2 + n
        )
        for n, key in enumerate(keys)
    ]
    events = bench.opened().execute_all(works)
    assert [event.start_offset for event in events if isinstance(event, ReplicaLogTrimmed)] == [2, 3, 4, 5, 6]
    assert read_file(bench.disk, STARTS).count(b"\n") == 7
    assert bench.disk.operations - before < 2 * 6


@pytest.mark.parametrize("start_over", [False, True])
@pytest.mark.parametrize("after", [*range(0, 24, 2), 1000])
def test_a_cut_below_the_start_hides_nothing_that_comes_later(after: int, start_over: bool) -> None:
    bench = Bench()
    key = filled(bench)
    trim(bench, key, 15)
    bench.disk.crash_after = after
    bench.incarnation += 1
    done = False
    with suppress(Exception):
        bench.do(CutPartition, key, incarnation=bench.incarnation, end_offset=10, start_over=start_over)
        done = True
    bench.power_loss_now()
    end = log_of(bench, key).end_offset
    assert end == 10 if done else end in (10, COUNT)
    bench.do(
        AppendPartition, key, batches=walked(b"".join(batch(end + n, epoch=2) for n in range(8))), sync=True
    )
    bench.restart()
    assert visible(bench, key) == list(range(10 if end == 10 else 15, end + 8))


def test_a_replica_that_comes_after_has_nothing_of_the_one_before() -> None:
    for after in range(12):
        bench = Bench()
        key = filled(bench)
        trim(bench, key, 15)
        bench.disk.crash_after = after
        with suppress(Exception):
            bench.remove()
        bench.power_loss_now()
        if key in bench.models and any(one.key == key for one in bench.found.replicas):  # type: ignore[union-attr]
            continue
        bench.models.pop(key, None)
        bench.next_key = 1
        again = filled(bench)
        bench.restart()
        assert again == key and log_of(bench, key).start_offset == 0


def test_segments_below_the_start_go_whatever_the_policy() -> None:
    bench = Bench()
    key = filled(bench, settings=SMALL)
    trim(bench, key, 7)
    keep = LogSettings(segment_bytes=500, deletes=False, file_delete_delay_ms=100)
    replica = bench.opened()._replicas[key]
    replica.settings = keep
    size = replica.log.size_bytes
    replica.log.start_at(18)
    (event,) = bench.do(EnforceRetention, key, below_offset=COUNT, wall_ms=0)
    assert isinstance(event, ReplicaLogTrimmed) and event.start_offset == 18 and event.size_bytes < size


@pytest.mark.parametrize(
    ("content", "start"),
    [
        (b"", 0),
        (b"0\n", 0),
        (b"0\n1\nt1 0 7", 7),
        (b"0\r\n1\r\nt1  0 7 \r\n", 7),
        (b"\xff", 0),
        (b"0\n9\n", 0),
    ],
)
def test_whatever_is_in_the_file_the_directory_opens(content: bytes, start: int) -> None:
    bench = Bench()
    key = filled(bench)
    bench.opened().close(clean=True)
    bench.store = None
    write_atomically(bench.disk, STARTS, content)
    assert log_of(bench, key).start_offset == start
    assert bool(bench.warnings) == (content in (b"\xff", b"0\n9\n"))


def test_records_that_kafka_deleted_stay_deleted(shared_data: Path, tmp_path: Path) -> None:
    copy = kafka_directory(tmp_path, "kafka-3.7-wire/logs/broker-0-after-all-clients/d1")
    for _ in range(2):
        store, found = opened(copy, [])
        starts = {f"{one.topic}-{one.key[1]}": one.log.start_offset for one in found.replicas}
        assert {name: at for name, at in starts.items() if at} == {"js1-0": 1, "h1-0": 1}
        for replica in found.replicas:
            every_record(store, replica, copy)
        store.close(clean=True)
    assert b"js1 0 1" in (copy / "log-start-offset-checkpoint").read_bytes()


def test_after_a_cut_below_the_start_everything_new_is_shown() -> None:
    bench = Bench()
    key = filled(bench)
    trim(bench, key, 15)
    bench.incarnation += 1
    bench.models[key].incarnation = bench.incarnation
    bench.do(CutPartition, key, end_offset=10)
    assert read_file(bench.disk, STARTS) == b"0\n1\nt1 0 10\n"
    bench.do(
        AppendPartition, key, batches=walked(b"".join(batch(10 + n, epoch=2) for n in range(8))), sync=True
    )
    assert visible(bench, key) == list(range(10, 18))
    bench.restart()
    assert visible(bench, key) == list(range(10, 18))


def test_the_entry_of_a_removed_replica_goes_with_it() -> None:
    bench = Bench()
    trim(bench, filled(bench), 15)
    bench.remove()
    assert read_file(bench.disk, STARTS) == b"0\n0\n"
