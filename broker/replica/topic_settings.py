"""A topic's configuration for its replicas on a broker, read from an image and the broker's file.

The parsing: a value that does not parse counts as not set (the controller refuses such values; an old log may
hold them).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metaquorum.broker.replica.disk_work import LogSettings
from metaquorum.metadata.features import ELR_VERSION
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.metadata.settings.configs import CLUSTER_DEFAULT, NOTHING, topic_setting
from metaquorum.metadata.settings.keys import ConfigValueError
from metaquorum.metadata.settings.resource_keys import TOPIC_KEYS
from metaquorum.storage.batches.format import Compression
from metaquorum.storage.cleaner.plan import CleanerSettings

MAX_LONG = 2**63 - 1
LOG_APPEND_TIME = "LogAppendTime"
_CODECS = {"uncompressed": Compression.NONE} | {each.name.lower(): each for each in Compression if each}


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`max_message_bytes` bounds a batch as it was sent. `timestamp_*_max_ms`: how far a record's own time
    may be behind or ahead of the broker's clock; the largest number means no bound. `compression`: the codec
    of stored batches (`Compression`); None: the producer's. `holds_back_high_watermark`: it advances only
    while the ISR has `min_insync_replicas` (KIP-966, eligible.leader.replicas.version)."""

    min_insync_replicas: int = 1
    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = MAX_LONG
    timestamp_after_max_ms: int = MAX_LONG
    compression: int | None = None
    holds_back_high_watermark: bool = False
    log: LogSettings = msgspec.field(default_factory=LogSettings)


def topic_settings(
    image: MetadataImage, topic: str, *, broker_id: int | None = None, static: Mapping[str, str] = NOTHING
) -> TopicSettings:
    """The settings in force for a topic on a broker: its own, else those of this broker, else the cluster's
    default for brokers, else the broker's file (`static`), else Kafka's default."""

    def read(key: str) -> object:
        row = TOPIC_KEYS[key]
        text = topic_setting(image, topic, key, broker_id=broker_id, static=static)
        if text is not None:
            try:
                return row.parse(text)
            except ConfigValueError:
                pass
        return row.default

    def number(key: str) -> int:
        return _int(read(key))

    # The older key bounds both directions where the newer one is not set (KIP-937).
    difference = number("message.timestamp.difference.max.ms")
    policy = read("cleanup.policy")
    policies = policy if isinstance(policy, tuple) else ()
    compacts = "compact" in policies
    max_lag_ms = number("max.compaction.lag.ms")
    return TopicSettings(
        min_insync_replicas=number("min.insync.replicas"),
        max_message_bytes=number("max.message.bytes"),
        log_append_time=read("message.timestamp.type") == LOG_APPEND_TIME,
        timestamp_before_max_ms=min(difference, number("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=min(difference, number("message.timestamp.after.max.ms")),
        compression=_CODECS.get(str(read("compression.type"))),
        holds_back_high_watermark=image.features.level(ELR_VERSION) >= 1,
        log=LogSettings(
            segment_bytes=number("segment.bytes"),
            # The active segment is not compacted, so it must not get too old (KIP-354).
            segment_ms=min(number("segment.ms"), max_lag_ms if compacts else MAX_LONG),
            retention_bytes=number("retention.bytes"),
            retention_ms=number("retention.ms"),
            file_delete_delay_ms=number("file.delete.delay.ms"),
            deletes="delete" in policies,
            compacts=compacts,
            cleaner=CleanerSettings(
                min_dirty_ratio=_float(read("min.cleanable.dirty.ratio")),
                min_lag_ms=number("min.compaction.lag.ms"),
                max_lag_ms=max_lag_ms,
                delete_retention_ms=number("delete.retention.ms"),
            ),
        ),
    )


class SettingsOfTopics:
    """The settings in force on one broker, each computed once."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._me = config.broker_id
        self._static = config.topic_defaults
        self._defaults = (CLUSTER_DEFAULT, ConfigResource(BROKER_RESOURCE, str(config.broker_id)))
        self._parsed: dict[str, TopicSettings] = {}

    def of(self, topic: str, image: MetadataImage) -> TopicSettings:
        settings = self._parsed.get(topic)
        if settings is None:
            settings = topic_settings(image, topic, broker_id=self._me, static=self._static)
            self._parsed[topic] = settings
        return settings

    def changed(self, image: MetadataImage, previous: MetadataImage) -> list[PartitionKey] | None:
        """Partitions whose settings may have changed; None: all."""
        same_features = image.features is previous.features
        if image.configs is previous.configs and same_features:
            return []
        # In an order that no hash of a name decides: the same log gives the same effects everywhere.
        changed = sorted(previous.configs.changed_keys(image.configs))
        self._parsed.clear()
        if any(resource in changed for resource in self._defaults) or not same_features:
            return None
        topics = [
            image.topics.topic_named(resource.name)
            for resource in changed
            if resource.resource_type == TOPIC_RESOURCE
        ]
        return [
            (topic.topic_id, index)
            for topic in topics
            if topic is not None
            for index in range(image.topics.partition_count_of(topic.topic_id))
        ]


def _float(value: object) -> float:
    if not isinstance(value, float | int):
        raise TypeError(f"{value!r} is not a number: the table of topic keys and this module differ")
    return float(value)


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a number: the table of topic keys and this module differ")
    return value
