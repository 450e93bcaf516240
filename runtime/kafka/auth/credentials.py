"""SCRAM credentials from an image: those of users, and of delegation tokens (KIP-48).

Owns the credential of a token: its password is the HMAC that its owner received, in base64, so brokers need
the controllers' `delegation.token.secret.key`. Does not know SCRAM's messages: `scram` does.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable

from metaquorum.metadata.image import MetadataImage, ScramCredential
from metaquorum.metadata.settings.scram import (
    DEFAULT_ITERATIONS,
    SALT_BYTES,
    Mechanism,
    salted_password,
    stored_keys,
)
from metaquorum.runtime.kafka.auth.scram import Found

KEPT_TOKENS = 1_000
"""Cached credentials of tokens: computing one takes thousands of hashes."""


class ImageCredentials:
    """`token_key` None: delegation tokens are disabled."""

    def __init__(self, image: Callable[[], MetadataImage], token_key: str | None) -> None:
        self._image = image
        self._token_key = token_key
        self._of_tokens: dict[tuple[str, Mechanism], ScramCredential] = {}

    def find(self, mechanism: Mechanism, name: str, by_token: bool, wall_ms: int) -> Found | None:
        """The credential of a user, or of a delegation token that has not expired; None if there is none."""
        if by_token:
            return self._token(mechanism, name, wall_ms)
        credential = self._image().scram.get((int(mechanism), name))
        return None if credential is None else Found(credential=credential, user=name)

    def _token(self, mechanism: Mechanism, token_id: str, wall_ms: int) -> Found | None:
        token = self._image().delegation_tokens.get(token_id)
        if token is None or self._token_key is None:
            return None
        expires_ms = min(token.expiration_timestamp_ms, token.max_timestamp_ms)
        kind, _, owner = token.owner.partition(":")
        if expires_ms <= wall_ms or kind != "User":
            return None
        key = (token_id, mechanism)
        credential = self._of_tokens.get(key)
        if credential is None:
            if len(self._of_tokens) >= KEPT_TOKENS:
                self._of_tokens.clear()
            credential = self._of_tokens[key] = _token_credential(self._token_key, token_id, mechanism)
        return Found(credential=credential, user=owner, expires_ms=expires_ms)


def _token_credential(token_key: str, token_id: str, mechanism: Mechanism) -> ScramCredential:
    secret = hmac.digest(token_key.encode(), token_id.encode(), "sha512")
    # The salt need not be secret; derived from the secret, it is the same on every broker.
    salt = hmac.digest(secret, mechanism.title.encode(), "sha512")[:SALT_BYTES]
    salted = salted_password(mechanism, base64.b64encode(secret).decode(), salt, DEFAULT_ITERATIONS)
    stored_key, server_key = stored_keys(mechanism, salted)
    return ScramCredential(
        salt=salt, stored_key=stored_key, server_key=server_key, iterations=DEFAULT_ITERATIONS
    )
