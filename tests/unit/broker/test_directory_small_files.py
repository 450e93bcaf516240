"""Small files of a log directory that are empty, missing or garbled: no record, no other replica suffers."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.broker.replica.disk_work import AppendPartition, CheckpointHighWatermarks
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.partition.log_producers import snapshot_name
from metaquorum.storage.partition.replica_directory import load_high_watermarks, load_partition_metadata
from tests.unit.broker.directory_bench import DIRECTORY_ID, PATH, Bench, walked
from tests.unit.broker.kafka_directories import broker_directories, every_record, kafka_directory, opened

COUNT = 12
DAMAGES = {
    "empty": b"",
    "a line end": b"\n",
    "garbage": b"\xff\xfe\0\x01",
    "zeros": b"\0" * 40,
    "a version from the future": b"9\n0\n",
    "a version alone": b"0\n",
    "no number": b"0\n1\nx y z\n",
}


def filled(bench: Bench) -> list[PartitionKey]:
    keys = [bench.create(), bench.create()]
    for key in keys:
        for base in range(COUNT):
            batch = encode_batch(
                base_offset=base, leader_epoch=1 + base // 5, timestamp_ms=base, values=[b"v"]
            )
            bench.do(AppendPartition, key, batches=walked(batch), sync=True)
    write_high_watermarks(bench)
    bench.opened().close(clean=True)
    bench.store = None
    return keys


def write_high_watermarks(bench: Bench) -> None:
    marks = tuple((f"t{number}", 0, COUNT) for number in (1, 2))
    bench.opened().execute(CheckpointHighWatermarks(directory_id=DIRECTORY_ID, high_watermarks=marks))


def put(bench: Bench, path: str, content: bytes | None) -> None:
    if content is None:
        bench.disk.remove(path)
        return
    file = bench.disk.open_append(path)
    file.truncate(0)
    file.append(content)
    file.close()


def check_whole(bench: Bench, keys: list[PartitionKey]) -> None:
    bench.opened()
    assert bench.found is not None and bench.found.problem is None
    found = {one.key: one.log for one in bench.found.replicas}
    assert sorted(found) == sorted(keys)
    for log in found.values():
        assert (log.start_offset, log.end_offset) == (0, COUNT)
        assert log.epochs.entries == ((1, 0), (2, 5), (3, 10))


@pytest.mark.parametrize("content", [*DAMAGES.values(), None], ids=[*DAMAGES, "missing"])
@pytest.mark.parametrize(
    "name",
    [
        "t1-0/leader-epoch-checkpoint",
        "t1-0/recovery-point",
        f"t1-0/{snapshot_name(COUNT)}",
        "replication-offset-checkpoint",
    ],
)
def test_a_bad_small_file_loses_nothing(name: str, content: bytes | None) -> None:
    bench = Bench()
    keys = filled(bench)
    put(bench, join(PATH, name), content)
    check_whole(bench, keys)
    assert all("\n" not in line for line in bench.warnings)
    write_high_watermarks(bench)
    bench.restart()
    bench.warnings.clear()
    bench.restart()
    assert not bench.warnings, "what was bad has been put right"


@pytest.mark.parametrize(
    "name",
    [
        ".kafka_cleanshutdown",
        "cleaner-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "t1-0/00000000000000000000.txnindex",
        "t1-0/00000000000000000000.index",
        "t1-0/00000000000000000000.timeindex",
    ],
)
@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_a_bad_file_of_kafkas_that_is_not_needed_changes_nothing(name: str, content: bytes) -> None:
    bench = Bench()
    keys = filled(bench)
    put(bench, join(PATH, name), content)
    check_whole(bench, keys)


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_a_replica_whose_topic_cannot_be_read_is_left_alone(content: bytes) -> None:
    bench = Bench()
    _, second = filled(bench)
    put(bench, join(PATH, "t1-0/partition.metadata"), content)
    bench.opened()
    assert bench.found is not None and [one.key for one in bench.found.replicas] == [second]
    assert any("t1-0" in line and "is not removed" in line for line in bench.warnings)
    assert bench.disk.exists(join(PATH, "t1-0/00000000000000000000.log"))


def test_line_ends_and_blanks_change_no_small_file() -> None:
    bench = Bench()
    keys = filled(bench)
    for name in ("t1-0/leader-epoch-checkpoint", "t1-0/partition.metadata", "replication-offset-checkpoint"):
        path = join(PATH, name)
        content = bench.disk.open_read(path).read_at(0, 1000)
        put(bench, path, content.rstrip(b"\n").replace(b"\n", b" \r\n"))
    check_whole(bench, keys)
    assert not bench.warnings
    assert load_partition_metadata(bench.disk, join(PATH, "t1-0")) == keys[0][0]
    assert load_high_watermarks(bench.disk, PATH) == {("t1", 0): COUNT, ("t2", 0): COUNT}


@pytest.mark.parametrize("name", broker_directories())
def test_every_replica_of_a_kafka_broker_opens(tmp_path: Path, name: str) -> None:
    copy = kafka_directory(tmp_path, name)
    names = {path.name for path in copy.iterdir() if path.name.rpartition("-")[2].isdigit()}
    warnings: list[str] = []
    store, found = opened(copy, warnings)
    assert {f"{one.topic}-{one.key[1]}" for one in found.replicas} == names - {"__cluster_metadata-0"}
    assert warnings == []
    for replica in found.replicas:
        every_record(store, replica, copy)
    store.close(clean=True)
