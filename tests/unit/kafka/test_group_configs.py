"""DescribeConfigs of a group (Kafka 4.0): its own values, else the broker's."""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.broker.server.kafka.configs import OwnConfig, describe_configs
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import GROUP_RESOURCE, ConfigResource, MetadataImage
from metaquorum.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
GROUP, FILE, DEFAULT = 8, 4, 5


def described(
    image: MetadataImage, name: str, **static: str
) -> DescribeConfigsResponse.DescribeConfigsResult:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=name, configuration_keys=None
    )
    own = OwnConfig(
        node_id=1, static={key.replace("_", "."): value for key, value in static.items()}, fixed=()
    )
    body = DescribeConfigsRequest(resources=(asked,), include_synonyms=True, include_documentation=True)
    return describe_configs(body, 4, image, own).results[0]


def test_every_key_is_shown_with_all_that_could_hold() -> None:
    configs = MetadataImage().configs.builder()
    configs.put(ConfigResource(GROUP_RESOURCE, "g"), {SESSION: "50000"})
    image = replace(MetadataImage(), configs=configs.freeze())
    heartbeat, session = described(image, "g", group_consumer_heartbeat_interval_ms="6000").configs
    assert (session.name, session.value, session.config_source) == (SESSION, "50000", GROUP)
    assert [(each.name, each.value, each.source) for each in session.synonyms] == [
        (SESSION, "50000", GROUP),
        ("group." + SESSION, "45000", DEFAULT),
    ]
    assert (heartbeat.name, heartbeat.value, heartbeat.config_source) == (HEARTBEAT, "6000", FILE)
    assert heartbeat.config_type == session.config_type == 3
    assert not (heartbeat.read_only or heartbeat.is_sensitive)
    assert heartbeat.documentation
    assert [each.config_source for each in described(image, "other").configs] == [DEFAULT, DEFAULT]


def test_a_group_needs_a_name() -> None:
    assert described(MetadataImage(), "").error_code == ErrorCode.INVALID_REQUEST
