"""Plain batches give the same state and the same problems in runs as one by one."""

from __future__ import annotations

import random
from itertools import count, cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.columnar.runs import read_run
from metaquorum.metadata.image import images_equal
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.batches.format import walk_batches
from metaquorum.storage.log.reader import Damage, LogReader
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun, RunReader, split_runs
from metaquorum.testing.faulty_disk import FaultyDisk

TOPICS = [bytes([at]) * 16 for at in range(4)]
PARTITIONS = 30
FUTURE = b"\x01\x63\x00\x00"
GARBAGE = b"\x01\x05\x01\xff"
EMPTY_NO_OP = b"\x01\x14\x00\x00"
TAGGED_NO_OP = b"\x01\x14\x00\x01\x07\x01x"
FUTURE_NO_OP = b"\x01\x14\x09\x00"


def start() -> list[bytes]:
    values = [encode(r.FeatureLevelRecord("metadata.version", 19), 0)]
    for number, topic_id in enumerate(TOPICS):
        values.append(encode(r.TopicRecord(f"t{number}", topic_id), 0))
        values += [
            encode(
                r.PartitionRecord(index, topic_id, (1, 2, 3), (1, 2), leader=1, directories=(topic_id,) * 3),
                1,
            )
            for index in range(PARTITIONS)
        ]
    return values


topics = st.sampled_from([*TOPICS, b"x" * 16])
changes = st.builds(
    r.PartitionChangeRecord,
    st.integers(0, PARTITIONS),
    topics,
    isr=st.none() | st.sampled_from([(1,), (2, 3), (3, 1, 2)]),
    leader=st.none() | st.sampled_from([1, 2, -1]),
    replicas=st.none() | st.just((4, 5)),
)
values = st.one_of(
    *[changes.map(lambda record: encode(record, 1))] * 6,
    st.sampled_from([EMPTY_NO_OP, EMPTY_NO_OP, TAGGED_NO_OP, FUTURE_NO_OP, FUTURE, GARBAGE]),
    st.builds(r.ConfigRecord, st.just(2), st.just("t1"), st.sampled_from("ab"), st.none() | st.just("v")).map(
        lambda record: encode(record, 0)
    ),
    st.sampled_from(
        [
            encode(r.RemoveTopicRecord(TOPICS[3]), 0),
            encode(r.BeginTransactionRecord("x"), 0),
            encode(r.EndTransactionRecord(), 0),
            encode(r.AbortTransactionRecord(None), 0),
        ]
    ),
)


def log_of(singles: list[bytes], control_at: int | None = None, sizes: tuple[int, ...] = (1,)) -> bytes:
    """Batches with these numbers of records, again and again."""
    batches = [encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=start())]
    offset, left, size = len(start()), list(singles), cycle(sizes)
    for at in count():
        if not left:
            return b"".join(batches)
        key, control = encode_control(LeaderChangeMessage(1))
        taken = next(size)
        keyed: dict[str, Any] = {"values": left[:taken]}
        if at == control_at:
            keyed = {"values": [control], "keys": [key], "is_control": True}
        batches.append(
            encode_batch(base_offset=offset, leader_epoch=1 + at // 50, timestamp_ms=10 + at, **keyed)
        )
        offset += len(keyed["values"])
        left = left[taken:]
    raise AssertionError("a count ended")


def split(data: bytes) -> list[RecordBatch | BatchRun]:
    return list(split_runs(data, walk_batches(data, expected_offset=0, min_epoch=0), 100, "file"))


def replayed(found: list[RecordBatch | BatchRun]) -> tuple[Replayer, list[str]]:
    told: list[str] = []
    engine = Replayer(on_error=lambda error: told.append(str(error)))
    for one in found:
        if isinstance(one, BatchRun):
            engine.apply_run(one)
        else:
            engine.apply_batch(one)
    return engine, told


def assert_same(data: bytes) -> None:
    one_by_one, expected = replayed(list(iter_batches(data)))
    in_runs, told = replayed(split(data))
    assert sorted(told) == sorted(expected)
    assert in_runs.skipped == one_by_one.skipped
    left, right = in_runs.state(), one_by_one.state()
    assert images_equal(left.image, right.image)
    assert images_equal(left.newest, right.newest)
    assert (left.transaction is None) == (right.transaction is None)


@settings(max_examples=60, deadline=None)
@given(st.lists(values, min_size=MIN_BATCHES, max_size=150), st.none() | st.integers(0, 60))
def test_runs_and_single_batches_agree(singles: list[bytes], control_at: int | None) -> None:
    assert_same(log_of(singles, control_at))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(values, min_size=3 * MIN_BATCHES, max_size=300),
    st.none() | st.integers(0, 60),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
)
def test_runs_of_larger_batches_agree(
    records: list[bytes], control_at: int | None, sizes: tuple[int, ...]
) -> None:
    assert_same(log_of(records, control_at, sizes))


