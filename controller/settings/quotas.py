"""Decisions on client quotas (KIP-546): set and remove, with one result per entity of a request.

Owns the records. Does not know which entities and values are valid (`metadata.settings.quotas`), and applies
no quota.
"""

from __future__ import annotations

from metaquorum.controller.request_checks import repeated
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage, QuotaEntity
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.parts import QuotaEntity as EntityPart
from metaquorum.metadata.records.types import ClientQuotaRecord, Record
from metaquorum.metadata.requests.settings import (
    AlterQuotasRequest,
    QuotaChange,
    SettingResult,
    SettingsResponse,
)
from metaquorum.metadata.settings.quotas import entity_problem, entity_title, sorted_entity, value_problem


def decide_alter_quotas(
    image: MetadataImage, request: AlterQuotasRequest, config: ControllerConfig
) -> ControllerResult:
    """An entity changes as a whole or not at all."""
    records: list[Record] = []
    results: list[SettingResult] = []
    seen: set[QuotaEntity] = set()
    for change in request.changes:
        problem = entity_problem(change.entity)
        entity = sorted_entity(dict(change.entity))
        if problem is None and entity in seen:
            problem = f"{entity_title(entity)} is named twice in one request: name it once"
        seen.add(entity)
        found = problem or _records(image, entity, change)
        if isinstance(found, str):
            results.append(
                SettingResult(subject=entity_title(entity), error=ErrorCode.INVALID_REQUEST, message=found)
            )
            continue
        results.append(SettingResult(subject=entity_title(entity)))
        records += found
    if len(records) > config.records_per_request_max:
        text = f"the request would write more than {config.records_per_request_max} records: split it"
        refused = tuple(
            SettingResult(subject=result.subject, error=ErrorCode.POLICY_VIOLATION, message=text)
            for result in results
        )
        return ControllerResult(response=SettingsResponse(results=refused), depends_on_image=False)
    response = SettingsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else tuple(records))


def _records(image: MetadataImage, entity: QuotaEntity, change: QuotaChange) -> list[Record] | str:
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
