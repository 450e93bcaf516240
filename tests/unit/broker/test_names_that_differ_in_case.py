"""Two topics whose names differ only in case, where the file system takes them for one."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.disk_work import FoundDirectory
from metaquorum.broker.replica.placement.directories import Copies, Copy, Directories
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.disk.interface import read_file
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.case_disk import CaseIgnoringDisk
from tests.unit.broker.manager_world import ME, A, B
from tests.unit.broker.moving_world import MovingWorld

REFUSED = "replica T-0 is not created: the file system of /data/{} ignores case, and t-0 is there"


def contents(world: MovingWorld, topic: str = "t") -> dict[str, bytes]:
    """Every file of a topic's replicas, by path."""
    found = {}
    for directory, names in world.names(topic).items():
        for name in names:
            for file in world.disk.list_directory(f"{directory}/{name}"):
                path = f"{directory}/{name}/{file}"
                found[path] = read_file(world.disk, path)
    return found


def second_topic(world: MovingWorld, place: bytes = A) -> PartitionKey:
    """A topic T beside t, and nothing left to do afterwards."""
    key = world.cluster.topic("T", place=place, leader=ME, replicas=(ME,))
    world.publish()
    world.settle()
    return key


def filled(disk: type[FaultyDisk] = CaseIgnoringDisk) -> MovingWorld:
    world = MovingWorld(disk=disk)
    world.settle()
    for _ in range(5):
        world.produce()
    world.settle()
    return world


def test_the_disk_of_these_tests_ignores_case() -> None:
    world = MovingWorld(disk=CaseIgnoringDisk)
    assert world.disk.exists("/DATA/a/META.properties") and not world.disk.exists("/DATA/a/META")
    assert world.disk.list_directory("/Data/A") == world.disk.list_directory("/data/a") != []


@pytest.mark.parametrize("restarts", ["no", "kill", "power loss"])
def test_the_second_topic_is_refused_and_the_first_is_unharmed(restarts: str) -> None:
    world = filled()
    before = contents(world)
    assert before
    second = second_topic(world)
    if restarts != "no":
        world.restart(power_loss=restarts == "power loss")
        world.settle()
    assert contents(world) == before and world.names("T") == {"/data/a": [], "/data/b": []}
    assert second not in world.manager.partitions and world.key in world.manager.partitions
    told = [each for each in world.warnings if each.startswith(REFUSED.format("a"))]
    assert len(told) == (1 if restarts == "no" else 2), world.warnings
    assert "delete one of the topics" in told[0]
    world.produce()
    world.settle()
    assert len(world.acked) == 6


def test_other_topics_get_their_replicas_beside_it() -> None:
    world = filled()
    second_topic(world)
    third = world.cluster.topic("T2", place=A, leader=ME, replicas=(ME,))
    world.publish()
    world.settle()
    assert third in world.manager.partitions


def test_it_gets_them_when_the_first_is_deleted() -> None:
    world = filled()
    second = second_topic(world)
    world.cluster.delete(world.key)
    world.publish()
    world.settle()
    assert second in world.manager.partitions
    assert world.names("T") == {"/data/a": ["T-0"], "/data/b": []}


def test_a_replica_is_not_moved_onto_another_topics() -> None:
    world = filled()
    second = second_topic(world, place=B)
    assert second in world.manager.partitions
    before = contents(world)
    assert world.move(path="/data/a", topic="T") is ErrorCode.KAFKA_STORAGE_ERROR
    world.settle()
    assert contents(world) == before and second in world.manager.partitions
    assert [each for each in world.warnings if each.startswith("replica T-0 is not moved: the file system")]


def test_two_topics_that_were_created_at_once() -> None:
    world = MovingWorld(disk=CaseIgnoringDisk)
    second = second_topic(world)
    assert {second, world.key} - set(world.manager.partitions) != set()
    assert len([each for names in map(world.names, ("t", "T")) for each in names["/data/a"]]) == 1


def test_where_case_counts_both_have_replicas() -> None:
    world = filled(FaultyDisk)
    assert second_topic(world) in world.manager.partitions
    assert not world.warnings


def test_a_damaged_replica_of_the_first_topic_keeps_its_place() -> None:
    world = filled()
    segment = next(path for path in contents(world) if path.endswith(".log"))
    world.restart(power_loss=False)
    world.disk.flip_bit(segment, 70)
    file = world.disk.open_append(segment)
    file.append(b"\0" * 100)
    file.close()
    second = second_topic(world)
    before = contents(world)
    world.restart(power_loss=False)
    world.settle()
    assert contents(world) == before and second not in world.manager.partitions


def test_the_index_of_names_folds_only_where_the_disk_does() -> None:
    directories = Directories(
        [
            FoundDirectory(path="/data/a", directory_id=A, ignores_case=True),
            FoundDirectory(path="/b", directory_id=B),
        ]
    )
    copies = Copies(directories)
    for place in (A, B):
        copy = Copy((b"1" * 16, 0), "Orders", place, 1, None)
        copies.add(copy)
        assert copies.named(place, "Orders", 0) is copy
        assert (copies.named(place, "oRDERS", 0) is copy) == (place == A)
        copies.leave(copy)
        assert copies.named(place, "Orders", 0) is None