@settings(max_examples=40, deadline=None)
@given(st.lists(changes.map(lambda record: encode(record, 1)), min_size=100, max_size=400))
def test_changes_of_few_partitions_agree(singles: list[bytes]) -> None:
    assert_same(log_of(singles))


def test_a_run_is_the_batches_it_stands_for() -> None:
    singles = [EMPTY_NO_OP] * 40 + [encode(r.PartitionChangeRecord(1, TOPICS[0], leader=2), 1)] * 40
    data = log_of(singles, control_at=60)
    found = split(data)
    kinds = [type(one).__name__ for one in found]
    assert kinds == ["BatchRun"] + ["RecordBatch"] * 20
    run = found[0]
    assert isinstance(run, BatchRun)
    assert len(list(run.batches())) == 61
    assert (run.base_offset, run.next_offset) == (0, len(start()) + 60)
    assert run.counts.tolist() == [len(start())] + [1] * 60
    assert run.epoch == 2
    assert run.timestamps_ms().tolist() == [5, *range(10, 70)]
    assert run.epochs().tolist() == [one.header.leader_epoch for one in run.batches()] == [1] * 51 + [2] * 10
    assert read_run(run) is not None
    whole = [batch for one in found for batch in (one.batches() if isinstance(one, BatchRun) else [one])]
    assert whole == [
        batch._replace(position=batch.position + 100, file="file") for batch in iter_batches(data)
    ]
    assert run.size_bytes == sum(len(batch.data) for batch in run.batches())


def test_a_run_of_records_with_keys_is_taken_apart() -> None:
    batches = [
        encode_batch(base_offset=at, leader_epoch=1, timestamp_ms=5, values=[EMPTY_NO_OP], keys=[b"k"])
        for at in range(MIN_BATCHES)
    ]
    [run] = split(b"".join(batches))
    assert isinstance(run, BatchRun)
    assert read_run(run) is None
    engine, told = replayed([run])
    assert (engine.end_offset, told) == (MIN_BATCHES, [])


@pytest.mark.parametrize("name", [f"{3:020}.log", "copy.log", f"{9:020}-{1:010}.checkpoint"])
@pytest.mark.parametrize("start", [None, 0, 4, 20, 60])
def test_a_reader_of_runs_gives_what_a_reader_of_batches_gives(name: str, start: int | None) -> None:
    """Whether or not the file's name says where it begins."""
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    base = 0 if "checkpoint" in name else 3
    singles = [
        encode_batch(base_offset=base + at, leader_epoch=1, timestamp_ms=at, values=[b"v"])
        for at in range(2 * MIN_BATCHES)
    ]
    for data in (singles, [*singles[:40], singles[40][:-1] + b"x", *singles[41:]], singles[1:]):
        path = f"/d/{name}"
        file = disk.open_append(path)
        file.truncate(0)
        file.append(b"".join(data))
        file.close()
        wanted = list(LogReader(disk, path, tolerant=True, start_offset=start))
        reader = RunReader(disk, path, start_offset=start)
        found: list[RecordBatch | Damage] = []
        for one in reader:
            found += one.batches() if isinstance(one, BatchRun) else [one]
        assert found == wanted
        assert reader.next_offset == base + 2 * MIN_BATCHES


def test_short_runs_stay_batches() -> None:
    found = split(log_of([EMPTY_NO_OP] * (MIN_BATCHES - 2)))
    assert [type(one) for one in found] == [RecordBatch] * (MIN_BATCHES - 1)
    assert split(b"") == []


@pytest.mark.parametrize("sizes", [(2,), (3, 1), (1, 2, 5)])
def test_records_of_every_size_are_where_their_values_are(sizes: tuple[int, ...]) -> None:
    """Sizes whose varints take one, two, three and, in one that is left to the record path, four bytes."""
    lengths = [0, 20, 40, 55, 60, 100, 4_000, 8_100, 8_190, 8_200, 20_000, 130_000]
    singles = [
        encode(r.ConfigRecord(2, "t1", f"k{at % 7}", "v" * lengths[at * 5 % 12]), 0)
        for at in range(6 * MIN_BATCHES)
    ]
    runs = [part for part in split(log_of(singles, sizes=sizes)) if isinstance(part, BatchRun)]
    assert runs
    for run in runs:
        frames = read_run(run)
        assert frames is not None
        assert [
            frames.data[start : start + length]
            for start, length in zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)
        ] == [record.value for batch in iter_batches(run.data) for record in batch.records()]
    assert_same(log_of([*singles, encode(r.ConfigRecord(2, "t1", "k", "v" * 1_100_000), 0)], sizes=sizes))
