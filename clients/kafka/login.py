"""The login on a connection to a node: its requests (KIP-43, KIP-152), and the messages of each mechanism.

PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677), which also checks that the node knows the secret, and
OAUTHBEARER (RFC 7628).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from metaquorum.clients.kafka.connection import LoginNotOffered, LoginRefused, NodeConnection
from metaquorum.config.files import read_properties, read_small_file
from metaquorum.config.keys import KEYS, parsed
from metaquorum.config.security import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    Credentials,
    TlsFiles,
    login_in,
    login_line,
    tls_files,
)
from metaquorum.errors import ConfigError
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.scram import MAX_ITERATIONS, MIN_ITERATIONS, Mechanism, salted_password
from metaquorum.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

# How a client of Kafka's protocol authenticates, from a file with Kafka's client properties.
#
# Keys that do not begin with `security.`, `sasl.` or `ssl.` are ignored, so that the same file works with
# Kafka's tools.

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PREFIXES = ("security.", "sasl.", "ssl.")
_PROTOCOL, _MECHANISM, _JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
_NAMES = "ssl.endpoint.identification.algorithm"
_STORES = ("ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type")
_KNOWN = frozenset({_PROTOCOL, _MECHANISM, _JAAS, _TOKEN_URL, _NAMES, *_STORES})
_WITHOUT_EFFECT = ("ssl.truststore.password", "ssl.protocol", "ssl.enabled.protocols", "ssl.provider")
"""Keys that are accepted and ignored: a PEM file of certificates has no password, and TLS is always 1.2 or
later."""


class ClientSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect. `tls` None: plain text. `login` None: no login. `checks_names`: the host name must
    match the node's certificate."""

    tls: TlsFiles | None = None
    login: Credentials | None = None
    checks_names: bool = True


def load_client_security(path: Path) -> ClientSecurity:
    """Reads a file of client properties. Raises ConfigError, in one line that names the file and contains no
    secret."""
    try:
        return client_security(read_properties(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def client_security(pairs: Mapping[str, str]) -> ClientSecurity:
    """The security settings in client properties. Raises ConfigError."""
    ours = {name: value.strip() for name, value in pairs.items() if name.startswith(_PREFIXES)}
    unknown = sorted(ours.keys() - _KNOWN - {*_WITHOUT_EFFECT})
    if unknown:
        raise ConfigError(f"{unknown[0]} is not supported here: supported are {', '.join(sorted(_KNOWN))}")
    protocol = ours.get(_PROTOCOL, PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{_PROTOCOL}={protocol} is not valid: choose one of {', '.join(PROTOCOLS)}")
    return ClientSecurity(
        tls=_tls(ours) if protocol.endswith("SSL") else None,
        login=_login(ours) if protocol.startswith("SASL") else None,
        checks_names=bool(ours.get(_NAMES, "https")),
    )


def _tls(pairs: Mapping[str, str]) -> TlsFiles:
    values = {name: KEYS[name].default for name in (*_STORES, "ssl.client.auth")}
    return tls_files(values | {name: parsed(name, pairs[name]) for name in _STORES if name in pairs})


def _login(pairs: Mapping[str, str]) -> Credentials:
    mechanism = pairs.get(_MECHANISM, "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"{_MECHANISM}={mechanism} is not supported: set it to one of {', '.join(MECHANISMS)}"
        )
    if mechanism == OAUTHBEARER and _TOKEN_URL in pairs:
        return Credentials(mechanism=mechanism, password=_token(pairs[_TOKEN_URL]), secret_key=_TOKEN_URL)
    line = login_line(_JAAS, pairs.get(_JAAS, ""), mechanism)
    if mechanism == OAUTHBEARER:
        raise ConfigError(f"{_TOKEN_URL} is missing: name a file with a token, as file:///path/to/token")
    return login_in(line, _JAAS, mechanism, _MECHANISM)


def _token(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise ConfigError(f"{_TOKEN_URL} must name a local file with a token: write file:///path/to/token")
    try:
        token = read_small_file(Path(unquote(parts.path))).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"{_TOKEN_URL}={url} cannot be read: {why}; correct the path") from error
    if not token or any(each.isspace() for each in token):
        raise ConfigError(f"{_TOKEN_URL}={url} holds no token: it must be one line")
    return token


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
        raise (LoginRefused if answer.mechanisms else LoginNotOffered)(
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


_CHALLENGE = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<count>[1-9][0-9]{0,6})(,.*)?"
)
_ITERATIONS_MAX = 64 * MAX_ITERATIONS
"""The most iterations that a node may request: more would keep this program busy."""


class LoginFailed(Exception):
    """The login failed because of the node's messages. The text contains no secret."""


class Proof(Protocol):
    """One login. `first` is the first token; `respond` returns the next one, None after the last."""

    def first(self) -> bytes: ...

    def respond(self, challenge: bytes) -> bytes | None:
        """The next token, in response to the node's; None if the login is complete. Raises LoginFailed."""
        ...


def new_proof(credentials: Credentials, new_nonce: Callable[[], str]) -> Proof:
    """Starts a login. `new_nonce` returns random text from the operating system."""
    if credentials.mechanism == PLAIN:
        return _OneToken(b"\0".join((b"", credentials.user.encode(), credentials.password.encode())))
    if credentials.mechanism == OAUTHBEARER:
        return _OneToken(b"n,,\x01auth=Bearer " + credentials.password.encode() + b"\x01\x01")
    mechanism = Mechanism[credentials.mechanism.replace("-", "_")]
    return ScramProof(credentials, mechanism, new_nonce())


class _OneToken:
    """A mechanism with one message. The node's response is empty, or the reason of a refusal (RFC 7628,
    3.2.3)."""

    def __init__(self, token: bytes) -> None:
        self._token = token

    def first(self) -> bytes:
        return self._token

    def respond(self, challenge: bytes) -> bytes | None:
        return b"\x01" if challenge else None


class ScramProof:
    """SCRAM in three steps: name and nonce, proof, and verification of the node's proof."""

    def __init__(self, credentials: Credentials, mechanism: Mechanism, nonce: str) -> None:
        self._password = credentials.password
        self._mechanism = mechanism
        self._nonce = nonce
        name = credentials.user.replace("=", "=3D").replace(",", "=2C")
        extension = ",tokenauth=true" if credentials.by_token else ""
        self._bare = f"n={name},r={nonce}{extension}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        text = challenge.decode("utf-8", errors="replace")
        if self._server_signature is None:
            return self._prove(text)
        expected = "v=" + base64.b64encode(self._server_signature).decode()
        if not hmac.compare_digest(text.split(",")[0].encode(), expected.encode()):
            raise LoginFailed("the node does not have the user's credential: its proof is wrong")
        return None

    def _prove(self, challenge: str) -> bytes:
        match = _CHALLENGE.fullmatch(challenge)
        if match is None or not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise LoginFailed(f"the node's first {self._mechanism.title} message is malformed")
        iterations = int(match["count"])
        if not MIN_ITERATIONS <= iterations <= _ITERATIONS_MAX:
            raise LoginFailed(f"the node asks for {iterations} iterations of {self._mechanism.title}")
        try:
            salt = base64.b64decode(match["salt"], validate=True)
        except binascii.Error as error:
            raise LoginFailed(f"the node's salt for {self._mechanism.title} is not base64") from error
        digest = self._mechanism.digest
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        bare = f"c=biws,r={match['nonce']}"
        signed = f"{self._bare},{challenge},{bare}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()
