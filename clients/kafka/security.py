"""How a client of Kafka's protocol authenticates, from a file with Kafka's client properties.

Keys that do not begin with `security.`, `sasl.` or `ssl.` are ignored, so that the same file works with
Kafka's tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from metaquorum.config.files import read_properties, read_small_file
from metaquorum.config.keys import KEYS, parsed
from metaquorum.config.security import (
    MECHANISMS,
    OAUTHBEARER,
    Credentials,
    TlsFiles,
    login_in,
    login_line,
    tls_files,
)
from metaquorum.errors import ConfigError

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
