"""Random schedules over quorums of our voters and Kafka's, in every proportion: all laws of Raft hold, no
voter of Kafka's meets what would end its process, and a healed quorum commits again, whoever leads."""

from __future__ import annotations

import random

import pytest

from metaquorum.raft.config import RaftConfig
from tests.properties.test_raft_schedules import Chaos
from tests.raft.mixed_world import MixedWorld
from tests.raft.world import Message

CONFIG = RaftConfig(snapshot_chunk_bytes=40, fetch_max_bytes=200)


class MixedChaos(Chaos):
    world: MixedWorld

    def __init__(self, world: MixedWorld, rng: random.Random) -> None:
        super().__init__(world, rng)
        self.steps |= {"snapshot": 4, "trim": 4, "crash": 2}

    def repeat(self) -> None:
        """A connection repeats nothing."""
        message = self._pick()
        if message is not None and not self.world.involves_kafka(message):
            self.world.deliver(message)

    def lose(self) -> None:
        message = self._pick()
        if message is not None:
            self.world.lose(message)

    def deliver(self) -> None:
        """In any order, but for what one connection of Kafka's carries."""
        message = self._pick()
        if message is not None:
            deliver_first(self.world, message)

    def tick(self) -> None:
        super().tick()
        for node_id in self.world.kafka:
            if self.rng.random() < 0.5:
                self.world.tick_kafka(node_id)

    def append(self) -> None:
        super().append()
        for node_id in self.world.kafka:
            self.world.append_to_kafka(node_id, f"value {self.world.now}")

    def crash(self) -> None:
        up = [node_id for node_id in self.world.nodes if self.world.is_up(node_id)]
        if len(up) > len(self.world.nodes) // 2:
            self.world.crash(self.rng.choice(up))

    def start(self) -> None:
        down = [node_id for node_id in self.world.nodes if not self.world.is_up(node_id)]
        if down:
            self.world.start(self.rng.choice(down))


def deliver_first(world: MixedWorld, message: Message) -> None:
    """Delivers the message, or the one before it between these two nodes."""
    if world.involves_kafka(message):
        ends = message.source, message.target
        message = next(each for each in world.messages if (each.source, each.target) == ends)
    world.messages.remove(message)
    world.deliver(message)


def heal(world: MixedWorld) -> None:
    """All nodes run, nothing is lost: a record is committed everywhere within some simulated seconds."""
    for node_id in world.nodes:
        if not world.is_up(node_id):
            world.start(node_id)
    for who, correlation_id in sorted(world.outstanding):
        if not any(
            each.correlation_id == correlation_id and who in (each.source, each.target)
            for each in world.messages
        ):
            world.fail(who, correlation_id, "timed out")
    goal = None
    for _ in range(9_000):
        if not one_due(world):
            world.now += 10
            for node in world.live:
                world.input(node.node_id, lambda core: core.tick(now_ms=world.now))
            for node_id in world.kafka:
                world.tick_kafka(node_id)
        if goal is None or world.acknowledged < goal:
            goal = write(world) or goal
        if goal is not None and all(mark >= goal for mark in high_watermarks(world)):
            return
    raise AssertionError(f"no progress after healing: {roles(world)}")


def write(world: MixedWorld) -> int | None:
    """The leader that commits in its epoch gets one more record; returns the log's end with it."""
    for node in world.live:
        core = node.core
        if core is not None and core.is_leader and core.high_watermark >= core.log_end_offset:
            goal = core.log_end_offset + 1
            world.append(node.node_id, "after healing")
            return goal
    for node_id, voter in world.kafka.items():
        if voter is not None and voter.role == "leader" and voter.high_watermark >= voter.disk.end:
            goal = int(voter.disk.end) + 1
            world.append_to_kafka(node_id, "after healing")
            return goal
    return None


def high_watermarks(world: MixedWorld) -> list[int]:
    ours = [node.core.high_watermark for node in world.live if node.core is not None]
    return ours + [voter.high_watermark for voter in world.kafka.values() if voter is not None]


def roles(world: MixedWorld) -> list[tuple[str, int]]:
    ours = [(node.core.role, node.core.epoch) for node in world.live if node.core is not None]
    return ours + [(voter.role, voter.epoch) for voter in world.kafka.values() if voter is not None]


def one_due(world: MixedWorld) -> bool:
    for node in world.live:
        for waiting, step in (
            (node.persists, world.persist_next),
            (node.syncs, world.sync_next),
            (node.finishing, world.finish_next),
        ):
            if waiting:
                step(node.node_id)
                return True
    if world.messages:
        world.deliver(world.messages.pop(0))
        return True
    return False


def run(seed: int, steps: int) -> MixedWorld:
    rng = random.Random(seed)
    voters = rng.choice((3, 3, 5))
    world = MixedWorld(voters, rng.randint(1, voters - 1), seed=seed, config=CONFIG)
    for node_id in world.nodes:
        world.start(node_id)
    chaos = MixedChaos(world, rng)
    for _ in range(steps):
        chaos.step()
    heal(world)
    return world


@pytest.mark.parametrize("seed", range(24))
def test_a_mixed_quorum_keeps_every_law(seed: int) -> None:
    assert run(seed, 1500).acknowledged > 0


def test_schedules_reach_the_rare_states() -> None:
    """Either kind leads, logs diverge and are cut, and reads are confirmed with the fetches of Kafka's
    voters."""
    marks: set[str] = set()
    led, reads = 0, set()
    for seed in range(100, 112):
        world = run(seed, 1500)
        marks |= world.marks
        led += world.led_by_kafka > 0
        reads |= {result is None for result in world.read_results.values()}
    assert marks >= {"truncation", "snapshot fetched by Kafka's voter"}
    assert led > 3
    assert reads == {True, False}
