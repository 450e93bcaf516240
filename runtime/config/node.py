"""A node's configuration: a Kafka-style .properties file, read and checked once, before anything else.

Owns the rules that span keys and the values that the cores are built from. Every problem is one
`ConfigError` of one line that names the file. The table of keys is `config_keys`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import javaproperties

from metaquorum.broker.config import OBSERVER_REPLICA, BrokerConfig
from metaquorum.broker.replica.config import ReplicaConfig
from metaquorum.controller.config import VOTER_REPLICA, ControllerConfig
from metaquorum.metadata.records.parts import BrokerEndpoint, BrokerFeature, ControllerEndpoint
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.replica import MetadataReplicaConfig
from metaquorum.metadata.settings.broker_keys import BROKER_SYNONYMS
from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.runtime.config.addresses import (
    PROTOCOL_IDS,
    Listener,
    check_advertised,
    parse_listeners,
    parse_metrics_listener,
    parse_protocols,
    parse_servers,
    parse_voters,
    protocol_of,
)
from metaquorum.runtime.config.foreign import check_passed_over, refuse_unknown, with_new_names
from metaquorum.runtime.config.key import BOTH, BROKER, CONTROLLER, Value
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.config.tls import TlsFiles, check_tls, tls_files
from metaquorum.runtime.errors import ConfigError
from metaquorum.storage.log.log import LogConfig

MAX_FILE_BYTES = 1024 * 1024
UNKNOWN_NODE_ID = -1
"""`NodeConfig.node_id` of a broker that has yet to find its id, as in Kafka; no process goes on with it."""
BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What `metadata.max.retention.*` allow to keep; None: without a bound."""

    max_bytes: int | None
    max_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Everything that a process is told. `voters` are the static ones, none where the log has the voter set;
    `bootstrap_servers` are (host, port) of controllers, `controller_listener` is the name of theirs. `values`
    has every key with its default filled in; `passed_over` are Kafka's keys in the file that change nothing
    here."""

    path: Path
    role: str
    node_id: int
    voters: tuple[Voter, ...]
    bootstrap_servers: tuple[tuple[str, int], ...]
    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    metrics_listener: Listener | None
    controller_listener: str
    controllers_use_tls: bool
    log_dirs: tuple[Path, ...]
    metadata_log_dir: Path
    tls: TlsFiles
    raft: RaftConfig
    log: LogConfig
    retention: Retention
    values: Mapping[str, Value]
    passed_over: tuple[str, ...] = ()

    def number(self, name: str) -> int:
        """The value of an integer key."""
        return cast(int, self.values[name])

    def bound(self, name: str) -> int | None:
        """The value of an integer key of which -1 says that there is no bound: None."""
        return _unbounded(self.values[name])

    def text(self, name: str) -> str:
        """The value of a text key that has a default."""
        return cast(str, self.values[name])

    def set_in_file(self, names: Container[str]) -> dict[str, str]:
        """The keys among `names` that this node's file sets to something else than the default, as text."""
        found: dict[str, str] = {}
        for name, value in self.values.items():
            if name in names and value is not None and value != KEYS[name].default:
                found[name] = ",".join(value) if isinstance(value, tuple) else str(value)
        return found

    def controller(self, cluster_id: str, bootstrap: tuple[Record, ...]) -> ControllerConfig:
        """What a controller's core is configured with; both arguments come from its formatted directory."""
        return ControllerConfig(
            cluster_id=cluster_id,
            node_id=self.node_id,
            bootstrap=bootstrap,
            broker_session_timeout_ms=self.number("broker.session.timeout.ms"),
            broker_metadata_lag_timeout_ms=self.number("broker.metadata.lag.timeout.ms"),
            metadata_max_idle_interval_ms=self.number("metadata.max.idle.interval.ms"),
            metadata_replica=self._metadata_replica(VOTER_REPLICA),
            endpoints=tuple(
                ControllerEndpoint(
                    name=each.name,
                    host=each.host,
                    port=each.port,
                    security_protocol=PROTOCOL_IDS[each.protocol],
                )
                for each in self.advertised
            ),
            # Without a character it is no secret: there are no tokens then, as with Kafka.
            delegation_token_secret_key=cast("str | None", self.values["delegation.token.secret.key"])
            or None,
            delegation_token_max_lifetime_ms=self.number("delegation.token.max.lifetime.ms"),
            delegation_token_expiry_time_ms=self.number("delegation.token.expiry.time.ms"),
            delegation_token_expiry_check_interval_ms=self.number(
                "delegation.token.expiry.check.interval.ms"
            ),
            auto_leader_rebalance_enable=self.text("auto.leader.rebalance.enable") == "true",
            unclean_leader_election_enable=self.text("unclean.leader.election.enable") == "true",
            leader_imbalance_check_interval_ms=1_000 * self.number("leader.imbalance.check.interval.seconds"),
            num_partitions=self.number("num.partitions"),
            default_replication_factor=self.number("default.replication.factor"),
            reserved_broker_max_id=self.number("reserved.broker.max.id"),
            broker_id_reuse_grace_ms=self.number("broker.id.reuse.grace.ms"),
            broker_id_gc_interval_ms=self.number("broker.id.gc.interval.ms"),
        )

    def _metadata_replica(self, defaults: MetadataReplicaConfig) -> MetadataReplicaConfig:
        """How this node follows the metadata log, whatever its role."""
        return replace(
            defaults,
            metadata_log_max_record_bytes_between_snapshots=self.number(
                "metadata.log.max.record.bytes.between.snapshots"
            ),
            metadata_log_max_snapshot_interval_ms=self.number("metadata.log.max.snapshot.interval.ms"),
        )

    @property
    def generates_broker_id(self) -> bool:
        """Whether a broker may find its id by itself (S0.28)."""
        return self.values["broker.id.generation.enable"] == "true"

    @property
    def binding_key(self) -> str | None:
        """What the cluster is to remember this broker's id by (S0.25); None: nothing."""
        if not self.generates_broker_id:
            return None
        key = self.text("broker.id.binding.key")
        return self.advertised[0].host if key == "host" else key

    def with_host_name(self, host_name: Callable[[], str]) -> NodeConfig:
        """The same, where what is advertised without a host has this machine's name (as Kafka does it)."""
        if all(each.host for each in self.advertised):
            return self
        host = host_name()
        advertised = tuple(each if each.host else replace(each, host=host) for each in self.advertised)
        return replace(self, advertised=advertised)

    def with_node_id(self, node_id: int) -> NodeConfig:
        """The same with an id that was found, not configured. Raises ConfigError for a controller's id."""
        _check_membership(self.role, node_id, self.voters)
        return replace(self, node_id=node_id, values={**self.values, "node.id": node_id})

    def broker(
        self, cluster_id: str, directories: tuple[bytes, ...], features: tuple[BrokerFeature, ...]
    ) -> BrokerConfig:
        """What a broker's core is configured with. Raises ConfigError if the values do not fit together."""
        config = BrokerConfig(
            node_id=self.node_id,
            cluster_id=cluster_id,
            endpoints=tuple(
                BrokerEndpoint(
                    name=each.name,
                    host=each.host,
                    port=each.port,
                    security_protocol=PROTOCOL_IDS[each.protocol],
                )
                for each in self.advertised
            ),
            features=features,
            directories=directories,
            rack=cast("str | None", self.values["broker.rack"]),
            binding_key=self.binding_key,
            initial_broker_registration_timeout_ms=self.number("initial.broker.registration.timeout.ms"),
            broker_heartbeat_interval_ms=self.number("broker.heartbeat.interval.ms"),
            registration_lease_timeout_ms=self.number("registration.lease.timeout.ms"),
            self_fencing_enable=self.text("broker.self.fencing.enable") == "true",
            controller_request_timeout_ms=self.number("controller.request.timeout.ms"),
            controlled_shutdown_timeout_ms=self.number("controlled.shutdown.timeout.ms"),
            metadata_replica=self._metadata_replica(OBSERVER_REPLICA),
        )
        for problem in config.problems():
            raise ConfigError(f"{self.path}: {problem}")
        return config

    def replicas(self) -> ReplicaConfig:
        """What a broker's replicas are configured with. Raises ConfigError if the values do not fit
        together."""
        config = ReplicaConfig(
            broker_id=self.node_id,
            log_flush_before_ack=self.text("log.flush.before.ack") == "true",
            replica_lag_time_max_ms=self.number("replica.lag.time.max.ms"),
            replica_fetch_max_bytes=self.number("replica.fetch.max.bytes"),
            replica_fetch_response_max_bytes=self.number("replica.fetch.response.max.bytes"),
            replica_fetch_min_bytes=self.number("replica.fetch.min.bytes"),
            replica_fetch_wait_max_ms=self.number("replica.fetch.wait.max.ms"),
            replica_fetch_backoff_ms=self.number("replica.fetch.backoff.ms"),
            replica_high_watermark_checkpoint_interval_ms=self.number(
                "replica.high.watermark.checkpoint.interval.ms"
            ),
            replica_request_timeout_ms=self.number("replica.socket.timeout.ms"),
            log_retention_check_interval_ms=self.number("log.retention.check.interval.ms"),
            log_dir_assignment_timeout_ms=self.number("log.dir.failure.timeout.ms"),
            controller_request_timeout_ms=self.number("controller.request.timeout.ms"),
            fetch_max_bytes=self.number("fetch.max.bytes"),
            max_incremental_fetch_session_cache_slots=self.number(
                "max.incremental.fetch.session.cache.slots"
            ),
            producer_id_expiration_ms=self.number("producer.id.expiration.ms"),
            produce_purgatory_max_requests=self.number("produce.purgatory.max.requests"),
            fetch_purgatory_max_requests=self.number("fetch.purgatory.max.requests"),
            log_tail_cache_max_bytes=self.number("log.tail.cache.max.bytes"),
            topic_defaults=self.set_in_file(BROKER_SYNONYMS),
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
        return config


def load_config(path: Path, role: str | None = None, node_id: int | None = None) -> NodeConfig:
    """Reads and checks the file. `role`: what the process is to be (`controller` or `broker`), if known;
    `node_id`: what the command line says, which the file may leave out or must agree with.

    Raises ConfigError; touches nothing but the file.
    """
    try:
        pairs = _with_node_id(with_new_names(_read_pairs(path)), node_id)
        refuse_unknown(pairs, KEYS)
        its_role = _role(pairs, role)
        passed = _passed_over(pairs, its_role)
        config = _build(path, _parse({name: pairs[name] for name in pairs if name not in passed}, its_role))
        first = config.advertised[0] if its_role == BROKER else None
        tls = config.controllers_use_tls or any(each.is_tls for each in config.listeners)
        check_passed_over(passed, config.listeners, uses_tls=tls, first=first)
        return replace(config, passed_over=tuple(sorted(passed)))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(f"{path}:") else f"{path}: {text}") from error


