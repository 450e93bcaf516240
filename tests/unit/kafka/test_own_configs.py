"""What a node says of its own configuration, and a controller of its loggers (KIP-919)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.listeners.forwarded.described_configs import OwnConfig
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from metaquorum.metadata.records.types import BrokerRecord
from metaquorum.metadata.settings.configs import ConfigSource
from metaquorum.wire import codec
from metaquorum.wire.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.unit.controller.node_quorum import image_of
from tests.unit.kafka.golden_controller import GoldenController, golden_config

OWN, OTHER, BROKER = "3000", "3001", "1"
DESCRIBE, ALTER = 32, 44
LOGGER = "metaquorum.own_configs_test"
SEGMENT = "metadata.log.segment.bytes"
Described, Altered = DescribeConfigsRequest.DescribeConfigsResource, IncrementalAlterConfigsRequest
STATIC, DEFAULT = ConfigSource.STATIC_BROKER_CONFIG.value, ConfigSource.DEFAULT_CONFIG.value


@pytest.fixture(autouse=True)
def fixture_logger() -> Iterator[None]:
    logging.getLogger(LOGGER)
    yield
    logging.getLogger(LOGGER).setLevel(logging.NOTSET)


def controller(folder: Path, *, image: MetadataImage | None = None, active: bool = True) -> GoldenController:
    config = golden_config(folder, **{SEGMENT: "20971520", "max.connections": "300"})
    return GoldenController(config, image_of() if image is None else image, active=active)


def asked(node: GoldenController, api_key: int, version: int, body: Any) -> Any:
    return node.answer(b"".join(codec.encode_request(codec.RequestHeader(api_key, version, 1), body)))


def described(node: GoldenController, kind: int, name: str, *keys: str) -> Any:
    resource = Described(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    body = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    return asked(node, DESCRIBE, 4, body).results[0]


def altered(node: GoldenController, *resources: tuple[int, str, str, str]) -> list[int]:
    body = Altered(
        resources=tuple(
            Altered.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=(Altered.AlterableConfig(name=key, config_operation=0, value=value),),
            )
            for kind, name, key, value in resources
        )
    )
    return [each.error_code for each in asked(node, ALTER, 1, body).responses]


def test_a_controller_describes_its_own_file(tmp_path: Path) -> None:
    node = controller(tmp_path)
    entries = {each.name: each for each in described(node, BROKER_RESOURCE, OWN).configs}
    segment, voters = entries[SEGMENT], entries["controller.quorum.voters"]
    assert (segment.value, segment.config_source, segment.read_only) == ("20971520", STATIC, True)
    assert [(each.value, each.source) for each in segment.synonyms] == [
        ("20971520", STATIC),
        ("1073741824", DEFAULT),
    ]
    assert [(each.value, each.source) for each in voters.synonyms] == [("3000@127.0.0.1:9093", STATIC)]
    limit = entries["max.connections"]
    assert (limit.value, limit.config_source, limit.read_only) == ("300", STATIC, False)
    assert "replica.lag.time.max.ms" not in entries, "no controller reads it"
    assert "retention.ms" not in entries


def test_a_throttle_is_shown_where_it_is_set(tmp_path: Path) -> None:
    node, throttle = controller(tmp_path), "leader.replication.throttled.rate"
    assert described(node, BROKER_RESOURCE, OWN, throttle).configs == ()
    assert altered(node, (BROKER_RESOURCE, OWN, throttle, "9")) == [0]
    (entry,) = described(node, BROKER_RESOURCE, OWN, throttle).configs
    assert [(each.value, each.source) for each in entry.synonyms] == [
        ("9", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    ]


def test_a_controllers_own_configuration_is_changed_at_controllers(tmp_path: Path) -> None:
    node = controller(tmp_path)
    assert altered(node, (BROKER_RESOURCE, OWN, "max.connections", "77")) == [0]
    (entry,) = described(node, BROKER_RESOURCE, OWN, "max.connections").configs
    assert [(each.value, each.source) for each in entry.synonyms] == [
        ("77", ConfigSource.DYNAMIC_BROKER_CONFIG.value),
        ("300", STATIC),
        ("2147483647", DEFAULT),
    ]
    assert altered(node, (BROKER_RESOURCE, OWN, SEGMENT, "9")) == [ErrorCode.INVALID_REQUEST]
    assert altered(node, (BROKER_RESOURCE, "77", "max.connections", "1")) == [
        ErrorCode.BROKER_ID_NOT_REGISTERED
    ]


@pytest.mark.parametrize("active", [True, False])
def test_every_controller_has_loggers_of_its_own(tmp_path: Path, active: bool) -> None:
    node = controller(tmp_path, active=active)
    assert altered(node, (BROKER_LOGGER_RESOURCE, OWN, LOGGER, "TRACE")) == [0]
    (level,) = described(node, BROKER_LOGGER_RESOURCE, OWN, LOGGER).configs
    assert (level.value, level.config_source) == ("TRACE", ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG.value)
    assert described(node, BROKER_LOGGER_RESOURCE, OTHER).error_code == ErrorCode.INVALID_REQUEST


def test_loggers_and_settings_in_one_request(tmp_path: Path) -> None:
    codes = altered(
        controller(tmp_path),
        (TOPIC_RESOURCE, "absent", "retention.ms", "1"),
        (BROKER_LOGGER_RESOURCE, OWN, LOGGER, "DEBUG"),
        (BROKER_RESOURCE, OWN, "max.connections", "5"),
    )
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0]
    assert logging.getLogger(LOGGER).level == logging.DEBUG


def test_of_other_nodes_a_controller_knows_what_the_log_has(tmp_path: Path) -> None:
    registered = BrokerRecord(broker_id=1, incarnation_id=bytes(16), broker_epoch=7, fenced=False)
    node = controller(tmp_path, image=image_of(registered))
    for name in (OTHER, "x", "-1", "01"):
        assert described(node, BROKER_RESOURCE, name).error_code == ErrorCode.INVALID_REQUEST, name
    (limit,) = described(node, BROKER_RESOURCE, BROKER, "max.connections").configs
    assert (limit.value, limit.config_source) == ("2147483647", DEFAULT)
    assert described(node, BROKER_RESOURCE, BROKER, SEGMENT).configs == ()


def test_a_combined_node_describes_the_keys_of_both_roles(tmp_path: Path) -> None:
    config = golden_config(tmp_path)
    both = config.values | {"process.roles": ("broker", "controller")}
    names = {each.name for each in OwnConfig.of(replace(config, values=both)).fixed}
    assert {"replica.lag.time.max.ms", SEGMENT} <= names
