"""Maps a request about settings to the decision on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from metaquorum.controller.brokers.brokers import decide_register_controller
from metaquorum.controller.partitions.rules import MinIsrInFiles
from metaquorum.controller.result import ControllerResult, epoch_refusal, repeated
from metaquorum.controller.settings.access import (
    decide_alter_scram,
    decide_create_acls,
    decide_create_token,
    decide_delete_acls,
    decide_expire_token,
    decide_renew_token,
)
from metaquorum.controller.settings.configs import decide_alter_configs
from metaquorum.controller.settings.feature_levels import decide_update_features
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage, QuotaEntity
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.types import ClientQuotaRecord, ProducerIdsRecord, Record
from metaquorum.metadata.records.types import QuotaEntity as EntityPart
from metaquorum.metadata.requests import settings
from metaquorum.metadata.settings.quotas import entity_problem, entity_title, sorted_entity, value_problem


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
