"""One replica whose log is damaged: the others of its directory serve, and its files stay until it is clear
what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.broker.replica.disk_work import (
    CreateReplica,
    FoundDirectory,
    RemoveReplica,
    ReplicaCreated,
    ReplicaRemoved,
)
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.broker.directory_bench import (
    DIRECTORY_ID,
    EXPECTED,
    OPTIONS,
    PATH,
    SMALL,
    Bench,
    key_of,
)
from tests.unit.broker.filled_directory import filled, read

SEGMENT = join(PATH, "t1-0/00000000000000000000.log")


def flip(disk: FaultyDisk, path: str, at: int) -> None:
    data = bytearray(read_file(disk, path))
    data[at] ^= 0x55
    file = disk.open_append(path)
    file.truncate(0)
    file.append(bytes(data))
    file.close()


def cut_short(disk: FaultyDisk) -> None:
    """Below what its recovery point says."""
    last = max(name for name in disk.list_directory(join(PATH, "t1-0")) if name.endswith(".log"))
    file = disk.open_append(join(PATH, "t1-0/" + last))
    file.truncate(10)
    file.close()


def garbled(disk: FaultyDisk) -> None:
    """A sound process verifies what is above its recovery point; without one that is everything."""
    disk.remove(join(PATH, "t1-0/recovery-point"))
    flip(disk, SEGMENT, 70)


DAMAGES = [cut_short, garbled]


def damaged_bench(damage: Callable[[FaultyDisk], None]) -> tuple[Bench, PartitionKey, PartitionKey]:
    """Two replicas of ten batches each after an orderly stop, the first of them damaged."""
    bench = Bench()
    hurt, sound = filled(bench, 10), filled(bench, 10)
    bench.opened().close(clean=True)
    bench.store = None
    damage(bench.disk)
    return bench, hurt, sound


def opened(bench: Bench) -> tuple[DirectoryStore, FoundDirectory]:
    store, found = DirectoryStore.open(
        bench.disk,
        PATH,
        EXPECTED,
        bench.warnings.append,
        rng=random.Random(3),
        settings=SMALL,
        options=OPTIONS,
    )
    assert store is not None, found.problem
    bench.store, bench.found = store, found
    for replica in found.replicas:
        bench.models[replica.key].incarnation = replica.incarnation
    return store, found


def contents(bench: Bench, name: str) -> dict[str, bytes]:
    place = join(PATH, name)
    return {each: read_file(bench.disk, join(place, each)) for each in bench.disk.list_directory(place)}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_directory_is_good_and_only_the_replica_is_told(damage: Callable[[FaultyDisk], None]) -> None:
    bench, hurt, sound = damaged_bench(damage)
    before = contents(bench, "t1-0")
    store, found = opened(bench)
    assert found.problem is None and found.directory_id == DIRECTORY_ID
    assert [each.key for each in found.replicas] == [sound]
    (told,) = found.damaged
    assert (told.key, told.topic) == (hurt, "t1")
    assert told.size_bytes == sum(len(data) for data in before.values())
    assert told.problem.startswith(join(PATH, "t1-0/0000")) and ".log is damaged at byte " in told.problem
    assert read(bench, sound, 0, 10).data
    assert read(bench, hurt, 0, 10).data is None
    store.close(clean=True)
    assert contents(bench, "t1-0") == before, "it is evidence"


def test_it_is_told_again_at_every_start_until_it_is_whole() -> None:
    bench, hurt, sound = damaged_bench(garbled)
    for _ in range(2):
        store, found = opened(bench)
        assert [each.key for each in found.damaged] == [hurt]
        store.close(clean=True)
    flip(bench.disk, SEGMENT, 70)
    store, found = opened(bench)
    assert found.damaged == () and {each.key for each in found.replicas} == {hurt, sound}
    assert read(bench, hurt, 0, 10).data


def test_a_new_replica_in_its_place_leaves_the_damaged_one_under_another_name() -> None:
    bench, hurt, _ = damaged_bench(cut_short)
    before = contents(bench, "t1-0")
    store, _ = opened(bench)
    work = CreateReplica(directory_id=DIRECTORY_ID, key=hurt, incarnation=900, topic="t1", settings=SMALL)
    assert store.execute(work) == [ReplicaCreated(directory_id=DIRECTORY_ID, key=hurt, incarnation=900)]
    (aside,) = [name for name in bench.disk.list_directory(PATH) if name.endswith("-stray")]
    assert contents(bench, aside) == before
    assert any(
        "is damaged and occupied the place of a new replica: it is kept as " + aside in text
        for text in bench.warnings
    )
    store.close(clean=True)
    bench.disk = bench.disk.crash()
    store, found = opened(bench)
    assert found.damaged == () and hurt in {each.key for each in found.replicas}
    assert contents(bench, aside) == before


def test_one_that_is_wanted_no_more_is_removed() -> None:
    bench, hurt, _ = damaged_bench(cut_short)
    store, _ = opened(bench)
    work = RemoveReplica(directory_id=DIRECTORY_ID, key=hurt, incarnation=0, reason="its topic is deleted")
    assert store.execute(work) == [ReplicaRemoved(directory_id=DIRECTORY_ID, key=hurt, incarnation=0)]
    names = bench.disk.list_directory(PATH)
    assert "t1-0" not in names and [name for name in names if name.endswith("-delete")]
    store.close(clean=True)
    bench.disk = bench.disk.crash()
    assert opened(bench)[1].damaged == ()


def test_all_replicas_of_a_directory_may_be_damaged() -> None:
    bench, hurt, _ = damaged_bench(cut_short)
    flip(bench.disk, join(PATH, "t2-0/00000000000000000000.log"), 70)
    bench.disk.remove(join(PATH, "t2-0/recovery-point"))
    _, found = opened(bench)
    assert found.problem is None and found.replicas == ()
    assert {each.key for each in found.damaged} == {hurt, key_of(2)}


def test_a_disk_that_cannot_be_read_still_makes_the_directory_bad() -> None:
    bench, _, _ = damaged_bench(garbled)
    bench.disk.inject(PATH, operation="read")
    store, found = DirectoryStore.open(bench.disk, PATH, EXPECTED, rng=random.Random(1))
    assert store is None and found.problem is not None and found.damaged == ()
