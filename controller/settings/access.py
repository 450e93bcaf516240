"""Decisions on access: delegation tokens (KIP-48, KIP-900), access control entries, SCRAM credentials
(KIP-554).

The requester's name is trusted: there is no authentication here.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from metaquorum.controller.features import LEVEL_DELEGATION_TOKENS, LEVEL_SCRAM
from metaquorum.controller.result import ControllerResult, repeated
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import Acl, DelegationToken, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    Record,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
)
from metaquorum.metadata.requests.settings import (
    AlterScramRequest,
    CreateAclsRequest,
    CreateTokenRequest,
    CreateTokenResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    ExpireTokenRequest,
    RenewTokenRequest,
    ScramDeletion,
    ScramUpsertion,
    SettingResult,
    SettingsResponse,
    TokenExpiryResponse,
)
from metaquorum.metadata.settings.acls import AclsByName, acl_problem, filter_problem
from metaquorum.metadata.settings.scram import MAX_ITERATIONS, MIN_ITERATIONS, Mechanism, credential_record

USER_PREFIX = "User:"
COMPARED_MAX = 1_000_000
"""How many entries the filters of one request are compared with: some tenths of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSecret:
    """The key that all controllers share."""

    key: str = field(repr=False)

    def hmac_of(self, token_id: str) -> bytes:
        """HMAC-SHA512, as Kafka makes it."""
        return hmac.digest(self.key.encode(), token_id.encode(), "sha512")


def decide_create_token(
    image: MetadataImage,
    request: CreateTokenRequest,
    config: ControllerConfig,
    *,
    new_id: bytes,
    wall_ms: int,
) -> ControllerResult:
    """`new_id`: 16 random bytes; `wall_ms`: Unix time."""
    secret = _secret(image, config)
    if isinstance(secret, ApiError):
        return ControllerResult(response=secret)
    owner = request.owner or request.requester
    for principal in (owner, request.requester, *request.renewers):
        if not principal.startswith(USER_PREFIX) or principal == USER_PREFIX:
            text = f"{principal!r} is not a user: write User:name"
            return ControllerResult(response=ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE, text))
    lifetime_ms = config.delegation_token_max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token_id = base64.urlsafe_b64encode(new_id).rstrip(b"=").decode()
    max_timestamp_ms = wall_ms + lifetime_ms
    expires_ms = min(max_timestamp_ms, wall_ms + config.delegation_token_expiry_time_ms)
    record = DelegationTokenRecord(
        owner=owner,
        requester=request.requester,
        renewers=request.renewers,
        issue_timestamp=wall_ms,
        max_timestamp=max_timestamp_ms,
        expiration_timestamp=expires_ms,
        token_id=token_id,
    )
    response = CreateTokenResponse(
        token_id=token_id,
        hmac=secret.hmac_of(token_id),
        owner=owner,
        requester=request.requester,
        issue_timestamp_ms=wall_ms,
        expiration_timestamp_ms=expires_ms,
        max_timestamp_ms=max_timestamp_ms,
    )
    return ControllerResult(response=response, records=(record,))


def decide_renew_token(
    image: MetadataImage, request: RenewTokenRequest, config: ControllerConfig, *, wall_ms: int
) -> ControllerResult:
    """Never beyond the token's maximum lifetime."""
    token = _usable(image, request, config, wall_ms)
    if isinstance(token, ApiError):
        return ControllerResult(response=token)
    period_ms = config.delegation_token_expiry_time_ms
    if request.period_ms is not None and request.period_ms > 0:
        period_ms = min(period_ms, request.period_ms)
    return _expires_at(token, min(token.max_timestamp_ms, wall_ms + period_ms))


def decide_expire_token(
    image: MetadataImage, request: ExpireTokenRequest, config: ControllerConfig, *, wall_ms: int
) -> ControllerResult:
    """At once, or after a time that may be shorter or longer than the remaining one."""
    token = _usable(image, request, config, wall_ms)
    if isinstance(token, ApiError):
        return ControllerResult(response=token)
    if request.period_ms is None or request.period_ms < 0:
        record = RemoveDelegationTokenRecord(token_id=token.token_id)
        return ControllerResult(response=TokenExpiryResponse(expiration_timestamp_ms=None), records=(record,))
    return _expires_at(token, min(token.max_timestamp_ms, wall_ms + request.period_ms))


def expired_tokens(image: MetadataImage, wall_ms: int, limit: int) -> tuple[Record, ...]:
    """Records that remove tokens expired at `wall_ms`, at most `limit` of them."""
    return tuple(
        [
            RemoveDelegationTokenRecord(token_id=token_id)
            for token_id, token in image.delegation_tokens.items_sorted()
            if _is_over(token, wall_ms)
        ][:limit]
    )


def _is_over(token: DelegationToken, wall_ms: int) -> bool:
    return token.max_timestamp_ms < wall_ms or token.expiration_timestamp_ms < wall_ms


def _expires_at(token: DelegationToken, expires_ms: int) -> ControllerResult:
    record = DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp=token.issue_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        expiration_timestamp=expires_ms,
        token_id=token.token_id,
    )
    response = TokenExpiryResponse(expiration_timestamp_ms=expires_ms)
    return ControllerResult(response=response, records=(record,))


def _secret(image: MetadataImage, config: ControllerConfig) -> TokenSecret | ApiError:
    if config.delegation_token_secret_key is None:
        text = "delegation tokens are disabled: set delegation.token.secret.key on every controller"
        return ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, text)
    if image.features.metadata_version < LEVEL_DELEGATION_TOKENS:
        text = (
            "the cluster's metadata.version does not support delegation tokens: raise it to 3.6-IV2 or above"
        )
        return ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    return TokenSecret(key=config.delegation_token_secret_key)


