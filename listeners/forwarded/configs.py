"""IncrementalAlterConfigs and AlterConfigs: changes to the configurations of topics, brokers, groups and
clients."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.listeners.access.steps import CLUSTER, CONFIGURED, Each, RightNeeded
from metaquorum.listeners.forwarded.api import Call, Outcome, Parts, answers, invalid, once
from metaquorum.listeners.forwarded.own_changes import fixed_key
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource
from metaquorum.metadata.requests.settings import (
    AlterConfigsRequest as Change,
)
from metaquorum.metadata.requests.settings import (
    ConfigChange,
    ConfigOp,
    OpKind,
    SettingResult,
    SettingsResponse,
)
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_KINDS = {kind.value: kind for kind in OpKind}
Resource = IncrementalAlterConfigsRequest.AlterConfigsResource | AlterConfigsRequest.AlterConfigsResource


_ALTER = Each("resources", "responses", (RightNeeded(Op.ALTER_CONFIGS, CLUSTER, CONFIGURED),))
_THINGS = ((("resources", "responses"), ("configs", "")),)


@answers("AlterConfigs", _ALTER, things=_THINGS)
async def alter_configs(body: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    """Replaces configurations: keys that the request does not name return to their defaults."""
    outcomes = await _altered(body.resources, [_replacement(each) for each in body.resources], body, call)
    return AlterConfigsResponse(
        responses=tuple(
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, (code, message) in outcomes
        )
    )


@answers("IncrementalAlterConfigs", _ALTER, things=_THINGS)
async def incremental_alter_configs(
    body: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    outcomes = await _altered(body.resources, [_changes(each) for each in body.resources], body, call)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, (code, message) in outcomes
        )
    )


def _changes(resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> ConfigChange | ApiError:
    ops = []
    for change in resource.configs:
        kind = _KINDS.get(change.config_operation)
        if kind is None:
            text = f"{change.config_operation} cannot change {change.name}"
            return invalid(f"{text}: 0 sets, 1 deletes, 2 appends, 3 subtracts")
        ops.append(ConfigOp(kind=kind, name=change.name, value=change.value))
    return ConfigChange(resource=_resource(resource), ops=tuple(ops))


def _replacement(resource: AlterConfigsRequest.AlterConfigsResource) -> ConfigChange | ApiError:
    ops = tuple(ConfigOp(kind=OpKind.SET, name=each.name, value=each.value) for each in resource.configs)
    return ConfigChange(resource=_resource(resource), ops=ops, replaces=True)


def _resource(resource: Resource) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.resource_name)


async def _altered(
    resources: Sequence[Resource],
    changes: Sequence[ConfigChange | ApiError],
    body: IncrementalAlterConfigsRequest | AlterConfigsRequest,
    call: Call,
) -> list[tuple[Resource, Outcome]]:
    _, twice = once(resources, _resource)
    parts: Parts[tuple[Resource, ConfigChange | ApiError]] = Parts()
    for resource, change in zip(resources, changes, strict=True):
        refusal = change if isinstance(change, ApiError) else None
        if refusal is None and resource.resource_type == BROKER_RESOURCE:
            refusal = fixed_key(each.name for each in resource.configs)
        if _resource(resource) in twice:
            refusal = invalid("the request names this resource twice: name it once")
        parts.append(((resource, change), refusal))
    results: tuple[SettingResult, ...] | ApiError = ()
    if asked := parts.asked():
        wanted = tuple(change for _, change in asked if isinstance(change, ConfigChange))
        answer = await call.answer(Change(changes=wanted, validate_only=body.validate_only), SettingsResponse)
        results = answer if isinstance(answer, ApiError) else answer.results
    # As in `topics.create_topics`, a success may have a note.
    return [
        (resource, outcome if result is None or outcome[0] else (outcome[0], result.note))
        for (resource, _), outcome, result in parts.settled(results)
    ]
