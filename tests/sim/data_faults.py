"""Faults of brokers that hold data: brokers, directories and links fail alone and together.

The world carries it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metaquorum.metadata.image import PartitionInfo
from metaquorum.metadata.requests.common import CreateTopicsRequest, DeleteTopicsRequest, NewTopic
from metaquorum.metadata.requests.data import AlterReplicaLogDirsRequest, WantedDirectory
from metaquorum.metadata.requests.partitions import (
    AlterReassignmentsRequest,
    ElectLeadersRequest,
    WantedReplicas,
)

if TYPE_CHECKING:
    from tests.sim.data_world import DataWorld

STEP_S = 0.1
TOPICS_MS = 250
ASK_MS = 1_500
SHORT_HANG_MS = (50, 700)


class DataFaults:
    """Called once per step while faults are on."""

    def __init__(self, world: DataWorld) -> None:
        self._world = world
        self._engine = world.engine
        self._load = world.load

    def _due(self, rate: float) -> bool:
        return rate > 0 and self._engine.rng.random() < rate * STEP_S

    def step(self) -> None:
        load = self._load
        for rate, fault in (
            (load.broker_crash_rate, self._crash_broker),
            (load.crash_leader_rate, self._crash_leader),
            (load.crash_active_rate, self._crash_active),
            (load.all_crash_rate, self._crash_all),
            (load.directory_death_rate, self._kill_directory),
            (load.directory_hang_rate, self._hang_directory),
            (load.link_cut_rate, self._cut_link),
            (load.follower_cut_rate, self._cut_follower),
            (load.lonely_rate, self._cut_from_controllers),
            (load.reassign_rate, self._reassign),
            (load.elect_rate, self._elect),
            (load.delete_rate, self._delete),
            (load.move_rate, self._move),
        ):
            if self._due(rate):
                fault()

    # ---- machines --------------------------------------------------------------------------------

    def _power(self) -> bool:
        return self._engine.rng.random() < self._load.power_loss_chance

    def _crash_broker(self) -> None:
        self._world.crash(self._engine.rng.choice(self._world.broker_ids), power_loss=self._power())

    def _crash_leader(self) -> None:
        partition = self._partition()
        if partition is not None and partition.leader in self._world.broker_ids:
            self._world.crash(partition.leader, power_loss=self._power())

    def _crash_active(self) -> None:
        active = self._world._active()
        if active is not None:
            self._world.crash(active.node_id, power_loss=self._power())

    def _crash_all(self) -> None:
        """All brokers lose power, or every broker's process is killed."""
        power_loss = self._power()
        self._world.marks.add(
            "all brokers lost power at once" if power_loss else "all brokers killed at once"
        )
        for broker_id in self._world.broker_ids:
            self._world.crash(broker_id, power_loss=power_loss)
        if self._engine.rng.random() < 0.3:
            for node_id in self._world.controller_ids:
                self._world.crash(node_id, power_loss=power_loss)

    # ---- directories -----------------------------------------------------------------------------

    def _kill_directory(self) -> None:
        self._world.fail_directory(self._engine.rng.choice(self._world.broker_ids))

    def _hang_directory(self) -> None:
        rng = self._engine.rng
        for_ms = rng.randint(*SHORT_HANG_MS) if rng.random() < 0.5 else None
        self._world.hang_directory(rng.choice(self._world.broker_ids), for_ms=for_ms)

    # ---- links -----------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [self._world.directory[each].name for each in self._world.broker_ids]

    def _cut_link(self) -> None:
        rng = self._engine.rng
        one, other = rng.sample(self._names(), 2)
        self._world.network.partition(
            [one], [other], one_way=rng.random() < 0.4, for_ms=rng.randint(200, 3_000)
        )

    def _cut_follower(self) -> None:
        """A broker cannot reach the other brokers; the controllers do not notice."""
        rng = self._engine.rng
        one = rng.choice(self._names())
        others = [each for each in self._names() if each != one]
        self._world.network.partition([one], others, one_way=False, for_ms=rng.randint(600, 3_000))

    def _cut_from_controllers(self) -> None:
        """A broker reaches the other brokers and no controller, for longer than its lease."""
        world, rng = self._world, self._engine.rng
        one = rng.choice(self._names())
        names = [world.directory[each].name for each in world.controller_ids]
        controllers = [name for name in names if name != one]
        world.network.partition([one], controllers, one_way=False, for_ms=rng.randint(3_500, 7_000))

    # ---- operators -------------------------------------------------------------------------------

    def _partition(self) -> PartitionInfo | None:
        rng, image = self._engine.rng, self._world.log.image
        info = image.topics.topic_named(rng.choice(self._load.topics).name)
        if info is None:
            return None
        count = image.topics.partition_count_of(info.topic_id)
        return image.topics.partition(info.topic_id, rng.randrange(count))

    def ask(self, request: Any) -> None:
        active = self._world._active()
        if active is not None:
            host = self._world.directory[active.node_id]
            self._world.calls.client(
                "admin", host, request, ASK_MS, lambda response, _: None, lambda reason: None, once=True
            )

    def _reassign(self) -> None:
        partition, rng = self._partition(), self._engine.rng
        if partition is None:
            return
        info = self._world.log.image.topics.topic(partition.topic_id)
        size = len(partition.replicas) - len(partition.adding)
        replicas = tuple(rng.sample(self._world.broker_ids, min(size, len(self._world.broker_ids))))
        if info is not None:
            wanted = WantedReplicas(topic=info.name, partition=partition.index, replicas=replicas)
            self._engine.trace("admin", f"moves {info.name}-{partition.index} to {replicas}")
            self.ask(AlterReassignmentsRequest(wanted=(wanted,)))

    def _move(self) -> None:
        """Requests a move of a replica to another directory of its broker, or that it stays in its own."""
        partition, rng = self._partition(), self._engine.rng
        topic = None if partition is None else self._world.log.image.topics.topic(partition.topic_id)
        if partition is None or topic is None:
            return
        broker_id = rng.choice(partition.replicas)
        path = rng.choice(self._world.data[broker_id].all).path
        wanted = WantedDirectory(path=path, topic=topic.name, partition=partition.index)
        self._engine.trace("admin", f"moves {topic.name}-{partition.index} of broker {broker_id} to {path}")
        self._world.calls.data(
            "admin",
            self._world.directory[broker_id],
            AlterReplicaLogDirsRequest(wanted=(wanted,)),
            ASK_MS,
            lambda response: None,
            lambda reason: None,
        )

    def _elect(self) -> None:
        self.ask(ElectLeadersRequest(unclean=False))

    def _delete(self) -> None:
        if any(plan.name == "comes-and-goes" for plan in self._load.topics):
            self._engine.trace("admin", "deletes comes-and-goes")
            self.ask(DeleteTopicsRequest(topics=("comes-and-goes",)))

    def keep_topics(self) -> None:
        """Creates every topic of the plan that does not exist, including deleted ones."""
        image = self._world.log.image
        for plan in self._load.topics:
            if image.topics.topic_named(plan.name) is None:
                topic = NewTopic(
                    name=plan.name,
                    partitions=plan.partitions,
                    replication_factor=plan.factor,
                    configs=plan.configs(),
                )
                self.ask(CreateTopicsRequest(topics=(topic,)))
        self._engine.after(TOPICS_MS, self.keep_topics)
