"""The configuration keys of brokers that can change while they run, as of Kafka 3.7, and what topics inherit.

A key that a node's file has too is only here, with its text and its roles; `config.keys` has
those that only a file has. Setting one of them at run time would have no effect, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

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
    BOTH,
    BROKER,
    CONTROLLER,
    MAX_DOUBLE,
    MAX_INT,
    MAX_LONG,
    MIB,
    ConfigValueError,
    Key,
    Kind,
    UpdateMode,
    Value,
)
from metaquorum.metadata.settings.resource_keys import TOPIC_KEYS

_LISTENER_KEY = re.compile(r"listener\.name\.[^.]+\.(.+)\Z")
_HOUR_MS = 3_600_000
_STORES = ("PEM", "JKS", "PKCS12")

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


_OF_TOPICS: Mapping[str, Key] = {name: key for key in TOPIC_KEYS.values() for name in key.synonyms}
"""The topic key behind each broker key that has a default for it."""

_STRONGEST_WITHOUT_DEFAULT = frozenset(
    {"log.roll.ms", "log.roll.jitter.ms", "log.retention.ms", "log.flush.interval.ms"}
)
"""Kafka gives these no default: a weaker synonym (log.retention.hours) has it."""


def _inherited(name: str, text: str = "", **more: Any) -> Key:
    """What topics inherit that do not set it: range and default are those of the topic's key. With `text`,
    a broker's file has it too."""
    key = _OF_TOPICS[name]
    unit = "bytes" if name.endswith(".bytes") else key.unit
    row = Key(
        name,
        key.kind,
        None if name in _STRONGEST_WITHOUT_DEFAULT else key.default,
        text,
        key.minimum,
        key.maximum,
        choices=key.choices,
        unit=unit,
        mode=UpdateMode.CLUSTER_WIDE,
        is_live=bool(key.roles),
        roles=(BROKER,) if text else (),
    )
    return replace(row, **more) if more else row


def _longer(name: str, unit: str, ms: int, text: str = "", minimum: int = 0, **more: Any) -> Key:
    """A weaker synonym in a longer unit of `ms`, which only a file has."""
    default = int(cast(int, _OF_TOPICS[name].default)) // ms
    roles = (BROKER,) if text else ()
    row = Key(name, Kind.INT, default, text, minimum, MAX_INT, unit=unit, roles=roles)
    return replace(row, **more) if more else row


def _off(direction: str) -> str:
    return f"How far a record's own timestamp may be {direction} the broker's clock."


TOPIC_DEFAULTS = (
    _inherited("message.max.bytes", "Maximum size of a batch that a producer may send."),
    _inherited(
        "min.insync.replicas",
        "In-sync replicas needed for `acks=all`. With KIP-966 the cluster-wide default takes precedence; "
        "upgrading `eligible.leader.replicas.version` sets it to the controllers' value.",
        roles=(BROKER, CONTROLLER),
    ),
    _inherited(
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync may lead when no in-sync replica is alive; records that it "
        "lacks are lost. The same on all controllers.",
        roles=(CONTROLLER,),
    ),
    _inherited("log.segment.bytes", "Maximum size of a segment."),
    _inherited("log.roll.ms", "Maximum age of a segment before a new one starts."),
    _longer("log.roll.hours", "hours", _HOUR_MS, "The same in hours, if `log.roll.ms` is not set.", 1),
    _inherited("log.retention.bytes", "Maximum size of a partition's log. -1: no limit.", minimum=-1),
    _inherited("log.retention.ms", "How long a segment is kept after its newest record. -1: forever."),
    _longer(
        "log.retention.minutes",
        "minutes",
        60_000,
        "The same in minutes, if `log.retention.ms` is not set.",
        -1,
        default=None,
    ),
    _longer("log.retention.hours", "hours", _HOUR_MS, "The same in hours, if neither of these is set.", -1),
    _inherited(
        "log.cleanup.policy",
        "`delete`: old segments are deleted; `compact`: the last record of each key is kept; or both.",
    ),
    _inherited("compression.type", "Codec of stored batches; `producer`: as sent."),
    _inherited(
        "log.cleaner.min.cleanable.ratio", "Share of never compacted bytes above which a log is compacted."
    ),
    _inherited("log.cleaner.min.compaction.lag.ms", "Records younger than this are not compacted."),
    _inherited(
        "log.cleaner.max.compaction.lag.ms",
        "A log with dirty records older than this is compacted, regardless of their share.",
    ),
    _inherited(
        "log.cleaner.delete.retention.ms",
        "How long tombstones and transaction markers stay after compaction.",
    ),
    _inherited("log.segment.delete.delay.ms", "How long the file of a deleted segment stays."),
    _inherited(
        "log.message.timestamp.type",
        "`CreateTime`: records keep the producer's timestamp; `LogAppendTime`: they get the leader's.",
    ),
    _inherited("log.message.timestamp.before.max.ms", _off("behind")),
    _inherited("log.message.timestamp.after.max.ms", _off("ahead of")),
    _inherited("log.message.timestamp.difference.max.ms", _off("behind or ahead of")),
)
"""What topics inherit, in the order of docs/configuration.md."""

