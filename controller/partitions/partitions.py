"""How partitions change when brokers and directories come and go, in bounded batches (S4.3-S4.6).

Owns which partitions a change of one broker or directory concerns, and the batches; how a single partition
changes is `partition_change`'s. Always computed from the image given. Knows no sessions: `Rules` decide which
brokers may lead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from metaquorum.controller.partitions.columns import elections as in_columns
from metaquorum.controller.partitions.columns.scan import (
    Scan,
    counting_on,
    leaderless,
    listing_rare,
    lying_in,
    naming,
    not_preferred,
)
from metaquorum.controller.partitions.columns.slices import change_slice
from metaquorum.controller.partitions.partition_change import Election, MayLead, Rules, Target, build_change
from metaquorum.controller.result import Slice
from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionInfo
from metaquorum.metadata.image.chunk import CHUNK_SHIFT, LEADER, LISTS, TOPIC, RowArray
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.records.types import PartitionChangeRecord, Record

__all__ = [
    "MayLead",
    "election_slice",
    "eligible_anywhere",
    "failed_directories_slice",
    "forgetting_slice",
    "leaders_of",
    "leads_any",
    "preferred_slice",
    "removal_slice",
    "rows_without_preferred_leader",
    "with_broker",
    "without_broker",
]


def without_broker(
    partition: PartitionInfo, broker_id: int, rules: Rules, *, unclean: bool = False
) -> PartitionChangeRecord | None:
    """Takes `broker_id` out of leadership and ISR; None if nothing changes. `unclean`: its data may be lost,
    so it is no eligible leader either (KIP-966).

    The last in-sync replica stays in the ISR, leaderless: only it has all the data (S4.5).
    """
    if broker_id != partition.leader and broker_id not in {*partition.isr, *partition.elr}:
        return None
    isr = tuple([replica for replica in partition.isr if replica != broker_id])
    lost = frozenset([broker_id]) if unclean else frozenset[int]()
    return build_change(partition, Target(isr=isr, unclean_shutdown=lost), rules)


def _without(rules: Rules, broker_id: int) -> Rules:
    may_lead = rules.may_lead
    return replace(rules, may_lead=lambda replica: replica != broker_id and may_lead(replica))


def with_broker(rules: Rules, broker_id: int) -> Rules:
    """The same rules, but the broker may lead too."""
    may_lead = rules.may_lead
    return replace(rules, may_lead=lambda replica: replica == broker_id or may_lead(replica))


def leaders_of(image: MetadataImage) -> frozenset[int]:
    """The brokers that lead a partition."""
    found = [np.unique(chunk.data[LEADER, chunk.data[TOPIC] >= 0]) for chunk in image.topics.columns.chunks]
    return frozenset(np.unique(np.concatenate(found)).tolist()) - {NO_LEADER} if found else frozenset()


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker leads a partition."""
    return bool(image.topics.rows_led_by(broker_id).size)


def removal_slice(
    image: MetadataImage,
    broker_id: int,
    rules: Rules,
    at_most: int,
    *,
    first: Record | None = None,
    final: Record | None = None,
    scan: Scan | None = None,
    unclean: bool = False,
) -> Slice:
    """The next batch that takes `broker_id` out of partitions, with `first` before it; the last batch ends
    with `final`. `unclean`: out of the eligible leaders too; `scan` has to look for those.

    Computed from the current image, so it is valid whatever happened between the batches; the last one covers
    every partition that still names the broker. `scan`, if the work keeps one, knows where the earlier slices
    found nothing left.
    """
    topics = image.topics
    without = _without(rules, broker_id)
    return change_slice(
        image,
        Scan(counting_on(broker_id) if unclean else naming(broker_id)) if scan is None else scan,
        at_most,
        lambda row: without_broker(topics.at(row), broker_id, without, unclean=unclean),
        lambda rows: in_columns.without_broker(image, rows, broker_id, without),
        head=() if first is None else (first,),
        tail=() if final is None else (final,),
    )


def failed_directories_slice(
    image: MetadataImage,
    broker_id: int,
    directories: Sequence[bytes],
    rules: Rules,
    at_most: int,
    *,
    final: Record,
    scan: Scan | None = None,
) -> Slice:
    """The next batch that takes the broker's replicas in dead directories out of leadership and ISR; the
    last one ends with `final`, the registration without these directories (S3.15)."""
    topics = image.topics
    dead = frozenset(directories)
    # Their replicas are in dead directories, so for all of them the broker may not lead.
    failing = _without(replace(rules, failing=rules.failing | dead), broker_id)
    return change_slice(
        image,
        Scan(lying_in(image, broker_id, directories)) if scan is None else scan,
        at_most,
        lambda row: without_broker(topics.at(row), broker_id, failing),
        lambda rows: in_columns.without_broker(image, rows, broker_id, failing),
        tail=(final,),
    )


def election_slice(
    image: MetadataImage,
    broker_id: int | None,
    rules: Rules,
    at_most: int,
    *,
    first: Record | None = None,
    scan: Scan | None = None,
) -> Slice:
    """The next batch of leaders for leaderless partitions, with `first` before them.

    Only those with a replica on `broker_id`; None: all (a new active controller looks once, S4.13).
    """
    topics = image.topics
    return change_slice(
        image,
        Scan(leaderless(broker_id)) if scan is None else scan,
        at_most,
        lambda row: build_change(topics.at(row), Target(), rules),
        lambda rows: in_columns.with_leader(image, rows, rules),
        head=() if first is None else (first,),
    )


def eligible_anywhere(image: MetadataImage, broker_id: int | None = None) -> bool:
    """Whether a partition keeps the broker, or (None) any broker, as eligible or as its last leader."""
    for _, fields in image.topics.columns.rare.items_sorted():
        if broker_id in fields.elr if broker_id is not None else fields.elr or fields.last_known_elr:
            return True
    return False


def forgetting_slice(image: MetadataImage, rules: Rules, at_most: int, *, scan: Scan | None = None) -> Slice:
    """The next batch of what remains to do when eligible leader replicas were switched off: partitions that
    have some forget them, and one without an ISR gets one back (`partition_change`)."""
    topics = image.topics

    def one_by_one(row: int) -> PartitionChangeRecord | None:
        partition = topics.at(row)
        if not partition.elr and not partition.last_known_elr:
            return None
        return build_change(partition, Target(), rules)

    return change_slice(image, Scan(listing_rare) if scan is None else scan, at_most, one_by_one, None)


def rows_without_preferred_leader(topics: TopicsImage) -> RowArray:
    """Rows of partitions that are not led by their first replica, including leaderless ones; ascending."""
    found = []
    for at, chunk in enumerate(topics.columns.chunks):
        data = chunk.data
        local = np.flatnonzero((data[TOPIC] >= 0) & (data[LEADER] != data[LISTS]))
        if local.size:
            found.append(local.astype(np.int64) + (at << CHUNK_SHIFT))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def preferred_slice(image: MetadataImage, rules: Rules, at_most: int, *, scan: Scan | None = None) -> Slice:
    """The next batch that returns partitions to their preferred leaders, where these may lead."""
    topics = image.topics
    return change_slice(
        image,
        Scan(not_preferred) if scan is None else scan,
        at_most,
        lambda row: build_change(topics.at(row), Target(), rules, Election.PREFERRED),
        lambda rows: in_columns.with_leader(image, rows, rules, preferred=True),
    )
