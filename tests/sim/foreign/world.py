"""A world in which some of the brokers are Apache Kafka's, beside ours, under all faults of `World`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import CreateTopicsRequest, NewTopic
from tests.sim.errors import SafetyError
from tests.sim.foreign.broker import RUNNING, KafkaBroker
from tests.sim.processes import ControllerProcess
from tests.sim.profile import FaultProfile
from tests.sim.world import World

FOREIGN_FROM = 7_000
FIRST_ID = 50
FAULTS_EVERY_MS = 200
TOPICS = ("shared-0", "shared-1", "shared-2")


class ForeignWorld(World):
    """The seed draws how many brokers are Kafka's."""

    def __init__(
        self, seed: int, on_line: Callable[[str], None] | None = None, profile: FaultProfile | None = None
    ) -> None:
        super().__init__(seed, on_line, profile)
        self.rng = random.Random(f"Kafka's brokers of {seed}")
        self.foreign = [KafkaBroker(self, FIRST_ID + at) for at in range(self.rng.choice((1, 1, 2, 3, 4)))]
        for each in self.foreign:
            self.engine.after(self.rng.randrange(600), each.boot)
        self.engine.after(FAULTS_EVERY_MS, self._trouble_foreign)

    def _trouble_foreign(self) -> None:
        """Kills, stops, cuts off; and topics that both kinds hold."""
        if not self.faults_on:
            return
        profile, rng, seconds = self.profile, self.rng, FAULTS_EVERY_MS / 1000
        for each in self.foreign:
            if rng.random() < profile.crash_rate / len(self.foreign) * seconds:
                each.end("killed")
            elif rng.random() < profile.broker_stop_rate * seconds:
                each.stop()
            elif rng.random() < profile.partition_rate * seconds:
                names = [self.directory[node_id].name for node_id in self.controller_ids]
                others = names if rng.random() < 0.5 else [rng.choice(names)]
                one_way = rng.random() < profile.one_way_chance
                self.network.partition(
                    [each.name], others, one_way=one_way, for_ms=rng.randint(*profile.partition_ms)
                )
        if rng.random() < 2 * seconds:
            topic = NewTopic(name=rng.choice(TOPICS), partitions=3, replication_factor=2)
            self.ask_active(CreateTopicsRequest(topics=(topic,)))
        self.engine.after(FAULTS_EVERY_MS, self._trouble_foreign)

    @staticmethod
    def partitions(image: MetadataImage) -> Iterator[tuple[bytes, int, Any]]:
        """Of the topics that both kinds hold."""
        for name in TOPICS:
            topic = image.topics.topic_named(name)
            if topic is not None:
                for at in range(3):
                    found = image.topics.partition(topic.topic_id, at)
                    if found is not None:
                        yield topic.topic_id, at, found

    def _after_step(self) -> None:
        super()._after_step()
        for each in self.foreign:
            if each.is_up:
                self._check_log(each)

    def _check_log(self, broker: KafkaBroker) -> None:
        """What it applied is what was committed, byte for byte."""
        committed = self.checks.committed_batches()
        for base, end, _, data in broker.disk.batches:
            if broker.checked_to <= base and end <= broker.observer.high_watermark:
                broker.checked_to = end
                if base in committed and committed[base] != (end, bytes(data)):
                    raise SafetyError(f"Kafka's broker {broker.node_id} has another batch at {base}")

    def unwell_brokers(self, active: ControllerProcess) -> str:
        for each in self.foreign:
            known = active.node.ledger.committed.image.brokers.get(each.node_id)
            if not each.is_up or each.state != RUNNING:
                return f"Kafka's broker {each.node_id} is {each.state if each.is_up else 'down'}"
            if known is None or known.epoch != each.epoch or known.fenced or known.in_controlled_shutdown:
                return f"Kafka's broker {each.node_id} of epoch {each.epoch} is {known} in the image"
        return super().unwell_brokers(active)
