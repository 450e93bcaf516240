"""What of a batch must be judged: the rules of docs/invariants.md, asked about what the batch touched.

Owns the question. What is plainly sound is told from its own values, and only the rest is handed to the
functions that `log check` asks too (`metadata.invariants_changes`): they alone say what is broken. A
soundness told here too easily would hide something: tests hold both against each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from metaquorum.metadata.image import (
    NO_LEADER,
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigResource,
    MetadataImage,
    PartitionInfo,
)
from metaquorum.metadata.image.topics import TopicsBuilder
from metaquorum.metadata.invariants import Violation, broker_violations, feature_violations
from metaquorum.metadata.invariants_changes import (
    config_violations,
    row_violations,
    rows_about,
    topic_violations,
)

MAX_LISTS = 65_536
"""The number of replica lists that are remembered as those of active brokers."""


@lru_cache(maxsize=65536)
def _lists_are_sound(replicas: tuple[int, ...], isr: tuple[int, ...], directories: int) -> bool:
    members = set(isr)
    return (
        len(replicas) == len(set(replicas)) == directories
        and 0 < len(members) == len(isr)
        and members.issubset(replicas)
        and min(isr) >= 0
        and min(replicas) >= 0
    )


def is_plainly_sound(partition: PartitionInfo) -> bool:
    """True only if no rule is broken by a partition itself, whatever its brokers are. False says nothing."""
    return (
        (partition.leader in partition.isr or partition.leader == NO_LEADER)
        and _lists_are_sound(partition.replicas, partition.isr, len(partition.directories))
        and partition.leader_epoch >= 0
        and partition.partition_epoch >= 0
        and (not (partition.adding or partition.removing or partition.elr) or _rare_is_sound(partition))
    )


def _rare_is_sound(partition: PartitionInfo) -> bool:
    moving, replicas = {*partition.adding, *partition.removing}, set(partition.replicas)
    return (
        moving <= replicas
        and len(moving) >= len(set(partition.adding)) + len(set(partition.removing))
        and replicas.issuperset(partition.elr)
        and not set(partition.elr).intersection(partition.isr)
    )


def topic_is_plainly_sound(topics: TopicsBuilder, topic_id: bytes) -> bool:
    """The same of a topic's name and the numbers of its partitions."""
    entry = topics.by_id.get(topic_id)
    if entry is None:
        return True
    runs = entry.runs
    return topics.by_name.get(entry.info.name) == topic_id and (
        not runs or (len(runs) == 1 and runs[0][0] == 0)
    )


def registration_is_new(before: BrokerRegistration | None, now: BrokerRegistration | None) -> bool:
    """Whether a broker has values that something can be wrong with."""
    if before is None or now is None:
        return True
    return (before.broker_id, before.epoch, before.directories, before.features) != (
        now.broker_id,
        now.epoch,
        now.directories,
        now.features,
    )


class ActiveBrokers:
    """Which brokers are there and active, and so which partitions are no warning."""

    def __init__(self) -> None:
        self.known: frozenset[int] = frozenset()
        self.active: frozenset[int] = frozenset()
        self._lists: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}

    def set(self, registrations: Mapping[int, BrokerRegistration]) -> None:
        """After a batch that was about brokers."""
        known = frozenset(registrations)
        active = frozenset(at for at, registration in registrations.items() if registration.is_active)
        if (known, active) != (self.known, self.active):
            self.known, self.active = known, active
            self._lists.clear()

    def carry(self, partition: PartitionInfo) -> bool:
        """True only if every replica is on a known broker, and the leader and the ISR on active ones."""
        if partition.leader != NO_LEADER and partition.leader not in self.active:
            return False
        key = (partition.replicas, partition.isr)
        fine = self._lists.get(key)
        if fine is None:
            if len(self._lists) >= MAX_LISTS:
                self._lists.clear()
            isr_is_active = len(partition.isr) < 2 or self.active.issuperset(partition.isr)
            fine = self._lists[key] = isr_is_active and self.known.issuperset(partition.replicas)
        return fine


class Question:
    """What of one batch must be judged."""

    def __init__(self) -> None:
        self.partitions: set[tuple[bytes, int]] = set()
        self.topics: set[bytes] = set()
        self.configs: set[ConfigResource] = set()
        self.brokers = False
        """Whether registrations, or what they must support, changed."""
        self.turned: set[int] = set()
        """Brokers that are not active or not registered any more: their partitions are in question."""
        self.returned = False
        """Whether a broker became active or known: what is wrong with partitions may have ended."""
        self.gone: set[str] = set()
        """Paths of what was deleted: nothing can be wrong with it any more."""

    def __bool__(self) -> bool:
        asked = (self.partitions, self.topics, self.configs, self.turned, self.gone)
        return self.brokers or self.returned or any(asked)

    def broker(
        self, broker_id: int, before: BrokerRegistration | None, now: BrokerRegistration | None
    ) -> None:
        """A broker's registration changed."""
        self.brokers = self.brokers or registration_is_new(before, now)
        was_active, is_active = before is not None and before.is_active, now is not None and now.is_active
        if (was_active and not is_active) or (before is not None and now is None):
            self.turned.add(broker_id)
        if (is_active and not was_active) or (now is not None and before is None):
            self.returned = True

    def topic_settings(self, name: str) -> None:
        """Whether a topic has settings that it should not have."""
        self.configs.add(ConfigResource(TOPIC_RESOURCE, name))

    def ask_again(self, image: MetadataImage, open_paths: Collection[str]) -> None:
        """Puts what is wrong with partitions in question again, if brokers came back."""
        if not self.returned:
            return
        for path in open_paths:
            kind, _, rest = path.partition("/")
            name, _, index = rest.partition("/")
            if kind == "topic" and index and (topic_id := image.topics.by_name.get(name)) is not None:
                self.partitions.add((topic_id, int(index)))

    def paths(self, image: MetadataImage, open_paths: Collection[str]) -> Iterator[str]:
        """Paths of which `found` tells again what is wrong: all others stay as they were."""
        yield from self.gone
        for resource in self.configs:
            yield f"config/topic/{resource.name}"
        for topic_id, index in self.partitions:
            topic = image.topics.topic(topic_id)
            if topic is not None:
                yield f"topic/{topic.name}/{index}"
        for topic_id in self.topics:
            topic = image.topics.topic(topic_id)
            if topic is not None:
                yield f"topic/{topic.name}"
        if self.brokers:
            yield from (path for path in open_paths if path.startswith("broker/"))

    def found(self, image: MetadataImage) -> Iterator[Violation]:
        """What is wrong with what is asked about."""
        topics = image.topics
        rows = {row for key in self.partitions if (row := topics.row_of(*key)) >= 0}
        yield from topic_violations(topics, self.topics)
        yield from row_violations(image, rows | rows_about(topics, self.turned))
        if self.brokers:
            yield from broker_violations(image)
            yield from feature_violations(image)
        yield from config_violations(image, self.configs)
