"""Calls about access: access control entries, SCRAM credentials, quotas, delegation tokens (KIP-48,
KIP-373)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

from metaquorum.clients.acl_fields import (
    CREATION,
    FILTER,
    RESOURCE,
    RIGHT,
    entry,
    from_message,
    in_message,
)
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.authorizer import type_and_name
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, DelegationToken, QuotaEntity, quota_sort_key
from metaquorum.metadata.requests.settings import CreateTokenResponse, DeletedAcls, QuotaChange, SettingResult
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.quotas import QuotaFilter, entity_title, sorted_entity
from metaquorum.metadata.settings.scram import SALT_BYTES, Mechanism, UserCredentials, salted_password
from metaquorum.wire.messages import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

_EXACT, _DEFAULT, _ANY = 0, 1, 2


async def create_acls(client: KafkaClient, acls: Sequence[Acl]) -> tuple[SettingResult, ...]:
    """Creates entries; one result per entry. An entry that exists already is not an error."""
    body = CreateAclsRequest(
        creations=tuple(CreateAclsRequest.AclCreation(**in_message(each, CREATION)) for each in acls)
    )
    answer = await client.ask(body, lowest=1)
    return tuple(_result(acl.principal, each) for acl, each in zip(acls, answer.results, strict=True))


async def list_acls(client: KafkaClient, wanted: AclFilter) -> tuple[Acl, ...]:
    """The entries that match a filter. Raises ApiError."""
    answer = await client.ask(DescribeAclsRequest(**in_message(wanted, FILTER)), lowest=1)
    client.refuse(answer.error_code, answer.error_message)
    return tuple(
        Acl(**from_message(on, RESOURCE), **from_message(each, RIGHT))
        for on in answer.resources
        for each in on.acls
    )


async def delete_acls(client: KafkaClient, wanted: AclFilter) -> DeletedAcls:
    """Deletes the entries that match a filter; returns them."""
    body = DeleteAclsRequest(filters=(DeleteAclsRequest.DeleteAclsFilter(**in_message(wanted, FILTER)),))
    (answer,) = (await client.ask(body, lowest=1)).filter_results
    refused = next((each for each in answer.matching_acls if each.error_code), answer)
    return DeletedAcls(
        error=ErrorCode.of(refused.error_code),
        message=refused.error_message,
        acls=tuple(entry(each) for each in answer.matching_acls if not each.error_code),
    )


async def set_scram(
    client: KafkaClient, user: str, mechanism: Mechanism, password: str, *, iterations: int
) -> SettingResult:
    """Sets a user's credential. The password stays in this process; the salt comes from the operating
    system's random generator."""
    salt = random.SystemRandom().randbytes(SALT_BYTES)
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, password, salt, iterations),
    )
    (answer,) = (await client.ask(AlterUserScramCredentialsRequest(upsertions=(upsertion,)))).results
    return _result(answer.user, answer)


async def delete_scram(client: KafkaClient, user: str, mechanism: Mechanism) -> SettingResult:
    """Deletes one credential of a user."""
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)
    (answer,) = (await client.ask(AlterUserScramCredentialsRequest(deletions=(deletion,)))).results
    return _result(answer.user, answer)


async def describe_users(client: KafkaClient, users: Sequence[str] = ()) -> tuple[UserCredentials, ...]:
    """The users that have credentials, by name; only those in `users` if it is not empty. Raises ApiError."""
    Name = DescribeUserScramCredentialsRequest.UserName
    named = tuple(Name(name=each) for each in users) or None
    answer = await client.ask(DescribeUserScramCredentialsRequest(users=named))
    client.refuse(answer.error_code, answer.error_message)
    described = []
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        client.refuse(result.error_code, result.error_message)
        iterations = tuple(
            (Mechanism(one.mechanism), one.iterations)
            for one in sorted(result.credential_infos, key=lambda one: one.mechanism)
            if one.mechanism in {*Mechanism}
        )
        described.append(UserCredentials(user=result.user, iterations=iterations))
    return tuple(sorted(described, key=lambda each: each.user))


async def alter_quotas(
    client: KafkaClient, change: QuotaChange, *, validate_only: bool = False
) -> SettingResult:
    """Changes the quotas of one entity."""
    Entry = AlterClientQuotasRequest.EntryData
    entry = Entry(
        entity=tuple(
            AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
            for kind, name in change.entity
        ),
        ops=tuple(
            AlterClientQuotasRequest.OpData(key=each.key, value=each.value or 0.0, remove=each.value is None)
            for each in change.ops
        ),
    )
    body = AlterClientQuotasRequest(entries=(entry,), validate_only=validate_only)
    (answer,) = (await client.ask(body)).entries
    return _result(entity_title(sorted_entity(dict(change.entity))), answer)


