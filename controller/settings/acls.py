"""Decisions on access control entries: add and remove, with one result per entry and per filter.

Owns the records and their limit. Does not decide what an entry permits: `metadata.access` does.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, MetadataImage
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.types import AccessControlEntryRecord, Record, RemoveAccessControlEntryRecord
from metaquorum.metadata.requests.settings import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    SettingResult,
    SettingsResponse,
)
from metaquorum.metadata.settings.acls import acl_problem, filter_problem, list_acls


def decide_create_acls(
    image: MetadataImage, request: CreateAclsRequest, config: ControllerConfig, *, new_id: Callable[[], bytes]
) -> ControllerResult:
    """An entry that exists, or that the request names twice, is written once."""
    known = set(image.acls.values_unordered())
    records: list[Record] = []
    results: list[SettingResult] = []
    for acl in request.acls:
        problem = acl_problem(acl)
        if problem is not None:
            results.append(
                SettingResult(subject=acl.principal or "?", error=ErrorCode.INVALID_REQUEST, message=problem)
            )
            continue
        results.append(SettingResult(subject=acl.principal))
        if acl not in known:
            known.add(acl)
            records.append(_record(_unused(image, new_id), acl))
    if len(records) > config.records_per_request_max:
        text = _too_many(config.records_per_request_max)
        refused = tuple(
            SettingResult(subject=acl.principal, error=ErrorCode.POLICY_VIOLATION, message=text)
            for acl in request.acls
        )
        return ControllerResult(response=SettingsResponse(results=refused), depends_on_image=False)
    return ControllerResult(response=SettingsResponse(results=tuple(results)), records=tuple(records))


def _unused(image: MetadataImage, new_id: Callable[[], bytes]) -> bytes:
    while True:
        found = new_id()
        if found not in image.acls:
            return found


def _record(acl_id: bytes, acl: Acl) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def decide_delete_acls(
    image: MetadataImage, request: DeleteAclsRequest, config: ControllerConfig
) -> ControllerResult:
    """Every entry that a filter matches is removed once, and named by each filter that matches it."""
    doomed: dict[bytes, None] = {}
    results: list[DeletedAcls] = []
    for wanted in request.filters:
        problem = filter_problem(wanted)
        if problem is not None:
            results.append(DeletedAcls(error=ErrorCode.INVALID_REQUEST, message=problem))
            continue
        found = list_acls(image, wanted)
        doomed.update(dict.fromkeys(acl_id for acl_id, _ in found))
        results.append(DeletedAcls(acls=tuple(acl for _, acl in found)))
    if len(doomed) > config.records_per_request_max:
        text = _too_many(config.records_per_request_max)
        refused = tuple(DeletedAcls(error=ErrorCode.POLICY_VIOLATION, message=text) for _ in request.filters)
        return ControllerResult(response=DeleteAclsResponse(results=refused))
    records = () if request.validate_only else tuple(RemoveAccessControlEntryRecord(id=at) for at in doomed)
    return ControllerResult(response=DeleteAclsResponse(results=tuple(results)), records=records)


def _too_many(records_max: int) -> str:
    return f"the request would write more than {records_max} records: split it into several requests"
