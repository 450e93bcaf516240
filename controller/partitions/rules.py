"""The topic settings that decisions use, Kafka's default where none is set; and min.insync.replicas, which
decides which replicas are eligible leaders (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from metaquorum.controller.partitions.partition_change import MayLead, Rules, forget_eligible
from metaquorum.metadata.features import ELR_VERSION, LEVEL_ELR_RECORDS
from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.records.types import ConfigRecord, PartitionChangeRecord, Record
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.settings.configs import CLUSTER_DEFAULT, NOTHING, topic_setting
from metaquorum.metadata.settings.keys import MAX_INT, whole_number

# The topic settings that decisions use, as values; Kafka's default where none is set.

UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"
MIN_INSYNC_REPLICAS = "min.insync.replicas"

T = TypeVar("T")


def unclean_allowed(image: MetadataImage, topic_id: bytes, static: Mapping[str, str] = NOTHING) -> bool:
    """Whether a replica that was not in sync may lead the topic's partitions; by default it may not.
    `static`: the controllers' configuration files for topics that set nothing."""
    info = image.topics.topic(topic_id)
    if info is None:
        return False
    value = topic_setting(image, info.name, UNCLEAN_LEADER_ELECTION_ENABLE, static=static)
    return value is not None and value.strip().lower() == "true"


def min_isr(image: MetadataImage, topic_id: bytes) -> int:
    """min.insync.replicas of a topic, at most its replication factor, at least 1."""
    info = image.topics.topic(topic_id)
    value = None if info is None else topic_setting(image, info.name, MIN_INSYNC_REPLICAS)
    wanted = None if value is None else whole_number(value.strip(), MAX_INT)
    wanted = 1 if wanted is None else wanted
    row = image.topics.row_of(topic_id, 0)
    return max(1, wanted if row < 0 else min(wanted, len(image.topics.at(row).replicas)))


def elr_enabled(image: MetadataImage) -> bool:
    """Whether partitions keep eligible leader replicas (KIP-966)."""
    features = image.features
    return features.level(ELR_VERSION) >= 1 and features.metadata_version >= LEVEL_ELR_RECORDS


def rules_of(
    image: MetadataImage,
    may_lead: MayLead,
    failing: frozenset[bytes] = frozenset(),
    static: Mapping[str, str] = NOTHING,
    recreated: Mapping[tuple[bytes, int, int], bytes] | None = None,
) -> Rules:
    """The rules on `image`. A topic's settings are looked up once per topic. `static` is as above; eligible
    leader replicas always have the cluster's min.insync.replicas in the log (KIP-966)."""
    return Rules(
        brokers=image.brokers,
        may_lead=may_lead,
        metadata_version=image.features.metadata_version,
        unclean_allowed=_remembered(lambda topic_id: unclean_allowed(image, topic_id, static)),
        elr=elr_enabled(image),
        min_isr=_remembered(lambda topic_id: min_isr(image, topic_id)),
        failing=failing,
        recreated=recreated or {},
    )


def _remembered(ask: Callable[[bytes], T]) -> Callable[[bytes], T]:
    answers: dict[bytes, T] = {}

    def answer(topic_id: bytes) -> T:
        if topic_id not in answers:
            answers[topic_id] = ask(topic_id)
        return answers[topic_id]

    return answer


MIN_INSYNC_REPLICAS_DEFAULT = 1


class MinIsrInFiles(msgspec.Struct, frozen=True):
    """min.insync.replicas of the active controller's file (None: not set), and of the files of the brokers
    that were heard (0: an earlier release, which does not say; None: it is not known who was heard)."""

    controller: int | None
    brokers: Mapping[int, int] | None

    def problem(self, image: MetadataImage) -> str | None:
        """Why the value of the cluster must be set before the feature is switched on: it would be weaker than
        what a broker applies now, or that is not known yet. None if it need not."""
        if self.brokers is None:
            return None
        default = (image.configs.get(CLUSTER_DEFAULT) or {}).get(MIN_INSYNC_REPLICAS)
        after = int(default) if default is not None else self.controller or MIN_INSYNC_REPLICAS_DEFAULT
        for broker_id, broker in image.brokers.items():
            own = (image.configs.get(ConfigResource(BROKER_RESOURCE, str(broker_id))) or {}).get(
                MIN_INSYNC_REPLICAS
            )
            before = int(own or default or self.brokers.get(broker_id, 0))
            if before > after:
                return (
                    f"broker {broker_id} has {MIN_INSYNC_REPLICAS}={before}, and the value of the cluster, "
                    f"which would replace it, is {after}: set it first, with metaquorum configs alter broker "
                    f"default --set {MIN_INSYNC_REPLICAS}={before}"
                )
            heard = broker_id in self.brokers or broker.fenced
            if not before and not heard and not self.controller:
                return (
                    f"{MIN_INSYNC_REPLICAS} in the file of broker {broker_id} is not known yet: retry, or "
                    "set the value of the cluster with metaquorum configs alter broker default"
                    f" --set {MIN_INSYNC_REPLICAS}=N"
                )
        return None


def weaker_than_file(image: MetadataImage, broker_id: int, in_file: int) -> str | None:
    """A line about the value of the cluster, if it is below that of a broker's file, which it replaces."""
    default = (image.configs.get(CLUSTER_DEFAULT) or {}).get(MIN_INSYNC_REPLICAS)
    if not elr_enabled(image) or default is None or in_file <= int(default):
        return None
    return (
        f"the file of broker {broker_id} has {MIN_INSYNC_REPLICAS}={in_file}, and the value of the cluster, "
        f"which replaces it while eligible leader replicas are on, is {default}: raise it with metaquorum "
        f"configs alter broker default --set {MIN_INSYNC_REPLICAS}={in_file}"
    )


NOTHING_IN_FILES = MinIsrInFiles(None, None)


def safety_records(image: MetadataImage, in_file: int | None) -> list[Record]:
    """The records before the feature is switched on, as in Kafka: a value for the cluster if there is none,
    that of the active controller's file, and no values of single brokers, which would let leaders disagree
    with the controller."""
    records: list[Record] = []
    if MIN_INSYNC_REPLICAS not in (image.configs.get(CLUSTER_DEFAULT) or {}):
        records.append(_record("", str(in_file or MIN_INSYNC_REPLICAS_DEFAULT)))
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
    forgotten = []
    for row, fields in image.topics.columns.rare.items_sorted():
        if not fields.elr:
            continue
        partition = image.topics.at(row)
        if partition.topic_id not in wanted:
            wanted[partition.topic_id] = min_isr(after, partition.topic_id)
        if len(partition.isr) >= wanted[partition.topic_id]:
            forgotten.append(forget_eligible(partition))
    return forgotten
