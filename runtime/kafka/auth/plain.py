"""SASL PLAIN (RFC 4616) against the users of a JAAS line.

Owns the comparison, in constant time. Does not parse the line: `runtime.config.access` does.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from metaquorum.runtime.kafka.auth.exchange import Granted, InvalidCredentials, Refused

_WRONG = "Authentication failed: Invalid username or password"


class PlainExchange:
    """`passwords` are by user."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.granted: Granted | None = None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        try:
            parts = token.decode("utf-8").split("\0")
        except UnicodeDecodeError as error:
            raise InvalidCredentials("the PLAIN token is not UTF-8") from error
        if len(parts) != 3:
            raise InvalidCredentials(f"the PLAIN token has {len(parts)} parts instead of 3")
        authorization_id, user, password = parts
        if not user:
            raise Refused("Authentication failed: username not specified")
        if not password:
            raise Refused("Authentication failed: password not specified")
        expected = self._passwords.get(user)
        # The comparison takes the same time for an unknown user.
        is_right = hmac.compare_digest(
            password.encode(), (password + "x" if expected is None else expected).encode()
        )
        if not is_right:
            raise Refused(_WRONG)
        if authorization_id not in {"", user}:
            raise Refused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.granted = Granted(user=user)
        return b""
