"""How the clients of each listener authenticate, and how this node logs in elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

import msgspec

from metaquorum.config.addresses import Listener
from metaquorum.config.keys import KEYS, parsed
from metaquorum.errors import ConfigError
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.settings.keys import Value

_HEAD = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION = re.compile(r"""\s*([\w.-]+|"[^"]+")\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class JaasLine:
    """`module` is the name of the class; `options` may contain secrets."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(key: str, text: str) -> JaasLine:
    """Parses a line with one entry. Raises ConfigError, whose text never contains the line: it holds
    secrets."""
    head = _HEAD.match(text)
    if head is None:
        raise ConfigError(f'{key} is not a JAAS line: write MODULE required name="value" ...;')
    options: dict[str, str] = {}
    position = head.end()
    while (option := _OPTION.match(text, position)) is not None:
        name, value = option[1].strip('"'), option[2]
        if name in options:
            raise ConfigError(f"{key} sets {name} twice: remove one")
        options[name] = _ESCAPE.sub(r"\1", value[1:-1]) if value[0] in "\"'" else value
        position = option.end()
    if text[position:].strip() != ";":
        count = len(options)
        raise ConfigError(
            f'{key} cannot be read after its option {count}: write name="value" for each, and ; at the end'
        )
    return JaasLine(head[1], options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of a login. `by_token`: the user is a delegation token's id, and the password its HMAC. For
    OAUTHBEARER the password is the token, and there is no user. `mechanism_key` and `secret_key` are the
    configuration keys that error texts name."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    mechanism_key: str = "sasl.mechanism"
    secret_key: str = "sasl.jaas.config"


def login_in(line: JaasLine, key: str, mechanism: str, mechanism_key: str) -> Credentials:
    """The credentials in a JAAS line of PLAIN or SCRAM. Raises ConfigError."""
    for name in ("username", "password"):
        if not line.options.get(name):
            raise ConfigError(f'{key} has no {name}: add {name}="..."')
    return Credentials(
        mechanism=mechanism,
        user=line.options["username"],
        password=line.options["password"],
        by_token=line.options.get("tokenauth", "").lower() == "true",
        mechanism_key=mechanism_key,
        secret_key=key,
    )


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER)

MODULES = {
    PLAIN: "PlainLoginModule",
    SCRAM[0]: "ScramLoginModule",
    SCRAM[1]: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
_USER_OPTION = "user_"
_BROKERS_MECHANISM = "sasl.mechanism.inter.broker.protocol"
_CONTROLLERS_MECHANISM = "sasl.mechanism.controller.protocol"
_JAAS = "sasl.jaas.config"
_VALIDATOR = "sasl.server.callback.handler.class"
_PREFIX = "listener.name."
_OWN_OF_A_LISTENER = (
    "sasl.enabled.mechanisms",
    "connections.max.reauth.ms",
    "sasl.server.max.receive.size",
    "max.connections",
    "max.connection.creation.rate",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    *(name for name in KEYS if name.startswith("sasl.oauthbearer.")),
)
"""Keys that a listener may set under `listener.name.NAME.`."""
_OF_A_MECHANISM = (_JAAS, "connections.max.reauth.ms", _VALIDATOR)


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements for OAUTHBEARER tokens; `file` is a JWK set with the keys."""

    file: Path
    audience: tuple[str, ...]
    issuer: str | None
    clock_skew_s: int
    subject_claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAccess:
    """The access to one listener. Without `mechanisms` there is no login. `passwords` are those of PLAIN, by
    user; `max_reauth_ms` is by mechanism; `client_auth` is `none`, `requested` or `required`."""

    mechanisms: tuple[str, ...] = ()
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    max_receive_bytes: int = cast(int, KEYS["sasl.server.max.receive.size"].default)
    tokens: TokenSettings | None = None
    client_auth: str = cast(str, KEYS["ssl.client.auth"].default)
    max_connections: int | None = None
    creation_rate: int | None = None
    principal_rules: str = cast(str, KEYS["ssl.principal.mapping.rules"].default)


