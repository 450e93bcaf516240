"""Topic settings that decisions read: the topic's own, else the cluster's default for brokers, else Kafka's.

Owns the order of the sources and the reading of their text. Validates nothing: what stands in the log stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controller.partition_change import MayLead, Rules
from metadata.features import ELR_VERSION, LEVEL_ELR_RECORDS
from metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage

UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"
MIN_INSYNC_REPLICAS = "min.insync.replicas"

CLUSTER_DEFAULT = ConfigResource(BROKER_RESOURCE, "")

T = TypeVar("T")


def topic_setting(image: MetadataImage, topic_name: str, key: str) -> str | None:
    """The value in force for a topic; None: nobody set it."""
    for resource in (ConfigResource(TOPIC_RESOURCE, topic_name), CLUSTER_DEFAULT):
        value = (image.configs.get(resource) or {}).get(key)
        if value is not None:
            return value
    return None


def unclean_allowed(image: MetadataImage, topic_id: bytes) -> bool:
    """Whether a replica that was not in sync may lead the topic's partitions; by default it may not."""
    info = image.topics.topic(topic_id)
    value = None if info is None else topic_setting(image, info.name, UNCLEAN_LEADER_ELECTION_ENABLE)
    return value is not None and value.strip().lower() == "true"


def min_isr(image: MetadataImage, topic_id: bytes) -> int:
    """min.insync.replicas of a topic, at most its replication factor, at least 1."""
    info = image.topics.topic(topic_id)
    value = None if info is None else topic_setting(image, info.name, MIN_INSYNC_REPLICAS)
    wanted = int(value) if value is not None and value.strip().isdigit() else 1
    row = image.topics.row_of(topic_id, 0)
    return max(1, wanted if row < 0 else min(wanted, len(image.topics.at(row).replicas)))


def elr_enabled(image: MetadataImage) -> bool:
    """Whether partitions keep eligible leader replicas (KIP-966)."""
    features = image.features
    return features.level(ELR_VERSION) >= 1 and features.metadata_version >= LEVEL_ELR_RECORDS


def rules_of(image: MetadataImage, may_lead: MayLead, failing: frozenset[bytes] = frozenset()) -> Rules:
    """The rules on `image`. What a topic allows is looked up once a topic."""
    return Rules(
        brokers=image.brokers,
        may_lead=may_lead,
        metadata_version=image.features.metadata_version,
        unclean_allowed=_remembered(lambda topic_id: unclean_allowed(image, topic_id)),
        elr=elr_enabled(image),
        min_isr=_remembered(lambda topic_id: min_isr(image, topic_id)),
        failing=failing,
    )


def _remembered(ask: Callable[[bytes], T]) -> Callable[[bytes], T]:
    known: dict[bytes, T] = {}

    def answer(topic_id: bytes) -> T:
        if topic_id not in known:
            known[topic_id] = ask(topic_id)
        return known[topic_id]

    return answer
