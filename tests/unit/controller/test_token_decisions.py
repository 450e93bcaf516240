"""Delegation tokens (KIP-48): how long they are valid, who may renew them, and when none are made."""

from __future__ import annotations

import hmac

import pytest
from msgspec import structs

from metaquorum.controller.settings.access import expired_tokens
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import DelegationTokenRecord, RemoveDelegationTokenRecord
from metaquorum.metadata.requests.settings import (
    CreateTokenRequest,
    CreateTokenResponse,
    ExpireTokenRequest,
    RenewTokenRequest,
    TokenExpiryResponse,
)
from tests.unit.controller.test_settings_decisions import CONFIG, NOW, decide, image_of


def test_a_tokens_life() -> None:
    create = CreateTokenRequest(requester="User:alice", renewers=("User:bob",), max_lifetime_ms=200_000_000)
    made = decide(image_of(), create)
    response = made.response
    assert isinstance(response, CreateTokenResponse)
    assert response.hmac == hmac.digest(b"s3cret", response.token_id.encode(), "sha512")
    (record,) = made.records
    assert record == DelegationTokenRecord(
        owner="User:alice",
        requester="User:alice",
        renewers=("User:bob",),
        issue_timestamp=NOW,
        max_timestamp=NOW + 200_000_000,
        expiration_timestamp=NOW + 86_400_000,
        token_id=response.token_id,
    )
    image = image_of(record)
    renew = RenewTokenRequest(requester="User:bob", hmac=response.hmac, period_ms=5)
    later = decide(image, renew, wall_ms=NOW + 10)
    assert later.response == TokenExpiryResponse(expiration_timestamp_ms=NOW + 15)
    assert later.records[0].expiration_timestamp == NOW + 15
    longest = decide(image, structs.replace(renew, period_ms=None), wall_ms=NOW + 86_000_000)
    assert longest.response == TokenExpiryResponse(expiration_timestamp_ms=NOW + 172_400_000)
    expire = ExpireTokenRequest(requester="User:alice", hmac=response.hmac)
    assert decide(image, expire).records == (RemoveDelegationTokenRecord(token_id=response.token_id),)
    for period_ms in (0, 9):
        soon = decide(image, structs.replace(expire, period_ms=period_ms))
        assert soon.response == TokenExpiryResponse(expiration_timestamp_ms=NOW + period_ms)
    over = image_of(structs.replace(record, max_timestamp=NOW))
    assert expired_tokens(over, NOW, 10) == ()
    assert expired_tokens(over, NOW + 1, 10) == decide(image, expire).records
    assert expired_tokens(image, NOW + 86_400_000, 10) == ()
    assert expired_tokens(image, NOW + 86_400_001, 10) == decide(image, expire).records
    assert expired_tokens(image, NOW + 86_400_001, 0) == ()
    for request, at, code in (
        (structs.replace(renew, hmac=b"x"), NOW, ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
        (structs.replace(renew, requester="User:eve"), NOW, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (renew, NOW + 86_400_001, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ):
        refused = decide(image, request, wall_ms=at)
        assert refused.response.code is code and refused.records == ()


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expires_ms"),
    [
        (-1, 604_800_000, 86_400_000),
        (0, 604_800_000, 86_400_000),
        (604_800_001, 604_800_000, 86_400_000),
        (86_400_001, 86_400_001, 86_400_000),
        (60_000, 60_000, 60_000),
    ],
)
def test_whatever_is_asked_no_token_is_valid_beyond_its_maximum_lifetime(
    asked_ms: int, max_ms: int, expires_ms: int
) -> None:
    made = decide(image_of(), CreateTokenRequest(requester="User:alice", max_lifetime_ms=asked_ms))
    (record,) = made.records
    assert (record.max_timestamp, record.expiration_timestamp) == (NOW + max_ms, NOW + expires_ms)
    response = made.response
    assert response.max_timestamp_ms == record.max_timestamp
    assert response.expiration_timestamp_ms == record.expiration_timestamp
    image = image_of(structs.replace(record, expiration_timestamp=record.max_timestamp))
    for kind, period_ms in (
        (RenewTokenRequest, None),
        (RenewTokenRequest, 0),
        (RenewTokenRequest, 9),
        (ExpireTokenRequest, 9),
    ):
        request = kind(requester="User:alice", hmac=response.hmac, period_ms=period_ms)
        later = decide(image, request, wall_ms=NOW + max_ms - 5)
        assert later.response == TokenExpiryResponse(expiration_timestamp_ms=NOW + max_ms), kind


def test_tokens_need_a_secret_a_level_and_users() -> None:
    create = CreateTokenRequest(requester="User:alice")
    without = decide(image_of(), create, config=ControllerConfig(cluster_id="c", node_id=1))
    assert without.response.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert decide(image_of(level=13), create).response.code is ErrorCode.UNSUPPORTED_VERSION
    for renewer in ("Group:g", "User:"):
        other = decide(image_of(), structs.replace(create, renewers=(renewer,)))
        assert other.response.code is ErrorCode.INVALID_PRINCIPAL_TYPE
    assert "s3cret" not in repr(CONFIG)
