"""The login of one connection (KIP-43, KIP-152), and the next one when its session ends (KIP-368).

Without input or output: frames and times are arguments. Before a login, only ApiVersions, SaslHandshake and
SaslAuthenticate are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

import msgspec

from metaquorum.listeners.answers import Chunks
from metaquorum.listeners.sasl import (
    Exchange,
    Granted,
    InvalidCredentials,
    Refused,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire import codec
from metaquorum.wire.errors import DecodeError, TooManyValues
from metaquorum.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from metaquorum.wire.table import API_BY_NAME, API_VERSIONS

SASL_HANDSHAKE = API_BY_NAME["SaslHandshake"].key
SASL_AUTHENTICATE = API_BY_NAME["SaslAuthenticate"].key
MIN_REAUTHENTICATION_MS = 1_000
"""The shortest time between two logins of a client, as in Kafka."""
VALUES_BEFORE_LOGIN = 64
"""The most values in arrays and unknown tagged fields of a request before the login."""
_HEAD = struct.Struct(">hh")


class SaslRules(msgspec.Struct, frozen=True, kw_only=True):
    """The login at a listener."""

    mechanisms: Sequence[str]
    new_exchange: Callable[[str], Exchange]
    """Starts an exchange of a mechanism."""
    max_reauth_ms: Mapping[str, int]
    """The longest session, by mechanism; 0: unlimited."""


class LoginReply(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a frame."""

    chunks: Chunks
    """Empty: no response."""
    end: str | None = None
    """The reason to close the connection after it, or None."""


class _Stage(Enum):
    BEGINNING = auto()
    HANDSHAKE = auto()
    BARE_TOKENS = auto()
    TOKENS = auto()
    DONE = auto()
    FAILED = auto()


