"""Which invariants must be checked after a batch: those about entities that the batch touched.

Owns the selection. What is clearly sound is decided from its own values, and only the rest goes to the
functions that `log check` uses (`metadata.invariants_changes`). Must not decide that something is broken:
only these functions do. A wrong decision for soundness would hide a violation; tests compare both ways.
Rows are `tables.violations`'.
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
"""Number of replica lists to remember as those of active brokers."""


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
    """True only if a partition by itself breaks no rule, whatever the state of its
    brokers. False is no statement."""
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
    """The same for a topic's name and the numbers of its partitions."""
    entry = topics.by_id.get(topic_id)
    if entry is None:
        return True
    runs = entry.runs
    return topics.by_name.get(entry.info.name) == topic_id and (
        not runs or (len(runs) == 1 and runs[0][0] == 0)
    )


def registration_is_new(before: BrokerRegistration | None, now: BrokerRegistration | None) -> bool:
    """Whether a broker has new values that could break a rule."""
    if before is None or now is None:
        return True
    return (before.broker_id, before.epoch, before.directories, before.features) != (
        now.broker_id,
        now.epoch,
        now.directories,
        now.features,
    )


class ActiveBrokers:
    """The registered and the active brokers, and so the partitions without warnings."""

    def __init__(self) -> None:
        self.known: frozenset[int] = frozenset()
        self.active: frozenset[int] = frozenset()
        self._lists: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}

    def set(self, registrations: Mapping[int, BrokerRegistration]) -> None:
        """Updates them after a batch about brokers."""
        known = frozenset(registrations)
        active = frozenset(at for at, registration in registrations.items() if registration.is_active)
        if (known, active) != (self.known, self.active):
            self.known, self.active = known, active
            self._lists.clear()

    def carry(self, partition: PartitionInfo) -> bool:
        """True only if every replica is on a registered broker, and the leader and
        the ISR are on active ones."""
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
    """What must be checked after one batch."""

    def __init__(self) -> None:
        self.partitions: set[tuple[bytes, int]] = set()
        self.topics: set[bytes] = set()
        self.configs: set[ConfigResource] = set()
        self.brokers = False
        """Whether registrations, or what they must support, changed."""
        self.turned: set[int] = set()
        """Brokers that are no longer active or registered: their partitions must be checked."""
        self.returned = False
        """Whether a broker became active or registered: violations of partitions may have ended."""
        self.gone: set[str] = set()
        """Paths of what was deleted: its violations have ended."""

    def __bool__(self) -> bool:
        asked = (self.partitions, self.topics, self.configs, self.turned, self.gone)
        return self.brokers or self.returned or any(asked)

    def broker(
        self, broker_id: int, before: BrokerRegistration | None, now: BrokerRegistration | None
    ) -> None:
        """Notes a change of a broker's registration."""
        self.brokers = self.brokers or registration_is_new(before, now)
        was_active, is_active = before is not None and before.is_active, now is not None and now.is_active
        if (was_active and not is_active) or (before is not None and now is None):
            self.turned.add(broker_id)
        if (is_active and not was_active) or (now is not None and before is None):
            self.returned = True

    def topic_settings(self, name: str) -> None:
        """Notes a topic whose configuration must be checked."""
        self.configs.add(ConfigResource(TOPIC_RESOURCE, name))

    def ask_again(self, image: MetadataImage, open_paths: Collection[str]) -> None:
        """Adds the known violations of partitions to the checks, if brokers returned."""
        if not self.returned:
            return
        for path in open_paths:
            kind, _, rest = path.partition("/")
            name, _, index = rest.partition("/")
            if kind == "topic" and index and (topic_id := image.topics.by_name.get(name)) is not None:
                self.partitions.add((topic_id, int(index)))

    def paths(self, image: MetadataImage, open_paths: Collection[str]) -> Iterator[str]:
        """Paths for which `found` repeats all violations. Those of other paths have not changed."""
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
        """The violations among what must be checked."""
        topics = image.topics
        rows = {row for key in self.partitions if (row := topics.row_of(*key)) >= 0}
        yield from topic_violations(topics, self.topics)
        yield from row_violations(image, rows | rows_about(topics, self.turned))
        if self.brokers:
            yield from broker_violations(image)
            yield from feature_violations(image)
        yield from config_violations(image, self.configs)
