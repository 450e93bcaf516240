"""Chosen stories of partition data on the simulated cluster: each brings one fault under load.

The laws of `data_laws` are checked after every event here too, and at the end every acknowledged record is in
the log once, in order, on every replica.
"""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.metadata.image import LOST, PartitionInfo
from metaquorum.metadata.records.types import NO_LEADER
from metaquorum.metadata.requests.common import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from metaquorum.metadata.requests.partitions import (
    AlterReassignmentsRequest,
    AssignReplicasToDirsRequest,
    ElectLeadersRequest,
    WantedReplicas,
)
from tests.sim.data_broker import DataBroker
from tests.sim.data_load import TopicPlan, quiet_data_load, quiet_data_profile
from tests.sim.data_world import DataWorld
from tests.sim.processes import SESSION_TIMEOUT_MS
from tests.sim.test_scenarios import Story

FILE_DELETE_DELAY_MS = 60_000
"""For replicas of a topic that no longer exists."""
KEPT = TopicPlan(name="kept", partitions=4, factor=3, min_insync=2)


class DataStory(Story):
    """Three controllers and three brokers with two log directories each, producers and consumers running."""

    world: DataWorld

    def __init__(
        self,
        seed: int,
        *topics: TopicPlan,
        brokers: int = 3,
        flush_before_ack: bool = True,
        eligible_leaders: bool = False,
        self_fencing: bool = True,
    ) -> None:
        load = quiet_data_load(
            *(topics or (KEPT,)),
            brokers=brokers,
            flush_before_ack=flush_before_ack,
            eligible_leaders=eligible_leaders,
            self_fencing=self_fencing,
        )
        super().__init__(seed, DataWorld(seed, profile=quiet_data_profile(load), load=load))
        self.run_for(500)

    def finish(self) -> None:
        """Everything runs and is in sync, every produce has ended, and everything that was acknowledged is
        there."""
        self.world.producing = False
        for node_id in self.world.directory.hosts:
            self.world.boot(node_id)
        self.until(self.world._is_well)
        self.world._last_words()
        assert self.world.laws.acknowledged > 10

    def partition(self, index: int = 0, topic: str = "kept") -> PartitionInfo:
        topics = self.world.log.image.topics
        info = topics.topic_named(topic)
        assert info is not None
        found = topics.partition(info.topic_id, index)
        assert found is not None
        return found

    def partitions(self, topic: str = "kept") -> list[PartitionInfo]:
        count = next(plan.partitions for plan in self.world.load.topics if plan.name == topic)
        return [self.partition(index, topic) for index in range(count)]

    def data_broker(self, broker_id: int) -> DataBroker:
        process = self.world.directory[broker_id].process
        assert isinstance(process, DataBroker)
        return process

    def acknowledged(self) -> int:
        return self.world.laws.acknowledged

    def answers(self) -> set[str]:
        """The error codes of produces, except those of batches that overtook others on their way."""
        start = "produce answered "
        found = {mark.removeprefix(start) for mark in self.world.marks.counts if mark.startswith(start)}
        return found - {"OUT_OF_ORDER_SEQUENCE_NUMBER"}

    def goes_on(self, count: int = 5) -> None:
        """Producers get acknowledgements."""
        before = self.acknowledged()
        self.until(lambda: self.acknowledged() >= before + count)


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "without power"])
def test_a_leader_dies_and_nothing_that_was_acknowledged_is_lost(power_loss: bool) -> None:
    story = DataStory(301)
    leader = story.partition().leader
    story.world.crash(leader, power_loss=power_loss)
    story.until(lambda: story.partition().leader not in (leader, NO_LEADER))
    story.goes_on(20)
    story.world.boot(leader)
    story.finish()