def is_of_a_listener(name: str, listeners: tuple[Listener, ...]) -> bool:
    """True for a key that a Kafka listener may set for itself."""
    return any(name in _allowed(each) for each in listeners)


def _allowed(listener: Listener) -> set[str]:
    prefix = f"{_PREFIX}{listener.name.lower()}."
    names = {prefix + key for key in _OWN_OF_A_LISTENER}
    return names | {f"{prefix}{each.lower()}.{key}" for each in MECHANISMS for key in _OF_A_MECHANISM}


def check_authorizer(values: Mapping[str, Value | None]) -> None:
    """Raises ConfigError for an unknown authorizer, and for super users that are not principals."""
    name = cast(str, values["authorizer.class.name"])
    if name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(f"authorizer.class.name={name} is not supported: use {STANDARD_AUTHORIZER}")
    for principal in super_users(values):
        kind, _, user = principal.partition(":")
        if not kind or not user:
            raise ConfigError(
                f"super.users has {principal!r}: write principals as User:alice, separated by semicolons"
            )


def super_users(values: Mapping[str, Value | None]) -> tuple[str, ...]:
    """The principals of `super.users`."""
    return tuple(each.strip() for each in cast(str, values["super.users"]).split(";") if each.strip())


def new_authorizer(values: Mapping[str, Value | None]) -> Authorizer | None:
    """The authorizer of a node's configuration; None if none is configured."""
    if not values["authorizer.class.name"]:
        return None
    return Authorizer(
        super_users=super_users(values),
        allow_everyone=cast(bool, values["allow.everyone.if.no.acl.found"]),
    )


def listener_access(
    listener: Listener, values: Mapping[str, Value | None], own: Mapping[str, str]
) -> ListenerAccess:
    """The access to one listener. `own`: the keys under `listener.name.`, as text. Raises ConfigError."""
    prefix = f"{_PREFIX}{listener.name.lower()}."

    def value(name: str) -> Value | None:
        raw = own.get(prefix + name)
        return values[name] if raw is None else parsed(name, raw, prefix)

    def own_number(name: str) -> int | None:
        return cast(int, value(name)) if prefix + name in own else None

    client_auth = cast(str, value("ssl.client.auth"))
    if listener.is_sasl and f"{prefix}ssl.client.auth" not in own:
        client_auth = "none"
    access = ListenerAccess(
        client_auth=client_auth,
        max_connections=own_number("max.connections"),
        creation_rate=own_number("max.connection.creation.rate"),
        principal_rules=cast(str, value("ssl.principal.mapping.rules")),
    )
    if not listener.is_sasl:
        return access
    mechanisms = tuple(each.upper() for each in cast("tuple[str, ...]", value("sasl.enabled.mechanisms")))
    _check_mechanisms(listener, mechanisms)
    lines = {each: _jaas_line(f"{prefix}{each.lower()}.", each, own) for each in mechanisms}
    reauth_ms = cast(int, value("connections.max.reauth.ms"))
    return replace(
        access,
        mechanisms=mechanisms,
        passwords=_passwords(f"{prefix}plain.{_JAAS}", lines[PLAIN]) if PLAIN in mechanisms else {},
        max_reauth_ms={
            each: _own_reauth_ms(f"{prefix}{each.lower()}.", own, reauth_ms) for each in mechanisms
        },
        max_receive_bytes=cast(int, value("sasl.server.max.receive.size")),
        tokens=_tokens(listener, value) if OAUTHBEARER in mechanisms else None,
    )


def _own_reauth_ms(prefix: str, own: Mapping[str, str], otherwise: int) -> int:
    raw = own.get(prefix + "connections.max.reauth.ms")
    return otherwise if raw is None else cast(int, parsed("connections.max.reauth.ms", raw, prefix))


def _check_mechanisms(listener: Listener, mechanisms: tuple[str, ...]) -> None:
    unknown = [each for each in mechanisms if each not in MECHANISMS]
    if unknown or not mechanisms:
        raise ConfigError(
            f"listener {listener.name} is {listener.protocol}, but sasl.enabled.mechanisms is "
            f"{','.join(mechanisms) or 'empty'}: choose some of {', '.join(MECHANISMS)}"
        )
    if len(set(mechanisms)) != len(mechanisms):
        raise ConfigError("sasl.enabled.mechanisms names a mechanism twice: remove one")


