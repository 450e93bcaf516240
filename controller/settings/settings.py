"""Maps a request about settings to the decision on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from metaquorum.controller.brokers.brokers import decide_register_controller
from metaquorum.controller.partitions.rules import MinIsrInFiles, min_isr_problem, no_longer_eligible
from metaquorum.controller.result import ControllerResult, epoch_refusal, repeated
from metaquorum.controller.settings.access import (
    decide_alter_scram,
    decide_create_acls,
    decide_create_token,
    decide_delete_acls,
    decide_expire_token,
    decide_renew_token,
)
from metaquorum.controller.settings.feature_levels import decide_update_features
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataImage,
    QuotaEntity,
)
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import ClientQuotaRecord, ConfigRecord, ProducerIdsRecord, Record
from metaquorum.metadata.records.types import QuotaEntity as EntityPart
from metaquorum.metadata.requests import settings
from metaquorum.metadata.requests.settings import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigOp,
    OpKind,
    SettingResult,
    SettingsResponse,
)
from metaquorum.metadata.settings.broker_keys import is_id_memory
from metaquorum.metadata.settings.configs import check_values, key_of, notes_on, splits_as_list
from metaquorum.metadata.settings.keys import ConfigValueError, split_parts, whole_number
from metaquorum.metadata.settings.quotas import entity_problem, entity_title, sorted_entity, value_problem
from metaquorum.metadata.settings.resource_keys import GroupBounds, MatchError
from metaquorum.metadata.settings.topic_names import name_problem

# Decisions on configurations: set, delete, append and subtract, with one result per resource.
#
# The records: a resource changes as a whole or not at all.

KINDS: Mapping[int, str] = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}
_NAMELESS: Mapping[int, str] = {
    TOPIC_RESOURCE: "topics have no default configuration: name a topic",
    CLIENT_METRICS_RESOURCE: "a client metrics subscription needs a name: give one",
    GROUP_RESOURCE: "a group needs a name: give one",
}
_MAX_BROKER_ID = 2**31 - 1

Refusal = tuple[ErrorCode, str]


def decide_alter_configs(
    image: MetadataImage, request: AlterConfigsRequest, config: ControllerConfig, *, voters: frozenset[int]
) -> ControllerResult:
    """`voters` are controllers, whose configuration may be set like a broker's (as in Kafka)."""
    records: list[Record] = []
    results: list[SettingResult] = []
    twice = repeated(change.resource for change in request.changes)
    for change in request.changes:
        subject = resource_title(change.resource)
        if change.resource in twice:
            refusal: Refusal | None = (
                ErrorCode.INVALID_REQUEST,
                f"{subject} is named twice in one request: name it once",
            )
        else:
            refusal = _decide_resource(image, change, voters, records, config.group_bounds)
        results.append(_result(subject, refusal, None if refusal else _note(image, change)))
    records += no_longer_eligible(image, records)
    if len(records) > config.records_per_request_max:
        return refuse_size([result.subject for result in results], config.records_per_request_max)
    response = SettingsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else tuple(records))


def refuse_size(subjects: list[str], records_max: int) -> ControllerResult:
    """A request that one batch cannot hold is refused as a whole."""
    text = f"the request would write more than {records_max} records or 8 MiB: split it into several requests"
    results = tuple(_result(subject, (ErrorCode.POLICY_VIOLATION, text)) for subject in subjects)
    return ControllerResult(response=SettingsResponse(results=results), depends_on_image=False)


def resource_title(resource: ConfigResource) -> str:
    """`topic orders`, `broker 3`, `broker default`."""
    kind = KINDS.get(resource.resource_type, f"resource type {resource.resource_type}")
    return f"{kind} {resource.name or 'default'}"


def _note(image: MetadataImage, change: ConfigChange) -> str | None:
    """A note on a change that was accepted and has no effect yet."""
    before = image.configs.get(change.resource) or {}
    after = [(op.name, _value_after(change.resource, op, before.get(op.name))) for op in change.ops]
    values = [(name, value) for name, value in after if isinstance(value, str)]
    return notes_on(change.resource.resource_type, values)


def _result(subject: str, refusal: Refusal | None, note: str | None = None) -> SettingResult:
    if refusal is None:
        return SettingResult(subject=subject, note=note)
    return SettingResult(subject=subject, error=refusal[0], message=refusal[1])


