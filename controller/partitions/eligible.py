"""Configurations and eligible leader replicas (KIP-966): min.insync.replicas decides which replicas count.

Owns what keeps the two consistent: one value for the whole cluster while the feature is on, and no eligible
replica left where the value is lowered to the size of the ISR. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.controller.partitions.effective import MIN_INSYNC_REPLICAS, elr_enabled, min_isr
from metaquorum.controller.partitions.partition_change import forget_eligible
from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.records.types import ConfigRecord, PartitionChangeRecord, Record
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.settings.effective import CLUSTER_DEFAULT

MIN_INSYNC_REPLICAS_DEFAULT = "1"


def safety_records(image: MetadataImage) -> list[Record]:
    """The records before the feature is switched on, as in Kafka: a value for the cluster if there is none,
    and no values of single brokers, which would let leaders disagree with the controller."""
    records: list[Record] = []
    if MIN_INSYNC_REPLICAS not in (image.configs.get(CLUSTER_DEFAULT) or {}):
        records.append(_record("", MIN_INSYNC_REPLICAS_DEFAULT))
    for resource, values in image.configs.items_sorted():
        if resource.resource_type == BROKER_RESOURCE and resource.name and MIN_INSYNC_REPLICAS in values:
            records.append(_record(resource.name, None))
    return records


def _record(broker: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=BROKER_RESOURCE, resource_name=broker, name=MIN_INSYNC_REPLICAS, value=value
    )


def min_isr_problem(
    image: MetadataImage, resource: ConfigResource, name: str, value: str | None
) -> str | None:
    """Why this value cannot be set (None: removed) while the feature is on; None if it can."""
    if name != MIN_INSYNC_REPLICAS or resource.resource_type != BROKER_RESOURCE or not elr_enabled(image):
        return None
    if resource.name and value is not None:
        return f"{name} cannot be set on one broker while eligible leader replicas are on: set the default"
    if not resource.name and value is None:
        return f"{name} cannot be removed from the default while eligible leader replicas are on: set it"
    return None


def no_longer_eligible(image: MetadataImage, records: Sequence[Record]) -> list[PartitionChangeRecord]:
    """The changes that belong in the same batch as these configurations: with a lower min.insync.replicas the
    members of an ISR may get ahead of replicas that left it. A partition without an ISR has no member that
    could."""
    names = {record.name for record in records if isinstance(record, ConfigRecord)}
    if MIN_INSYNC_REPLICAS not in names or not elr_enabled(image):
        return []
    at = image.provenance
    after = replay_records(
        ReplayState(image), base_offset=at.offset, epoch=at.epoch, timestamp_ms=0, records=records
    ).newest
    wanted: dict[bytes, int] = {}
    found = []
    for row, fields in image.topics.columns.rare.items_sorted():
        if not fields.elr:
            continue
        partition = image.topics.at(row)
        if partition.topic_id not in wanted:
            wanted[partition.topic_id] = min_isr(after, partition.topic_id)
        if len(partition.isr) >= wanted[partition.topic_id]:
            found.append(forget_eligible(partition))
    return found
