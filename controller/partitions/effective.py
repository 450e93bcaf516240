"""The topic settings that decisions use, as values; Kafka's default where none is set.

Owns the parsing of their text; where a text comes from is `metadata.settings.effective`. Does not validate:
what is in the log counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from metaquorum.controller.partitions.partition_change import MayLead, Rules
from metaquorum.metadata.features import ELR_VERSION, LEVEL_ELR_RECORDS
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.effective import NOTHING, topic_setting
from metaquorum.metadata.settings.keys import MAX_INT, whole_number

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
    begun_anew: Mapping[tuple[bytes, int, int], bytes] | None = None,
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
        begun_anew=begun_anew or {},
    )


def _remembered(ask: Callable[[bytes], T]) -> Callable[[bytes], T]:
    known: dict[bytes, T] = {}

    def answer(topic_id: bytes) -> T:
        if topic_id not in known:
            known[topic_id] = ask(topic_id)
        return known[topic_id]

    return answer