def _decide_resource(
    image: MetadataImage,
    change: ConfigChange,
    voters: frozenset[int],
    records: list[Record],
    bounds: GroupBounds,
) -> Refusal | None:
    """Adds the records of one resource, or returns why there are none."""
    resource = change.resource
    refusal = resource_refusal(image, resource, voters) or _ops_refusal(change)
    if refusal is not None:
        return refusal
    before = image.configs.get(resource) or {}
    after = dict(before)
    altered: list[Record] = []
    ops = (*change.ops, *_rest_deleted(change, before))
    for op in ops:
        value = _value_after(resource, op, before.get(op.name))
        if isinstance(value, tuple):
            return value
        problem = min_isr_problem(image, resource, op.name, value)
        if problem is not None:
            return ErrorCode.INVALID_CONFIG, problem
        # Brokers get the same value again: a key store may have changed in place (KAFKA-14136).
        if value != before.get(op.name) or resource.resource_type == BROKER_RESOURCE:
            altered.append(
                ConfigRecord(
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                    name=op.name,
                    value=value,
                )
            )
        if value is None:
            after.pop(op.name, None)
        else:
            after[op.name] = value
    try:
        check_values(resource, after, [op.name for op in ops], bounds)
    except MatchError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    except ConfigValueError as error:
        # Kafka uses another code for brokers and client metrics.
        is_other = resource.resource_type in (BROKER_RESOURCE, CLIENT_METRICS_RESOURCE)
        return ErrorCode.INVALID_REQUEST if is_other else ErrorCode.INVALID_CONFIG, str(error)
    records += altered
    return None


def _rest_deleted(change: ConfigChange, before: Mapping[str, str]) -> tuple[ConfigOp, ...]:
    """The keys that a replacing change leaves out, except the cluster's memory of broker ids."""
    if not change.replaces:
        return ()
    named = {op.name for op in change.ops}
    return tuple(
        ConfigOp(kind=OpKind.DELETE, name=name)
        for name in before
        if name not in named and not is_id_memory(name)
    )


def resource_refusal(
    image: MetadataImage, resource: ConfigResource, voters: frozenset[int]
) -> Refusal | None:
    """Why this resource cannot be configured; None if it can."""
    if not resource.name and resource.resource_type in _NAMELESS:
        return ErrorCode.INVALID_REQUEST, _NAMELESS[resource.resource_type]
    match resource.resource_type:
        case 2:
            problem = name_problem(resource.name)
            if problem is not None:
                return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
            if image.topics.topic_named(resource.name) is None:
                text = f"there is no topic {resource.name}: list the topics to see which exist"
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text
            return None
        case 4:
            return _broker_refusal(image, resource.name, voters)
        case 16 | 32:
            return None
        case other:
            text = f"resource type {other} has no configuration: use topic, broker, client-metrics or group"
            return ErrorCode.INVALID_REQUEST, text


def _broker_refusal(image: MetadataImage, name: str, voters: frozenset[int]) -> Refusal | None:
    if not name:
        return None
    number = whole_number(name, _MAX_BROKER_ID)
    if number is None or str(number) != name:
        return ErrorCode.INVALID_REQUEST, f"{name!r} is not a broker id: write a whole number of 0 or more"
    if number not in image.brokers and number not in voters and number not in image.controllers:
        text = f"broker {name} is not registered: list the registered brokers"
        return ErrorCode.BROKER_ID_NOT_REGISTERED, text
    return None


def _ops_refusal(change: ConfigChange) -> Refusal | None:
    twice = repeated(op.name for op in change.ops)
    for op in change.ops:
        if not op.name:
            return ErrorCode.INVALID_REQUEST, "a configuration key has no name: give one"
        if op.name in twice:
            return ErrorCode.INVALID_REQUEST, f"{op.name} is named twice for one resource: name it once"
        if op.value is None and op.kind is not OpKind.DELETE:
            return ErrorCode.INVALID_REQUEST, f"{op.name} has no value: give one, or delete the key"
    return None


def _value_after(resource: ConfigResource, op: ConfigOp, before: str | None) -> str | Refusal | None:
    """The key's value after one change; None if it is not set."""
    match op.kind:
        case OpKind.SET:
            return op.value
        case OpKind.DELETE:
            return None
        case OpKind.APPEND | OpKind.SUBTRACT:
            if not splits_as_list(resource, op.name):
                verb = "append to" if op.kind is OpKind.APPEND else "subtract from"
                text = f"{op.name} is not a list: set it instead of trying to {verb} it"
                return ErrorCode.INVALID_CONFIG, text
            key = key_of(resource.resource_type, op.name)
            parts = split_parts(before if before is not None or key is None else key.default_text)
            for part in (op.value or "").split(","):
                if op.kind is OpKind.APPEND and part not in parts:
                    parts.append(part)
                elif op.kind is OpKind.SUBTRACT and part in parts:
                    parts.remove(part)
            return ",".join(parts)


