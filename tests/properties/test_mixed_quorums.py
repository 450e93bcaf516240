"""Random schedules over quorums of our voters and Kafka's, in every proportion: all laws of Raft hold, no
voter of Kafka's meets what would end its process, and a healed quorum commits again, whoever leads."""

from __future__ import annotations

import random

import pytest

from metaquorum.raft import messages as ms
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import Respond, RespondWithRecords, Warn
from metaquorum.raft.messages import RaftError
from metaquorum.storage.types import LogPosition
from tests.properties.test_raft_schedules import Chaos
from tests.raft.mixed_world import NO_PRE_VOTE, MixedWorld
from tests.raft.telling import CLUSTER_ID
from tests.raft.world import Message, World

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


@pytest.mark.parametrize("seed", [*range(24), 53, 271])
def test_a_mixed_quorum_keeps_every_law(seed: int) -> None:
    assert run(seed, 1500).acknowledged > 0


def test_schedules_reach_the_rare_states() -> None:
    """Either kind leads, logs diverge and are cut, and reads are confirmed with the fetches of Kafka's
    voters."""
    marks: set[str] = set()
    led, reads = 0, set()
    for seed in range(146, 158):
        world = run(seed, 1500)
        marks |= world.marks
        led += world.led_by_kafka > 0
        reads |= {result is None for result in world.read_results.values()}
    assert marks >= {"truncation", "snapshot fetched by Kafka's voter"}
    assert led > 3
    assert reads == {True, False}


def test_our_voter_leads_where_all_others_are_kafkas() -> None:
    """They have no pre-votes to give; and nothing but their fetches confirms a read."""
    world = MixedWorld(3, 2, seed=1, config=CONFIG)
    for node_id in world.nodes:
        world.start(node_id)
    core = world.core(1)
    for _ in range(300):
        world.now += 10
        world.input(1, lambda core: core.tick(now_ms=world.now))
        while one_due(world):
            pass
    assert core.is_leader
    world.append(1, "a record")
    while one_due(world):
        pass
    assert core.high_watermark == core.log_end_offset
    world.read(1, 7)
    while one_due(world) and 7 not in world.read_results:
        pass
    assert world.read_results[7] == core.high_watermark


def test_a_grant_that_is_assumed_proves_no_loss() -> None:
    """A voter of Kafka's that has no pre-vote counts as granting it, and may have what this node lacks: then
    another voter's refusal is no reason to report that committed records are lost."""
    world = World(3, seed=1, pinned=False)
    world.start(1)
    while world.core(1).role != "prospective":
        world.now += 10
        world.input(1, lambda core: core.tick(now_ms=world.now))
    core, asked = world.core(1), {each.target: each.correlation_id for each in world.messages}
    effects = core.on_response(2, asked[2], NO_PRE_VOTE, now_ms=world.now)
    refused = ms.VoteResponse(
        error=RaftError.NONE,
        epoch=core.epoch,
        leader_id=None,
        vote_granted=False,
        pre_vote=True,
        known_committed=LogPosition(0, 9),
    )
    effects += core.on_response(3, asked[3], refused, now_ms=world.now)
    assert core.role == "unattached"
    assert not [each for each in effects if isinstance(each, Warn)]


def fetched_by_kafka(world: World, leader: int, **more: int) -> ms.FetchResponse:
    """What the leader answers to a voter of Kafka's, whose release says no high watermark."""
    core = world.core(leader)
    asked = {"fetch_offset": 0, "last_fetched_epoch": 0, **more}
    request = ms.FetchRequest(
        cluster_id=CLUSTER_ID,
        replica_id=1 if leader != 1 else 2,
        replica_directory_id=b"",
        epoch=core.epoch,
        high_watermark=ms.UNSTATED,
        max_wait_ms=0,
        max_bytes=1_000,
        **asked,
    )
    effects = core.on_request(1_000_000, request, now_ms=world.now)
    (response,) = [each.response for each in effects if isinstance(each, Respond | RespondWithRecords)]
    assert isinstance(response, ms.FetchResponse)
    return response


def led(world: World, *, committed: bool) -> int:
    """The node that leads, before or after it has committed in its epoch."""
    for _ in range(2_000):
        if not (world.messages or any(node.persists or node.syncs for node in world.live)):
            world.now += 10
            for node in world.live:
                world.input(node.node_id, lambda core: core.tick(now_ms=world.now))
        for node in world.live:
            core = node.core
            if core is not None and core.is_leader:
                if (core.high_watermark > (core.epoch_start_offset or 0)) == committed:
                    return node.node_id
        one_step(world)
    raise AssertionError("no leader")


def one_step(world: World) -> None:
    for node in world.live:
        if node.persists:
            return world.persist_next(node.node_id)
        if node.syncs:
            return world.sync_next(node.node_id)
    if world.messages:
        world.deliver(world.messages.pop(0))
    return None


def test_a_new_leader_names_no_high_watermark_that_may_fall_at_kafkas_voter() -> None:
    world = World(3, seed=1, pinned=False)
    for node_id in world.nodes:
        world.start(node_id)
    first = led(world, committed=True)
    assert fetched_by_kafka(world, first).high_watermark == world.core(first).high_watermark > 0
    for _ in range(40):
        one_step(world)  # the others learn it
    world.crash(first)
    second = led(world, committed=False)
    assert world.core(second).high_watermark > 0
    assert fetched_by_kafka(world, second).high_watermark == -1


def test_a_release_that_says_no_high_watermark_claims_none() -> None:
    world = World(3, seed=1, pinned=False)
    for node_id in world.nodes:
        world.start(node_id)
    leader = led(world, committed=True)
    core = world.core(leader)
    beyond = fetched_by_kafka(world, leader, fetch_offset=99, last_fetched_epoch=core.epoch)
    assert beyond.diverging is not None and beyond.error is ms.RaftError.NONE
    assert core.losses == ()