def _jaas_line(prefix: str, mechanism: str, own: Mapping[str, str]) -> JaasLine | None:
    handler = own.get(prefix + _VALIDATOR, "")
    if handler and not (
        mechanism == OAUTHBEARER and handler.endswith(".OAuthBearerValidatorCallbackHandler")
    ):
        raise ConfigError(f"{prefix}{_VALIDATOR} is not supported: there are no plug-ins; remove the line")
    text = own.get(prefix + _JAAS)
    if text is None:
        return None
    return login_line(prefix + _JAAS, text, mechanism)


def login_line(key: str, text: str, mechanism: str) -> JaasLine:
    """Parses a JAAS line, which must name the module of `mechanism`. Raises ConfigError."""
    line = parse_jaas(key, text)
    if line.module.rpartition(".")[2] != MODULES[mechanism]:
        raise ConfigError(f"{key} names the module {line.module}: {mechanism} has {MODULES[mechanism]}")
    return line


def brokers_login(
    listener: Listener, access: ListenerAccess, values: Mapping[str, Value | None], own: Mapping[str, str]
) -> Credentials | None:
    """The login of a broker at other brokers, if replication uses `listener`; None if that has no SASL.
    Raises ConfigError."""
    if not listener.is_sasl:
        return None
    way_out = ", or name a listener without SASL in inter.broker.listener.name"
    use = "brokers follow each other through"
    mechanism = _mechanism_of(_BROKERS_MECHANISM, values, listener, use, way_out)
    return _nodes_login(_BROKERS_MECHANISM, mechanism, "brokers", listener, access, own)


def controllers_login(
    listener: Listener,
    access: ListenerAccess | None,
    values: Mapping[str, Value | None],
    own: Mapping[str, str],
) -> Credentials | None:
    """The login at controllers, if they are asked on `listener`; None if that has no SASL. `access`: of a
    voter, whose own listener it is; None: of a broker. Raises ConfigError."""
    if not listener.is_sasl:
        return None
    use = "brokers ask controllers on" if access is None else "voters ask each other on"
    mechanism = _mechanism_of(_CONTROLLERS_MECHANISM, values, listener, use)
    who = "brokers" if access is None else "voters"
    return _nodes_login(_CONTROLLERS_MECHANISM, mechanism, who, listener, access, own)


def _mechanism_of(
    key: str, values: Mapping[str, Value | None], listener: Listener, use: str, way_out: str = ""
) -> str:
    """With which nodes log in at each other. `use`: what they do on the listener."""
    mechanism = cast(str, values[key]).upper()
    if mechanism not in (PLAIN, *SCRAM):
        raise ConfigError(
            f"{use} {listener.name}, which is {listener.protocol}, but {key} is {mechanism}: choose one of "
            f"{', '.join((PLAIN, *SCRAM))}{way_out}"
        )
    return mechanism


def _nodes_login(
    key: str,
    mechanism: str,
    who: str,
    listener: Listener,
    access: ListenerAccess | None,
    own: Mapping[str, str],
) -> Credentials:
    if access is not None and mechanism not in access.mechanisms:
        raise ConfigError(
            f"{key}={mechanism} is not among sasl.enabled.mechanisms of listener "
            f"{listener.name}: add it there, because other {who} use it to log in"
        )
    prefix = f"{_PREFIX}{listener.name.lower()}.{mechanism.lower()}."
    line = _jaas_line(prefix, mechanism, own)
    if line is None:
        where = "to controllers" if access is None else "to each other"
        raise ConfigError(
            f"{prefix}{_JAAS} is missing: {who} log in {where} with {mechanism}, which needs "
            f'{MODULES[mechanism]} required username="NAME" password="PASSWORD";'
        )
    return login_in(line, prefix + _JAAS, mechanism, key)