def test_the_power_fails_everywhere_with_records_that_no_disk_has() -> None:
    story = DataStory(302)
    for _ in range(4):
        story.goes_on(10)
        story.until(
            lambda: any(
                each.written_end > each.synced_end
                for broker in story.world.data_brokers()
                for each in broker.partitions().values()
            )
        )
        for node_id in story.world.directory.hosts:
            story.world.crash(node_id, power_loss=True)
        for node_id in story.world.directory.hosts:
            story.world.boot(node_id)
        story.until(story.world._is_well)
    assert story.world.marks.counts["unsynced records lost"] >= 4
    story.finish()


def test_all_processes_are_killed_where_acks_wait_for_no_sync() -> None:
    """As in Kafka: what a kill leaves in the page cache is there again."""
    story = DataStory(303, flush_before_ack=False)
    story.goes_on(20)
    for broker_id in story.world.broker_ids:
        story.world.crash(broker_id, power_loss=False)
    for broker_id in story.world.broker_ids:
        story.world.boot(broker_id)
    story.goes_on(20)
    story.finish()


def test_the_active_controller_dies_and_producers_do_not_notice() -> None:
    story = DataStory(304)
    story.goes_on(10)
    story.world.marks.counts.clear()
    story.world.crash(story.active().node_id, power_loss=True)
    story.goes_on(30)
    assert story.answers() == {"NONE"}
    story.finish()


@pytest.mark.parametrize("self_fencing", [True, False], ids=["fences itself", "serves on"])
def test_without_a_quorum_brokers_serve_on_if_they_do_not_fence_themselves(self_fencing: bool) -> None:
    story = DataStory(321, self_fencing=self_fencing)
    story.goes_on(10)
    for node_id in story.world.directory.hosts:
        if node_id not in story.world.broker_ids:
            story.world.crash(node_id, power_loss=False)
    story.run_for(3 * SESSION_TIMEOUT_MS)
    serving = {each.node.serves(each.host.monotonic_ms()) for each in story.world.data_brokers()}
    assert serving == {not self_fencing}
    before = story.acknowledged()
    story.run_for(2_000)
    assert (story.acknowledged() > before + 10) == (not self_fencing)
    for node_id in story.world.directory.hosts:
        story.world.boot(node_id)
    story.until(story.world._is_well)
    story.goes_on(20)
    moved = "broker served on without a lease"
    assert (story.world.marks.counts[moved] > 0) == (not self_fencing)
    story.finish()


def test_an_old_leader_that_does_not_know_it_serves_on_and_no_acknowledged_record_is_lost() -> None:
    """It reaches its followers and its clients, and no controller: leader epochs and the ISR must suffice."""
    story = DataStory(322, self_fencing=False)
    story.goes_on(10)
    old = story.partition().leader
    hosts = story.world.directory
    controllers = [hosts[each].name for each in hosts.hosts if each not in story.world.broker_ids]
    story.world.network.partition(
        [hosts[old].name], controllers, one_way=False, for_ms=4 * SESSION_TIMEOUT_MS
    )
    story.until(lambda: story.partition().leader not in (old, NO_LEADER))
    broker = story.data_broker(old)
    assert broker.node.serves(broker.host.monotonic_ms()), "nobody could tell it"
    story.goes_on(40)
    story.until(lambda: set(story.partition().isr) == set(story.partition().replicas))
    story.goes_on(10)
    story.finish()


def test_a_follower_is_cut_off_leaves_the_isr_and_comes_back() -> None:
    story = DataStory(305)
    leader = story.partition().leader
    away = next(each for each in story.partition().isr if each != leader)
    others = [story.world.directory[each].name for each in story.world.broker_ids if each != away]
    story.world.network.partition([story.world.directory[away].name], others, one_way=False, for_ms=6_000)
    story.until(lambda: away not in story.partition().isr)
    story.goes_on(10)
    assert not story.world.log.image.brokers[away].fenced, "the controllers reach it all the time"
    story.until(lambda: set(story.partition().isr) == set(story.partition().replicas))
    story.finish()