def _read_pairs(path: Path) -> dict[str, str]:
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError("is not a configuration file: it is larger than 1 MiB")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}; give the path of a .properties file") from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text; give the path of a .properties file") from error
    pairs: dict[str, str] = {}
    try:
        for entry in javaproperties.parse(text):
            if not isinstance(entry, javaproperties.KeyValue):
                continue
            if entry.key in pairs:
                raise ConfigError(f"{entry.key} is set twice: remove one of the lines")
            pairs[entry.key] = entry.value
    except ValueError as error:
        raise ConfigError(f"is not a .properties file: {error}") from error
    if not pairs:
        raise ConfigError(
            "is empty; it needs at least process.roles, node.id, listeners, log.dirs and the voters"
        )
    return pairs


def _with_node_id(pairs: dict[str, str], node_id: int | None) -> dict[str, str]:
    if node_id is None:
        return pairs
    written = pairs.get("node.id")
    if written is not None and written.strip() != str(node_id):
        raise ConfigError(f"node.id={written}, but the command line says {node_id}: leave one of them out")
    return {**pairs, "node.id": str(node_id)}


def _passed_over(pairs: Mapping[str, str], role: str) -> dict[str, str]:
    """Kafka's keys that are not used here, or not by this role."""
    passed = {}
    for name, value in pairs.items():
        key = KEYS.get(name)
        if key is not None and key.own and role not in key.roles:
            raise ConfigError(f"{name} is for a {key.roles[0]}, but this is a {role}: remove the line")
        if key is None or role not in key.roles:
            passed[name] = value
    return passed


