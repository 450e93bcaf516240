"""The server's side of SCRAM (RFC 5802, RFC 7677) in Kafka's form, for users and for delegation tokens.

Owns the messages and the proof. Does not know where credentials come from: `credentials` does. There is no
channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable

import msgspec

from metaquorum.metadata.image import ScramCredential
from metaquorum.metadata.settings.scram import MIN_ITERATIONS, Mechanism
from metaquorum.runtime.kafka.auth.exchange import Granted, InvalidCredentials

_CLIENT_FIRST = re.compile(
    r"n,(?:a=(?P<authorization>[^,\0]+))?,(?P<bare>(?:m=[^,\0]*,)?n=(?P<user>[^,\0]+),r=(?P<nonce>[!-+\--~]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]*)*))"
)
_CLIENT_FINAL = re.compile(
    r"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^,\0]*)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_TOKEN_EXTENSION = "tokenauth=true"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A credential and its user: for a delegation token, `user` is its owner. `expires_ms`: Unix time at
    which a token expires."""

    credential: ScramCredential
    user: str
    expires_ms: int | None = None


Lookup = Callable[[Mechanism, str, bool, int], Found | None]
"""Returns the credential for (mechanism, name, whether the name is a delegation token's, Unix time in ms)."""


class ScramExchange:
    """`nonce`: the server's part, new for each exchange."""

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
        found = self._lookup(self._mechanism, user, by_token, wall_ms)
        if found is None:
            raise InvalidCredentials(f"there is no {'token' if by_token else 'user'} of that name")
        if found.credential.iterations < MIN_ITERATIONS:
            raise InvalidCredentials(
                f"the credential has fewer than {MIN_ITERATIONS} iterations: set it again"
            )
        nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(found.credential.salt).decode()
        answer = f"r={nonce},s={salt},i={found.credential.iterations}"
        self._begun = _Begun(found, by_token, nonce, f"{match['bare']},{answer}")
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
        credential = begun.found.credential
        signed = f"{begun.text},{match['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        proof = _decoded(match["proof"])
        if len(proof) != len(signature):
            raise InvalidCredentials("the SCRAM proof has another length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
            raise InvalidCredentials("the SCRAM proof is wrong")
        found = begun.found
        self.granted = Granted(user=found.user, expires_ms=found.expires_ms, by_token=begun.by_token)
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest)).decode()


class _Begun(msgspec.Struct, frozen=True):
    found: Found
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
