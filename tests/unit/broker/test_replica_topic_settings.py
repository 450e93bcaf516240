"""What a topic's configuration says to its replicas: order of the sources, units, text that is no value."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from metaquorum.broker.replica.disk_work import LogSettings
from metaquorum.broker.replica.topic_settings import MAX_LONG, TopicSettings, topic_settings
from metaquorum.metadata.features import ELR_VERSION
from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    ImageBuilder,
    MetadataImage,
)
from metaquorum.metadata.settings.configs import CLUSTER_DEFAULT, topic_setting


def image_of(
    topic: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None, *, elr: int = 0
) -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    for resource, values in ((ConfigResource(TOPIC_RESOURCE, "logs"), topic), (CLUSTER_DEFAULT, cluster)):
        for key, value in (values or {}).items():
            builder.set_config(resource, key, value)
    builder.set_feature(ELR_VERSION, elr)
    return builder.freeze()


def settings_of(**options: object) -> TopicSettings:
    return topic_settings(image_of(**options), "logs")  # type: ignore[arg-type]


def test_nobody_set_anything() -> None:
    assert settings_of() == TopicSettings()
    assert TopicSettings().log == LogSettings()


@pytest.mark.parametrize(
    ("policy", "segment_ms", "lag_ms", "rolls_ms"),
    [
        ("compact", "9000", "5000", 5_000),
        ("delete,compact", "9000", "5000", 5_000),
        ("compact", "5000", "9000", 5_000),
        ("delete", "9000", "5000", 9_000),
    ],
)
def test_a_compacted_log_rolls_before_a_record_must_be_compacted(
    policy: str, segment_ms: str, lag_ms: str, rolls_ms: int
) -> None:
    """KIP-354: the active segment is not compacted."""
    own = {"cleanup.policy": policy, "segment.ms": segment_ms, "max.compaction.lag.ms": lag_ms}
    assert settings_of(topic=own).log.segment_ms == rolls_ms


def test_a_topics_own_values() -> None:
    own = {
        "min.insync.replicas": "2",
        "max.message.bytes": "1000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "5000",
        "message.timestamp.after.max.ms": "7000",
        "segment.bytes": "4096",
        "segment.ms": "10",
        "retention.bytes": "8192",
        "retention.ms": "-1",
        "file.delete.delay.ms": "0",
        "cleanup.policy": "compact",
    }
    assert settings_of(topic=own, elr=1) == TopicSettings(
        min_insync_replicas=2,
        max_message_bytes=1000,
        log_append_time=True,
        timestamp_before_max_ms=5000,
        timestamp_after_max_ms=7000,
        holds_back_high_watermark=True,
        log=LogSettings(
            segment_bytes=4096,
            segment_ms=10,
            retention_bytes=8192,
            retention_ms=-1,
            file_delete_delay_ms=0,
            deletes=False,
            compacts=True,
        ),
    )


@pytest.mark.parametrize(
    ("key", "cluster", "value"),
    [
        ("max.message.bytes", {"message.max.bytes": "77"}, "77"),
        ("retention.ms", {"log.retention.hours": "2"}, "7200000"),
        ("retention.ms", {"log.retention.minutes": "2", "log.retention.hours": "9"}, "120000"),
        ("retention.ms", {"log.retention.ms": "5", "log.retention.minutes": "2"}, "5"),
        ("retention.ms", {"log.retention.minutes": "-1"}, "-1"),
        ("segment.ms", {"log.roll.hours": " 1 "}, "3600000"),
        ("segment.ms", {"log.roll.hours": "soon"}, "soon"),
        ("min.insync.replicas", {"min.insync.replicas": "3"}, "3"),
        ("cleanup.policy", {"log.cleanup.policy": "compact,delete"}, "compact,delete"),
        ("retention.bytes", {"log.segment.bytes": "9"}, None),
    ],
)
def test_the_clusters_default_under_the_brokers_names(
    key: str, cluster: dict[str, str], value: str | None
) -> None:
    assert topic_setting(image_of(cluster=cluster), "logs", key) == value
    assert topic_setting(image_of(topic={key: "mine"}, cluster=cluster), "logs", key) == "mine"


def test_text_that_is_no_value_counts_as_not_set() -> None:
    assert settings_of(topic={"min.insync.replicas": "many", "segment.ms": ""}) == TopicSettings()
    assert settings_of(cluster={"log.roll.hours": "soon"}).log.segment_ms == LogSettings().segment_ms


def test_the_older_bound_of_timestamps_holds_in_both_directions() -> None:
    both = settings_of(topic={"message.timestamp.difference.max.ms": "100"})
    assert (both.timestamp_before_max_ms, both.timestamp_after_max_ms) == (100, 100)
    tighter = {"message.timestamp.difference.max.ms": "100", "message.timestamp.after.max.ms": "7"}
    assert settings_of(topic=tighter).timestamp_after_max_ms == 7
    assert settings_of().timestamp_before_max_ms == MAX_LONG


def test_both_policies_delete() -> None:
    assert settings_of(topic={"cleanup.policy": "compact,delete"}).log.deletes


def test_a_brokers_own_configuration_comes_before_that_of_all() -> None:
    builder = ImageBuilder(image_of(cluster={"message.max.bytes": "77", "log.segment.bytes": "14"}))
    builder.set_config(ConfigResource(BROKER_RESOURCE, "3"), "message.max.bytes", "99")
    image = builder.freeze()
    assert topic_settings(image, "logs").max_message_bytes == 77
    assert topic_settings(image, "logs", broker_id=2).max_message_bytes == 77
    own = topic_settings(image, "logs", broker_id=3)
    assert (own.max_message_bytes, own.log.segment_bytes) == (99, 14)


def test_a_brokers_file_counts_last() -> None:
    static = {
        "message.max.bytes": "500",
        "min.insync.replicas": "2",
        "log.retention.hours": "1",
        "log.retention.bytes": "4096",
        "log.roll.ms": "60000",
        "log.cleanup.policy": "compact",
        "log.message.timestamp.type": "LogAppendTime",
    }
    found = topic_settings(image_of(), "logs", static=static)
    assert found == TopicSettings(
        min_insync_replicas=2,
        max_message_bytes=500,
        log_append_time=True,
        log=LogSettings(
            retention_ms=3_600_000, retention_bytes=4096, segment_ms=60_000, deletes=False, compacts=True
        ),
    )
    # A weaker name in the cluster's default still comes before the strongest one in a file.
    image = image_of(cluster={"log.retention.hours": "2"}, topic={"min.insync.replicas": "1"})
    assert (
        topic_settings(image, "logs", static={**static, "log.retention.ms": "5"}).log.retention_ms
        == 7_200_000
    )
    assert topic_settings(image, "logs", static=static).min_insync_replicas == 1
