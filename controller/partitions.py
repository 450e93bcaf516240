"""How partitions change when brokers come and go: who leads, who is in sync (S4.3-S4.6).

Owns single-partition decisions and bounded batches of them, always computed from the image given. Knows no
sessions: who may lead is a function that the caller brings. Elections are clean ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from controller.result import Slice
from metadata.image import MetadataImage, PartitionInfo
from metadata.records import NO_LEADER, PartitionChangeRecord, Record

LEVEL_WITHOUT_EPOCH_BUMP_ON_SHRINK = 12
"""metadata.version 3.6-IV0; below it a smaller ISR needs a new leader epoch (KAFKA-15021)."""

MayLead = Callable[[int], bool]


def elect(partition: PartitionInfo, isr: tuple[int, ...], may_lead: MayLead) -> int:
    """The leader to be: the present one if it may, else the first in-sync replica in the preferred order
    that may, else none."""
    if partition.leader in isr and may_lead(partition.leader):
        return partition.leader
    for replica in partition.replicas:
        if replica in isr and may_lead(replica):
            return replica
    return NO_LEADER


def without_broker(
    partition: PartitionInfo, broker_id: int, may_lead: MayLead, metadata_version: int
) -> PartitionChangeRecord | None:
    """The change that takes `broker_id` out of leadership and ISR; None: nothing to change.

    The last in-sync replica stays in the ISR, leaderless: it alone has all the data (S4.5).
    """
    isr = tuple([replica for replica in partition.isr if replica != broker_id]) or partition.isr
    leader = elect(partition, isr, lambda replica: replica != broker_id and may_lead(replica))
    return _change(partition, isr, leader, metadata_version)


def with_leader(
    partition: PartitionInfo, may_lead: MayLead, metadata_version: int
) -> PartitionChangeRecord | None:
    """The change that gives a partition a leader from its ISR; None: it has one, or nobody may lead."""
    return _change(partition, partition.isr, elect(partition, partition.isr, may_lead), metadata_version)


def _change(
    partition: PartitionInfo, isr: tuple[int, ...], leader: int, metadata_version: int
) -> PartitionChangeRecord | None:
    shrinks = isr != partition.isr
    names_leader = leader != partition.leader or (
        shrinks and metadata_version < LEVEL_WITHOUT_EPOCH_BUMP_ON_SHRINK
    )
    if not shrinks and not names_leader:
        return None
    return PartitionChangeRecord(
        partition_id=partition.index,
        topic_id=partition.topic_id,
        isr=isr if shrinks else None,
        leader=leader if names_leader else None,
    )


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker leads a partition."""
    return bool(image.topics.rows_led_by(broker_id).size)


def removal_slice(
    image: MetadataImage,
    broker_id: int,
    may_lead: MayLead,
    at_most: int,
    *,
    first: Record | None = None,
    final: Record | None = None,
) -> Slice:
    """The next batch that takes `broker_id` out of partitions, with `first` before it; the last one ends
    with `final`.

    Computed from the image as it is now, so that it holds whatever happened between the batches; the last
    one covers every partition that still names the broker.
    """
    topics = image.topics
    rows = np.union1d(topics.rows_with_isr(broker_id), topics.rows_led_by(broker_id)).tolist()
    level = image.features.metadata_version
    changes = (without_broker(topics.at(row), broker_id, may_lead, level) for row in rows)
    return _bounded(changes, at_most, () if first is None else (first,), () if final is None else (final,))


def election_slice(
    image: MetadataImage,
    broker_id: int | None,
    may_lead: MayLead,
    at_most: int,
    *,
    first: Record | None = None,
) -> Slice:
    """The next batch of leaders for leaderless partitions, with `first` before them.

    Only those with `broker_id` in the ISR; None: all (a new active controller looks once, S4.13).
    """
    topics = image.topics
    rows = topics.rows_without_leader()
    if broker_id is not None:
        rows = np.intersect1d(rows, topics.rows_with_isr(broker_id))
    level = image.features.metadata_version
    changes = (with_leader(topics.at(row), may_lead, level) for row in rows.tolist())
    return _bounded(changes, at_most, () if first is None else (first,), ())


def _bounded(
    changes: Iterable[PartitionChangeRecord | None],
    at_most: int,
    head: tuple[Record, ...],
    tail: tuple[Record, ...],
) -> Slice:
    records: list[Record] = list(head)
    for change in changes:
        if change is None:
            continue
        if len(records) - len(head) == at_most:
            return Slice(records=tuple(records), done=False)
        records.append(change)
    return Slice(records=(*records, *tail), done=True)