def _parse(pairs: Mapping[str, str], role: str) -> dict[str, Value]:
    """Every key of the table with its value; missing ones are refused."""
    values: dict[str, Value] = {}
    for key in KEYS.values():
        values[key.name] = key.parse(pairs[key.name]) if key.name in pairs else key.default
        if key.required and values[key.name] in (None, (), ""):
            raise ConfigError(f"{key.name} is missing: {key.text}")
    if values["node.id"] is None and (role != BROKER or values["broker.id.generation.enable"] != "true"):
        raise ConfigError(f"node.id is missing: {KEYS['node.id'].text}")
    return values


def _role(pairs: Mapping[str, str], wanted: str | None) -> str:
    key = KEYS["process.roles"]
    roles = cast("tuple[str, ...]", key.parse(pairs.get(key.name, "")))
    if not roles:
        raise ConfigError(f"{key.name} is missing: {key.text}")
    if len(roles) != 1:
        raise ConfigError(
            f"process.roles={','.join(roles)}: combined mode is not supported; run controller and broker "
            "as separate processes"
        )
    role = roles[0]
    if role not in BOTH:
        raise ConfigError(f"process.roles={role} is not valid: choose controller or broker")
    if wanted is not None and role != wanted:
        raise ConfigError(
            f"process.roles={role}, but a {wanted} was started: use the {role}'s command or file"
        )
    return role


