"""CreateAcls, DeleteAcls, AlterUserScramCredentials and AlterClientQuotas."""

from __future__ import annotations

from metaquorum.clients.acl_fields import CREATION, ENTRY, FILTER, entry, from_message, in_message
from metaquorum.listeners.access.special import OwnedTokens
from metaquorum.listeners.access.steps import each_of_cluster
from metaquorum.listeners.forwarded.api import Call, Parts, answers
from metaquorum.metadata.authorizer import ANONYMOUS, type_and_name
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import DelegationToken
from metaquorum.metadata.requests import settings as core
from metaquorum.metadata.requests.common import ReadImageRequest, ReadImageResponse
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
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


# Delegation tokens (KIP-48): create, renew, expire and describe, for clients that authenticated.

_NOT_ALLOWED = ApiError(
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    "tokens are for authenticated clients: log in with a password",
)
_DISABLED = ApiError(
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    "delegation tokens are disabled: set delegation.token.secret.key on every controller",
)


def _may_ask(call: Call) -> bool:
    """True if the client may request tokens: as in Kafka, not if it logged in with one."""
    return call.principal != ANONYMOUS and not call.by_token


@answers("CreateDelegationToken", OwnedTokens())
async def create_delegation_token(
    body: CreateDelegationTokenRequest, call: Call
) -> CreateDelegationTokenResponse:
    owner = f"{body.owner_principal_type}:{body.owner_principal_name}" if body.owner_principal_name else None
    request = core.CreateTokenRequest(
        requester=call.principal,
        owner=owner,
        renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in body.renewers),
        max_lifetime_ms=body.max_lifetime_ms,
    )
    answer: core.CreateTokenResponse | ApiError = _NOT_ALLOWED
    if _may_ask(call):
        answer = await call.answer(request, core.CreateTokenResponse)
    shown, requester = type_and_name(owner or call.principal), type_and_name(call.principal)
    if isinstance(answer, ApiError):
        return CreateDelegationTokenResponse(
            error_code=answer.code,
            principal_type=shown[0],
            principal_name=shown[1],
            token_requester_principal_type=requester[0] if call.version >= 3 else "",
            token_requester_principal_name=requester[1] if call.version >= 3 else "",
            issue_timestamp_ms=-1,
            expiry_timestamp_ms=-1,
            max_timestamp_ms=-1,
        )
    return CreateDelegationTokenResponse(
        principal_type=shown[0],
        principal_name=shown[1],
        token_requester_principal_type=requester[0] if call.version >= 3 else "",
        token_requester_principal_name=requester[1] if call.version >= 3 else "",
        issue_timestamp_ms=answer.issue_timestamp_ms,
        expiry_timestamp_ms=answer.expiration_timestamp_ms,
        max_timestamp_ms=answer.max_timestamp_ms,
        token_id=answer.token_id,
        hmac=answer.hmac,
    )


@answers("RenewDelegationToken")
async def renew_delegation_token(
    body: RenewDelegationTokenRequest, call: Call
) -> RenewDelegationTokenResponse:
    period_ms = body.renew_period_ms if body.renew_period_ms >= 0 else None
    code, expiry_ms = await _expiry(
        core.RenewTokenRequest(requester=call.principal, hmac=bytes(body.hmac), period_ms=period_ms), call
    )
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expiry_ms)


@answers("ExpireDelegationToken")
async def expire_delegation_token(
    body: ExpireDelegationTokenRequest, call: Call
) -> ExpireDelegationTokenResponse:
    period_ms = body.expiry_time_period_ms if body.expiry_time_period_ms >= 0 else None
    code, expiry_ms = await _expiry(
        core.ExpireTokenRequest(requester=call.principal, hmac=bytes(body.hmac), period_ms=period_ms), call
    )
    if code == ErrorCode.NONE and period_ms is None:
        expiry_ms = body.expiry_time_period_ms  # as in Kafka: the token no longer exists and has no expiry
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expiry_ms)


async def _expiry(request: core.RenewTokenRequest | core.ExpireTokenRequest, call: Call) -> tuple[int, int]:
    """The error code, and the Unix time in ms at which the token expires; for a token that was removed,
    now."""
    answer: core.TokenExpiryResponse | ApiError = _NOT_ALLOWED
    if _may_ask(call):
        answer = await call.answer(request, core.TokenExpiryResponse)
    if isinstance(answer, ApiError):
        return answer.code, -1
    expiry_ms = answer.expiration_timestamp_ms
    return ErrorCode.NONE, call.wall_ms if expiry_ms is None else expiry_ms


@answers("DescribeDelegationToken")
async def describe_delegation_token(
    body: DescribeDelegationTokenRequest, call: Call
) -> DescribeDelegationTokenResponse:
    """The tokens of these owners that the caller owns, requested, or may renew."""
    read: ReadImageResponse | ApiError = _NOT_ALLOWED
    if _may_ask(call):
        read = await call.answer(ReadImageRequest(), ReadImageResponse)
        read = _DISABLED if call.token_hmac is None and not isinstance(read, ApiError) else read
    if isinstance(read, ApiError) or call.token_hmac is None:
        code = read.code if isinstance(read, ApiError) else _DISABLED.code
        return DescribeDelegationTokenResponse(error_code=code)
    owners = None
    if body.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in body.owners}
    return DescribeDelegationTokenResponse(
        tokens=tuple(
            _described(token, call.token_hmac(token.token_id), call.version)
            for _, token in read.image.delegation_tokens.items_sorted()
            if (owners is None or token.owner in owners)
            and call.principal in {token.owner, token.requester, *token.renewers}
        )
    )


def _described(
    token: DelegationToken, hmac: bytes, version: int
) -> DescribeDelegationTokenResponse.DescribedDelegationToken:
    owner, requester = type_and_name(token.owner), type_and_name(token.requester)
    return DescribeDelegationTokenResponse.DescribedDelegationToken(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0] if version >= 3 else "",
        token_requester_principal_name=requester[1] if version >= 3 else "",
        issue_timestamp=token.issue_timestamp_ms,
        expiry_timestamp=token.expiration_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=tuple(
            DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer(
                principal_type=type_and_name(each)[0], principal_name=type_and_name(each)[1]
            )
            for each in token.renewers
        ),
    )
