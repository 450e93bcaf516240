"""DescribeConfigs: every key of a topic, broker, group or client metrics subscription, with its sources.

Owns how keys are shown: types, read-only ones from the broker's file, and the words that the documents have
for them. What is in force is decided in `metadata.settings`.
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
    key_of,
)
from metaquorum.metadata.settings.group_keys import GROUP_KEYS
from metaquorum.metadata.settings.keys import Kind
from metaquorum.runtime.config.key import BROKER, MAX_INT, Key
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

_TYPES = {
    Kind.BOOLEAN: 1,
    Kind.STRING: 2,
    Kind.INT: 3,
    Kind.SHORT: 4,
    Kind.LONG: 5,
    Kind.DOUBLE: 6,
    Kind.LIST: 7,
    Kind.CLASS: 8,
    Kind.PASSWORD: 9,
}
_UNKNOWN_TYPE = 0
_SECRETS = ("password", "secret")


class OwnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker's file says: `static` of the keys that can change while it runs, `fixed` of the rest."""

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
    """A result for each resource."""
    shown = _Shown(version, body.include_synonyms, body.include_documentation)
    return DescribeConfigsResponse(results=tuple(_result(each, image, own, shown) for each in body.resources))


def _result(
    asked: DescribeConfigsRequest.DescribeConfigsResource,
    image: MetadataImage,
    own: OwnConfig,
    shown: _Shown,
) -> DescribeConfigsResponse.DescribeConfigsResult:
    resource = ConfigResource(asked.resource_type, asked.resource_name)
    refusal = _refusal(resource, image, own)
    if refusal is not None:
        return DescribeConfigsResponse.DescribeConfigsResult(
            error_code=refusal.code,
            error_message=refusal.message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
    entries = {each.name: each for each in _entries(resource, image, own)}
    wanted = frozenset(asked.configuration_keys or ())
    return DescribeConfigsResponse.DescribeConfigsResult(
        error_message="",
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=tuple(
            shown(resource.resource_type, entry)
            for name, entry in sorted(entries.items())
            if not wanted or name in wanted
        ),
    )


def _entries(resource: ConfigResource, image: MetadataImage, own: OwnConfig) -> Iterable[ConfigEntry]:
    """Of several with one name the last one holds."""
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return logger_entries()
    set_there = describe_resource(image, resource, broker_id=own.node_id, static=own.static, all_keys=True)
    is_one_broker = resource.resource_type == BROKER_RESOURCE and resource.name
    return (*own.fixed, *set_there) if is_one_broker else set_there


def _refusal(resource: ConfigResource, image: MetadataImage, own: OwnConfig) -> ApiError | None:
    name = resource.name
    match resource.resource_type:
        case 2 if image.topics.topic_named(name) is None:
            text = f"there is no topic {name}: list the topics to see which exist"
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        case 4 if name and name != str(own.node_id):
            text = f"this is broker {own.node_id}, not {name}: ask that broker, or with an empty name"
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


class _Shown(msgspec.Struct, frozen=True):
    """How entries are written. What a version has no field for is left at its default."""

    version: int
    synonyms: bool
    documentation: bool

    def __call__(
        self, resource_type: int, entry: ConfigEntry
    ) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
        is_broker = resource_type == BROKER_RESOURCE
        return DescribeConfigsResponse.DescribeConfigsResourceResult(
            name=entry.name,
            value=entry.value,
            read_only=is_broker and broker_key(entry.name) is None,
            is_default=self.version == 0 and entry.source is ConfigSource.DEFAULT_CONFIG,
            config_source=entry.source.value,
            is_sensitive=entry.sensitive,
            synonyms=tuple(
                DescribeConfigsResponse.DescribeConfigsSynonym(
                    name=each.name, value=each.value, source=each.source.value
                )
                for each in (entry.synonyms if self.synonyms else ())
            ),
            config_type=_type(resource_type, entry.name),
            documentation=(entry.note or _words(resource_type, entry.name) if self.documentation else None),
        )


def _type(resource_type: int, name: str) -> int:
    known = key_of(resource_type, name)
    if known is not None:
        return _TYPES[known.kind]
    key = KEYS.get(name) if resource_type == BROKER_RESOURCE else None
    if key is None:
        return _UNKNOWN_TYPE
    if key.kind == "int":
        return _TYPES[Kind.LONG if key.maximum > MAX_INT else Kind.INT]
    if set(key.choices) == {"true", "false"}:
        return _TYPES[Kind.BOOLEAN]
    return _TYPES[Kind.LIST if key.kind == "list" else Kind.STRING]


def _words(resource_type: int, name: str) -> str | None:
    """What docs/configuration.md says of a key; of a topic's, what it says of the broker's key behind it."""
    names: tuple[str, ...] = (name,)
    if resource_type in (TOPIC_RESOURCE, GROUP_RESOURCE):
        key = key_of(resource_type, name)
        names = () if key is None else key.synonyms
    return next((KEYS[each].text for each in names if each in KEYS), None)
