"""Reassignments in a log of Apache Kafka 3.7: started, ended and cancelled with the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.controller.partitions.partition_change import Target, build_change
from metaquorum.controller.partitions.reassignments import decide_reassignments
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.metadata.image import MetadataImage, PartitionInfo
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import PartitionChangeRecord
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.requests.partitions import AlterReassignmentsRequest, WantedReplicas
from metaquorum.storage.batches.batch import iter_batches

LOG = "kafka-3.7/controller-3000/__cluster_metadata-0/00000000000000000000.log"


def said(change: PartitionChangeRecord) -> tuple[object, ...]:
    """A change without what Kafka's brokers and ours place differently: the directories of new replicas."""
    return (
        change.isr if change.isr is None else frozenset(change.isr),
        change.leader,
        change.replicas,
        change.adding_replicas,
        change.removing_replicas,
        change.leader_recovery_state,
    )


def is_cancellation(before: PartitionInfo, change: PartitionChangeRecord) -> bool:
    """Whether the replicas that were being added are gone after the change."""
    named = change.replicas is not None and bool(before.adding)
    return named and set(before.adding).isdisjoint(change.replicas or ())


def ours(image: MetadataImage, before: PartitionInfo, theirs: PartitionChangeRecord) -> object:
    """What this controller writes in the place of `theirs`."""
    rules = rules_of(image, image.brokers.is_active)
    cancels = is_cancellation(before, theirs)
    ends = not cancels and (theirs.adding_replicas == () or theirs.removing_replicas == ())
    if ends:
        # A leader said who is in sync, and with that the reassignment was over.
        leaving = set(before.removing) & set(before.isr)
        isr = (*(theirs.isr or before.isr), *leaving)
        return build_change(before, Target(isr=isr), rules)
    info = image.topics.topic(before.topic_id)
    assert info is not None and theirs.replicas is not None
    target = tuple([one for one in theirs.replicas if one not in (theirs.removing_replicas or ())])
    wanted = WantedReplicas(topic=info.name, partition=before.index, replicas=None if cancels else target)
    result = decide_reassignments(image, AlterReassignmentsRequest(wanted=(wanted,)), rules, records_max=10)
    (record,) = result.records
    return record


@pytest.mark.shared_data
def test_the_same_records_as_kafka(shared_data: Path) -> None:
    data = (shared_data / LOG).read_bytes()
    engine = Replayer()
    kinds: dict[str, int] = {"started": 0, "ended": 0, "cancelled": 0}
    for batch in iter_batches(data):
        image = engine.state().newest if not batch.header.is_control else None
        for decoded in decode_batch(batch) if image is not None else ():
            change = decoded.record
            if not isinstance(change, PartitionChangeRecord) or image is None:
                continue
            before = image.topics.partition(change.topic_id, change.partition_id)
            if (change.adding_replicas is None and change.removing_replicas is None) or before is None:
                continue
            mine = ours(image, before, change)
            assert isinstance(mine, PartitionChangeRecord), (decoded.offset, change, before)
            assert said(mine) == said(change), decoded.offset
            fresh = bool(change.adding_replicas or change.removing_replicas)
            cancelled = is_cancellation(before, change)
            kinds["started" if fresh else "cancelled" if cancelled else "ended"] += 1
        engine.apply_batch(batch)
    assert kinds["started"] > 2 and kinds["ended"] > 2 and kinds["cancelled"] == 2, kinds
