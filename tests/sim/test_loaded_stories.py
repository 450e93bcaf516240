"""Chosen stories of partitions and broker ids on the simulated cluster: each brings one fault.

The laws of `committed`, `promises` and `loaded` are checked after every event here too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metaquorum.controller.partitions.rules import UNCLEAN_LEADER_ELECTION_ENABLE
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import TOPIC_RESOURCE, ConfigResource, PartitionInfo
from metaquorum.metadata.records.types import LEADER_RECOVERED, NO_LEADER
from metaquorum.metadata.requests.partitions import (
    AlterPartitionResponse,
    AlterReassignmentsRequest,
    WantedReplicas,
)
from metaquorum.metadata.requests.settings import AlterConfigsRequest, ConfigChange, ConfigOp, OpKind
from tests.sim.loaded_processes import REUSE_GRACE_MS, LoadedBroker
from tests.sim.processes import SESSION_TIMEOUT_MS
from tests.sim.test_interruptions import LoadedStory


def _partition(story: LoadedStory, name: str, index: int = 0) -> PartitionInfo:
    topics = story.world.log.image.topics
    info = topics.topic_named(name)
    assert info is not None
    found = topics.partition(info.topic_id, index)
    assert found is not None
    return found


def _loaded(story: LoadedStory, slot: int) -> LoadedBroker:
    process = story.world.directory[slot].process
    assert isinstance(process, LoadedBroker)
    return process


def _move(story: LoadedStory, name: str, replicas: tuple[int, ...] | None) -> Any:
    wanted = WantedReplicas(topic=name, partition=0, replicas=replicas)
    got = story.ask(story.active().node_id, AlterReassignmentsRequest(wanted=(wanted,)))
    story.until(lambda: bool(got))
    return got[0].results[0].error


def test_a_dead_directory_loses_its_leaders_and_a_new_disk_gets_its_replicas_back() -> None:
    story = LoadedStory(201)
    story.topic("held", 8)
    world = story.world
    story.run_for(1_000)  # by now every replica has reported its directory
    world.fail_directory(0)
    failed = world._directories[0].dead[0]
    inside = [at for at in range(8) if _partition(story, "held", at).directory_of(0) == failed]
    story.until(lambda: failed not in world.log.image.brokers[0].directories)
    assert inside and all(0 not in _partition(story, "held", at).isr for at in inside)
    assert not world.log.image.brokers[0].fenced, "the other directory serves on"
    world.crash(0, power_loss=False)
    world._replace_dead(0)
    world.boot(0)
    story.until(world._is_well)
    assert all(0 in _partition(story, "held", at).isr for at in inside)
    assert all(_partition(story, "held", at).directory_of(0) != failed for at in inside)


def test_the_last_in_sync_replica_is_waited_for_and_an_unclean_election_must_be_allowed() -> None:
    story = LoadedStory(202)
    story.topic("held", 1, factor=2)
    first, second = _partition(story, "held").replicas
    world = story.world
    world.crash(second, power_loss=False)
    story.until(lambda: _partition(story, "held").isr == (first,))
    story.run_for(1_000)
    world.crash(first, power_loss=False)
    story.until(lambda: _partition(story, "held").leader == NO_LEADER)
    world.boot(second)
    story.run_for(4_000)
    assert _partition(story, "held").leader == NO_LEADER
    assert _partition(story, "held").isr == (first,), "it alone has all that was acknowledged"
    op = ConfigOp(kind=OpKind.SET, name=UNCLEAN_LEADER_ELECTION_ENABLE, value="true")
    resource = ConfigResource(TOPIC_RESOURCE, "held")
    story.ask(
        story.active().node_id, AlterConfigsRequest(changes=(ConfigChange(resource=resource, ops=(op,)),))
    )
    story.until(lambda: _partition(story, "held").leader == second)
    assert world.marks.counts["unclean election"] == 1
    story.until(lambda: _partition(story, "held").leader_recovery_state == LEADER_RECOVERED)
    assert world.marks.counts["leader recovered"] == 1
    world.boot(first)
    story.until(world._is_well)


def test_a_reassignment_waits_for_a_dead_target_and_ends_when_it_is_replaced_or_cancelled() -> None:
    story = LoadedStory(203, brokers=4)
    story.topic("held", 1, factor=2)
    before = _partition(story, "held").replicas
    dead, free = (broker_id for broker_id in range(4) if broker_id not in before)
    world = story.world
    world.crash(dead, power_loss=False)
    story.until(lambda: world.log.image.brokers[dead].fenced)
    assert _move(story, "held", (dead, before[1])) is ErrorCode.NONE
    story.run_for(3_000)
    moving = _partition(story, "held")
    assert moving.adding == (dead,) and set(before) <= set(moving.replicas), "it waits, and nobody has left"
    assert _move(story, "held", None) is ErrorCode.NONE
    cancelled = _partition(story, "held")
    assert set(cancelled.replicas) == set(before) and cancelled.adding == () == cancelled.removing
    assert _move(story, "held", (dead, before[1])) is ErrorCode.NONE
    assert _move(story, "held", (free, before[1])) is ErrorCode.NONE
    story.until(lambda: _partition(story, "held").replicas == (free, before[1]))
    ended = _partition(story, "held")
    assert set(ended.isr) == {free, before[1]} and ended.adding == () == ended.removing


def test_a_missing_id_is_taken_over_after_the_grace_period_and_its_machine_is_refused() -> None:
    story = _StoryOfIds(204)
    world = story.world
    story.topic("held", 4, factor=3)
    lost = _loaded(story, 1).node_id
    world.crash(1, power_loss=False)
    story.until(lambda: world.log.image.brokers[lost].fenced)
    story.run_for(REUSE_GRACE_MS + SESSION_TIMEOUT_MS)
    world._bring(3)
    story.until(lambda: world.directory[3].process is not None)
    assert _loaded(story, 3).node_id == lost
    story.until(lambda: not world.log.image.brokers[lost].fenced)
    world.boot(1)
    story.run_for(5_000)
    assert _loaded(story, 1).node_id == lost and not world._serves(_loaded(story, 1))
    assert world._serves(_loaded(story, 3))
    world._retire_doubles()
    assert world.directory[1].process is None
    story.until(world._is_well)


def test_within_the_grace_period_a_newcomer_gets_an_id_of_its_own() -> None:
    story = _StoryOfIds(205)
    world = story.world
    story.topic("held", 4, factor=3)
    lost = _loaded(story, 1).node_id
    world.crash(1, power_loss=False)
    story.until(lambda: world.log.image.brokers[lost].fenced)
    story.run_for(REUSE_GRACE_MS / 2)
    world._bring(3)
    story.until(lambda: world.directory[3].process is not None)
    assert _loaded(story, 3).node_id != lost
    world.boot(1)
    story.until(world._is_well)
    assert _loaded(story, 1).node_id == lost


def test_a_host_that_lost_every_disk_is_the_same_broker_again() -> None:
    story = _StoryOfIds(206)
    world = story.world
    before = _loaded(story, 0).node_id
    world.load = replace(world.load, disk_loss_chance=1.0)
    while not world._lost_disk:
        world.crash(0, power_loss=True)
        world.boot(0)
        story.until(lambda: world.directory[0].process is not None)
    story.until(world._is_well)
    assert _loaded(story, 0).node_id == before
    assert world.marks.counts["id returned after a lost disk"] == 1


def test_an_alteration_that_comes_twice_is_carried_out_once() -> None:
    story = LoadedStory(207)
    story.topic("held", 1)
    world = story.world
    leader = _partition(story, "held").leader
    other = next(broker_id for broker_id in range(3) if broker_id != leader)
    world.crash(other, power_loss=False)
    story.until(lambda: other not in _partition(story, "held").isr)
    world.boot(other)
    story.until(world._is_well)
    old = _loaded(story, leader).replication._past[-1]
    before = _partition(story, "held")
    got = story.ask(story.active().node_id, old)
    story.until(lambda: bool(got))
    assert isinstance(got[0], AlterPartitionResponse)
    assert got[0].results[0].error is ErrorCode.INVALID_UPDATE_VERSION
    assert _partition(story, "held") == before


class _StoryOfIds(LoadedStory):
    """Three hosts without configured ids, and a fourth that has not started yet."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, generated_ids=True, newcomer=True)
