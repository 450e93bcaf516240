"""The interface of a SASL mechanism to a connection: tokens in, tokens out, until the client is authenticated
or refused.

Owns the results of an exchange. Does not know any mechanism (its neighbors are one each), nor frames
(`login`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Refused(Exception):
    """The exchange failed. The text goes to the client: it must not reveal which users exist."""


class InvalidCredentials(Refused):
    """The client did not prove its identity, or its token is malformed. `Login` composes the text for the
    client; `why` is for this node's log and contains no secret."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated client: `user` without the type. `expires_ms` is the Unix time at which the
    credential expires, None for never. `by_token`: the client used a delegation token."""

    user: str
    expires_ms: int | None = None
    by_token: bool = False


class Exchange(Protocol):
    """One exchange of one connection. `granted` is None until it is complete."""

    granted: Granted | None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        """The token to send in response to the client's. `wall_ms`: Unix time. Raises Refused."""
        ...