def _usable(
    image: MetadataImage,
    request: RenewTokenRequest | ExpireTokenRequest,
    config: ControllerConfig,
    wall_ms: int,
) -> DelegationToken | ApiError:
    """The token whose HMAC the request has, if the requester may change it."""
    secret = _secret(image, config)
    if isinstance(secret, ApiError):
        return secret
    token = next(
        (
            each
            for each in image.delegation_tokens.values_unordered()
            if hmac.compare_digest(secret.hmac_of(each.token_id), request.hmac)
        ),
        None,
    )
    if token is None:
        text = "no token has this HMAC: it was removed, or the HMAC is wrong; list the tokens"
        return ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, text)
    if _is_over(token, wall_ms):
        return ApiError(
            ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {token.token_id} has expired: create a new one"
        )
    if request.requester != token.owner and request.requester not in token.renewers:
        text = f"{request.requester} neither owns nor may renew token {token.token_id}: ask {token.owner}"
        return ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, text)
    return token


# Decisions on access control entries: add and remove, with one result per entry and per filter.


def decide_create_acls(
    image: MetadataImage, request: CreateAclsRequest, config: ControllerConfig, *, new_id: Callable[[], bytes]
) -> ControllerResult:
    """An entry that exists, or that the request names twice, is written once."""
    present = set(image.acls.values_unordered())
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
        if acl not in present:
            present.add(acl)
            records.append(_acl_record(_unused(image, new_id), acl))
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


def _acl_record(acl_id: bytes, acl: Acl) -> AccessControlEntryRecord:
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
    acls, compared = AclsByName(image), 0
    for wanted in request.filters:
        problem = filter_problem(wanted)
        if problem is not None:
            results.append(DeletedAcls(error=ErrorCode.INVALID_REQUEST, message=problem))
            continue
        candidates = acls.candidates(wanted)
        compared += len(candidates)
        if compared > COMPARED_MAX and len(request.filters) > 1:
            text = f"the filters are compared with over {COMPARED_MAX} entries: split the request"
            return ControllerResult(response=_none_deleted(request, text), depends_on_image=False)
        found = [(acl_id, acl) for acl_id, acl in candidates if wanted.matches(acl)]
        doomed.update(dict.fromkeys(acl_id for acl_id, _ in found))
        results.append(DeletedAcls(acls=tuple(acl for _, acl in found)))
    if len(doomed) > config.records_per_request_max:
        text = _too_many(config.records_per_request_max)
        return ControllerResult(response=_none_deleted(request, text))
    records = () if request.validate_only else tuple(RemoveAccessControlEntryRecord(id=at) for at in doomed)
    return ControllerResult(response=DeleteAclsResponse(results=tuple(results)), records=records)


def _none_deleted(request: DeleteAclsRequest, text: str) -> DeleteAclsResponse:
    refused = DeletedAcls(error=ErrorCode.POLICY_VIOLATION, message=text)
    return DeleteAclsResponse(results=(refused,) * len(request.filters))


def _too_many(records_max: int) -> str:
    return f"the request would write more than {records_max} records: split it into several requests"


# Decisions on SCRAM credentials (KIP-554, KIP-900), with one result per user of a request.

Refusal = tuple[ErrorCode, str]


def decide_alter_scram(image: MetadataImage, request: AlterScramRequest) -> ControllerResult:
    """A user that a request names twice is left alone, as in Kafka, whatever the mechanisms."""
    changes: tuple[ScramDeletion | ScramUpsertion, ...] = (*request.deletions, *request.upsertions)
    twice = repeated(change.user for change in changes)
    records: list[Record] = []
    results: list[SettingResult] = []
    for user, change in {change.user: change for change in changes}.items():
        refusal = _refusal(image, change)
        if user in twice:
            text = f"user {user} is changed twice in one request: send one request per mechanism"
            refusal = (ErrorCode.DUPLICATE_RESOURCE, text)
        if refusal is not None:
            results.append(SettingResult(subject=user, error=refusal[0], message=refusal[1]))
            continue
        results.append(SettingResult(subject=user))
        records.append(_scram_record(change))
    return ControllerResult(response=SettingsResponse(results=tuple(results)), records=tuple(records))


def _refusal(image: MetadataImage, change: ScramDeletion | ScramUpsertion) -> Refusal | None:
    if image.features.metadata_version < LEVEL_SCRAM:
        text = (
            "the cluster's metadata.version does not support SCRAM credentials: raise it to 3.5-IV2 or above"
        )
        return ErrorCode.UNSUPPORTED_VERSION, text
    if not change.user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user has no name: give one"
    if change.mechanism not in set(Mechanism):
        known = ", ".join(mechanism.title for mechanism in Mechanism)
        text = f"there is no SCRAM mechanism {change.mechanism}: use {known}"
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, text
    if isinstance(change, ScramDeletion):
        if (change.mechanism, change.user) in image.scram:
            return None
        title = Mechanism(change.mechanism).title
        text = f"user {change.user} has no credential for {title}: list the users to see their mechanisms"
        return ErrorCode.RESOURCE_NOT_FOUND, text
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        text = f"{change.iterations} iterations are not allowed: give {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, text
    if not change.salt or not change.salted_password:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt or the salted password is empty: send both"
    return None


def _scram_record(change: ScramDeletion | ScramUpsertion) -> Record:
    if isinstance(change, ScramDeletion):
        return RemoveUserScramCredentialRecord(name=change.user, mechanism=change.mechanism)
    mechanism = Mechanism(change.mechanism)
    return credential_record(change.user, mechanism, change.salted_password, change.salt, change.iterations)
