"""The settings in an answer about a created topic: those in force now, in one list for equal topics."""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.listeners.forwarded.shown_configs import NewTopics
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.wire.primitives import Repeated

RETENTION = "retention.ms"
TOPIC, DEFAULT, FILE = 1, 3, 4


def with_configs(image: MetadataImage, resource: ConfigResource, **settings: str) -> MetadataImage:
    configs = image.configs.builder()
    configs.put(resource, {key.replace("_", "."): value for key, value in settings.items()})
    return replace(image, configs=configs.freeze())


def shown(configs: Repeated) -> tuple[str, int]:
    return next((each.value, each.config_source) for each in configs if each.name == RETENTION)


def test_a_created_topics_settings_are_those_in_force_now() -> None:
    topics, image = NewTopics({"log.retention.ms": "4"}), MetadataImage()
    assert shown(topics.configs(image, ())) == ("4", FILE)
    assert shown(topics.configs(image, ((RETENTION, "1"),))) == ("1", TOPIC)
    changed = with_configs(image, ConfigResource(BROKER_RESOURCE, ""), log_retention_ms="3")
    assert shown(topics.configs(changed, ())) == ("3", DEFAULT)
    assert shown(topics.configs(image, ())) == ("4", FILE)


def test_equal_topics_share_one_list_while_the_defaults_of_all_brokers_stay() -> None:
    topics, image = NewTopics({}), MetadataImage()
    first = topics.configs(image, ((RETENTION, "1"),))
    other = with_configs(image, ConfigResource(TOPIC_RESOURCE, "t"), retention_ms="2")
    assert topics.configs(other, ((RETENTION, "1"),)) is first
    assert topics.configs(other, ()) is not first
