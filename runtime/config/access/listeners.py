"""How clients of each Kafka listener authenticate, from the configured keys and `listener.name.*`.

Owns which keys a listener may have of its own, and that a listener that requires a login has all it needs.
Does not read a file: `runtime.kafka.auth` reads the keys of tokens, `runtime.tls` the certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

import msgspec

from metaquorum.metadata.access.authorizer import Authorizer
from metaquorum.runtime.config.access.jaas import JaasLine, parse_jaas
from metaquorum.runtime.config.access.keys import ACCESS, TLS
from metaquorum.runtime.config.access.logins import Credentials, login_in
from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.key import Key, Value
from metaquorum.runtime.config.keys_data import DATA
from metaquorum.runtime.errors import ConfigError

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
_JAAS = "sasl.jaas.config"
_VALIDATOR = "sasl.server.callback.handler.class"
_PREFIX = "listener.name."
_OWN_OF_A_LISTENER = (
    "sasl.enabled.mechanisms",
    "connections.max.reauth.ms",
    "sasl.server.max.receive.size",
    "max.connections",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    *(key.name for key in ACCESS if key.name.startswith("sasl.oauthbearer.")),
)
"""Keys that a listener may set under `listener.name.NAME.`."""
_OF_A_MECHANISM = (_JAAS, "connections.max.reauth.ms", _VALIDATOR)
_KEYS: dict[str, Key] = {key.name: key for key in (*ACCESS, *TLS, *DATA)}


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
    max_receive_bytes: int = 524_288
    tokens: TokenSettings | None = None
    client_auth: str = "none"
    max_connections: int | None = None
    principal_rules: str = "DEFAULT"


def is_of_a_listener(name: str, listeners: tuple[Listener, ...]) -> bool:
    """True for a key that a Kafka listener may set for itself."""
    return any(name in _allowed(each) for each in listeners)


def _allowed(listener: Listener) -> set[str]:
    prefix = f"{_PREFIX}{listener.name.lower()}."
    names = {prefix + key for key in _OWN_OF_A_LISTENER}
    return names | {f"{prefix}{each.lower()}.{key}" for each in MECHANISMS for key in _OF_A_MECHANISM}


def check_authorizer(values: Mapping[str, Value]) -> None:
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


def super_users(values: Mapping[str, Value]) -> tuple[str, ...]:
    """The principals of `super.users`."""
    return tuple(each.strip() for each in cast(str, values["super.users"]).split(";") if each.strip())


def new_authorizer(values: Mapping[str, Value]) -> Authorizer | None:
    """The authorizer of a node's configuration; None if none is configured."""
    if not values["authorizer.class.name"]:
        return None
    return Authorizer(
        super_users=super_users(values),
        allow_everyone=values["allow.everyone.if.no.acl.found"] == "true",
    )


def listener_access(
    listener: Listener, values: Mapping[str, Value], own: Mapping[str, str]
) -> ListenerAccess:
    """The access to one listener. `own`: the keys under `listener.name.`, as text. Raises ConfigError."""
    prefix = f"{_PREFIX}{listener.name.lower()}."

    def value(name: str) -> Value:
        raw = own.get(prefix + name)
        try:
            return values[name] if raw is None else _KEYS[name].parse(raw)
        except ConfigError as error:
            raise ConfigError(f"{prefix}{error}") from error

    client_auth = cast(str, value("ssl.client.auth"))
    if listener.is_sasl and f"{prefix}ssl.client.auth" not in own:
        client_auth = "none"
    access = ListenerAccess(
        client_auth=client_auth,
        max_connections=cast(int, value("max.connections")) if f"{prefix}max.connections" in own else None,
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
    return otherwise if raw is None else cast(int, _KEYS["connections.max.reauth.ms"].parse(raw))


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
    listener: Listener, access: ListenerAccess, values: Mapping[str, Value], own: Mapping[str, str]
) -> Credentials | None:
    """The login of a broker at other brokers, if replication uses `listener`; None if that has no SASL.
    Raises ConfigError."""
    if not listener.is_sasl:
        return None
    mechanism = cast(str, values[_BROKERS_MECHANISM]).upper()
    if mechanism not in (PLAIN, *SCRAM):
        raise ConfigError(
            f"brokers follow each other through {listener.name}, which is {listener.protocol}, but "
            f"{_BROKERS_MECHANISM} is {mechanism}: choose one of {', '.join((PLAIN, *SCRAM))}, or name a "
            "listener without SASL in inter.broker.listener.name"
        )
    if mechanism not in access.mechanisms:
        raise ConfigError(
            f"{_BROKERS_MECHANISM}={mechanism} is not among sasl.enabled.mechanisms of listener "
            f"{listener.name}: add it there, because other brokers use it to log in"
        )
    prefix = f"{_PREFIX}{listener.name.lower()}.{mechanism.lower()}."
    line = _jaas_line(prefix, mechanism, own)
    if line is None:
        raise ConfigError(
            f"{prefix}{_JAAS} is missing: brokers log in to each other with {mechanism}, which needs "
            f'{MODULES[mechanism]} required username="NAME" password="PASSWORD";'
        )
    return login_in(line, prefix + _JAAS, mechanism, _BROKERS_MECHANISM)


def _passwords(key: str, line: JaasLine | None) -> dict[str, str]:
    if line is None:
        raise ConfigError(
            f"{key} is missing: PLAIN needs org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_NAME="PASSWORD" ...;'
        )
    found = {
        name.removeprefix(_USER_OPTION): password
        for name, password in line.options.items()
        if name.startswith(_USER_OPTION)
    }
    if "" in found or "" in found.values():
        raise ConfigError(f"{key} has a user without a name or a password: give both")
    if not found:
        raise ConfigError(f'{key} has no user, so no client could log in: add user_NAME="PASSWORD"')
    return found


def _tokens(listener: Listener, value: Callable[[str], Value]) -> TokenSettings:
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
