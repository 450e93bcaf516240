"""Calls about configurations of topics, brokers, groups and client metrics subscriptions.

A request about a broker goes to that broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from metaquorum.metadata.image.types import RESOURCE_KINDS
from metaquorum.metadata.requests.settings import ConfigChange, SettingResult
from metaquorum.metadata.settings.configs import NO_EFFECT, ConfigEntry, ConfigSource, Synonym
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.wire.messages import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

RESOURCES_PER_REQUEST = 1_000
_OF_ONE_BROKER = (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE)
_OWN = {
    TOPIC_RESOURCE: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    BROKER_RESOURCE: ConfigSource.DYNAMIC_BROKER_CONFIG,
    BROKER_LOGGER_RESOURCE: ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
    CLIENT_METRICS_RESOURCE: ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
    GROUP_RESOURCE: ConfigSource.DYNAMIC_GROUP_CONFIG,
}
P = TypeVar("P")


class DescribedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A resource's configuration, or the error of the query."""

    resource: ConfigResource
    entries: tuple[ConfigEntry, ...] = ()
    error: ApiError | None = None


async def describe_configs(
    client: KafkaClient, resources: Sequence[ConfigResource], *, all_keys: bool = False
) -> tuple[DescribedConfig, ...]:
    """The configurations of resources, in the order of `resources`; without `all_keys`, only what is set on
    the resource itself."""
    Resource = DescribeConfigsRequest.DescribeConfigsResource
    described: dict[ConfigResource, DescribedConfig] = {}
    for node_id, part in await _by_node(client, [(each, each) for each in resources]):
        asked = tuple(
            Resource(resource_type=each.resource_type, resource_name=each.name, configuration_keys=None)
            for each in part
        )
        # metaquorum notes keys without effect in the documentation, a field since version 3.
        body = DescribeConfigsRequest(resources=asked, include_synonyms=True, include_documentation=True)
        answer = await client.ask(body, target=node_id, lowest=3)
        for result in answer.results:
            resource = ConfigResource(result.resource_type, result.resource_name)
            described[resource] = _described(resource, result, all_keys)
    absent = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the cluster did not describe it")
    return tuple(described.get(each, DescribedConfig(resource=each, error=absent)) for each in resources)


def _described(resource: ConfigResource, answer: Any, all_keys: bool) -> DescribedConfig:
    if answer.error_code:
        refusal = ApiError(ErrorCode.of(answer.error_code), answer.error_message or "refused")
        return DescribedConfig(resource=resource, error=refusal)
    only = None if all_keys else _own_source(resource)
    entries = [
        _entry(each, only) for each in answer.configs if only is None or each.config_source == only.value
    ]
    return DescribedConfig(resource=resource, entries=tuple(sorted(entries, key=lambda each: each.name)))


def _own_source(resource: ConfigResource) -> ConfigSource:
    if resource == ConfigResource(BROKER_RESOURCE, ""):
        return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return _OWN[resource.resource_type]


def _entry(answer: Any, only: ConfigSource | None) -> ConfigEntry:
    return ConfigEntry(
        name=answer.name,
        value=answer.value,
        source=_source(answer.config_source),
        sensitive=answer.is_sensitive,
        synonyms=tuple(
            Synonym(source=_source(each.source), name=each.name, value=each.value)
            for each in answer.synonyms
            if only is None or each.source == only.value
        ),
        note=answer.documentation if answer.documentation == NO_EFFECT else None,
    )


def _source(number: int) -> ConfigSource:
    """The source with this number; an unknown one counts as STATIC_BROKER_CONFIG, which cannot be changed
    here."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.STATIC_BROKER_CONFIG


async def configured_names(client: KafkaClient, kind: int) -> list[str]:
    """The names of client metrics subscriptions or groups that have configurations. Raises ApiError."""
    # Version 0 only lists client metrics subscriptions.
    lowest = 0 if kind == CLIENT_METRICS_RESOURCE else 1
    answer = await client.ask(ListConfigResourcesRequest(resource_types=(kind,)), lowest=lowest)
    if answer.error_code:
        raise ApiError(
            ErrorCode.of(answer.error_code),
            "the cluster does not list the resources that have configurations",
        )
    return [each.resource_name for each in answer.config_resources]


async def alter_configs(
    client: KafkaClient, changes: Sequence[ConfigChange], *, validate_only: bool = False
) -> tuple[SettingResult, ...]:
    """Changes keys of configurations; other keys keep their values. Each result has its own error."""
    Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    Config = IncrementalAlterConfigsRequest.AlterableConfig
    results: dict[ConfigResource, SettingResult] = {}
    for node_id, part in await _by_node(client, [(each.resource, each) for each in changes]):
        body = IncrementalAlterConfigsRequest(
            resources=tuple(
                Resource(
                    resource_type=change.resource.resource_type,
                    resource_name=change.resource.name,
                    configs=tuple(
                        Config(name=op.name, config_operation=op.kind.value, value=op.value)
                        for op in change.ops
                    ),
                )
                for change in part
            ),
            validate_only=validate_only,
        )
        for response in (await client.ask(body, target=node_id)).responses:
            resource = ConfigResource(response.resource_type, response.resource_name)
            results[resource] = _result(resource, response)
    return tuple(results[each.resource] for each in changes if each.resource in results)


def _result(resource: ConfigResource, answer: Any) -> SettingResult:
    error = ErrorCode.of(answer.error_code)
    text = answer.error_message or None
    done = error is ErrorCode.NONE
    return SettingResult(
        subject=f"{RESOURCE_KINDS[resource.resource_type]} {resource.name or 'default'}",
        error=error,
        message=None if done else text,
        note=text if done else None,
    )


async def _by_node(
    client: KafkaClient, parts: Sequence[tuple[ConfigResource, P]]
) -> Iterator[tuple[int | None, list[P]]]:
    """Splits parts into requests of a bounded size, with the node of each: a broker's own configuration is
    that broker's to answer, as in Kafka. Raises ApiError for a broker that does not run."""
    named: dict[int | None, list[P]] = {}
    for resource, part in parts:
        is_own = resource.resource_type in _OF_ONE_BROKER and client.asks_brokers
        named.setdefault(whole_number(resource.name, MAX_INT) if is_own else None, []).append(part)
    alive = await client.brokers() if set(named) - {None} else {}
    for node_id in sorted(each for each in named if each is not None):
        if node_id not in alive:
            text = f"broker {node_id} is not running, and only it has its configuration; start it first"
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, text)
    return (
        (at, found[first : first + RESOURCES_PER_REQUEST])
        for at, found in named.items()
        for first in range(0, len(found), RESOURCES_PER_REQUEST)
    )
