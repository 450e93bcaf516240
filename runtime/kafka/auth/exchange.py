"""What a SASL mechanism is to a connection: tokens in, tokens out, until someone is there or refused."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Refused(Exception):
    """The exchange failed. The text goes to the client: it must not tell what exists."""


class InvalidCredentials(Refused):
    """The client could not prove who it is, or its token makes no sense: the connection words the refusal.
    `why` is for the log here, and holds no secret."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """Who it is: `user` without the type. `expires_ms`: Unix time until which the credential holds, None
    without an end. `by_token`: a delegation token was shown."""

    user: str
    expires_ms: int | None = None
    by_token: bool = False


class Exchange(Protocol):
    """One exchange of one connection. `granted` is None until it is complete."""

    granted: Granted | None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        """The answer to the client's token; raises Refused. `wall_ms`: Unix time."""
        ...