def _passwords(key: str, line: JaasLine | None) -> dict[str, str]:
    if line is None:
        raise ConfigError(
            f"{key} is missing: PLAIN needs org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_NAME="PASSWORD" ...;'
        )
    passwords = {
        name.removeprefix(_USER_OPTION): password
        for name, password in line.options.items()
        if name.startswith(_USER_OPTION)
    }
    if "" in passwords or "" in passwords.values():
        raise ConfigError(f"{key} has a user without a name or a password: give both")
    if not passwords:
        raise ConfigError(f'{key} has no user, so no client could log in: add user_NAME="PASSWORD"')
    return passwords


def _tokens(listener: Listener, value: Callable[[str], Value | None]) -> TokenSettings:
    name = "sasl.oauthbearer.jwks.endpoint.url"
    url = cast("str | None", value(name))
    parts = urlsplit(url or "")
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise ConfigError(
            f"listener {listener.name} offers OAUTHBEARER, so {name} must name a local file with the keys of "
            "the issuer: write file:///path/to/keys.json"
        )
    return TokenSettings(
        file=Path(unquote(parts.path)),
        audience=cast("tuple[str, ...]", value("sasl.oauthbearer.expected.audience")),
        issuer=cast("str | None", value("sasl.oauthbearer.expected.issuer")) or None,
        clock_skew_s=cast(int, value("sasl.oauthbearer.clock.skew.seconds")),
        subject_claim=cast(str, value("sasl.oauthbearer.sub.claim.name")),
    )


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: one with the own key and certificate chain, one with CAs. `client_auth`: a server requires a
    client certificate that one of the CAs signed."""

    keystore: Path | None = None
    truststore: Path | None = None
    client_auth: bool = False


TLS_OF_A_LISTENER = (
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.client.auth",
)
"""Keys that a TLS listener may set under `listener.name.NAME.`, the controllers' listener too."""


def tls_files(values: Mapping[str, Value | None], prefix: str = "") -> TlsFiles:
    """The files that a configuration names. `prefix`: of the keys that errors name. Raises ConfigError for a
    store that is not a PEM file."""
    for store in ("ssl.keystore", "ssl.truststore"):
        kind = values[f"{store}.type"]
        if values[f"{store}.location"] and kind != "PEM":
            raise ConfigError(
                f"{prefix}{store}.type={kind} is not read here: name a PEM file in {prefix}{store}.location "
                "and leave the type out"
            )
    keystore = cast("str | None", values["ssl.keystore.location"])
    truststore = cast("str | None", values["ssl.truststore.location"])
    return TlsFiles(
        keystore=Path(keystore) if keystore else None,
        truststore=Path(truststore) if truststore else None,
        client_auth=values["ssl.client.auth"] == "required",
    )


def own_tls_keys(listener: str) -> dict[str, str]:
    """The names of the keys of one listener, by the name of the key that they replace."""
    return {key: f"listener.name.{listener.lower()}.{key}" for key in TLS_OF_A_LISTENER}


def own_tls_files(
    listener: str, values: Mapping[str, Value | None], own: Mapping[str, str]
) -> TlsFiles | None:
    """The files of a listener that has keys of its own among `own`; None if it has none. Raises
    ConfigError."""
    names = {key: name for key, name in own_tls_keys(listener).items() if name in own}
    if not names:
        return None
    prefix = f"listener.name.{listener.lower()}."
    replaced = {key: parsed(key, own[name], prefix) for key, name in names.items()}
    return tls_files({**values, **replaced}, prefix)


def check_tls(files: TlsFiles, prefix: str = "") -> None:
    """Raises ConfigError if a TLS listener lacks files. `prefix`: of the listener's own keys, if it has
    some."""
    if files.keystore is None:
        raise ConfigError(
            f"a listener is SSL, but {prefix}ssl.keystore.location is missing: set it to the PEM file with "
            "the key and certificate chain"
        )
    if files.client_auth and files.truststore is None:
        raise ConfigError(
            f"{prefix}ssl.client.auth=required needs {prefix}ssl.truststore.location: set it to the PEM file "
            "of the clients' CA"
        )
