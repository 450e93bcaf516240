"""Rules that only a bug can break, judged at every batch for what the batch touched.

Owns the question what of a batch must be judged at all: what is plainly sound is told from its own values,
and only the rest is handed to the rules of `metadata.invariants`, which alone say what is broken. A soundness
told here too easily would hide an error: tests hold both against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from metadata.image import NO_LEADER, BrokerRegistration, MetadataImage, PartitionInfo
from metadata.image.topics import TopicsBuilder
from metadata.invariants import ERROR, Violation, broker_violations
from metadata.invariants_changes import row_violations, topic_violations

MAX_OPEN = 100_000
"""So many errors are known at once; more say nothing new, and are not told."""
OWN_INDEX_RULES = frozenset({"rows-match-index", "replica-counts"})
"""Rules about counts of our own, which no record can break."""


def is_judged_by_batch(violation: Violation) -> bool:
    """Whether a broken rule is found by `Question`: the errors that records can make."""
    is_own_index = violation.rule in OWN_INDEX_RULES or violation.where == "topic"
    return violation.severity == ERROR and not is_own_index


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
    """True only if no error can be found in a partition by itself. False says nothing."""
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
    """Whether a broker has values that an error can be in."""
    if before is None or now is None:
        return True
    return (before.broker_id, before.epoch, before.directories) != (
        now.broker_id,
        now.epoch,
        now.directories,
    )


class Question:
    """What of one batch must be judged."""

    def __init__(self) -> None:
        self.partitions: set[tuple[bytes, int]] = set()
        self.topics: set[bytes] = set()
        self.brokers = False
        self.gone: set[str] = set()
        """Paths of what was deleted: nothing can be wrong with it any more."""

    def __bool__(self) -> bool:
        return bool(self.partitions or self.topics or self.brokers or self.gone)

    def paths(self, image: MetadataImage, open_paths: set[str]) -> Iterator[str]:
        """Paths whose errors `found` tells anew: all others stay as they were."""
        yield from self.gone
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
        """The errors in what is asked about."""
        topics = image.topics
        rows = {row for key in self.partitions if (row := topics.row_of(*key)) >= 0}
        found = [*row_violations(image, rows), *topic_violations(topics, self.topics)]
        if self.brokers:
            found += broker_violations(image)
        return (violation for violation in found if is_judged_by_batch(violation))
