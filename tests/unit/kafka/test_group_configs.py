"""DescribeConfigs of a group (Kafka 4.0): its own values, else the broker's. Codes that are Kafka's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.server.kafka.groups import GroupHandlers
from metaquorum.listeners.forwarded.described_configs import OwnConfig, describe_configs
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import GROUP_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse, SyncGroupRequest

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
GROUP, FILE, DEFAULT = 8, 4, 5


def described(
    image: MetadataImage, name: str, kind: int = GROUP_RESOURCE, **static: str
) -> DescribeConfigsResponse.DescribeConfigsResult:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
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


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_topic_that_cannot_be_is_not_called_absent(name: str, code: ErrorCode) -> None:
    assert described(MetadataImage(), name, TOPIC_RESOURCE).error_code == code


@pytest.mark.parametrize(("kind", "name"), [(None, "range"), ("consumer", None)])
async def test_who_syncs_names_the_protocol_from_version_5_on(kind: str | None, name: str | None) -> None:
    unused: Any = None
    body = SyncGroupRequest(group_id="g", member_id="m", protocol_type=kind, protocol_name=name)
    request = Request(header=RequestHeader(14, 5, 1, None), body=body, end=0)
    answer = await GroupHandlers(unused).sync_group(request, unused)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
