"""A node's configuration: the values that the cores are built from. `load` makes it from a file, checked.

Owns how a key becomes a field of a core's configuration class. Does not read a file, and does not parse a
value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.metadata.node_configs.broker import OBSERVER_REPLICA, BrokerConfig
from metaquorum.metadata.node_configs.controller import VOTER_REPLICA, ControllerConfig
from metaquorum.metadata.node_configs.coordinators import CoordinatorConfig
from metaquorum.metadata.node_configs.metadata_replica import MetadataReplicaConfig
from metaquorum.metadata.node_configs.replicas import ReplicaConfig
from metaquorum.metadata.records.parts import BrokerEndpoint, BrokerFeature, ControllerEndpoint
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.settings.broker_keys import BROKER_SYNONYMS
from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.raft.voters.voter_set import Endpoint
from metaquorum.runtime.config.access.listeners import ListenerAccess
from metaquorum.runtime.config.access.logins import Credentials
from metaquorum.runtime.config.addresses import PROTOCOL_IDS, Listener
from metaquorum.runtime.config.key import BROKER, COMBINED, CONTROLLER, MIB, Value
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.config.keys_data import RACK_AWARE
from metaquorum.runtime.config.keys_groups import check_group_keys, coordinator_config, group_bounds
from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import ConfigError
from metaquorum.storage.log.log import LogConfig

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
    `controller_listener` is the name of their listener. `access` is by name of Kafka listener;
    `brokers_login` is this broker's login at other brokers, None if there is none. `values` has every key,
    with defaults; `passed_over` are Kafka's keys in the file that have no effect here."""

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
    retention: RetentionBounds
    values: Mapping[str, Value]
    access: Mapping[str, ListenerAccess] = msgspec.field(default_factory=dict)
    brokers_login: Credentials | None = None
    passed_over: tuple[str, ...] = ()

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

    def set_in_file(self, names: Container[str]) -> dict[str, str]:
        """The keys among `names` that this node's file sets to a value other than the default, as text."""
        found: dict[str, str] = {}
        for name, value in self.values.items():
            if name in names and value is not None and value != KEYS[name].default:
                found[name] = ",".join(value) if isinstance(value, tuple) else str(value)
        return found

    def of(self, role: str) -> NodeConfig:
        """The configuration of one role of this process, with the listeners of that role only."""
        if role == self.role:
            return self

        def own(listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
            wanted = role == CONTROLLER
            return tuple(each for each in listeners if (each.name == self.controller_listener) is wanted)

        return replace(self, role=role, listeners=own(self.listeners), advertised=own(self.advertised))

    @property
    def kafka_listeners(self) -> tuple[Listener, ...]:
        """The listeners of Kafka's protocol: all of a broker's that are not gRPC."""
        grpc = self.grpc_listeners
        return tuple(each for each in self.listeners if each not in grpc)

    @property
    def grpc_listeners(self) -> tuple[Listener, ...]:
        """The gRPC listeners: all of a controller's."""
        if self.role == CONTROLLER:
            return self.listeners
        controllers = self.controller_listener if self.role == COMBINED else None
        return tuple(
            each for each in self.listeners if each.name == controllers or each.name.startswith(GRPC_LISTENER)
        )

    @property
    def inter_broker_listener(self) -> Listener | None:
        """The advertised listener that other brokers fetch through; None if the configured names match
        none."""
        kafka = [each for each in self.advertised if not each.name.startswith(GRPC_LISTENER)]
        name = cast("str | None", self.values["inter.broker.listener.name"])
        if name:
            return next((each for each in kafka if each.name == name), None)
        protocol = cast("str | None", self.values["security.inter.broker.protocol"])
        found = [each for each in kafka if each.name == (protocol or "PLAINTEXT")]
        found += sorted(
            (each for each in kafka if protocol in (None, each.protocol)), key=lambda each: each.is_sasl
        )
        return next(iter(found), None)

    def controller(self, cluster_id: str, bootstrap: tuple[Record, ...]) -> ControllerConfig:
        """The configuration of a controller's core; both arguments come from its formatted directory."""
        return ControllerConfig(
            cluster_id=cluster_id,
            node_id=self.node_id,
            bootstrap=bootstrap,
            broker_session_timeout_ms=self.number("broker.session.timeout.ms"),
            broker_metadata_lag_timeout_ms=self.number("broker.metadata.lag.timeout.ms"),
            metadata_max_idle_interval_ms=self.number("metadata.max.idle.interval.ms"),
            metadata_log_causes_enable=self.text("metadata.log.causes.enable") == "true",
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
            # An empty value is not a secret: delegation tokens are then disabled, as in Kafka.
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
            controller_quota_span_ms=1_000
            * self.number("controller.quota.window.num")
            * self.number("controller.quota.window.size.seconds"),
            num_partitions=self.number("num.partitions"),
            default_replication_factor=self.number("default.replication.factor"),
            group_bounds=group_bounds(self.number),
            reserved_broker_max_id=self.number("reserved.broker.max.id"),
            broker_id_reuse_grace_ms=self.number("broker.id.reuse.grace.ms"),
            broker_id_gc_interval_ms=self.number("broker.id.gc.interval.ms"),
        )

    def _metadata_replica(self, defaults: MetadataReplicaConfig) -> MetadataReplicaConfig:
        """The configuration of this node's replica of the metadata log, in any role."""
        return replace(
            defaults,
            metadata_log_max_record_bytes_between_snapshots=self.number(
                "metadata.log.max.record.bytes.between.snapshots"
            ),
            metadata_log_max_snapshot_interval_ms=self.number("metadata.log.max.snapshot.interval.ms"),
        )

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
        return self.values["broker.id.generation.enable"] == "true"

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

    def coordinators(self) -> CoordinatorConfig:
        """The configuration of a broker's coordinators and their internal topics. Raises ConfigError if
        values contradict each other."""
        check_group_keys(self.number)
        return coordinator_config(self.number, self.text)

    def replicas(self) -> ReplicaConfig:
        """The configuration of a broker's replicas. Raises ConfigError if values contradict each other."""
        followed = self.inter_broker_listener
        config = ReplicaConfig(
            broker_id=self.node_id,
            inter_broker_listener="" if followed is None else followed.name,
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
            log_cleaner_backoff_ms=max(1, self.number("log.cleaner.backoff.ms")),
            log_dir_assignment_timeout_ms=self.number("log.dir.failure.timeout.ms"),
            controller_request_timeout_ms=self.number("controller.request.timeout.ms"),
            fetch_max_bytes=self.number("fetch.max.bytes"),
            max_incremental_fetch_session_cache_slots=self.number(
                "max.incremental.fetch.session.cache.slots"
            ),
            replica_selector_is_rack_aware=self.values["replica.selector.class"] == RACK_AWARE,
            producer_id_expiration_ms=self.number("producer.id.expiration.ms"),
            produce_purgatory_max_requests=self.number("produce.purgatory.max.requests"),
            fetch_purgatory_max_requests=self.number("fetch.purgatory.max.requests"),
            log_tail_cache_max_bytes=self.number("log.tail.cache.max.bytes"),
            replication_quota_window_num=self.number("replication.quota.window.num"),
            replication_quota_window_ms=1_000 * self.number("replication.quota.window.size.seconds"),
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
        queued, longest = self.bound("queued.max.request.bytes"), self.number("socket.request.max.bytes")
        if queued is not None and queued < longest + MIB:
            raise ConfigError(
                f"{self.path}: queued.max.request.bytes ({queued}) must be at least {MIB} more than"
                f" socket.request.max.bytes ({longest})"
            )
        return config


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


def unbounded(value: Value) -> int | None:
    """A number; None for -1, which means no limit."""
    return None if value == -1 else cast(int, value)