def _build(path: Path, values: dict[str, Value]) -> NodeConfig:
    role = cast("tuple[str, ...]", values["process.roles"])[0]
    node_id = UNKNOWN_NODE_ID if values["node.id"] is None else cast(int, values["node.id"])
    voters, servers = _quorum(values)
    _check_membership(role, node_id, voters)
    protocols = parse_protocols(cast("tuple[str, ...]", values["listener.security.protocol.map"]))
    listeners = parse_listeners("listeners", cast("tuple[str, ...]", values["listeners"]), protocols)
    controller_names = cast("tuple[str, ...]", values["controller.listener.names"])
    if not controller_names:
        raise ConfigError("controller.listener.names is empty: name the controllers' listener, or remove it")
    controller_name = controller_names[0]
    if role == CONTROLLER and [each.name for each in listeners] != [controller_name]:
        raise ConfigError(
            f"a controller needs exactly one listener, named {controller_name} "
            f"(controller.listener.names): write listeners={controller_name}://host:port"
        )
    advertised = parse_listeners(
        "advertised.listeners", cast("tuple[str, ...]", values["advertised.listeners"]), protocols
    )
    if role == BROKER:
        check_advertised(listeners, advertised)
    log_dirs = tuple(Path(each) for each in cast("tuple[str, ...]", values["log.dirs"]))
    if len(set(log_dirs)) != len(log_dirs):
        raise ConfigError("log.dirs names a directory twice: remove one")
    metadata_dir = values["metadata.log.dir"]
    config = NodeConfig(
        path=path,
        role=role,
        node_id=node_id,
        voters=voters,
        bootstrap_servers=servers,
        listeners=listeners,
        advertised=advertised or listeners,
        metrics_listener=parse_metrics_listener(cast("str | None", values["metrics.listener"]), listeners),
        controller_listener=controller_name,
        controllers_use_tls=protocol_of(controller_name, protocols) == "SSL",
        log_dirs=log_dirs,
        metadata_log_dir=Path(cast(str, metadata_dir)) if metadata_dir else log_dirs[0],
        tls=tls_files(values),
        raft=_raft(values),
        log=LogConfig(
            segment_bytes=cast(int, values["metadata.log.segment.bytes"]),
            segment_ms=cast(int, values["metadata.log.segment.ms"]),
        ),
        retention=Retention(
            max_bytes=_unbounded(values["metadata.max.retention.bytes"]),
            max_ms=_unbounded(values["metadata.max.retention.ms"]),
        ),
        values=values,
    )
    check_tls(config.tls, serves_tls=any(listener.is_tls for listener in listeners))
    if role == BROKER:
        known = config.with_node_id(0) if node_id == UNKNOWN_NODE_ID else config
        # What this machine is called is asked when the process starts.
        known.with_host_name(lambda: "localhost").broker("", (), ())
        config.replicas()
    return config


