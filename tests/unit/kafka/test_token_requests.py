"""Requests about delegation tokens at a controller: who may send them, and whom a description shows what."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.listeners.forwarded import access
from metaquorum.listeners.forwarded.api import Call
from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import DelegationToken
from metaquorum.metadata.requests.common import ReadImageResponse
from metaquorum.wire import messages as wire

REQUESTS = (
    (access.create_delegation_token, wire.CreateDelegationTokenRequest()),
    (access.renew_delegation_token, wire.RenewDelegationTokenRequest()),
    (access.expire_delegation_token, wire.ExpireDelegationTokenRequest()),
    (access.describe_delegation_token, wire.DescribeDelegationTokenRequest()),
)


def image() -> MetadataImage:
    builder = MetadataImage().delegation_tokens.builder()
    for token_id, owner in (("t", "User:owner"), ("u", "User:other")):
        token = DelegationToken(
            owner=owner,
            requester="User:asked",
            renewers=("User:renews",),
            issue_timestamp_ms=1,
            max_timestamp_ms=3,
            expiration_timestamp_ms=2,
            token_id=token_id,
        )
        builder.put(token_id, token)
    return MetadataImage(delegation_tokens=builder.freeze())


def call_of(principal: str, asked: list[Any], *, by_token: bool = False) -> Call:
    async def ask(request: Any) -> Any:
        asked.append(request)
        return ReadImageResponse(image=image(), offset=0)

    return Call(
        version=3,
        ask=ask,
        wall_ms=0,
        image=MetadataImage(),
        principal=principal,
        by_token=by_token,
        token_hmac=lambda token_id: f"hmac of {token_id}".encode(),
    )


@pytest.mark.parametrize(("principal", "by_token"), [(ANONYMOUS, False), ("User:owner", True)])
@pytest.mark.parametrize(("handler", "body"), REQUESTS, ids=lambda value: type(value).__name__)
async def test_tokens_are_for_clients_that_logged_in_and_not_with_a_token(
    handler: Any, body: Any, principal: str, by_token: bool
) -> None:
    """As in Kafka: who has a token for a time makes none that lasts longer."""
    asked: list[Any] = []
    answer = await handler.handle(body, call_of(principal, asked, by_token=by_token))
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert asked == []


@pytest.mark.parametrize(
    ("principal", "owners", "shown"),
    [
        ("User:owner", None, ["t"]),
        ("User:asked", None, ["t", "u"]),
        ("User:renews", None, ["t", "u"]),
        ("User:renews", ["other"], ["u"]),
        ("User:owner", ["other"], []),
        ("User:renews", [], []),
        ("User:stranger", None, []),
    ],
)
async def test_a_description_has_the_tokens_that_the_caller_has_to_do_with(
    principal: str, owners: list[str] | None, shown: list[str]
) -> None:
    """Their secrets are in it."""
    kind = wire.DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = owners and tuple(kind(principal_type="User", principal_name=name) for name in owners)
    body = wire.DescribeDelegationTokenRequest(owners=None if owners is None else named or ())
    answer = await access.describe_delegation_token.handle(body, call_of(principal, []))
    assert [(each.token_id, each.hmac) for each in answer.tokens] == [
        (token_id, f"hmac of {token_id}".encode()) for token_id in shown
    ]
