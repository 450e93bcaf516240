"""A login on a connection to a node (KIP-43, KIP-152): first the mechanism, then its tokens."""

from __future__ import annotations

import secrets

from metaquorum.metadata.errors import ErrorCode
from metaquorum.runtime.kafka.auth.proving import Credentials, LoginFailed
from metaquorum.runtime.kafka.client.connection import NodeConnection
from metaquorum.runtime.kafka.client.errors import LoginRefused
from metaquorum.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

_NONCE_BYTES = 24
_TOKENS_MAX = 8
"""More than any mechanism sends."""


async def log_in(connection: NodeConnection, credentials: Credentials, *, timeout_s: float) -> None:
    """Logs in, before anything else is asked. Raises LoginRefused, ConnectionFailed or TimeoutError."""
    mechanism = credentials.mechanism
    asked = SaslHandshakeRequest(mechanism=mechanism)
    answer = (await connection.ask(asked, version=1, timeout_s=timeout_s)).body
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise LoginRefused(f"it does not offer {mechanism}: set sasl.mechanism to one of {offered}")
    proof = credentials.proof(lambda: secrets.token_hex(_NONCE_BYTES))
    token: bytes | None = proof.first()
    try:
        for _ in range(_TOKENS_MAX):
            assert token is not None
            body = SaslAuthenticateRequest(auth_bytes=token)
            answer = (await connection.ask(body, timeout_s=timeout_s)).body
            if answer.error_code:
                text = answer.error_message or ErrorCode.of(answer.error_code).name
                raise LoginRefused(f"it refuses the login: {text}; correct sasl.jaas.config")
            token = proof.respond(bytes(answer.auth_bytes))
            if token is None:
                return
    except LoginFailed as error:
        raise LoginRefused(f"the login failed: {error}") from error
    raise LoginRefused(f"the login with {mechanism} does not end")