def test_a_dead_directory_is_led_elsewhere_and_nothing_of_it_is_made_anew_on_the_other() -> None:
    """S3.6, unlike Kafka 3.7.0, which recreates the replicas in the remaining directory."""
    story = DataStory(306)
    directories = story.world.data[0].all
    dead = directories[0].directory_id
    inside = [each.index for each in story.partitions() if each.directory_of(0) == dead]
    assert inside and len(inside) < len(story.partitions())
    directories[0].die()
    story.until(lambda: dead not in story.world.log.image.brokers[0].directories)
    assert all(0 not in story.partition(index).isr for index in inside)
    assert not story.world.log.image.brokers[0].fenced, "the other directory serves on"
    for _ in range(2):
        story.run_for(3_000)
        lies_in = {key[1]: each.directory_id for key, each in story.data_broker(0).partitions().items()}
        assert not set(inside) & set(lies_in), "offline, not made anew"
        assert set(lies_in.values()) == {directories[1].directory_id}
        story.world.crash(0, power_loss=False)
        story.world.boot(0)
        story.until(lambda: len(story.data_broker(0).partitions()) == len(story.partitions()) - len(inside))
    story.world.crash(0, power_loss=False)
    story.world.laws.disk_lost(0, story.world.log.image, dead)
    directories[0].replace()
    story.world.boot(0)
    story.until(lambda: all(0 in story.partition(index).isr for index in inside))
    story.finish()


def test_a_directory_that_is_taken_out_of_the_configuration_is_gone() -> None:
    """S3.17, S3.29: if no bad directory is left, its replicas are recreated in the others."""
    story = DataStory(307)
    directories = story.world.data[0].all
    story.world.crash(0, power_loss=False)
    gone = directories.pop(0)
    story.world.laws.disk_lost(0, story.world.log.image, gone.directory_id)
    story.world.boot(0)
    story.until(story.world._is_well)
    assert {each.directory_of(0) for each in story.partitions()} == {directories[0].directory_id}
    story.finish()


def _dies_unassigned(story: DataStory, *, lost_is_heard: bool) -> DataBroker:
    """Broker 0 creates replicas, the log does not learn where, and their directory dies."""
    world, process = story.world, story.data_broker(0)

    def loses(request: object) -> bool:
        if not isinstance(request, AssignReplicasToDirsRequest):
            return False
        says_lost = all(each.directory_id == LOST for each in request.assignments)
        return not (says_lost and lost_is_heard)

    process.loses = loses
    fresh = NewTopic(
        name="fresh", partitions=6, replication_factor=3, configs=(("min.insync.replicas", "1"),)
    )
    story.ask(story.active().node_id, CreateTopicsRequest(topics=(fresh,)))
    held = world.laws.held

    def made() -> list[bytes]:
        keys = [(each.topic_id, each.index) for each in _partitions_of(story, "fresh")]
        return [directory for key in keys for directory in held.get((0, key), ())]

    story.until(lambda: len(made()) == 6)
    story.run_for(500)
    fresh_id = _partitions_of(story, "fresh")[0].topic_id
    running = process.partitions().items()
    assert all(each.role is ReplicaRole.IDLE for key, each in running if key[0] == fresh_id), (
        "nobody knows where"
    )
    world.data[0].by_id(made()[0]).die()
    return process


def test_a_directory_dies_before_the_log_says_what_lies_in_it() -> None:
    """S3.8: the broker reports LOST, and only then recreates them (the laws check the order)."""
    story = DataStory(308)
    world = story.world
    process = _dies_unassigned(story, lost_is_heard=True)
    story.until(lambda: world.marks.counts["LOST sent"] > 0)
    process.loses = lambda request: False
    story.until(lambda: all(0 in each.isr for each in _partitions_of(story, "fresh")))
    assert process.alive and not world.log.image.brokers[0].fenced
    world.crash(0, power_loss=False)
    for directory in world.data[0].bad():
        directory.repair()
    story.finish()


