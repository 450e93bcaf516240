"""CreateAcls, DeleteAcls, AlterUserScramCredentials and AlterClientQuotas."""

from __future__ import annotations

from metaquorum.clients.acl_fields import CREATION, ENTRY, FILTER, entry, from_message, in_message
from metaquorum.listeners.access.steps import each_of_cluster
from metaquorum.listeners.forwarded.api import answers
from metaquorum.listeners.forwarded.call import Call, Parts
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests import settings as core
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
)


@answers(
    "CreateAcls",
    each_of_cluster(Op.ALTER, "creations", "results"),
    things=((("creations", "results"),),),
)
async def create_acls(body: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    acls = tuple(entry(each, CREATION) for each in body.creations)
    answer = await call.answer(core.CreateAclsRequest(acls=acls), core.SettingsResponse)
    results = answer if isinstance(answer, ApiError) else answer.results
    return CreateAclsResponse(
        results=tuple(
            CreateAclsResponse.AclCreationResult(error_code=code, error_message=message or "")
            for _, (code, message), _ in Parts((acl, None) for acl in acls).settled(results)
        )
    )


def acl_filter(asked: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    """The filter in a request; null matches any value of a field."""
    return AclFilter(**from_message(asked, FILTER))


@answers(
    "DeleteAcls",
    each_of_cluster(Op.ALTER, "filters", "filter_results"),
    things=((("filters", "filter_results"),),),
)
async def delete_acls(body: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    filters = tuple(map(acl_filter, body.filters))
    answer = await call.answer(core.DeleteAclsRequest(filters=filters), core.DeleteAclsResponse)
    results = answer if isinstance(answer, ApiError) else answer.results
    Deleted = DeleteAclsResponse.DeleteAclsMatchingAcl
    return DeleteAclsResponse(
        filter_results=tuple(
            DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=code,
                error_message=message,
                matching_acls=tuple(
                    Deleted(error_message=None, **in_message(acl, ENTRY))
                    for acl in (() if result is None else result.acls)
                ),
            )
            for _, (code, message), result in Parts((each, None) for each in filters).settled(results)
        )
    )


@answers(
    "AlterUserScramCredentials",
    each_of_cluster(Op.ALTER, "deletions", "results"),
    each_of_cluster(Op.ALTER, "upsertions", "results"),
    things=((("deletions", "results"),), (("upsertions", "results"),)),
)
async def alter_user_scram_credentials(
    body: AlterUserScramCredentialsRequest, call: Call
) -> AlterUserScramCredentialsResponse:
    request = core.AlterScramRequest(
        deletions=tuple(
            core.ScramDeletion(user=each.name, mechanism=each.mechanism) for each in body.deletions
        ),
        upsertions=tuple(
            core.ScramUpsertion(
                user=upsertion.name,
                mechanism=upsertion.mechanism,
                iterations=upsertion.iterations,
                salt=bytes(upsertion.salt),
                salted_password=bytes(upsertion.salted_password),
            )
            for upsertion in body.upsertions
        ),
    )
    changes: tuple[core.ScramDeletion | core.ScramUpsertion, ...] = (*request.deletions, *request.upsertions)
    users = dict.fromkeys(each.user for each in changes)
    answer = await call.answer(request, core.SettingsResponse)
    results = answer if isinstance(answer, ApiError) else answer.results
    return AlterUserScramCredentialsResponse(
        results=tuple(
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=user, error_code=code, error_message=message
            )
            for user, (code, message), _ in Parts((user, None) for user in users).settled(results)
        )
    )


@answers(
    "AlterClientQuotas",
    each_of_cluster(Op.ALTER_CONFIGS, "entries", "entries"),
    things=((("entries", "entries"), ("ops", "")),),
)
async def alter_client_quotas(body: AlterClientQuotasRequest, call: Call) -> AlterClientQuotasResponse:
    changes = tuple(
        core.QuotaChange(
            entity=tuple((part.entity_type, part.entity_name) for part in entry.entity),
            ops=tuple(
                core.QuotaOp(key=each.key, value=None if each.remove else each.value) for each in entry.ops
            ),
        )
        for entry in body.entries
    )
    request = core.AlterQuotasRequest(changes=changes, validate_only=body.validate_only)
    answer = await call.answer(request, core.SettingsResponse)
    results = answer if isinstance(answer, ApiError) else answer.results
    return AlterClientQuotasResponse(
        entries=tuple(
            AlterClientQuotasResponse.EntryData(
                error_code=code,
                error_message=message,
                entity=tuple(
                    AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in change.entity
                ),
            )
            for change, (code, message), _ in Parts((each, None) for each in changes).settled(results)
        )
    )
