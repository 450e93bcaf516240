"""Decisions on delegation tokens (KIP-48, KIP-900): create, renew, expire, and remove expired ones.

Owns a token's life in the log. A token's secret is the HMAC of its id under a key that all controllers share;
it is not in the log. The requester's name is trusted: there is no authentication here.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field

from metaquorum.controller.features import LEVEL_DELEGATION_TOKENS
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import DelegationToken, MetadataImage
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.types import DelegationTokenRecord, Record, RemoveDelegationTokenRecord
from metaquorum.metadata.requests.settings import (
    CreateTokenRequest,
    CreateTokenResponse,
    ExpireTokenRequest,
    RenewTokenRequest,
    TokenExpiryResponse,
)

USER_PREFIX = "User:"


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
    if request.max_lifetime_ms is not None and request.max_lifetime_ms > 0:
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