class Login:
    """See the module. `answer_api_versions` returns the encoded response to an ApiVersions frame, and whether
    the client must repeat the request."""

    def __init__(
        self, rules: SaslRules, answer_api_versions: Callable[[bytes | bytearray], tuple[Chunks, bool]]
    ) -> None:
        self._rules = rules
        self._answer_api_versions = answer_api_versions
        self._stage = _Stage.BEGINNING
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._granted: Granted | None = None
        self._done_ms = 0
        self._ends_ms: int | None = None

    @property
    def granted(self) -> Granted | None:
        """The authenticated client; None before a login is complete, and during a reauthentication."""
        return self._granted if self._stage is _Stage.DONE else None

    def has_ended(self, now_ms: int) -> bool:
        """True if the session has expired, so that only a login may follow."""
        return self._ends_ms is not None and now_ms > self._ends_ms

    def takes(self, frame: bytes | bytearray, now_ms: int) -> bool:
        """True if a frame belongs to a login: every frame before it is complete, and a handshake after it if
        sessions expire."""
        if self._stage is not _Stage.DONE:
            return True
        if self._ends_ms is None or now_ms - self._done_ms < MIN_REAUTHENTICATION_MS:
            return False
        return len(frame) >= 2 and int.from_bytes(frame[:2], "big") == SASL_HANDSHAKE

    def take(self, frame: bytes | bytearray, now_ms: int, wall_ms: int) -> LoginReply:
        """Handles one frame. `now_ms` is monotonic, `wall_ms` Unix time."""
        if self._stage is _Stage.BARE_TOKENS:
            return self._token(bytes(frame), None, now_ms, wall_ms)
        try:
            api_key, version = _HEAD.unpack_from(frame)
        except struct.error:
            return self._fail("a frame ends inside the header of its request")
        allowed = {
            _Stage.BEGINNING: (API_VERSIONS, SASL_HANDSHAKE),
            _Stage.HANDSHAKE: (SASL_HANDSHAKE,),
            _Stage.TOKENS: (SASL_AUTHENTICATE,),
            _Stage.DONE: (SASL_HANDSHAKE,),
        }.get(self._stage, ())
        if api_key not in allowed:
            return self._fail(
                f"it sent API {api_key} version {version} before it logged in: set security.protocol and "
                "sasl.mechanism in the client"
            )
        if api_key == API_VERSIONS:
            chunks, asks_again = self._answer_api_versions(frame)
            if not asks_again:
                self._stage = _Stage.HANDSHAKE
            return LoginReply(chunks=chunks) if chunks else self._fail("its ApiVersions is malformed")
        try:
            request = codec.decode_request(frame, VALUES_BEFORE_LOGIN)
        except (DecodeError, TooManyValues) as error:
            return self._fail(str(error) or "its request has too many values")
        if api_key == SASL_HANDSHAKE:
            return self._handshake(request)
        return self._token(bytes(request.body.auth_bytes), request, now_ms, wall_ms)

    def _handshake(self, request: codec.Request) -> LoginReply:
        body: SaslHandshakeRequest = request.body
        is_offered = body.mechanism in self._rules.mechanisms
        code = ErrorCode.NONE if is_offered else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        header = request.header
        answer = SaslHandshakeResponse(error_code=code, mechanisms=tuple(self._rules.mechanisms))
        chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, answer)
        if not is_offered:
            offered = ", ".join(self._rules.mechanisms)
            return self._fail(f"mechanism {body.mechanism[:40]!r} is not offered: use {offered}", chunks)
        if self._granted is not None and body.mechanism != self._mechanism:
            return self._fail(f"it logged in with {self._mechanism} and cannot change to {body.mechanism}")
        self._mechanism = body.mechanism
        self._exchange = self._rules.new_exchange(body.mechanism)
        self._stage = _Stage.TOKENS if header.version >= 1 else _Stage.BARE_TOKENS
        return LoginReply(chunks=chunks)

    def _token(self, token: bytes, request: codec.Request | None, now_ms: int, wall_ms: int) -> LoginReply:
        """Handles one token, in a request or bare (handshake version 0)."""
        exchange = self._exchange
        if exchange is None:
            raise AssertionError("a token without a mechanism")
        try:
            answer = exchange.respond(token, wall_ms)
            if exchange.granted is not None:
                self._check_same(exchange.granted)
        except Refused as error:
            return self._refuse(error, request)
        lifetime_ms = 0
        if exchange.granted is not None:
            lifetime_ms = self._complete(exchange.granted, now_ms, wall_ms)
        if request is None:
            return LoginReply(chunks=[answer])
        body = SaslAuthenticateResponse(error_message="", auth_bytes=answer, session_lifetime_ms=lifetime_ms)
        return LoginReply(chunks=_encoded(request, body))

    def _check_same(self, granted: Granted) -> None:
        before = self._granted
        if before is not None and before.user != granted.user:
            raise Refused(
                "Cannot change principals during re-authentication from "
                f"User.{before.user}: User.{granted.user}"
            )

    def _complete(self, granted: Granted, now_ms: int, wall_ms: int) -> int:
        """Completes the login; returns the lifetime of the session in ms, 0 if it does not expire."""
        lifetimes = [ms for ms in (self._rules.max_reauth_ms.get(self._mechanism, 0),) if ms > 0]
        if granted.expires_ms is not None:
            lifetimes.append(max(granted.expires_ms - wall_ms, 0))
        self._granted, self._stage, self._exchange = granted, _Stage.DONE, None
        self._done_ms = now_ms
        self._ends_ms = now_ms + min(lifetimes) if lifetimes else None
        return min(lifetimes, default=0)

    def _refuse(self, error: Refused, request: codec.Request | None) -> LoginReply:
        text = str(error)
        if isinstance(error, InvalidCredentials):
            which = "authentication" if self._granted is None else "re-authentication"
            text = (
                f"Authentication failed during {which} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
        reason = f"its login with {self._mechanism} failed: {error}"
        if request is None:
            return self._fail(reason)
        body = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text)
        return self._fail(reason, _encoded(request, body))

    def _fail(self, reason: str, chunks: Chunks | None = None) -> LoginReply:
        self._stage = _Stage.FAILED
        self._exchange = None
        return LoginReply(chunks=chunks or [], end=reason)


def _encoded(request: codec.Request, body: SaslAuthenticateResponse) -> Chunks:
    header = request.header
    return codec.encode_response(header.api_key, header.version, header.correlation_id, body)


def outside_of_a_login(request: codec.Request) -> SaslHandshakeResponse | SaslAuthenticateResponse:
    """The response to a login request if no login is in progress, or none is needed."""
    if isinstance(request.body, SaslAuthenticateRequest):
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
