"""DescribeConfigs: every key of a topic, broker, group or client metrics subscription, with its sources."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.config.keys import KEYS
from metaquorum.config.node import NodeConfig
from metaquorum.listeners.answers import opened
from metaquorum.listeners.forwarded.api import invalid, once
from metaquorum.listeners.forwarded.shown_configs import ShownConfigs
from metaquorum.listeners.services import Client
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
from metaquorum.metadata.requests.settings import OpKind
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS, broker_key
from metaquorum.metadata.settings.configs import ConfigEntry, ConfigSource, describe_resource
from metaquorum.metadata.settings.keys import BROKER, MAX_INT, Key, value_text, whole_number
from metaquorum.metadata.settings.resource_keys import GROUP_KEYS
from metaquorum.metadata.settings.topic_names import name_problem
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


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
    return ConfigEntry(
        name=key.name,
        value=None if value is None or key.sensitive else value_text(value),
        source=ConfigSource.DEFAULT_CONFIG if value == key.default else ConfigSource.STATIC_BROKER_CONFIG,
        sensitive=key.sensitive,
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


# Loggers of this process as configuration (KIP-412): resource type 8 of DescribeConfigs and
# IncrementalAlterConfigs.
#
# Levels: they belong to the process that gets the request, and last as long as it runs.

ROOT = "root"
LEVELS = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
"""Kafka's names of Python's levels, from the highest."""

_log = logging.getLogger(__name__)
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
_Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


def logger_refusal(name: str, node_id: int) -> ApiError | None:
    """Why a resource is not the loggers of this process."""
    number = whole_number(name, MAX_INT)
    if number is None:
        return invalid(f"{name!r} is not a broker id, and only brokers have loggers: give an id")
    if number != node_id:
        return invalid(f"this is broker {node_id}, not {name}: use that broker")
    return None


def logger_entries() -> list[ConfigEntry]:
    """Every logger and package of loggers, with its level in force."""
    names = [ROOT, *list(logging.Logger.manager.loggerDict)]
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [ConfigEntry(name=name, value=_level_name(name), source=source, sensitive=False) for name in names]


def _level_name(name: str) -> str:
    """For a package that does not log itself, the level that it passes down."""
    known = logging.Logger.manager.loggerDict.get(name)
    while name != ROOT and not isinstance(known, logging.Logger):
        name = name.rpartition(".")[0] or ROOT
        known = logging.Logger.manager.loggerDict.get(name)
    level = _logger(name).getEffectiveLevel()
    return next((each for each, number in LEVELS.items() if level >= number), "TRACE")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def alter_loggers(resource: _Resource, node_id: int, *, validate_only: bool) -> ApiError | None:
    """Changes levels, all of them or none. Returns None if it succeeded."""
    refusal = logger_refusal(resource.resource_name, node_id)
    if refusal is None and once(resource.configs, lambda each: each.name)[1]:
        refusal = invalid("a logger is named twice: name it once")
    for change in resource.configs:
        refusal = refusal or _op_refusal(change)
    if refusal is not None or validate_only:
        return refusal
    for change in resource.configs:
        is_set = change.config_operation == OpKind.SET.value
        _logger(change.name).setLevel(LEVELS[change.value or ""] if is_set else logging.NOTSET)
        what = f"is {change.value} now" if is_set else "no longer has its own level"
        _log.warning("the level of logger %s %s", change.name, what)
    return None


def _op_refusal(change: IncrementalAlterConfigsRequest.AlterableConfig) -> ApiError | None:
    name, operation = change.name, change.config_operation
    if operation not in (OpKind.SET.value, OpKind.DELETE.value):
        return invalid(f"a level is set (0) or deleted (1); {operation} is neither")
    if operation == OpKind.SET.value and change.value is None:
        return invalid(f"logger {name} has no level in the request: give one")
    if name != ROOT and name not in logging.Logger.manager.loggerDict:
        text = f"there is no logger {name}: describe the broker's loggers to see them"
        return ApiError(ErrorCode.INVALID_CONFIG, text)
    if operation == OpKind.DELETE.value:
        return invalid("the root logger always has a level: set it") if name == ROOT else None
    if change.value not in LEVELS:
        text = f"{change.value} is not a level of logger {name}: use one of {', '.join(LEVELS)}"
        return ApiError(ErrorCode.INVALID_CONFIG, text)
    return None


class LoggerChanges:
    """IncrementalAlterConfigs in front of the controller: changes of loggers are handled here."""

    def __init__(self, node_id: int, forward: Callable[[Request, Client], Awaitable[Any]]) -> None:
        self._node_id = node_id
        self._forward = forward

    async def handle(self, request: Request, client: Client) -> Any:
        """Answers in the order of the request, and before the rest is forwarded."""
        body: IncrementalAlterConfigsRequest = request.body
        mine = [each for each in body.resources if each.resource_type == BROKER_LOGGER_RESOURCE]
        if not mine:
            return await self._forward(request, client)
        _, twice = once(mine, lambda each: each.resource_name)
        done = [self._altered(each, twice, validate_only=body.validate_only) for each in mine]
        rest = tuple(each for each in body.resources if each.resource_type != BROKER_LOGGER_RESOURCE)
        if not rest:
            return IncrementalAlterConfigsResponse(responses=tuple(done))
        others = opened(await self._forward(request.changed(replace(body, resources=rest)), client))
        theirs, ours = iter(others.responses), iter(done)
        return IncrementalAlterConfigsResponse(
            throttle_time_ms=others.throttle_time_ms,
            responses=tuple(
                next(ours if each.resource_type == BROKER_LOGGER_RESOURCE else theirs)
                for each in body.resources
            ),
        )

    def _altered(self, resource: _Resource, twice: frozenset[Any], *, validate_only: bool) -> _Answer:
        refusal: ApiError | None = invalid("the request names this resource twice: name it once")
        if resource.resource_name not in twice:
            refusal = alter_loggers(resource, self._node_id, validate_only=validate_only)
        return _Answer(
            error_code=ErrorCode.NONE if refusal is None else refusal.code,
            error_message=None if refusal is None else refusal.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
