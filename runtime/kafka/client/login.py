"""The login on a connection to a node (KIP-43, KIP-152): first the mechanism, then its tokens.

Owns the order of the requests. Does not know what a token holds (`auth.proving`) or when a login is due
(`connection`).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.runtime.config.access.logins import Credentials
from metaquorum.runtime.kafka.auth.proving import LoginFailed, new_proof
from metaquorum.runtime.kafka.client.connection import NodeConnection
from metaquorum.runtime.kafka.client.errors import LoginRefused
from metaquorum.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

_NONCE_BYTES = 24
_TOKENS_MAX = 8
"""The most tokens of a login; no mechanism sends as many."""


async def log_in(connection: NodeConnection, credentials: Credentials, *, timeout_s: float) -> None:
    """Logs in, before the first request, or again before the session expires (KIP-368). Raises LoginRefused,
    ConnectionFailed or TimeoutError; the connection is then closed."""
    try:
        async with asyncio.timeout(timeout_s):
            with connection.login():
                connection.session_lasts(await _exchange(connection, credentials))
    except BaseException:
        connection.close()
        raise


async def _exchange(connection: NodeConnection, credentials: Credentials) -> int:
    """Exchanges the messages; returns the session's lifetime in ms, 0 if it does not expire."""
    mechanism = credentials.mechanism
    answer: Any = (await connection.begin(SaslHandshakeRequest(mechanism=mechanism), version=1)).body
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise LoginRefused(
            f"it does not offer {mechanism}: set {credentials.mechanism_key} to one of {offered}"
        )
    proof = new_proof(credentials, lambda: secrets.token_hex(_NONCE_BYTES))
    token: bytes | None = proof.first()
    version = connection.version("SaslAuthenticate")
    try:
        for _ in range(_TOKENS_MAX):
            assert token is not None
            answer = (await connection.begin(SaslAuthenticateRequest(auth_bytes=token), version=version)).body
            if answer.error_code:
                text = answer.error_message or ErrorCode.of(answer.error_code).name
                raise LoginRefused(f"it refuses the login: {text}; correct {credentials.secret_key}")
            token = proof.respond(bytes(answer.auth_bytes))
            if token is None:
                return int(answer.session_lifetime_ms)
    except LoginFailed as error:
        raise LoginRefused(f"the login failed: {error}") from error
    raise LoginRefused(f"the login with {mechanism} takes too many steps")
