"""Mechanisms of SASL at the node: tokens in, tokens out, until the client is authenticated or refused."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from metaquorum.metadata.image import MetadataImage, ScramCredential
from metaquorum.metadata.settings.scram import (
    DEFAULT_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    Mechanism,
    salted_password,
    stored_keys,
)


class Refused(Exception):
    """The exchange failed. The text goes to the client: it must not reveal which users exist."""


class InvalidCredentials(Refused):
    """The client did not prove its identity, or its token is malformed. `Login` composes the text for the
    client; `why` is for this node's log and contains no secret."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated client."""

    user: str
    """Without the type of the principal."""
    expires_ms: int | None = None
    """Unix time at which the credential expires; None: never."""
    by_token: bool = False
    """The client used a delegation token."""


class Exchange(Protocol):
    """One exchange of one connection. `granted` is None until it is complete."""

    granted: Granted | None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        """The token to send in response to the client's. `wall_ms`: Unix time. Raises Refused."""
        ...


_CLIENT_FIRST = re.compile(
    r"n,(?:a=(?P<authorization>[^,\0]+))?,(?P<bare>(?:m=[^,\0]*,)?n=(?P<user>[^,\0]+),r=(?P<nonce>[!-+\--~]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]*)*))"
)
_CLIENT_FINAL = re.compile(
    r"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^,\0]*)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_TOKEN_EXTENSION = "tokenauth=true"


class UserCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential and its user."""

    credential: ScramCredential
    user: str
    """For a delegation token, its owner."""
    expires_ms: int | None = None
    """Unix time at which a token expires."""


Lookup = Callable[[Mechanism, str, bool, int], UserCredential | None]
"""Returns the credential for (mechanism, name, whether the name is a delegation token's, Unix time in ms)."""


class ScramExchange:
    """The server's side of SCRAM (RFC 5802, RFC 7677) in Kafka's form, for users and for delegation tokens;
    without channel binding. `nonce`: the server's part, new for each exchange."""

    def __init__(self, mechanism: Mechanism, lookup: Lookup, nonce: str) -> None:
        self._mechanism = mechanism
        self._lookup = lookup
        self._nonce = nonce
        self._begun: _Begun | None = None
        self.granted: Granted | None = None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidCredentials("a SCRAM message is not UTF-8") from error
        return (
            self._begin(text, wall_ms) if self._begun is None else self._finish(text, self._begun)
        ).encode()

    def _begin(self, text: str, wall_ms: int) -> str:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise InvalidCredentials("the first SCRAM message is malformed")
        user = _user(match["user"])
        by_token = _TOKEN_EXTENSION in match["extensions"].split(",")
        if match["authorization"] is not None and _user(match["authorization"]) != user:
            raise InvalidCredentials("the SCRAM message has an authorization id other than the user")
        stored = self._lookup(self._mechanism, user, by_token, wall_ms)
        if stored is None:
            what = "token of that name" if by_token else "user of that name with a credential for"
            raise InvalidCredentials(
                f"there is no {what}" + ("" if by_token else f" {self._mechanism.title}")
            )
        if stored.credential.iterations < MIN_ITERATIONS:
            raise InvalidCredentials(
                f"the credential has fewer than {MIN_ITERATIONS} iterations: set it again"
            )
        nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(stored.credential.salt).decode()
        answer = f"r={nonce},s={salt},i={stored.credential.iterations}"
        self._begun = _Begun(stored, by_token, nonce, f"{match['bare']},{answer}")
        return answer

    def _finish(self, text: str, begun: _Begun) -> str:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise InvalidCredentials("the final SCRAM message is malformed")
        if not hmac.compare_digest(match["nonce"], begun.nonce):
            raise InvalidCredentials("the final SCRAM message has another nonce")
        if _decoded(match["binding"]).split(b",")[0] != b"n":
            raise InvalidCredentials("the client requests channel binding, which is not supported")
        digest = self._mechanism.digest
        credential = begun.stored.credential
        signed = f"{begun.text},{match['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        proof = _decoded(match["proof"])
        if len(proof) != len(signature):
            raise InvalidCredentials("the SCRAM proof has another length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
            raise InvalidCredentials("the SCRAM proof is wrong")
        stored = begun.stored
        self.granted = Granted(user=stored.user, expires_ms=stored.expires_ms, by_token=begun.by_token)
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest)).decode()


class _Begun(msgspec.Struct, frozen=True):
    stored: UserCredential
    by_token: bool
    nonce: str
    text: str
    """The text signed so far: the client's first message without its header, and the server's."""


def _user(text: str) -> str:
    """Decodes a saslname: =2C is a comma, =3D an equals sign; any other = is invalid."""
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise InvalidCredentials("the user name in the SCRAM message is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidCredentials("a SCRAM message is not base64") from error


_WRONG = "Authentication failed: Invalid username or password"


class PlainExchange:
    """SASL PLAIN (RFC 4616) against the users of a JAAS line. `passwords` are by user."""

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


KEPT_TOKENS = 1_000
"""Cached credentials of tokens: computing one takes thousands of hashes."""


class ImageCredentials:
    """SCRAM credentials of users and of delegation tokens (KIP-48) in an image. A token's password is the
    HMAC that its owner received, in base64, so brokers need the controllers' `delegation.token.secret.key`.
    `token_key` None: delegation tokens are disabled."""

    def __init__(self, image: Callable[[], MetadataImage], token_key: str | None) -> None:
        self._image = image
        self._token_key = token_key
        self._of_tokens: dict[tuple[str, Mechanism], ScramCredential] = {}

    def find(self, mechanism: Mechanism, name: str, by_token: bool, wall_ms: int) -> UserCredential | None:
        """The credential of a user, or of a delegation token that has not expired; None if there is none."""
        if by_token:
            return self._token(mechanism, name, wall_ms)
        credential = self._image().scram.get((int(mechanism), name))
        return None if credential is None else UserCredential(credential=credential, user=name)

    def _token(self, mechanism: Mechanism, token_id: str, wall_ms: int) -> UserCredential | None:
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
        return UserCredential(credential=credential, user=owner, expires_ms=expires_ms)


def _token_credential(token_key: str, token_id: str, mechanism: Mechanism) -> ScramCredential:
    secret = hmac.digest(token_key.encode(), token_id.encode(), "sha512")
    # The salt need not be secret; derived from the secret, it is the same on every broker.
    salt = hmac.digest(secret, mechanism.title.encode(), "sha512")[:SALT_BYTES]
    salted = salted_password(mechanism, base64.b64encode(secret).decode(), salt, DEFAULT_ITERATIONS)
    stored_key, server_key = stored_keys(mechanism, salted)
    return ScramCredential(
        salt=salt, stored_key=stored_key, server_key=server_key, iterations=DEFAULT_ITERATIONS
    )
