"""A node's configuration: the values that the cores are built from. `load` makes it from a file, checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metaquorum.config.addresses import PROTOCOL_IDS, Listener, parse_overrides, split
from metaquorum.config.keys import KAFKA_PROTOCOL, KEYS, PROTOCOL_KEY
from metaquorum.config.keys_of_brokers import RACK_AWARE
from metaquorum.config.security import Credentials, ListenerAccess, TlsFiles
from metaquorum.errors import ConfigError
from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.metadata.node_configs import (
    OBSERVER_REPLICA,
    VOTER_REPLICA,
    BrokerConfig,
    ControllerConfig,
    CoordinatorConfig,
    GroupConfig,
    InternalTopic,
    MetadataReplicaConfig,
    ReplicaConfig,
    TransactionConfig,
)
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature, ControllerEndpoint, Record
from metaquorum.metadata.settings.broker_keys import BROKER_SYNONYMS
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER, MIB, Value, defaults_of, value_text
from metaquorum.metadata.settings.resource_keys import GROUP_KEYS, GroupBounds
from metaquorum.metadata.settings.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.log.config import LogConfig

COMBINED = "combined"
"""The role of a process that is controller and broker."""

UNKNOWN_NODE_ID = -1
"""`NodeConfig.node_id` of a broker that does not know its id yet, as in Kafka; no process continues with
it."""


class RetentionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of `metadata.max.retention.*`; None: no limit."""

    max_bytes: int | None
    max_ms: int | None


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The complete configuration of a process. `role` is controller, broker or combined. `voters` are the
    static ones, none if the log has the voter set; `bootstrap_servers` are (host, port) of controllers, and
    `controller_listener` is the name of their listener that this node asks, one of `controller_names`, of
    protocol `controllers_protocol`, `grpc_controller_listener` that of gRPC, None if there is none. `access`
    is by name of Kafka listener; `brokers_login` is this broker's login at other brokers,
    `controllers_login` this node's at controllers over Kafka's protocol, None if there is none. `values`
    has every key, with defaults; `passed_over` are Kafka's keys in the file that have no effect here, and
    `warnings` are about the file, without its path. `listener_tls` is of the listeners that have ssl.* keys
    of their own."""

    path: Path
    role: str
    node_id: int
    voters: tuple[Voter, ...]
    bootstrap_servers: tuple[tuple[str, int], ...]
    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    metrics_listener: Listener | None
    controller_names: tuple[str, ...]
    controller_listener: str
    controllers_protocol: str
    grpc_controller_listener: str | None
    log_dirs: tuple[Path, ...]
    metadata_log_dir: Path
    tls: TlsFiles
    raft: RaftConfig
    log: LogConfig
    retention: RetentionBounds
    values: Mapping[str, Value | None]
    access: Mapping[str, ListenerAccess] = msgspec.field(default_factory=dict)
    brokers_login: Credentials | None = None
    controllers_login: Credentials | None = None
    passed_over: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    listener_tls: Mapping[str, TlsFiles] = msgspec.field(default_factory=dict)
    finds_protocol: bool = False
    """Whether neither the file of this broker nor the names in it say what the controllers speak."""

    def number(self, name: str) -> int:
        """The value of an integer key."""
        return cast(int, self.values[name])

    def real(self, name: str) -> float:
        """The value of a key that is a decimal number."""
        return cast(float, self.values[name])

    def bound(self, name: str) -> int | None:
        """The value of an integer key; None for -1, which means no limit."""
        return unbounded(self.values[name])

    def text(self, name: str) -> str:
        """The value of a text key that has a default."""
        return cast(str, self.values[name])

    def flag(self, name: str) -> bool:
        """The value of a key that is true or false."""
        return cast(bool, self.values[name])

    def _filled(self, cls: type) -> dict[str, Any]:
        """The fields of a configuration class that keys fill."""
        return filled(cls, self.values)

    def overrides(self) -> dict[str, int]:
        """max.connections.per.ip.overrides, by host."""
        return parse_overrides(split(self.text("max.connections.per.ip.overrides")))

    def set_in_file(self, names: Container[str]) -> dict[str, str]:
        """The keys among `names` that this node's file sets to a value other than the default, as text."""
        values: dict[str, str] = {}
        for name, value in self.values.items():
            if name in names and value is not None and value != KEYS[name].default:
                values[name] = value_text(value)
        return values

    @property
    def controllers_use_tls(self) -> bool:
        """Whether connections to controllers have TLS."""
        return self.controllers_protocol.endswith("SSL")

    @property
    def tls_listeners(self) -> tuple[str, ...]:
        """The names of the listeners with TLS, this node's and the controllers'."""
        names = [each.name for each in self.listeners if each.is_tls]
        if self.controllers_use_tls and self.controller_listener not in names:
            names.append(self.controller_listener)
        return tuple(names)

    def tls_of(self, listener: str) -> TlsFiles:
        """The TLS files of a listener, by its name."""
        return self.listener_tls.get(listener, self.tls)

    def of(self, role: str) -> NodeConfig:
        """The configuration of one role of this process, with the listeners of that role only."""
        if role == self.role:
            return self

        def own(listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
            wanted = role == CONTROLLER
            return tuple(each for each in listeners if (each.name in self.controller_names) is wanted)

        return replace(self, role=role, listeners=own(self.listeners), advertised=own(self.advertised))

    @property
    def kafka_listeners(self) -> tuple[Listener, ...]:
        """The listeners of Kafka's protocol: all of a broker's or controller's that are not gRPC."""
        grpc = self.grpc_listeners
        return tuple(each for each in self.listeners if each not in grpc)

    @property
    def quorum_speaks_kafka(self) -> bool:
        """Whether this node asks controllers by Kafka's protocol."""
        return self.text(PROTOCOL_KEY) == KAFKA_PROTOCOL

    @property
    def grpc_listeners(self) -> tuple[Listener, ...]:
        """The gRPC listeners, by their names."""
        return tuple(each for each in self.listeners if each.name.startswith(GRPC_LISTENER))

    @property
    def inter_broker_listener(self) -> Listener | None:
        """The advertised listener that other brokers fetch through; None if the configured names match
        none."""
        kafka = [each for each in self.advertised if not each.name.startswith(GRPC_LISTENER)]
        name = cast("str | None", self.values["inter.broker.listener.name"])
        if name:
            return next((each for each in kafka if each.name == name), None)
        protocol = cast("str | None", self.values["security.inter.broker.protocol"])
        candidates = [each for each in kafka if each.name == (protocol or "PLAINTEXT")]
        candidates += sorted(
            (each for each in kafka if protocol in (None, each.protocol)), key=lambda each: each.is_sasl
        )
        return next(iter(candidates), None)

    def controller(self, cluster_id: str, bootstrap: tuple[Record, ...]) -> ControllerConfig:
        """The configuration of a controller's core; both arguments come from its formatted directory."""
        return ControllerConfig(
            cluster_id=cluster_id,
            node_id=self.node_id,
            bootstrap=bootstrap,
            metadata_replica=self._metadata_replica(VOTER_REPLICA),
            min_insync_replicas=self._min_insync_replicas(),
            endpoints=tuple(
                ControllerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=PROTOCOL_IDS[listener.protocol],
                )
                for listener in self.advertised
            ),
            group_bounds=GroupBounds(**self._filled(GroupBounds)),
            **self._filled(ControllerConfig),
        )

    def _min_insync_replicas(self) -> int | None:
        """None if the file leaves the default."""
        name = "min.insync.replicas"
        return self.number(name) if self.set_in_file((name,)) else None

    def _metadata_replica(self, defaults: MetadataReplicaConfig) -> MetadataReplicaConfig:
        """The configuration of this node's replica of the metadata log, in any role."""
        return replace(defaults, **self._filled(MetadataReplicaConfig))

    @property
    def voter_endpoints(self) -> tuple[Endpoint, ...]:
        """This controller's endpoints for the voters record, with listener names in upper case as in Kafka;
        empty for a broker, and if other machines cannot reach its listeners."""
        advertised = () if self.role == BROKER else self.of(CONTROLLER).advertised
        if any(each.leads_nowhere for each in advertised):
            return ()
        return tuple(Endpoint(each.name.upper(), each.host, each.port) for each in advertised)

    @property
    def generates_broker_id(self) -> bool:
        """True if a broker may obtain its id by itself (S0.28)."""
        return self.flag("broker.id.generation.enable")

    @property
    def binding_key(self) -> str | None:
        """The key to which the cluster binds this broker's id (S0.25); None if it is not bound."""
        if not self.generates_broker_id:
            return None
        key = self.text("broker.id.binding.key")
        return self.advertised[0].host if key == "host" else key

    def with_host_name(self, host_name: Callable[[], str]) -> NodeConfig:
        """The configuration with this machine's name as the host of advertised listeners without one, as in
        Kafka."""
        if all(each.host for each in self.advertised):
            return self
        host = host_name()
        advertised = tuple(each if each.host else replace(each, host=host) for each in self.advertised)
        return replace(self, advertised=advertised)

    def with_node_id(self, node_id: int) -> NodeConfig:
        """The configuration with an id that was obtained, not configured. Raises ConfigError for a
        controller's id."""
        check_membership(self.role, node_id, self.voters)
        return replace(self, node_id=node_id, values={**self.values, "node.id": node_id})

    def broker(
        self, cluster_id: str, directories: tuple[bytes, ...], features: tuple[BrokerFeature, ...]
    ) -> BrokerConfig:
        """The configuration of a broker's core. Raises ConfigError if values contradict each other."""
        config = BrokerConfig(
            node_id=self.node_id,
            cluster_id=cluster_id,
            endpoints=tuple(
                BrokerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=PROTOCOL_IDS[listener.protocol],
                )
                for listener in self.advertised
            ),
            features=features,
            directories=directories,
            binding_key=self.binding_key,
            metadata_replica=self._metadata_replica(OBSERVER_REPLICA),
            **self._filled(BrokerConfig),
        )
        for problem in config.problems():
            raise ConfigError(f"{self.path}: {problem}")
        return config

    def coordinators(self) -> CoordinatorConfig:
        """The configuration of a broker's coordinators and their internal topics. Raises ConfigError if
        values contradict each other."""
        _check_group_keys(self.number)
        return CoordinatorConfig(
            offsets_topic=self._internal_topic("offsets.topic", OFFSETS_TOPIC, "producer"),
            transactions_topic=self._internal_topic(
                "transaction.state.log",
                TRANSACTIONS_TOPIC,
                "uncompressed",
                ("min.insync.replicas", str(self.number("transaction.state.log.min.isr"))),
                ("unclean.leader.election.enable", "false"),
            ),
            groups=GroupConfig(**self._filled(GroupConfig)),
            transactions=TransactionConfig(**self._filled(TransactionConfig)),
            **self._filled(CoordinatorConfig),
        )

    def _internal_topic(
        self, prefix: str, name: str, compression: str, *more: tuple[str, str]
    ) -> InternalTopic:
        return InternalTopic(
            name=name,
            partitions=self.number(f"{prefix}.num.partitions"),
            replication_factor=self.number(f"{prefix}.replication.factor"),
            configs=(
                ("cleanup.policy", "compact"),
                ("segment.bytes", str(self.number(f"{prefix}.segment.bytes"))),
                ("compression.type", compression),
                *more,
            ),
        )

    def replicas(self) -> ReplicaConfig:
        """The configuration of a broker's replicas. Raises ConfigError if values contradict each other."""
        followed = self.inter_broker_listener
        config = ReplicaConfig(
            broker_id=self.node_id,
            inter_broker_listener="" if followed is None else followed.name,
            replica_selector_is_rack_aware=self.values["replica.selector.class"] == RACK_AWARE,
            controller_request_timeout_ms=self.number("controller.request.timeout.ms"),
            log_cleaner_backoff_ms=max(1, self.number("log.cleaner.backoff.ms")),
            topic_defaults=self.set_in_file(BROKER_SYNONYMS),
            **self._filled(ReplicaConfig),
        )
        for longer, shorter in (
            ("replica.lag.time.max.ms", "replica.fetch.wait.max.ms"),
            ("replica.socket.timeout.ms", "replica.fetch.wait.max.ms"),
            ("socket.request.max.bytes", "fetch.max.bytes"),
            ("socket.request.max.bytes", "message.max.bytes"),
            ("socket.request.max.bytes", "replica.fetch.response.max.bytes"),
        ):
            if self.number(shorter) >= self.number(longer):
                raise ConfigError(
                    f"{self.path}: {shorter} ({self.number(shorter)}) must be below {longer}"
                    f" ({self.number(longer)})"
                )
        queued, longest = self.bound("queued.max.request.bytes"), self.number("socket.request.max.bytes")
        if queued is not None and queued < longest + MIB:
            raise ConfigError(
                f"{self.path}: queued.max.request.bytes ({queued}) must be at least {MIB} more than"
                f" socket.request.max.bytes ({longest})"
            )
        return config


