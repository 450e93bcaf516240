"""Random schedules over three to five voters and an observer.

Messages in any order, lost and repeated, crashes that lose what was not synced, snapshots and trimming,
leadership transfer. The world checks the laws after every step; then all faults end, and the quorum must
commit again.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaquorum.raft.config import RaftConfig
from tests.raft.world import Message, World

CONFIG = RaftConfig(snapshot_chunk_bytes=40, fetch_max_bytes=200)


class Chaos:
    """One random step at a time, drawn from `rng`."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.token = 0
        self.steps = {
            "deliver": 30,
            "complete": 14,
            "tick": 10,
            "append": 6,
            "lose": 3,
            "repeat": 2,
            "fail": 3,
            "crash": 1,
            "start": 3,
            "read": 2,
            "snapshot": 1,
            "trim": 1,
            "transfer": 1,
        }

    def step(self) -> None:
        name = self.rng.choices(list(self.steps), list(self.steps.values()))[0]
        getattr(self, name)()

    def _pick(self) -> Message | None:
        return self.rng.choice(self.world.messages) if self.world.messages else None

    def deliver(self) -> None:
        message = self._pick()
        if message is not None:
            self.world.messages.remove(message)
            self.world.deliver(message)

    def repeat(self) -> None:
        message = self._pick()
        if message is not None:
            self.world.deliver(message)

    def lose(self) -> None:
        message = self._pick()
        if message is not None:
            self.world.messages.remove(message)

    def fail(self) -> None:
        if self.world.outstanding:
            who, correlation_id = self.rng.choice(sorted(self.world.outstanding))
            self.world.fail(who, correlation_id, "timed out")

    def complete(self) -> None:
        node = self.rng.choice(list(self.world.nodes.values()))
        if node.core is None:
            return
        if node.persists:
            self.world.persist_next(node.node_id)
        elif node.syncs:
            self.world.sync_next(node.node_id)
        elif node.finishing:
            self.world.finish_next(node.node_id)

    def tick(self) -> None:
        self.world.now += self.rng.choice((0, 1, 1, 5, 5, 20, 20, 60, 150, 400, 1600))
        for node in self.world.live:
            if self.rng.random() < 0.5:
                self.world.input(node.node_id, lambda core: core.tick(now_ms=self.world.now))

    def _leaders(self) -> list[int]:
        return [node.node_id for node in self.world.live if node.core and node.core.is_leader]

    def append(self) -> None:
        for leader in self._leaders():
            self.world.append(leader, f"value {self.world.now}", wake_observers=self.rng.random() < 0.5)

    def read(self) -> None:
        for leader in self._leaders():
            self.token += 1
            self.world.read(leader, self.token)

    def transfer(self) -> None:
        for leader in self._leaders():
            target = self.rng.randint(1, len(self.world.voters) or len(self.world.nodes))
            self.world.input(
                leader, lambda core, target=target: core.transfer_leadership(target, now_ms=self.world.now)
            )

    def crash(self) -> None:
        up = [node.node_id for node in self.world.live]
        if len(up) > len(self.world.nodes) // 2:
            self.world.crash(self.rng.choice(up))

    def start(self) -> None:
        down = [node.node_id for node in self.world.nodes.values() if node.core is None]
        if down:
            self.world.start(self.rng.choice(down))

    def snapshot(self) -> None:
        node = self.rng.choice(list(self.world.nodes.values()))
        if node.core is not None and node.core.high_watermark > max(0, node.core.log_start_offset):
            self.world.snapshot(node.node_id)

    def trim(self) -> None:
        node = self.rng.choice(list(self.world.nodes.values()))
        if node.core is None or not node.disk.snapshots:
            return
        newest = max(position.offset for position in node.disk.snapshots)
        if node.core.log_start_offset < newest <= node.disk.synced:
            self.world.trim(node.node_id, newest)


def heal(world: World) -> None:
    """All nodes run, nothing is lost: a record is committed everywhere within some simulated seconds."""
    for node in world.nodes.values():
        if node.core is None:
            world.start(node.node_id)
    for who, correlation_id in sorted(world.outstanding):
        if not any(m.correlation_id == correlation_id for m in world.messages if who in (m.source, m.target)):
            world.fail(who, correlation_id, "timed out")
    goal = None
    for _ in range(4_000):
        if not one_due(world):
            world.now += 10
            for node in world.live:
                world.input(node.node_id, lambda core: core.tick(now_ms=world.now))
        leader = next((n.core for n in world.live if n.core and n.core.is_leader), None)
        if goal is None and leader is not None and leader.high_watermark > (leader.epoch_start_offset or 0):
            goal = leader.log_end_offset + 1
            world.append(leader.node_id, "after healing")
        if goal is not None and all(n.core and n.core.high_watermark >= goal for n in world.live):
            return
    raise AssertionError(
        f"no progress after healing: {[(n.core.role, n.core.epoch) for n in world.live if n.core]}"
    )


def one_due(world: World) -> bool:
    """Completes one write or delivers one message; False: there is nothing left to do."""
    for node in world.live:
        if node.persists:
            world.persist_next(node.node_id)
            return True
        if node.syncs:
            world.sync_next(node.node_id)
            return True
        if node.finishing:
            world.finish_next(node.node_id)
            return True
    if world.messages:
        world.deliver(world.messages.pop(0))
        return True
    return False


def run(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    # Every fourth configuration names no directory ids.
    world = World(rng.choice((3, 3, 5)), observers=1, seed=seed, pinned=seed % 4 != 3, config=CONFIG)
    for node_id in world.nodes:
        world.start(node_id)
    chaos = Chaos(world, rng)
    for _ in range(steps):
        chaos.step()
    heal(world)
    return world


@pytest.mark.parametrize("seed", range(30))
def test_long_schedule(seed: int) -> None:
    world = run(seed, 1500)
    assert world.acknowledged > 0


def test_schedules_reach_the_rare_states() -> None:
    marks: set[str] = set()
    reads = set()
    for seed in range(100, 115):
        world = run(seed, 1500)
        marks |= world.marks
        reads |= {result is None for result in world.read_results.values()}
    assert marks >= {"truncation", "snapshot installed"}
    assert reads == {True, False}, "reads were both confirmed and refused"


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 400))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_short_schedule(seed: int, steps: int) -> None:
    run(seed, steps)