_STORED_TOPIC_DEFAULTS = (
    *map(
        _inherited,
        (
            *("log.roll.jitter.ms", "log.index.size.max.bytes", "log.flush.interval.messages"),
            *("log.flush.interval.ms", "log.index.interval.bytes", "log.preallocate"),
            *("log.message.downconversion.enable", "log.local.retention.ms", "log.local.retention.bytes"),
        ),
    ),
    _longer("log.roll.jitter.hours", "hours", _HOUR_MS),
    _inherited("log.flush.scheduler.interval.ms", mode=UpdateMode.READ_ONLY),
    _inherited("log.message.format.version", mode=UpdateMode.READ_ONLY),
)


def _shared(name: str, kind: Kind, default: Value, text: str = "", **more: Any) -> Key:
    """A key that may be set for all brokers. With `text`, a broker's file has it too."""
    roles = more.pop("roles", (BROKER,) if text else ())
    if kind in (Kind.INT, Kind.LONG):
        more.setdefault("maximum", MAX_INT if kind is Kind.INT else MAX_LONG)
    return Key(name, kind, default, text, mode=UpdateMode.CLUSTER_WIDE, roles=roles, **more)


def _single(name: str, kind: Kind, default: Value | None = None, text: str = "", **more: Any) -> Key:
    """A key that is set for one broker. With `text`, a node's file has it too."""
    roles = more.pop("roles", BOTH if text else ())
    return Key(name, kind, default, text, mode=UpdateMode.PER_BROKER, roles=roles, **more)


_ONLY_PEM = "Only PEM is read; Kafka's other types are accepted if no file is set."

THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""No file has them, and a broker that is described has them only where they are set."""

_OF_ALL = (
    _shared(
        "log.cleaner.threads",
        Kind.INT,
        1,
        "Processes that compact logs, for all log directories.",
        minimum=0,
        maximum=64,
    ),
    _shared(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 * MIB,
        "Memory for the keys of dirty segments, for all cleaners.",
        minimum=MIB,
        unit="bytes",
    ),
    _shared("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, 0.9),
    _shared("log.cleaner.io.buffer.size", Kind.INT, 512 * 1024, minimum=0),
    _shared(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        MAX_DOUBLE,
        "Maximum rate at which all cleaners read and write.",
        minimum=1,
    ),
    _shared(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        15_000,
        "Interval between searches for logs to compact.",
        minimum=0,
        maximum=MAX_INT,
        unit="ms",
    ),
    _shared("num.io.threads", Kind.INT, 8, minimum=1),
    _shared("num.replica.fetchers", Kind.INT, 1, minimum=1),
    _shared("num.recovery.threads.per.data.dir", Kind.INT, 1, minimum=1),
    _shared("background.threads", Kind.INT, 10, minimum=1),
    _shared("num.network.threads", Kind.INT, 3, minimum=1),
    _shared("metric.reporters", Kind.LIST, ()),
    _shared(
        "max.connections",
        Kind.INT,
        MAX_INT,
        "Maximum number of clients' connections, and of connections to a controller; further ones are closed "
        "when accepted. Where brokers have a listener of their own, it takes them, and the least recently "
        "used one of another listener is closed. The limit of open files may leave fewer: a line at the "
        "start says how many. `listener.name.NAME.max.connections`: of one listener.",
        minimum=1,
        roles=BOTH,
    ),
    _shared(
        "max.connections.per.ip",
        Kind.INT,
        MAX_INT,
        "Maximum number of connections from one IP address: of all Kafka listeners together, and of each "
        "other port; further ones are closed when accepted.",
        minimum=0,
        roles=BOTH,
    ),
    _shared(
        "max.connections.per.ip.overrides",
        Kind.STRING,
        "",
        "`max.connections.per.ip` of single hosts or addresses: `HOST:NUMBER`, separated by commas.",
        roles=BOTH,
    ),
    _shared(
        "max.connection.creation.rate",
        Kind.INT,
        MAX_INT,
        "Maximum rate of new connections per second; further ones wait to be accepted. A brokers' listener "
        "of its own does not count. `listener.name.NAME.max.connection.creation.rate`: of one listener.",
        minimum=1,
        roles=BOTH,
    ),
    _shared(
        "producer.id.expiration.ms",
        Kind.INT,
        86_400_000,
        "A partition forgets a producer that wrote nothing for this long.",
        minimum=1,
        unit="ms",
    ),
    _shared("transaction.partition.verification.enable", Kind.BOOLEAN, True),
    _shared("remote.log.index.file.cache.total.size.bytes", Kind.LONG, 1024 * MIB, minimum=1),
    *(_shared(name, Kind.LONG, MAX_LONG, minimum=0, is_live=True) for name in THROTTLES),
)

_OF_ONE = (
    _single(
        "advertised.listeners",
        Kind.STRING,
        None,
        "What a node registers instead of `listeners`, by the same names; without a host: this machine's "
        "name. A combined node may omit its controller's.",
    ),
    _single(
        "listeners",
        Kind.STRING,
        "PLAINTEXT://:9092",
        "Where this process listens, as `NAME://host:port`; without a host on every interface. A controller "
        "has those of `controller.listener.names`, a combined node these and its broker's. A broker's "
        "listeners speak Kafka's protocol, or gRPC if their names begin with `GRPC` (for `metaquorum broker "
        "status` and `log-dirs mark-offline`).",
    ),
    _single(
        "listener.security.protocol.map",
        Kind.STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Protocol of each listener name, `NAME:PLAINTEXT` or `NAME:SSL`, for Kafka listeners also "
        "`NAME:SASL_PLAINTEXT` or `NAME:SASL_SSL`. Names that are protocols need no entry; those that begin "
        "with `GRPC` are PLAINTEXT, and so is the controllers'.",
    ),
    _single(
        "principal.builder.class",
        Kind.CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    ),
    _single("ssl.protocol", Kind.STRING, "TLSv1.3"),
    _single("ssl.provider", Kind.STRING),
    _single("ssl.cipher.suites", Kind.LIST, ()),
    _single("ssl.enabled.protocols", Kind.LIST, ("TLSv1.2", "TLSv1.3")),
    _single("ssl.keystore.type", Kind.STRING, "PEM", _ONLY_PEM, choices=_STORES),
    _single(
        "ssl.keystore.location",
        Kind.STRING,
        None,
        "PEM file with this node's private key (not encrypted) and certificate chain; also its client "
        "certificate. Required for an SSL listener.",
    ),
    _single("ssl.keystore.password", Kind.PASSWORD),
    _single("ssl.key.password", Kind.PASSWORD),
    _single("ssl.keystore.key", Kind.PASSWORD),
    _single("ssl.keystore.certificate.chain", Kind.PASSWORD),
    _single("ssl.truststore.type", Kind.STRING, "PEM", _ONLY_PEM, choices=_STORES),
    _single(
        "ssl.truststore.location",
        Kind.STRING,
        None,
        "PEM file with the CA certificates that must have signed the peers' certificates.",
    ),
    _single("ssl.truststore.password", Kind.PASSWORD),
    _single("ssl.truststore.certificates", Kind.PASSWORD),
    _single("ssl.keymanager.algorithm", Kind.STRING, "SunX509"),
    _single("ssl.trustmanager.algorithm", Kind.STRING, "PKIX"),
    _single("ssl.endpoint.identification.algorithm", Kind.STRING, "https"),
    _single("ssl.secure.random.implementation", Kind.STRING),
    _single(
        "ssl.client.auth",
        Kind.STRING,
        "none",
        "`required`: clients must send a certificate signed by a CA in the truststore. `requested`: on "
        "Kafka listeners they may. A listener with SASL asks for none unless "
        "`listener.name.NAME.ssl.client.auth` says so.",
        choices=("none", "requested", "required"),
    ),
    _single("ssl.engine.factory.class", Kind.CLASS),
    _single(
        "sasl.mechanism.inter.broker.protocol",
        Kind.STRING,
        "GSSAPI",
        "How brokers log in to each other on a SASL listener: `PLAIN`, `SCRAM-SHA-256` or "
        "`SCRAM-SHA-512`, with `username` and `password` in "
        "`listener.name.NAME.MECHANISM.sasl.jaas.config`.",
        roles=(BROKER,),
    ),
    _single("sasl.jaas.config", Kind.PASSWORD),
    _single(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        ("GSSAPI",),
        "Mechanisms of SASL listeners: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`. The "
        "default (Kerberos) is not supported.",
        roles=BOTH,
    ),
    _single("sasl.kerberos.service.name", Kind.STRING),
    _single("sasl.kerberos.kinit.cmd", Kind.STRING, "/usr/bin/kinit"),
    _single("sasl.kerberos.ticket.renew.window.factor", Kind.DOUBLE, 0.8),
    _single("sasl.kerberos.ticket.renew.jitter", Kind.DOUBLE, 0.05),
    _single("sasl.kerberos.min.time.before.relogin", Kind.LONG, 60_000),
    _single("sasl.kerberos.principal.to.local.rules", Kind.LIST, ("DEFAULT",)),
    _single("sasl.login.refresh.window.factor", Kind.DOUBLE, 0.8),
    _single("sasl.login.refresh.window.jitter", Kind.DOUBLE, 0.05),
    _single("sasl.login.refresh.min.period.seconds", Kind.SHORT, 60),
    _single("sasl.login.refresh.buffer.seconds", Kind.SHORT, 300),
)

SHARED_KEYS: Mapping[str, Key] = {
    key.name: key for key in (*TOPIC_DEFAULTS, *_STORED_TOPIC_DEFAULTS, *_OF_ALL, *_OF_ONE)
}
"""Every key of a broker that its file and its resource share, also those that Kafka has and no node reads."""

BROKER_KEYS: Mapping[str, Key] = {
    name: key for name, key in SHARED_KEYS.items() if key.mode is not UpdateMode.READ_ONLY
}
"""Those that can change while brokers run."""

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {name: key.synonyms for name, key in _OF_TOPICS.items()}
"""Synonymous broker keys, the strongest first."""

STATIC_DEFAULTS: Mapping[str, str] = {
    name: text
    for name, key in SHARED_KEYS.items()
    if (text := key.default_text) is not None and name not in THROTTLES
}
"""What a broker's keys are if nothing is set."""


