"""DescribeConfigs: every key of a topic, node, group or client metrics subscription, with its sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from metaquorum.config.keys import KEYS
from metaquorum.config.node import NodeConfig
from metaquorum.listeners.forwarded.api import invalid
from metaquorum.listeners.forwarded.loggers import logger_entries, logger_refusal
from metaquorum.listeners.forwarded.shown_configs import ShownConfigs
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
from metaquorum.metadata.requests.common import NO_BROKER
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS, broker_key
from metaquorum.metadata.settings.configs import (
    NOTHING,
    ConfigEntry,
    ConfigSource,
    Synonym,
    describe_resource,
)
from metaquorum.metadata.settings.keys import CONTROLLER, MAX_INT, Key, value_text, whole_number
from metaquorum.metadata.settings.resource_keys import GROUP_KEYS
from metaquorum.metadata.settings.topic_names import name_problem
from metaquorum.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse


class OwnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The values in a node's file: `static` of the keys that can change while brokers run, `fixed` of the
    rest. `sees_brokers`: it answers for registered brokers, too, without their files."""

    node_id: int
    static: Mapping[str, str]
    fixed: tuple[ConfigEntry, ...]
    sees_brokers: bool = False

    @classmethod
    def of(cls, config: NodeConfig) -> OwnConfig:
        groups = {each for key in GROUP_KEYS.values() for each in key.synonyms}
        static = config.set_in_file(BROKER_KEYS.keys() | BROKER_SYNONYMS | groups)
        roles = set(cast("tuple[str, ...]", config.values["process.roles"]))
        fixed = tuple(
            _fixed(config, key)
            for name, key in KEYS.items()
            if not roles.isdisjoint(key.roles) and broker_key(name) is None and name not in BROKER_SYNONYMS
        )
        return cls(node_id=config.node_id, static=static, fixed=fixed, sees_brokers=config.role == CONTROLLER)


def _fixed(config: NodeConfig, key: Key) -> ConfigEntry:
    value, sources = config.values.get(key.name), ConfigSource
    texts = {sources.DEFAULT_CONFIG: key.default_text}
    if value != key.default:
        own = None if value is None or key.sensitive else value_text(value)
        texts = {sources.STATIC_BROKER_CONFIG: own, **texts}
    source, text = next(iter(texts.items()))
    return ConfigEntry(
        name=key.name,
        value=text,
        source=source,
        sensitive=key.sensitive,
        synonyms=tuple(
            Synonym(source=each, name=key.name, value=known)
            for each, known in texts.items()
            if known is not None or each is not sources.DEFAULT_CONFIG
        ),
    )


AS_NO_NODE = OwnConfig(node_id=NO_BROKER, static=NOTHING, fixed=(), sees_brokers=True)
"""What the log alone says."""


def describe_configs(
    body: DescribeConfigsRequest, version: int, image: MetadataImage, own: OwnConfig = AS_NO_NODE
) -> DescribeConfigsResponse:
    """One result per resource, as the node with `own` sees it."""
    shown = ShownConfigs(version, body.include_synonyms, body.include_documentation)

    def found(resource: ConfigResource) -> Iterable[ConfigEntry] | ApiError:
        return _refusal(resource, image, own) or _entries(resource, image, own)

    return DescribeConfigsResponse(
        results=tuple(
            shown(each, found(ConfigResource(each.resource_type, each.resource_name)))
            for each in body.resources
        )
    )


def _entries(resource: ConfigResource, image: MetadataImage, own: OwnConfig) -> Iterable[ConfigEntry]:
    """Of several with one name the last one counts."""
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return logger_entries()
    set_there = describe_resource(image, resource, broker_id=own.node_id, static=own.static, all_keys=True)
    is_own = resource == ConfigResource(BROKER_RESOURCE, str(own.node_id))
    return (*own.fixed, *set_there) if is_own else set_there


def _refusal(resource: ConfigResource, image: MetadataImage, own: OwnConfig) -> ApiError | None:
    name = resource.name
    match resource.resource_type:
        case 2 if (problem := name_problem(name)) is not None:
            return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        case 2 if image.topics.topic_named(name) is None:
            text = f"there is no topic {name}: list the topics to see which exist"
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        case 4 if name:
            return _not_described(name, image, own)
        case 8:
            return logger_refusal(name, own.node_id)
        case 16 if not name:
            return invalid("a client metrics subscription needs a name: give one")
        case 32 if not name:
            return invalid("a group needs a name: give one")
        case other if other not in {TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE}:
            text = f"resource type {other} has no configuration: 2 is a topic, 4 a node, 8 its loggers"
            return invalid(text + ", 16 client metrics, 32 a group")
        case _:
            return None


def _not_described(name: str, image: MetadataImage, own: OwnConfig) -> ApiError | None:
    """Why this node does not describe the node of that name."""
    number = whole_number(name, MAX_INT)
    if number is None or str(number) != name:
        return invalid(f"{name!r} is not a node id: give the id of a node, or an empty name for all")
    if number == own.node_id or (own.sees_brokers and number in image.brokers):
        return None
    if own is AS_NO_NODE:
        text = f"broker {name} is not registered: list the registered brokers"
        return ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
    return invalid(f"this is node {own.node_id}, not {name}: use that node, or an empty name")