def filled(cls: type, values: Mapping[str, Value | None]) -> dict[str, Any]:
    """The fields of a configuration class that keys fill, from the values of all keys."""
    fields: dict[str, Any] = {}
    defaults = defaults_of(cls)
    for key in KEYS.values():
        if key.fills is None or key.fills[0] is not cls:
            continue
        value: Any = values[key.name]
        default = defaults.get(key.fills[1])
        if isinstance(default, Enum):
            value = type(default)(value)
        elif key.times != 1:
            value = key.times * cast(int, value)
        fields[key.fills[1]] = value
    return fields


def _check_group_keys(number: Callable[[str], int]) -> None:
    """Raises ConfigError if a broker's own values exceed the bounds on groups."""
    for key in (name for known in GROUP_KEYS.values() for name in known.synonyms):
        short = key.removeprefix("group.consumer.")
        low, high = (f"group.consumer.{end}.{short}" for end in ("min", "max"))
        for less, more in ((low, key), (key, high)):
            if number(less) > number(more):
                raise ConfigError(f"{less}={number(less)} is above {more}={number(more)}: change one of them")


def process_rng() -> random.Random:
    """The process's random generator, seeded by the operating system, for everything that draws numbers."""
    return random.Random(random.SystemRandom().getrandbits(128))


def check_membership(role: str, node_id: int, voters: tuple[Voter, ...]) -> None:
    """Raises ConfigError if a node's id and role contradict the static voters."""
    ids = sorted(voter.node_id for voter in voters)
    if role != BROKER and voters and node_id not in ids:
        raise ConfigError(
            f"node.id={node_id} is not among controller.quorum.voters ({', '.join(map(str, ids))}): "
            "add this controller there, on every node, or correct node.id"
        )
    if role == BROKER and node_id in ids:
        raise ConfigError(f"node.id={node_id} is a controller's id: give the broker its own id")


def unbounded(value: Value | None) -> int | None:
    """A number; None for -1, which means no limit."""
    return None if value == -1 else cast(int, value)