def broker_default(name: str) -> Any:
    """The default of a key, for the classes that have a field for it."""
    return SHARED_KEYS[name].default


class _Binding(msgspec.Struct, frozen=True):
    """The value of a host binding; a later version may contain more."""

    version: int
    broker_id: int = msgspec.field(name="broker.id")


def is_id_memory(name: str) -> bool:
    """Whether a key in the default of all brokers is one by which the cluster remembers ids (S0)."""
    return name == NEXT_ID or name.startswith((BINDING_PREFIX, CURRENT_PREFIX, CLAIM_PREFIX))


def broker_key(name: str) -> Key | None:
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
    if name == "advertised.listeners":  # in Kafka with ZooKeeper only
        raise ConfigValueError(
            f"{name} cannot be altered: set it in the broker's file, and restart the broker"
        )
    if key is None and name in KAFKA_KEYS:
        raise ConfigValueError(f"{name} cannot be changed while a broker runs: set it in each broker's file")
    if key is None:
        return  # Kafka keeps unknown keys, for plug-ins
    prefixed = key.name != name
    if key.name in _PER_LISTENER_ONLY and not prefixed:
        raise ConfigValueError(f"{name} is set per listener: set listener.name.<name>.{name}")
    for_one = key.mode is UpdateMode.PER_BROKER or (prefixed and key.name not in _LISTENER_WIDE)
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
