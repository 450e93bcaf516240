"""Replicas that move between the directories of a broker (KIP-113): nothing is lost, whenever power fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.broker.replica.disk_work import CompactPartition, PartitionRead, PromoteReplica, ReadPartition
from metaquorum.broker.replica.placement.moves import Moves
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource
from metaquorum.metadata.image.directories import damaged_in
from metaquorum.storage.errors import DiskError
from metaquorum.testing.faulty_file import PowerLossError
from tests.unit.broker.manager_world import ME, A, B
from tests.unit.broker.moving_world import PATHS, MovingWorld

MOVED = {"/data/a": [], "/data/b": ["t-0"]}
NOT_MOVED = {"/data/a": ["t-0"], "/data/b": []}


def moving(values: int = 6, **options: int) -> MovingWorld:
    world = MovingWorld(**options)
    world.settle()
    for _ in range(values):
        world.produce()
    world.settle()
    return world


def until_promoted(world: MovingWorld) -> None:
    """Up to the point where the last step of a move is asked for."""
    world.until(lambda: any(isinstance(work, PromoteReplica) for work in world.queue))


def test_a_replica_moves_while_producers_go_on() -> None:
    world = moving()
    assert world.move() is ErrorCode.NONE
    for _ in world.steps():
        if world.sent < 30:
            world.produce()
    world.check()
    assert world.names() == MOVED and len(world.acked) == world.sent == 30
    assert world.manager.partitions[world.key].directory_id == B
    world.produce()
    world.settle()
    world.restart()
    world.settle()
    world.check()
    assert len(world.acked) == 31 and world.names() == MOVED


def go_there(world: MovingWorld, directory_id: bytes, pace: int = 3) -> None:
    """A move, while producers go on until the last moment."""
    world.move(PATHS[directory_id])
    for step in range(200):
        if world.manager.partitions[world.key].directory_id == directory_id:
            break
        if step % pace == 0:
            world.produce()
        world.step()
    world.settle()


@pytest.mark.parametrize("seed", range(12))
def test_producers_go_on_until_the_last_moment(seed: int) -> None:
    world = moving(seed=seed)
    go_there(world, B)
    go_there(world, A)
    world.check()
    assert world.names() == NOT_MOVED and len(world.acked) == world.sent > 12


@pytest.mark.parametrize("outcome", [0, 1])
def test_power_fails_at_every_operation_of_a_move(outcome: int) -> None:
    crash_after, crashed, places = 0, True, set()
    while crashed:
        world = moving(2, seed=5)
        world.disk.rng.seed(outcome)
        world.disk.crash_after = crash_after
        crashed = False
        try:
            go_there(world, B, pace=5)
        except PowerLossError:
            crashed = True
        world.restart()
        world.settle()
        world.check()
        world.produce()
        world.settle()
        world.check()
        assert world.names() in (MOVED, NOT_MOVED), crash_after
        places.add(world.manager.partitions[world.key].directory_id)
        crash_after += 1
    assert crash_after > 20 and places == {A, B}


@pytest.mark.parametrize("seed", range(3))
def test_a_process_is_killed_at_every_step_of_a_move(seed: int) -> None:
    """And killed again while it finishes what it found."""
    steps, rested = 0, False
    while not rested:
        world = moving(3, seed=seed)
        world.move()
        for step in range(steps):
            if step % 6 == 0 and step < 50:
                world.produce()
            rested = not world.step()
        for again in range(2):
            world.restart(power_loss=False)
            for _ in range(steps % 5 * (1 - again)):
                world.step()
        world.settle()
        world.check()
        assert world.names() in (MOVED, NOT_MOVED)
        steps += 1
    assert steps > 30


def test_what_was_deleted_does_not_come_back_in_the_new_directory() -> None:
    world = moving()
    world.commits = False
    world.move()
    world.settle()
    world.delete(4)
    world.settle()
    world.commits = True
    until_promoted(world)
    world.until(lambda: world.names() == MOVED)
    world.restart()
    world.settle()
    assert world.manager.partitions[world.key].start_offset == 4


def test_the_controller_is_told_when_the_copy_has_caught_up_and_nothing_moves_before() -> None:
    world = moving()
    world.commits = False
    world.move()
    world.settle()
    assert world.names() == {"/data/a": ["t-0"], "/data/b": ["t-0-future"]}
    (asked,) = world.asked
    assert [each.directory_id for each in asked.request.assignments] == [B]  # type: ignore[union-attr]
    described = world.directories()
    (future,) = described["/data/b"].replicas
    assert (future.future, future.lag, future.end_offset) == (True, 0, 6)
    assert [each.future for each in described["/data/a"].replicas] == [False]
    world.produce()
    assert world.directories()["/data/b"].replicas[0].lag == 1
    world.settle()
    world.commits = True
    world.settle()
    world.check()
    assert world.names() == MOVED


def caught_up(world: MovingWorld) -> None:
    world.commits = False
    world.move()
    world.settle()
    world.commits = True


def test_it_waits_for_what_the_old_directory_was_given() -> None:
    world = moving()
    caught_up(world)
    world.produce()
    world.commit()
    world.produce()
    assert not any(isinstance(work, PromoteReplica) for work in world.queue)
    world.settle()
    world.check()
    assert len(world.acked) == 8 and world.names() == MOVED


def test_what_the_old_directory_never_synced_is_durable_in_the_new_one() -> None:
    world = moving()
    caught_up(world)
    world.produce()

    def moved() -> bool:
        world.unsynced.discard(A)
        return world.names() == MOVED and not world.queue

    world.until(moved)
    assert len(world.acked) == 7
    world.restart()
    world.check()


def test_a_move_is_cancelled_by_naming_the_directory_where_the_replica_is() -> None:
    world = moving()
    world.commits = False
    world.move()
    world.settle()
    assert world.move("/data/a/") is ErrorCode.NONE
    world.asked.clear()
    world.settle()
    world.check()
    assert world.names() == NOT_MOVED
    assert world.move() is ErrorCode.NONE, "and it may begin again"


def test_what_is_refused() -> None:
    world = moving()
    assert world.move("/data/c") is ErrorCode.LOG_DIR_NOT_FOUND
    assert world.move(topic="u") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.move(topic="t" * 249) is ErrorCode.INVALID_TOPIC_EXCEPTION
    world.cluster.topic("v", leader=2, replicas=(2, 3))
    world.publish()
    assert world.move(topic="v") is ErrorCode.REPLICA_NOT_AVAILABLE
    world.fail(B)
    assert world.move() is ErrorCode.KAFKA_STORAGE_ERROR
    world.settle()
    world.check()


def test_a_replica_that_is_not_here_yet_comes_where_it_was_asked_to_be() -> None:
    world = moving()
    for name, place in (("u", A), ("v", B)):
        assert world.move(f"/data/{chr(place[0])}", topic=name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        key = world.cluster.topic(name, replicas=(ME,))
        world.publish()
        world.settle()
        assert world.manager.partitions[key].directory_id == place


def test_the_new_directory_fails_and_the_replica_stays() -> None:
    world = moving()
    world.commits = False
    world.move()
    world.settle()
    world.asked.clear()
    world.fail(B)
    world.settle()
    world.produce()
    world.settle()
    world.check()
    assert len(world.acked) == 7


def test_the_old_directory_fails_when_the_log_names_the_new_one() -> None:
    """What was copied is not whole, so no one takes it for the replica until the old one is back."""
    world = moving()
    world.move()
    until_promoted(world)
    world.queue = [work for work in world.queue if not isinstance(work, PromoteReplica)]
    world.fail(A)
    world.settle()
    assert world.manager.partitions == {}
    info = world.image.topics.partition(*world.key)
    assert info is not None and info.directory_of(ME) == damaged_in(B)
    assert any("was being moved to /data/b" in each for each in world.warnings)
    world.restart()
    world.settle()
    world.check()
    assert world.names() == MOVED and len(world.stored()) == 6


def test_the_old_directory_fails_when_the_copy_is_whole() -> None:
    world = moving()
    world.move()
    until_promoted(world)
    world.fail(A)
    world.settle()
    world.check()
    assert world.manager.partitions[world.key].directory_id == B


def test_a_follower_that_moves_is_truncated_in_both_directories() -> None:
    """The copy follows the log as a replica on another broker would."""
    world = moving()
    world.commits = False
    world.move()
    world.settle()
    partition = world.manager.partitions[world.key]
    partition._log.cut(3)
    world.note(world.manager._out.take())
    world.settle()
    assert partition.end_offset == 3
    assert world.directories()["/data/b"].replicas[0].end_offset == 3
    world.acked = world.acked[:3]
    world.commits = True
    world.produce()
    world.settle()
    world.check()
    assert world.names() == MOVED and len(world.stored()) == 4


def test_a_copy_that_has_more_than_what_is_being_cut_waits_for_the_cut() -> None:
    """The metadata log names its directory already, and nothing is left to copy."""
    world = moving()
    world.commits = False
    world.move()
    world.settle()
    partition = world.manager.partitions[world.key]
    partition._log.cut(3)
    world.commits = True
    world.commit()
    world.note(world.manager._out.take())
    assert not partition.is_held
    assert not any(isinstance(work, PromoteReplica) for work in world.queue)
    world.acked = world.acked[:3]
    world.settle()
    assert (world.names(), partition.end_offset) == (MOVED, 3)
    world.produce()
    world.settle()
    world.check()
    assert len(world.stored()) == 4


def test_a_limit_holds_the_copy_back() -> None:
    world = moving(20)
    own = ConfigResource(BROKER_RESOURCE, str(ME))
    world.cluster.configure(own, "replica.alter.log.dirs.io.max.bytes.per.second", "1000")
    world.publish()
    begun_ms = world.now_ms
    world.move()
    world.settle()
    for _ in range(1_000):
        if world.names() == MOVED:
            break
        due_ms = world.manager.next_deadline_ms()
        assert due_ms is not None
        world.tick(max(1, due_ms - world.now_ms))
        world.settle()
    size = world.manager.partitions[world.key].size_bytes
    assert size * 0.9 < world.now_ms - begun_ms < size * 1.2, "about a byte per ms"
    world.check()


def test_a_limit_that_is_taken_away_holds_nothing_back() -> None:
    world = moving(20)
    own = ConfigResource(BROKER_RESOURCE, str(ME))
    for limit, names in (("1", {"/data/a": ["t-0"], "/data/b": ["t-0-future"]}), (None, MOVED)):
        world.cluster.configure(own, "replica.alter.log.dirs.io.max.bytes.per.second", limit)
        world.publish()
        world.move()
        world.settle()
        assert world.names() == names
    world.check()


def test_a_log_that_is_copied_is_not_compacted() -> None:
    world = moving()
    world.cluster.configure(ConfigResource(2, "t"), "cleanup.policy", "compact")
    world.publish()
    world.settle()
    world.commits = False
    world.move()
    world.settle()
    world.tick(60_000)
    assert not any(isinstance(work, CompactPartition) for work in world.queue)
    world.commits = True
    world.settle()
    world.tick(60_000)
    assert [work.directory_id for work in world.queue if isinstance(work, CompactPartition)] == [B]


def first_read(world: MovingWorld) -> ReadPartition:
    """Of the log that moves, not carried out yet."""
    found: list[ReadPartition] = []

    def reading() -> bool:
        found.extend(work for work in world.queue if isinstance(work, ReadPartition))
        return bool(found)

    world.until(reading)
    return found[0]


def test_what_was_read_before_a_cut_is_not_copied_after_it() -> None:
    """Its offsets have other records by then."""
    world = moving()
    world.move()
    read = first_read(world)
    world.queue.remove(read)
    (done,) = world.stores[A].execute(read)
    world.manager.partitions[world.key]._log.cut(0)
    world.note(world.manager._out.take())
    world.settle()
    world.acked.clear()
    for _ in range(6):
        world.produce()
    world.settle()
    assert world.names() == {"/data/a": ["t-0"], "/data/b": ["t-0-future"]}, "one read at a time"
    world.do(done)
    world.settle()
    world.check()
    assert world.names() == MOVED and len(world.stored()) == 6


def test_a_follower_fetches_nothing_while_the_last_bytes_are_copied() -> None:
    """What its leader says then might cut a log whose end is already settled."""
    world = moving(0, leader=2, replicas=(2, ME))
    world.move()
    partition = world.manager.partitions[world.key]
    assert partition.fetch_position() is not None
    world.until(lambda: partition.is_held)
    assert partition.fetch_position() is None
    world.settle()
    position = partition.fetch_position()
    assert position is not None and partition.directory_id == B


def test_damage_ends_the_move_and_not_the_replica() -> None:
    world = moving()
    world.move()
    read = first_read(world)
    world.queue.remove(read)
    world.do(PartitionRead(token=read.token, data=None, problem="a CRC is wrong"))
    world.settle()
    world.check()
    assert world.names() == NOT_MOVED
    assert any("is not moved to another directory: a CRC is wrong" in each for each in world.warnings)


def test_an_error_of_the_disk_in_the_last_step_names_the_new_directory() -> None:
    world = moving()
    world.move()
    until_promoted(world)
    world.disk.inject("/data/b", after=0, count=1)
    with pytest.raises(DiskError) as caught:
        world.settle()
    assert caught.value.directory.startswith("/data/b")


# ---- several moves ----------------------------------------------------------------------------

C = b"c" * 16


def several(*places: tuple[bytes, bytes]) -> tuple[Moves, list[Any]]:
    """Moves from directory to directory, which all have a read under way and more to do."""
    moves = object.__new__(Moves)
    made = [
        SimpleNamespace(
            key=at,
            source=SimpleNamespace(directory_id=before),
            copy=SimpleNamespace(directory_id=after),
        )
        for at, (before, after) in enumerate(places)
    ]
    parts: dict[str, Any] = {
        "under_way": {move.key: move for move in made},
        "_reads": {10 + move.key: move for move in made},
        "_leaving": {20 + move.key: move.copy for move in made},
        "ready": dict.fromkeys(range(len(made))),
        "_free_ms": 7,
        "_bytes_per_second": 1,
    }
    for name, value in parts.items():
        setattr(moves, name, value)
    return moves, made


@pytest.mark.parametrize(
    ("failed", "reads", "leaving", "ended", "left", "ready"),
    [
        (A, [11, 12], [20, 21], [2], [1], [1, 2]),
        (B, [10, 12], [21, 22], [0], [2], [0, 2]),
        (C, [10, 11], [20, 22], [1], [0], [0, 1]),
        (b"d" * 16, [10, 11, 12], [20, 21, 22], [], [0, 1, 2], [0, 1, 2]),
    ],
)
def test_a_directory_that_fails_ends_its_own_moves_alone(
    monkeypatch: pytest.MonkeyPatch,
    failed: bytes,
    reads: list[int],
    leaving: list[int],
    ended: list[int],
    left: list[int],
    ready: list[int],
) -> None:
    """A move to it is ended with its copy; one from there has nothing left that could be ended."""
    moves, _ = several((A, B), (B, C), (C, A))
    done: list[int] = []
    monkeypatch.setattr(moves, "_end", lambda move: done.append(moves.under_way.pop(move.key).key))
    moves.directory_failed(failed)
    assert (list(moves._reads), list(moves._leaving), done) == (reads, leaving, ended)
    assert (list(moves.under_way), list(moves.ready)) == (left, ready)


@pytest.mark.parametrize(("reading", "may"), [(0, True), (3, True), (4, False), (5, False)])
def test_four_chunks_are_copied_at_the_same_time(reading: int, may: bool) -> None:
    moves, made = several((A, B))
    moves._reads = dict.fromkeys(range(reading), made[0])
    assert moves.next_deadline_ms() == (7 if may else None)
    moves._bytes_per_second = 0
    assert moves.next_deadline_ms() is None
    moves._bytes_per_second, moves.ready = 1, {}
    assert moves.next_deadline_ms() is None