async def describe_quotas(
    client: KafkaClient, wanted: QuotaFilter
) -> tuple[tuple[QuotaEntity, Mapping[str, float]], ...]:
    """The quotas of the entities that match a filter. Raises ApiError."""
    Part = DescribeClientQuotasRequest.ComponentData
    components = tuple(
        Part(entity_type=kind, match_type=_ANY, match=None)
        if isinstance(name, EllipsisType)
        else Part(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in wanted.parts
    )
    answer = await client.ask(DescribeClientQuotasRequest(components=components, strict=wanted.strict))
    client.refuse(answer.error_code, answer.error_message)
    quotas = [
        (
            sorted_entity({part.entity_type: part.entity_name for part in each.entity}),
            {value.key: value.value for value in sorted(each.values, key=lambda value: value.key)},
        )
        for each in answer.entries or ()
    ]
    return tuple(sorted(quotas, key=lambda each: quota_sort_key(each[0])))


def _result(subject: str, answer: Any) -> SettingResult:
    error = ErrorCode.of(answer.error_code)
    message = None if error is ErrorCode.NONE else answer.error_message
    return SettingResult(subject=subject, error=error, message=message)


_DEFAULT_MS = -1
_WHY = {
    61: "delegation tokens are disabled; set delegation.token.secret.key",
    62: "the token does not exist; list the tokens",
    63: "this principal is neither its owner nor a renewer",
    64: "log in with SASL, and not with a token, to use tokens",
    65: "this principal may not do this with tokens",
    66: "the token has expired",
    67: "a renewer must be a principal such as User:alice",
}
"""Error texts by code: responses about tokens have codes only."""


def _refuse(client: KafkaClient, code: int) -> None:
    client.refuse(code, _WHY.get(code))


async def create_token(
    client: KafkaClient, *, owner: str | None, renewers: Sequence[str], max_lifetime_ms: int | None
) -> CreateTokenResponse:
    """Creates a token; returns it with its secret. `owner` None: the principal that logged in. Raises
    ApiError."""
    Renewer = CreateDelegationTokenRequest.CreatableRenewers
    owner_type, owner_name = ("", "") if owner is None else type_and_name(owner)
    body = CreateDelegationTokenRequest(
        owner_principal_type=owner_type,
        owner_principal_name=owner_name,
        renewers=tuple(
            Renewer(principal_type=kind, principal_name=name) for kind, name in map(type_and_name, renewers)
        ),
        max_lifetime_ms=_DEFAULT_MS if max_lifetime_ms is None else max_lifetime_ms,
    )
    answer = await client.ask(body, lowest=0 if owner is None else 3)
    _refuse(client, answer.error_code)
    token_owner = f"{answer.principal_type}:{answer.principal_name}"
    requester = f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}"
    return CreateTokenResponse(
        token_id=answer.token_id,
        hmac=bytes(answer.hmac),
        owner=token_owner,
        requester=requester if answer.token_requester_principal_name else token_owner,
        issue_timestamp_ms=answer.issue_timestamp_ms,
        expiration_timestamp_ms=answer.expiry_timestamp_ms,
        max_timestamp_ms=answer.max_timestamp_ms,
    )


async def renew_token(client: KafkaClient, hmac: bytes, period_ms: int | None) -> int:
    """Renews a token; returns the Unix time in ms at which it now expires. `period_ms` None: the cluster's
    default. Raises ApiError."""
    period = _DEFAULT_MS if period_ms is None else period_ms
    answer = await client.ask(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period))
    _refuse(client, answer.error_code)
    return int(answer.expiry_timestamp_ms)


async def expire_token(client: KafkaClient, hmac: bytes, period_ms: int | None) -> int | None:
    """Changes a token's expiry; returns the Unix time in ms at which it now expires. `period_ms` None: it
    expires at once, and the result is None. Raises ApiError."""
    period = _DEFAULT_MS if period_ms is None else period_ms
    answer = await client.ask(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period))
    _refuse(client, answer.error_code)
    return None if period_ms is None else int(answer.expiry_timestamp_ms)


async def describe_tokens(client: KafkaClient, owners: Sequence[str] = ()) -> tuple[DelegationToken, ...]:
    """The tokens that this principal may see, by id; only those of `owners` if it is not empty. Raises
    ApiError."""
    Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = tuple(
        Owner(principal_type=kind, principal_name=name) for kind, name in map(type_and_name, owners)
    )
    answer = await client.ask(DescribeDelegationTokenRequest(owners=named or None))
    _refuse(client, answer.error_code)
    tokens = []
    for described in answer.tokens:
        owner = f"{described.principal_type}:{described.principal_name}"
        requester = f"{described.token_requester_principal_type}:{described.token_requester_principal_name}"
        tokens.append(
            DelegationToken(
                owner=owner,
                requester=requester if described.token_requester_principal_name else owner,
                renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in described.renewers),
                issue_timestamp_ms=described.issue_timestamp,
                max_timestamp_ms=described.max_timestamp,
                expiration_timestamp_ms=described.expiry_timestamp,
                token_id=described.token_id,
            )
        )
    return tuple(sorted(tokens, key=lambda each: each.token_id))