def test_a_broker_that_cannot_say_what_it_lost_stops() -> None:
    """S3.8: no acknowledgement within log.dir.assignment.timeout.ms."""
    story = DataStory(309)
    process = _dies_unassigned(story, lost_is_heard=False)
    story.until(lambda: not process.alive)
    assert process.stopped is not None and process.stopped.failed
    story.world.crash(0, power_loss=False)
    for directory in story.world.data[0].bad():
        directory.repair()
    story.finish()


def _partitions_of(story: DataStory, topic: str) -> list[PartitionInfo]:
    topics = story.world.log.image.topics
    info = topics.topic_named(topic)
    return [] if info is None else topics.partitions_of(info.topic_id)


@pytest.mark.parametrize("lasting", [False, True], ids=["for a moment", "for good"])
def test_a_directory_hangs(lasting: bool) -> None:
    """S3.28: its partitions move to other leaders when the bound is over, and not before."""
    story = DataStory(310)
    leader = story.partition().leader
    worker = story.data_broker(leader).workers[story.partition().directory_of(leader) or b""]
    worker.hang()
    if not lasting:
        story.run_for(500)
        worker.go_on()
        story.goes_on(10)
        assert story.partition().leader == leader
    else:
        story.until(lambda: story.partition().leader not in (leader, NO_LEADER))
        story.goes_on(10)
        story.world.crash(leader, power_loss=False)
        worker.directory.repair()
    story.finish()


def test_the_last_directory_dies_and_the_broker_stops_in_order() -> None:
    story = DataStory(311)
    process = story.data_broker(1)
    for directory in story.world.data[1].all:
        directory.die()
    story.until(lambda: not process.alive)
    story.until(lambda: story.world.log.image.brokers[1].fenced)
    story.goes_on(10)
    for directory in story.world.data[1].all:
        directory.repair()
    story.finish()


def test_an_unclean_election_loses_what_it_says_and_nothing_elsewhere() -> None:
    unclean = TopicPlan(name="unclean", partitions=2, factor=2, min_insync=1, unclean=True)
    story = DataStory(312, KEPT, unclean)
    world = story.world
    before = story.partition(0, "unclean")
    behind = next(each for each in before.replicas if each != before.leader)
    world.crash(behind, power_loss=True)
    story.until(lambda: story.partition(0, "unclean").isr == (before.leader,))
    story.goes_on(20)
    world.crash(before.leader, power_loss=True)
    world.boot(behind)
    story.until(lambda: story.partition(0, "unclean").leader == behind)
    assert world.marks.counts["unclean election"] >= 1
    story.run_for(1_500)
    world.boot(before.leader)
    story.finish()
    key = (before.topic_id, 0)
    assert world.laws.may_lose(key)
    assert not any(world.laws.may_lose((each.topic_id, each.index)) for each in story.partitions())
    assert world.marks.counts["log cut by epoch"] > 0, "the old leader gave up what the new one never had"


def test_a_replica_that_left_a_small_isr_leads_when_the_last_member_is_gone_and_lacks_nothing() -> None:
    """KIP-966: nothing was committed without it, so the election is clean."""
    story = DataStory(
        312, TopicPlan(name="kept", partitions=1, factor=3, min_insync=2), eligible_leaders=True
    )
    leader = story.partition().leader
    first, second = (each for each in story.partition().replicas if each != leader)
    names = {each: story.world.directory[each].name for each in (leader, first, second)}
    for follower in (first, second):
        story.goes_on(10)
        story.world.network.partition([names[leader]], [names[follower]], one_way=False, for_ms=60_000)
        story.until(lambda follower=follower: follower not in story.partition().isr)
    assert story.partition().isr == (leader,) and story.partition().elr == (second,)
    story.world.crash(leader, power_loss=True)
    story.until(lambda: story.partition().leader == second)
    assert story.world.marks.counts["eligible leader elected"] == 1
    assert not story.world.marks.counts["unclean election"]
    story.world.network.heal()
    story.world.boot(leader)
    story.goes_on(10)
    story.finish()


