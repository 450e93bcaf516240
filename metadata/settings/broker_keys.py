"""The configuration keys of brokers that can change at run time, as of Kafka 3.7 (its dynamic broker
configs).

Owns the table, keys with a listener's prefix, and our own prefix for host bindings. Does not include keys
that a broker reads only from its file: setting them would have no effect, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from metaquorum.metadata.broker_ids import (
    BINDING_PREFIX,
    CLAIM_PREFIX,
    CURRENT_PREFIX,
    NEXT_ID,
    VALUE_VERSION,
    escape_key,
    unescape_key,
)
from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS
from metaquorum.metadata.settings.keys import (
    JAVA_MAX_DOUBLE,
    MAX_INT,
    MAX_LONG,
    ConfigKey,
    ConfigValueError,
    Kind,
)
from metaquorum.metadata.settings.topic_keys import TOPIC_KEYS

_LISTENER_KEY = re.compile(r"listener\.name\.[^.]+\.(.+)\Z")
_MIB = 1024 * 1024

_PER_LISTENER_ONLY = frozenset(
    {
        *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.key.password"),
        *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password"),
        *("ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.truststore.certificates"),
    }
)
"""Kafka changes these only for one listener at a time."""

_LISTENER_WIDE = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
"""May have a listener's prefix in the cluster default too."""

_MECHANISM_KEYS = ("sasl.jaas.config", "sasl.login.class", "connections.max.reauth.ms")
"""May have a mechanism between the listener's prefix and the name."""


def _int(name: str, default: int, minimum: int) -> ConfigKey:
    return ConfigKey(name, Kind.INT, str(default), minimum, MAX_INT)


def _long(name: str, default: int, minimum: int | None = None) -> ConfigKey:
    return ConfigKey(name, Kind.LONG, str(default), minimum, MAX_LONG)


def _own(name: str, kind: Kind, default: str | None = None, choices: tuple[str, ...] = ()) -> ConfigKey:
    """A key that belongs to one broker."""
    return ConfigKey(name, kind, default, choices=choices, per_broker=True)


_STRONGEST_WITHOUT_DEFAULT = frozenset(
    {"log.roll.ms", "log.roll.jitter.ms", "log.retention.ms", "log.flush.interval.ms"}
)
"""Kafka gives these no default: a weaker synonym (log.retention.hours) has it."""


def _of_topics() -> list[ConfigKey]:
    """The broker key for each topic key: the default for topics that do not set it."""
    found = []
    for key in TOPIC_KEYS.values():
        if key.synonyms and key.name != "message.format.version":
            name = key.synonyms[0]
            default = None if name in _STRONGEST_WITHOUT_DEFAULT else key.default
            found.append(ConfigKey(name, key.kind, default, key.minimum, key.maximum, key.choices))
    return found