def _quorum(values: Mapping[str, Value]) -> tuple[tuple[Voter, ...], tuple[tuple[str, int], ...]]:
    """The static voters and the (host, port) of controllers; one of them may be empty."""
    voters = parse_voters(cast("tuple[str, ...]", values["controller.quorum.voters"] or ()))
    servers = parse_servers(BOOTSTRAP_SERVERS, cast("tuple[str, ...]", values[BOOTSTRAP_SERVERS]))
    if not voters and not servers:
        raise ConfigError(
            f"controller.quorum.voters is missing: name every controller there, or, where the voters are "
            f"dynamic, some of them in {BOOTSTRAP_SERVERS}"
        )
    return voters, servers


def _check_membership(role: str, node_id: int, voters: tuple[Voter, ...]) -> None:
    ids = sorted(voter.node_id for voter in voters)
    if role == CONTROLLER and voters and node_id not in ids:
        raise ConfigError(
            f"node.id={node_id} is not among controller.quorum.voters ({', '.join(map(str, ids))}): "
            "add this controller there, on every node, or correct node.id"
        )
    if role == BROKER and node_id in ids:
        raise ConfigError(f"node.id={node_id} is a controller's id: give the broker its own id")


def _raft(values: Mapping[str, Value]) -> RaftConfig:
    def number(name: str) -> int:
        return cast(int, values[f"controller.quorum.{name}"])

    fetch_timeout_ms, fetch_max_wait_ms = number("fetch.timeout.ms"), number("fetch.max.wait.ms")
    if fetch_max_wait_ms * 2 > fetch_timeout_ms:
        raise ConfigError(
            f"controller.quorum.fetch.max.wait.ms ({fetch_max_wait_ms}) must be at most half of "
            f"controller.quorum.fetch.timeout.ms ({fetch_timeout_ms}), or a waiting fetch looks like a "
            "dead leader"
        )
    return RaftConfig(
        election_timeout_ms=number("election.timeout.ms"),
        election_backoff_max_ms=number("election.backoff.max.ms"),
        fetch_timeout_ms=fetch_timeout_ms,
        fetch_max_wait_ms=fetch_max_wait_ms,
        high_watermark_linger_ms=number("high.watermark.linger.ms"),
        observer_fetch_max_wait_ms=number("observer.fetch.max.wait.ms"),
        request_timeout_ms=number("request.timeout.ms"),
        retry_backoff_ms=number("retry.backoff.ms"),
        retry_backoff_max_ms=number("retry.backoff.max.ms"),
        fetch_max_bytes=number("fetch.max.bytes"),
        snapshot_chunk_bytes=number("fetch.snapshot.max.bytes"),
    )


def _unbounded(value: Value) -> int | None:
    return None if value == -1 else cast(int, value)


def process_rng() -> random.Random:
    """The process's own randomness, seeded by the operating system; handed to everything that draws."""
    return random.Random(random.SystemRandom().getrandbits(128))