def decide_settings(  # noqa: PLR0911
    image: MetadataImage,
    request: settings.SettingsRequest,
    config: ControllerConfig,
    *,
    voters: frozenset[int],
    kraft_version: int,
    wall_ms: int,
    new_id: Callable[[], bytes],
    brokers_min_isr: Mapping[int, int] | None = None,
) -> ControllerResult:
    """The decision on one request. `wall_ms` is Unix time, `voters` are the ids of all controllers,
    `brokers_min_isr` has min.insync.replicas of the files of the brokers that were heard."""
    match request:
        case settings.AlterConfigsRequest():
            return decide_alter_configs(image, request, config, voters=voters)
        case settings.UpdateFeaturesRequest():
            return decide_update_features(
                image,
                request,
                node_id=config.node_id,
                voters=voters,
                min_isr=MinIsrInFiles(config.min_insync_replicas, brokers_min_isr),
            )
        case settings.CreateAclsRequest():
            return decide_create_acls(image, request, config, new_id=new_id)
        case settings.DeleteAclsRequest():
            return decide_delete_acls(image, request, config)
        case settings.AlterScramRequest():
            return decide_alter_scram(image, request)
        case settings.AlterQuotasRequest():
            return decide_alter_quotas(image, request, config)
        case settings.CreateTokenRequest():
            return decide_create_token(image, request, config, new_id=new_id(), wall_ms=wall_ms)
        case settings.RenewTokenRequest():
            return decide_renew_token(image, request, config, wall_ms=wall_ms)
        case settings.ExpireTokenRequest():
            return decide_expire_token(image, request, config, wall_ms=wall_ms)
        case settings.AllocateProducerIdsRequest():
            return decide_allocate_producer_ids(image, request)
        case settings.RegisterControllerRequest():
            static = voters if kraft_version == 0 else None
            return decide_register_controller(image, request, static_voters=static)
        case _:
            assert_never(request)


# Decisions on client quotas (KIP-546): set and remove, with one result per entity of a request.


def decide_alter_quotas(
    image: MetadataImage, request: settings.AlterQuotasRequest, config: ControllerConfig
) -> ControllerResult:
    """An entity changes as a whole or not at all."""
    records: list[Record] = []
    results: list[settings.SettingResult] = []
    seen: set[QuotaEntity] = set()
    for change in request.changes:
        problem = entity_problem(change.entity)
        entity = sorted_entity(dict(change.entity))
        if problem is None and entity in seen:
            problem = f"{entity_title(entity)} is named twice in one request: name it once"
        seen.add(entity)
        outcome = problem or _records(image, entity, change)
        if isinstance(outcome, str):
            results.append(
                settings.SettingResult(
                    subject=entity_title(entity), error=ErrorCode.INVALID_REQUEST, message=outcome
                )
            )
            continue
        results.append(settings.SettingResult(subject=entity_title(entity)))
        records += outcome
    if len(records) > config.records_per_request_max:
        text = f"the request would write more than {config.records_per_request_max} records: split it"
        refused = tuple(
            settings.SettingResult(subject=result.subject, error=ErrorCode.POLICY_VIOLATION, message=text)
            for result in results
        )
        return ControllerResult(response=settings.SettingsResponse(results=refused), depends_on_image=False)
    response = settings.SettingsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else tuple(records))


def _records(image: MetadataImage, entity: QuotaEntity, change: settings.QuotaChange) -> list[Record] | str:
    """The records of one entity, or why it is refused. Values that are already set are not written again."""
    before = image.quotas.get(entity) or {}
    twice = repeated(op.key for op in change.ops)
    parts = tuple(EntityPart(kind, name) for kind, name in entity)
    records: list[Record] = []
    for op in change.ops:
        if op.key in twice:
            return f"{op.key} is named twice for one entity: name it once"
        if op.value is None:
            if op.key in before:
                records.append(ClientQuotaRecord(entity=parts, key=op.key, value=0.0, remove=True))
            continue
        problem = value_problem(entity, op.key, op.value)
        if problem is not None:
            return problem
        if before.get(op.key) != op.value:
            records.append(ClientQuotaRecord(entity=parts, key=op.key, value=op.value, remove=False))
    return records


# Decisions on producer ids (KIP-730): each block goes to one broker and is never given again.

BLOCK_SIZE = 1000
"""Ids per block, as in Kafka."""

MAX_ID = 2**63 - 1


def decide_allocate_producer_ids(
    image: MetadataImage, request: settings.AllocateProducerIdsRequest
) -> ControllerResult:
    """Only a registered broker in its current epoch gets a block."""
    refusal = epoch_refusal(image.brokers, request.broker_id, request.broker_epoch)
    if refusal is not None:
        return ControllerResult(response=refusal, depends_on_broker=request.broker_id)
    first_id = max(image.producer_ids.next_producer_id, 0)
    if first_id > MAX_ID - BLOCK_SIZE:
        text = f"all producer ids up to {MAX_ID} are allocated: do not retry"
        return ControllerResult(response=ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first_id + BLOCK_SIZE,
    )
    response = settings.AllocateProducerIdsResponse(first_id=first_id, count=BLOCK_SIZE)
    return ControllerResult(response=response, records=(record,))