def test_the_last_replica_in_sync_comes_back_on_a_new_disk_and_waits_for_permission() -> None:
    """The others have data, it has none: no replica is truncated to that without an unclean election."""
    story = DataStory(313, TopicPlan(name="kept", partitions=1, factor=2, min_insync=1))
    leader = story.partition().leader
    other = next(each for each in story.partition().replicas if each != leader)
    story.goes_on(10)
    story.world.crash(other, power_loss=False)
    story.until(lambda: story.partition().isr == (leader,))
    story.goes_on(5)
    held = story.partition().directory_of(leader)
    assert held is not None
    story.world.crash(leader, power_loss=False)
    story.world.laws.disk_lost(leader, story.world.log.image, held)
    story.world.data[leader].by_id(held).replace()
    for broker_id in (leader, other):
        story.world.boot(broker_id)
    story.until(lambda: story.world._active() is not None and len(story.world.data_brokers()) == 3)
    story.run_for(10_000)
    assert (story.partition().leader, story.partition().isr) == (NO_LEADER, (leader,))
    story.world.log.unclean_asked.add(("kept", 0))
    story.world.ask_active(ElectLeadersRequest(unclean=True, partitions=(("kept", 0),)))
    story.until(lambda: story.partition().leader == other)
    story.goes_on(5)
    story.finish()


def test_a_partition_moves_under_load() -> None:
    story = DataStory(313, KEPT, brokers=4)
    before = story.partition()
    free = next(each for each in story.world.broker_ids if each not in before.replicas)
    target = (free, *before.replicas[1:])
    wanted = WantedReplicas(topic="kept", partition=0, replicas=target)
    story.ask(story.active().node_id, AlterReassignmentsRequest(wanted=(wanted,)))
    story.until(lambda: story.partition().replicas == target and not story.partition().removing)
    story.until(lambda: (before.topic_id, 0) not in story.data_broker(before.replicas[0]).partitions())
    story.finish()


def test_brokers_are_restarted_one_after_another_and_no_produce_fails() -> None:
    """S1.24: each shuts down cleanly, and producers only see leader changes."""
    story = DataStory(314)
    bounce_ms = []
    for broker_id in story.world.broker_ids:
        began_ms = story.world.engine.now_ms
        story.broker(broker_id).ask_to_stop()
        story.until(lambda broker_id=broker_id: story.world.directory[broker_id].process is None)
        story.world.boot(broker_id)
        story.until(story.world._is_well)
        bounce_ms.append(story.world.engine.now_ms - began_ms)
        story.goes_on(5)
    assert story.answers() <= {"NONE", "NOT_LEADER_OR_FOLLOWER"}
    assert max(bounce_ms) < 3_000, bounce_ms
    story.finish()


def test_a_topic_is_deleted_while_a_replica_is_away() -> None:
    """S3.21: a broker that comes back finds no such topic, and removes its replica."""
    story = DataStory(315)
    old = story.partition()
    story.goes_on(20)
    story.world.crash(2, power_loss=True)
    story.ask(story.active().node_id, DeleteTopicsRequest(topics=("kept",)))
    story.until(lambda: story.world.log.image.topics.topic(old.topic_id) is None)
    story.until(lambda: all(key[0] != old.topic_id for key in story.data_broker(0).partitions()))
    story.until(lambda: story.world.log.image.topics.topic_named("kept") is not None)
    story.world.boot(2)
    story.until(story.world._is_well)
    assert all(key[0] != old.topic_id for key in story.data_broker(2).partitions())
    story.world.producing = False
    story.run_for(FILE_DELETE_DELAY_MS + 5_000)
    for directory in story.world.data[2].all:
        names = directory.disk.list_directory(directory.path)
        assert not any("delete" in name for name in names), names
    story.finish()
