"""Values of configurations as DescribeConfigs shows them."""

from __future__ import annotations

import pytest

from metaquorum.listeners.forwarded.shown_configs import ShownConfigs
from metaquorum.metadata.image import TOPIC_RESOURCE
from metaquorum.metadata.settings.broker_keys import check_broker_value
from metaquorum.metadata.settings.configs import ConfigEntry, ConfigSource
from metaquorum.metadata.settings.keys import ConfigValueError
from metaquorum.wire.messages import DescribeConfigsRequest


@pytest.mark.parametrize(
    ("value", "shown"), [(" 7 ", "7"), ("7\n", "7"), ("a b", "a b"), ("", ""), (None, None)]
)
def test_blanks_around_a_value_are_not_shown(value: str | None, shown: str | None) -> None:
    entry = ConfigEntry(
        name="retention.ms", value=value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG, sensitive=False
    )
    asked = DescribeConfigsRequest.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="t")
    found = ShownConfigs(4, True, False)(asked, [entry])
    assert [each.value for each in found.configs] == [shown]


@pytest.mark.parametrize("per_broker", [True, False])
def test_advertised_listeners_cannot_be_altered(per_broker: bool) -> None:
    with pytest.raises(ConfigValueError, match="in the broker's file"):
        check_broker_value("advertised.listeners", "PLAINTEXT://h:1", per_broker=per_broker)
