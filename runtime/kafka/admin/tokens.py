"""Calls about delegation tokens (KIP-48, KIP-373), for a principal that logged in.

Owns the conversion of these requests and responses to values, and texts for their error codes. Does not use a
token to log in: `client.login` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.image import DelegationToken
from metaquorum.metadata.requests.settings import CreateTokenResponse
from metaquorum.runtime.kafka.client.cluster import KafkaClient
from metaquorum.wire.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

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
    owner_type, owner_name = ("", "") if owner is None else _split(owner)
    body = CreateDelegationTokenRequest(
        owner_principal_type=owner_type,
        owner_principal_name=owner_name,
        renewers=tuple(
            Renewer(principal_type=kind, principal_name=name) for kind, name in map(_split, renewers)
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
    named = tuple(Owner(principal_type=kind, principal_name=name) for kind, name in map(_split, owners))
    answer = await client.ask(DescribeDelegationTokenRequest(owners=named or None))
    _refuse(client, answer.error_code)
    found = []
    for each in answer.tokens:
        owner = f"{each.principal_type}:{each.principal_name}"
        requester = f"{each.token_requester_principal_type}:{each.token_requester_principal_name}"
        found.append(
            DelegationToken(
                owner=owner,
                requester=requester if each.token_requester_principal_name else owner,
                renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in each.renewers),
                issue_timestamp_ms=each.issue_timestamp,
                max_timestamp_ms=each.max_timestamp,
                expiration_timestamp_ms=each.expiry_timestamp,
                token_id=each.token_id,
            )
        )
    return tuple(sorted(found, key=lambda each: each.token_id))


def _split(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
