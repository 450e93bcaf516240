"""Changes of configurations that a node answers before, or instead of, the active controller."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from msgspec.structs import replace

from metaquorum.config.keys import KEYS
from metaquorum.listeners.answers import opened
from metaquorum.listeners.forwarded.api import invalid, once
from metaquorum.listeners.forwarded.loggers import alter_loggers
from metaquorum.listeners.services import Client, Handler, Offered
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE
from metaquorum.metadata.requests.settings import OpKind
from metaquorum.metadata.settings.broker_keys import broker_key, check_broker_value
from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS
from metaquorum.metadata.settings.keys import ConfigValueError
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from metaquorum.wire.table import response_type

_ALTER, _INCREMENTAL = "AlterConfigs", "IncrementalAlterConfigs"
_OF_NODES = frozenset({BROKER_RESOURCE, BROKER_LOGGER_RESOURCE})
_Incremental = IncrementalAlterConfigsRequest.AlterConfigsResource
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource | AlterConfigsRequest.AlterConfigsResource


class OwnChanges:
    """One API of one node: changes of its loggers are made here. `is_broker`: as in Kafka, it refuses what
    cannot be changed through it, whatever the controllers would accept. The rest goes to `behind`."""

    def __init__(self, node_id: int, behind: Handler, *, is_broker: bool) -> None:
        self._node_id = node_id
        self._behind = behind
        self._is_broker = is_broker

    @classmethod
    def before(cls, offered: dict[str, Offered], node_id: int, *, is_broker: bool) -> None:
        """Replaces the APIs that alter configurations."""
        for api in (_ALTER, _INCREMENTAL):
            behind = offered[api]
            handle = cls(node_id, behind.handle, is_broker=is_broker).handle
            offered[api] = Offered(behind.min_version, behind.max_version, handle)

    def handle(self, request: Request, client: Client) -> Any:
        """What is answered here first; answers are in the order of the request."""
        body = request.body
        if _OF_NODES.isdisjoint([each.resource_type for each in body.resources]):
            return self._behind(request, client)
        loggers = [each for each in body.resources if each.resource_type == BROKER_LOGGER_RESOURCE]
        _, twice = once(loggers, lambda each: each.resource_name)
        done = [self._answer(each, body, twice) for each in body.resources]
        if not any(done):
            return self._behind(request, client)
        if all(done):
            return response_type(request.header.api_key).cls(responses=tuple(done))
        return self._with_the_rest(done, request, client)

    async def _with_the_rest(self, done: list[Any], request: Request, client: Client) -> Any:
        body = request.body
        rest = tuple(each for each, own in zip(body.resources, done, strict=True) if own is None)
        answer = self._behind(request.changed(replace(body, resources=rest)), client)
        others = opened(await answer if isinstance(answer, Awaitable) else answer)
        theirs = iter(others.responses)
        return replace(others, responses=tuple(own or next(theirs) for own in done))

    def _answer(self, resource: _Resource, body: Any, twice: frozenset[Any]) -> Any:
        """The result of one resource; None if the controller decides."""
        kind, name = resource.resource_type, resource.resource_name
        is_logger = kind == BROKER_LOGGER_RESOURCE and isinstance(resource, _Incremental)
        refusal = _not_through(resource, self._node_id) if self._is_broker else None
        if is_logger and name in twice:
            refusal = invalid("the request names this resource twice: name it once")
        elif isinstance(resource, _Incremental) and is_logger:
            refusal = alter_loggers(resource, self._node_id, validate_only=body.validate_only)
        elif refusal is None:
            return None
        response = (
            IncrementalAlterConfigsResponse if isinstance(resource, _Incremental) else AlterConfigsResponse
        )
        return response.AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE if refusal is None else refusal.code,
            error_message=None if refusal is None else refusal.message,
            resource_type=kind,
            resource_name=name,
        )


def fixed_key(names: Iterable[str]) -> ApiError | None:
    """Why the keys of a node's configuration with these names cannot be changed; None if they can."""
    for name in names:
        if (name in KAFKA_KEYS or name in KEYS) and broker_key(name) is None:
            return invalid(f"{name} cannot be changed while a broker runs: set it in each broker's file")
    return None


def _not_through(resource: _Resource, node_id: int) -> ApiError | None:
    """Why the broker `node_id` does not pass a change of this resource on."""
    name = resource.resource_name
    if resource.resource_type != BROKER_RESOURCE:
        return None
    if name and name != str(node_id):
        return invalid(f"this is broker {node_id}, not {name}: use that broker")
    refusal = fixed_key(each.name for each in resource.configs)
    for each in resource.configs if refusal is None else ():
        if each.value is not None and getattr(each, "config_operation", OpKind.SET.value) == OpKind.SET.value:
            try:
                check_broker_value(each.name, each.value, per_broker=bool(name))
            except ConfigValueError as error:
                return invalid(str(error))
    return refusal