_KEYS = (
    *_of_topics(),
    _int("log.cleaner.threads", 1, 0),
    _long("log.cleaner.dedupe.buffer.size", 128 * _MIB),
    ConfigKey("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, "0.9"),
    _int("log.cleaner.io.buffer.size", 512 * 1024, 0),
    ConfigKey("log.cleaner.io.max.bytes.per.second", Kind.DOUBLE, JAVA_MAX_DOUBLE),
    _long("log.cleaner.backoff.ms", 15_000, 0),
    _int("num.io.threads", 8, 1),
    _int("num.replica.fetchers", 1, 1),
    _int("num.recovery.threads.per.data.dir", 1, 1),
    _int("background.threads", 10, 1),
    _int("num.network.threads", 3, 1),
    ConfigKey("metric.reporters", Kind.LIST, ""),
    _int("max.connections.per.ip", MAX_INT, 0),
    ConfigKey("max.connections.per.ip.overrides", Kind.STRING, ""),
    _int("max.connections", MAX_INT, 0),
    _int("max.connection.creation.rate", MAX_INT, 0),
    _int("producer.id.expiration.ms", 86_400_000, 1),
    ConfigKey("transaction.partition.verification.enable", Kind.BOOLEAN, "true"),
    _long("remote.log.index.file.cache.total.size.bytes", 1024 * _MIB, 1),
    _long("leader.replication.throttled.rate", MAX_LONG, 0),
    _long("follower.replication.throttled.rate", MAX_LONG, 0),
    _long("replica.alter.log.dirs.io.max.bytes.per.second", MAX_LONG, 0),
    _own("advertised.listeners", Kind.STRING),
    _own("listeners", Kind.STRING, "PLAINTEXT://:9092"),
    _own(
        "listener.security.protocol.map",
        Kind.STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    _own(
        "principal.builder.class",
        Kind.CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    ),
    _own("ssl.protocol", Kind.STRING, "TLSv1.3"),
    _own("ssl.provider", Kind.STRING),
    _own("ssl.cipher.suites", Kind.LIST, ""),
    _own("ssl.enabled.protocols", Kind.LIST, "TLSv1.2,TLSv1.3"),
    _own("ssl.keystore.type", Kind.STRING, "JKS"),
    _own("ssl.keystore.location", Kind.STRING),
    _own("ssl.keystore.password", Kind.PASSWORD),
    _own("ssl.key.password", Kind.PASSWORD),
    _own("ssl.keystore.key", Kind.PASSWORD),
    _own("ssl.keystore.certificate.chain", Kind.PASSWORD),
    _own("ssl.truststore.type", Kind.STRING, "JKS"),
    _own("ssl.truststore.location", Kind.STRING),
    _own("ssl.truststore.password", Kind.PASSWORD),
    _own("ssl.truststore.certificates", Kind.PASSWORD),
    _own("ssl.keymanager.algorithm", Kind.STRING, "SunX509"),
    _own("ssl.trustmanager.algorithm", Kind.STRING, "PKIX"),
    _own("ssl.endpoint.identification.algorithm", Kind.STRING, "https"),
    _own("ssl.secure.random.implementation", Kind.STRING),
    _own("ssl.client.auth", Kind.STRING, "none", ("required", "requested", "none")),
    _own("ssl.engine.factory.class", Kind.CLASS),
    _own("sasl.mechanism.inter.broker.protocol", Kind.STRING, "GSSAPI"),
    _own("sasl.jaas.config", Kind.PASSWORD),
    _own("sasl.enabled.mechanisms", Kind.LIST, "GSSAPI"),
    _own("sasl.kerberos.service.name", Kind.STRING),
    _own("sasl.kerberos.kinit.cmd", Kind.STRING, "/usr/bin/kinit"),
    _own("sasl.kerberos.ticket.renew.window.factor", Kind.DOUBLE, "0.8"),
    _own("sasl.kerberos.ticket.renew.jitter", Kind.DOUBLE, "0.05"),
    _own("sasl.kerberos.min.time.before.relogin", Kind.LONG, "60000"),
    _own("sasl.kerberos.principal.to.local.rules", Kind.LIST, "DEFAULT"),
    _own("sasl.login.refresh.window.factor", Kind.DOUBLE, "0.8"),
    _own("sasl.login.refresh.window.jitter", Kind.DOUBLE, "0.05"),
    _own("sasl.login.refresh.min.period.seconds", Kind.SHORT, "60"),
    _own("sasl.login.refresh.buffer.seconds", Kind.SHORT, "300"),
)

BROKER_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    synonym: key.synonyms for key in TOPIC_KEYS.values() for synonym in key.synonyms
}
"""Synonymous broker keys, the strongest first."""

STATIC_DEFAULTS: Mapping[str, str] = {
    **{key.name: key.default for key in _KEYS if key.default is not None},
    "log.roll.hours": "168",
    "log.roll.jitter.hours": "0",
    "log.retention.hours": "168",
    "log.flush.scheduler.interval.ms": str(MAX_LONG),
    "log.message.format.version": "3.0-IV1",
}
"""The values of a broker of Kafka 3.7 if nothing is set."""


class _Binding(msgspec.Struct, frozen=True):
    """The value of a host binding; a later version may contain more."""

    version: int
    broker_id: int = msgspec.field(name="broker.id")


def is_id_memory(name: str) -> bool:
    """Whether a key in the default of all brokers is one by which the cluster remembers ids (S0)."""
    return name == NEXT_ID or name.startswith((BINDING_PREFIX, CURRENT_PREFIX, CLAIM_PREFIX))


def broker_key(name: str) -> ConfigKey | None:
    """The key for a broker configuration name, without its listener's prefix; None if unknown."""
    match = _LISTENER_KEY.match(name)
    if match is None:
        return BROKER_KEYS.get(name)
    base = next((key for key in _MECHANISM_KEYS if match[1].endswith(f".{key}")), match[1])
    return BROKER_KEYS.get(base)


def check_broker_value(name: str, text: str, *, per_broker: bool) -> None:
    """Checks one key of one broker, or of the cluster default. Raises ConfigValueError."""
    if name.startswith(BINDING_PREFIX):
        _check_binding(name, text, per_broker=per_broker)
        return
    if is_id_memory(name):
        raise ConfigValueError(f"the controllers maintain {name} themselves: bind hosts to ids instead")
    key = broker_key(name)
    if key is None and name in KAFKA_KEYS:
        raise ConfigValueError(f"{name} cannot be changed while a broker runs: set it in each broker's file")
    if key is None:
        return  # Kafka keeps unknown keys, for plug-ins
    prefixed = key.name != name
    if key.name in _PER_LISTENER_ONLY and not prefixed:
        raise ConfigValueError(f"{name} is set per listener: set listener.name.<name>.{name}")
    for_one = key.per_broker or (prefixed and key.name not in _LISTENER_WIDE)
    if for_one and not per_broker:
        raise ConfigValueError(f"{name} is per broker: set it on a broker, not on the cluster default")
    try:
        key.parse(text)
    except ConfigValueError as error:
        raise ConfigValueError(str(error).replace(key.name, name, 1)) from None


def _check_binding(name: str, text: str, *, per_broker: bool) -> None:
    if per_broker:
        raise ConfigValueError(f"{name} is cluster-wide: set it on the cluster default")
    key = name.removeprefix(BINDING_PREFIX)
    written = escape_key(unescape_key(key))
    if not key or written != key:
        shown = written or "<host>"
        raise ConfigValueError(f"{name} would never match: write {BINDING_PREFIX}{shown}")
    try:
        binding = msgspec.json.decode(text, type=_Binding)
    except msgspec.DecodeError as error:
        raise ConfigValueError(
            f'{name} cannot be {text!r} ({error}): write {{"version":0,"broker.id":10}}'
        ) from None
    if binding.version < VALUE_VERSION or not 0 <= binding.broker_id <= MAX_INT:
        raise ConfigValueError(f"{name} names broker {binding.broker_id}: an id is 0 to {MAX_INT}")
