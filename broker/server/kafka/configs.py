"""DescribeConfigs: every key of a topic, broker, group or client metrics subscription, with its sources.

Owns what a broker adds from its file, and which resources are its own. Does not know which value is in force,
which `metadata.settings` decides, or how it is written (`runtime.kafka.forwarded.shown_configs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from metaquorum.broker.server.kafka.loggers import logger_entries, logger_refusal
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataImage,
)
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS, broker_key
from metaquorum.metadata.settings.configs import (
    ConfigEntry,
    ConfigSource,
    describe_resource,
)
from metaquorum.metadata.settings.group_keys import GROUP_KEYS
from metaquorum.metadata.settings.topic_names import name_problem
from metaquorum.runtime.config.key import BROKER, Key
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.kafka.forwarded.shown_configs import ShownConfigs
from metaquorum.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

_SECRETS = ("password", "secret")


class OwnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The values in a broker's file: `static` of the keys that can change while it runs, `fixed` of the
    rest."""

    node_id: int
    static: Mapping[str, str]
    fixed: tuple[ConfigEntry, ...]

    @classmethod
    def of(cls, config: NodeConfig) -> OwnConfig:
        groups = {each for key in GROUP_KEYS.values() for each in key.synonyms}
        static = config.set_in_file(BROKER_KEYS.keys() | BROKER_SYNONYMS | groups)
        fixed = tuple(
            _fixed(config, key)
            for name, key in KEYS.items()
            if BROKER in key.roles and broker_key(name) is None and name not in BROKER_SYNONYMS
        )
        return cls(node_id=config.node_id, static=static, fixed=fixed)


def _fixed(config: NodeConfig, key: Key) -> ConfigEntry:
    value = config.values.get(key.name)
    sensitive = any(word in key.name for word in _SECRETS)
    text = ",".join(value) if isinstance(value, tuple) else None if value is None else str(value)
    return ConfigEntry(
        name=key.name,
        value=None if sensitive else text,
        source=ConfigSource.DEFAULT_CONFIG if value == key.default else ConfigSource.STATIC_BROKER_CONFIG,
        sensitive=sensitive,
    )


def describe_configs(
    body: DescribeConfigsRequest, version: int, image: MetadataImage, own: OwnConfig
) -> DescribeConfigsResponse:
    """One result per resource."""
    shown = ShownConfigs(version, body.include_synonyms, body.include_documentation)
    return DescribeConfigsResponse(results=tuple(_result(each, image, own, shown) for each in body.resources))


def _result(
    asked: DescribeConfigsRequest.DescribeConfigsResource,
    image: MetadataImage,
    own: OwnConfig,
    shown: ShownConfigs,
) -> DescribeConfigsResponse.DescribeConfigsResult:
    resource = ConfigResource(asked.resource_type, asked.resource_name)
    refusal = _refusal(resource, image, own)
    return shown(asked, _entries(resource, image, own) if refusal is None else refusal)


def _entries(resource: ConfigResource, image: MetadataImage, own: OwnConfig) -> Iterable[ConfigEntry]:
    """Of several with one name the last one counts."""
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return logger_entries()
    set_there = describe_resource(image, resource, broker_id=own.node_id, static=own.static, all_keys=True)
    is_one_broker = resource.resource_type == BROKER_RESOURCE and resource.name
    return (*own.fixed, *set_there) if is_one_broker else set_there


def _refusal(resource: ConfigResource, image: MetadataImage, own: OwnConfig) -> ApiError | None:
    name = resource.name
    match resource.resource_type:
        case 2 if (problem := name_problem(name)) is not None:
            return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        case 2 if image.topics.topic_named(name) is None:
            text = f"there is no topic {name}: list the topics to see which exist"
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        case 4 if name and name != str(own.node_id):
            text = f"this is broker {own.node_id}, not {name}: use that broker, or an empty name"
            return ApiError(ErrorCode.INVALID_REQUEST, text)
        case 8:
            return logger_refusal(name, own.node_id)
        case 16 if not name:
            text = "a client metrics subscription needs a name: give one"
            return ApiError(ErrorCode.INVALID_REQUEST, text)
        case 32 if not name:
            return ApiError(ErrorCode.INVALID_REQUEST, "a group needs a name: give one")
        case other if other not in {TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE}:
            text = f"resource type {other} has no configuration: 2 is a topic, 4 a broker, 8 loggers"
            text += ", 16 client metrics, 32 a group"
            return ApiError(ErrorCode.INVALID_REQUEST, text)
        case _:
            return None
