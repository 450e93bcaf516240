"""The two kinds of process that run on simulated hosts: a controller and a broker."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Protocol

from msgspec import structs

from metaquorum.broker.channel import ControllerChannel
from metaquorum.broker.events import (
    PublishImage,
    SendToController,
    StateChanged,
)
from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.controller.events import Answer
from metaquorum.controller.node import ControllerNode
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import OBSERVER_REPLICA, VOTER_REPLICA, BrokerConfig, ControllerConfig
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.common import RegisterBrokerRequest, RegisterBrokerResponse
from metaquorum.raft import effects as raft
from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.events import SnapshotLoaded
from metaquorum.raft.invariants import CoreSnapshot
from metaquorum.raft.messages import RaftResponse
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.snapshots import BOOTSTRAP_SNAPSHOT
from metaquorum.storage.log.config import LogConfig
from tests.controllers import channel_of, reported, unanswered
from tests.sim.calls import Calls
from tests.sim.errors import SafetyError
from tests.sim.host import Host, Process, read_image
from tests.sim.linearizability import Operation
from tests.sim.marks import Marks

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZXI"
DATA_DIRECTORY = "/data"
SEGMENT_BYTES = 2_048
SESSION_TIMEOUT_MS = 3_000
HEARTBEAT_INTERVAL_MS = 500

RAFT_CONFIG = RaftConfig(snapshot_chunk_bytes=700, high_watermark_linger_ms=2)
"""Chunks so small that a snapshot takes several, with crashes and leader changes between them."""


class Directory:
    """Hosts by node id."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}

    def __getitem__(self, node_id: int) -> Host:
        return self.hosts[node_id]


def directory_id(node_id: int) -> bytes:
    return bytes([7] * 12) + node_id.to_bytes(4, "big")


def format_host(host: Host, node_id: int, own_directory_id: bytes | None = None) -> None:
    """What `storage format` writes to a disk."""
    host.disk.make_directory(DATA_DIRECTORY)
    host.disk.sync_directory("/")
    identity = MetaProperties(
        cluster_id=CLUSTER_ID, node_id=node_id, directory_id=own_directory_id or directory_id(node_id)
    )
    store_meta_properties(host.disk, DATA_DIRECTORY, identity)


def open_store(host: Host, voter_ids: tuple[int, ...]) -> tuple[ReplicaStore, MetadataImage]:
    """Opens a host's directory as a starting process does, and loads its newest snapshot."""
    store = ReplicaStore.open(
        host.disk,
        DATA_DIRECTORY,
        LogConfig(segment_bytes=SEGMENT_BYTES, recovery_point_interval_bytes=2_048),
        lambda text: host.engine.trace(host.name, f"opens: {text}"),
        voter_ids=voter_ids,
        retention_bytes=2 * SEGMENT_BYTES,
    )
    newest = store.latest_snapshot()
    if newest is None or newest == BOOTSTRAP_SNAPSHOT:  # which holds voters, and no part of an image
        return store, MetadataImage()
    return store, read_image(host.disk, store.snapshot_path(newest), newest)


def make_core(host: Host, store: ReplicaStore, voters: tuple[Voter, ...]) -> RaftCore:
    """The core of a starting process."""
    rng = random.Random(host.rng.getrandbits(64))
    return RaftCore(RAFT_CONFIG, store.raft_identity, voters, store.recovered(), rng)


class ControllerProcess(Process):
    """A controller node on a host."""

    node: ControllerNode

    def __init__(
        self,
        host: Host,
        node_id: int,
        voters: tuple[Voter, ...],
        calls: Calls,
        directory: Directory,
        marks: Marks,
    ) -> None:
        voter_ids = tuple(voter.node_id for voter in voters)
        store, image = open_store(host, voter_ids)
        super().__init__(host, store, marks)
        self.node_id = node_id
        self._calls = calls
        self._directory = directory
        now_ms = host.monotonic_ms()
        self.core = self.make_core(store, voters)
        self.before = CoreSnapshot.of(self.core)
        self.role = self.core.role
        self._current_key: int | None = None
        self._timed_out = 0
        self.node = ControllerNode(
            self.make_config(),
            self.core,
            image,
            random.Random(host.rng.getrandbits(64)),
            now_ms,
        )

    def make_core(self, store: ReplicaStore, voters: tuple[Voter, ...]) -> RaftCore:
        return make_core(self.host, store, voters)

    def reach(self, effect: raft.SendRequest) -> Host:
        """The host that a request goes to."""
        return self._directory[effect.to]

    def make_config(self) -> ControllerConfig:
        return ControllerConfig(
            cluster_id=CLUSTER_ID,
            node_id=self.node_id,
            broker_session_timeout_ms=SESSION_TIMEOUT_MS,
            broker_metadata_lag_timeout_ms=8_000,
            metadata_replica=structs.replace(
                VOTER_REPLICA,
                metadata_log_max_record_bytes_between_snapshots=self.host.profile.snapshot_every_bytes,
            ),
            records_per_slice_max=3,
        )

    def execute_own(self, effect: Any) -> None:
        match effect:
            case raft.SendRequest(to=to):
                self._calls.raft(self, self.reach(effect), to, effect)
            case raft.Respond(key=key, response=response):
                self.respond(key, response)
            case raft.RespondWithRecords(key=key):
                self.respond(key, self.store.fill_records(effect))
            case Answer(key=key, response=response):
                self._marks.answered(response)
                self._calls.answered_client(key, response, outright=key == self._current_key)
            case _:
                super().execute_own(effect)

    def respond(self, key: int, response: RaftResponse) -> None:
        self._calls.answered_raft(key, response)

    def waiting_clients(self) -> int:
        return self._calls.waiting_at(self)

    def on_log_cut(self, effect: raft.TruncateLog | raft.ResetLog) -> None:
        self._marks.log_cut(effect)

    def before_event(self, event: Any) -> None:
        self._current_key = getattr(event, "key", None)
        self._pending_before = len(self.node.ledger.pending)
        self._led_before = self.core.is_leader

    def after_event(self, event: Any) -> None:
        self._current_key = None
        if self.node.sessions.expired_count > self._timed_out:
            self._timed_out = self.node.sessions.expired_count
            self._marks.add("broker session expired")
        if isinstance(event, SnapshotLoaded):
            self._marks.add("snapshot fetched and loaded by a controller")
        if self._led_before and not self.core.is_leader and self._pending_before:
            self._marks.add("resigned with writes pending")
        if self.core.role != self.role:
            self.host.engine.trace(
                self.host.name,
                f"{self.role} -> {self.core.role} epoch {self.core.epoch} leader {self.core.leader_id}",
            )
            self.role = self.core.role


class Registering(Protocol):
    """What registers as a broker."""

    @property
    def node_id(self) -> int: ...
    @property
    def incarnation_id(self) -> bytes: ...


class Registrations:
    """Registrations of brokers and their responses, as histories for the linearizability checker."""

    def __init__(self) -> None:
        self._operations: dict[tuple[int, bytes, int], Operation] = {}

    def called(self, broker: Registering, correlation_id: int, now_ms: int) -> None:
        """A registration is being sent. Until the response arrives it may have taken effect or not."""
        self._operations[broker.node_id, broker.incarnation_id, correlation_id] = Operation(
            client=broker.incarnation_id.hex()[:8],
            name="register",
            argument=broker.incarnation_id,
            result=None,
            called_ms=now_ms,
            returned_ms=None,
        )

    def answered(
        self, broker: Registering, correlation_id: int, response: Any, outright: bool, now_ms: int
    ) -> None:
        key = (broker.node_id, broker.incarnation_id, correlation_id)
        match response:
            case RegisterBrokerResponse(broker_epoch=epoch):
                self._operations[key] = replace(self._operations[key], result=epoch, returned_ms=now_ms)
            case ApiError(code=ErrorCode.DUPLICATE_BROKER_REGISTRATION):
                self._operations[key] = replace(self._operations[key], result="duplicate", returned_ms=now_ms)
            case ApiError(code=ErrorCode.NOT_CONTROLLER) if outright:
                del self._operations[key]
            case _:
                pass

    def histories(self) -> dict[int, list[Operation]]:
        """By broker id, in the order of the calls."""
        found: dict[int, list[Operation]] = {}
        for (broker_id, _, _), operation in self._operations.items():
            found.setdefault(broker_id, []).append(operation)
        return found


class BrokerProcess(Process):
    """A broker node on a host; each is a new incarnation."""

    node: BrokerNode

    @property
    def broker(self) -> BrokerProcess | None:
        """The broker in this process."""
        return self

    def __init__(
        self,
        host: Host,
        node_id: int,
        voters: tuple[Voter, ...],
        calls: Calls,
        directory: Directory,
        marks: Marks,
        registrations: Registrations,
    ) -> None:
        voter_ids = tuple(voter.node_id for voter in voters)
        store, image = open_store(host, voter_ids)
        super().__init__(host, store, marks)
        self.node_id = node_id
        self._calls = calls
        self._directory = directory
        self._registrations = registrations
        self.incarnation_id = host.rng.randbytes(16)
        now_ms = host.monotonic_ms()
        self.core = self.make_core(store, voters)
        self.before = CoreSnapshot.of(self.core)
        config = self.make_config()
        self.fences_itself = config.self_fencing_enable
        rng = random.Random(host.rng.getrandbits(64))
        channel = channel_of(self.controllers_to_ask(voters), rng)
        self.node = BrokerNode(
            config,
            self.core,
            image,
            channel=channel,
            incarnation_id=self.incarnation_id,
            now_ms=now_ms,
            replicas=self.make_replicas(now_ms, channel),
            previous_broker_epoch=self.clean_epoch(),
        )

    def serves_without_lease(self) -> None:
        """Only a broker that does not fence itself may do this. Raises SafetyError."""
        if self.fences_itself:
            raise SafetyError(f"broker {self.node_id} serves without a lease")
        self._marks.add("broker served on without a lease")

    def clean_epoch(self) -> int | None:
        """The proof of a clean shutdown of the previous process: its broker epoch; None if there is none."""
        return None

    def make_replicas(self, now_ms: int, channel: ControllerChannel) -> ReplicaManager | None:
        """The partition data of this broker; None: it holds none."""
        return None

    def make_core(self, store: ReplicaStore, voters: tuple[Voter, ...]) -> RaftCore:
        return make_core(self.host, store, voters)

    def reach(self, effect: raft.SendRequest) -> Host:
        """The host that a request goes to."""
        return self._directory[effect.to]

    def controllers_to_ask(self, voters: tuple[Voter, ...]) -> tuple[int, ...]:
        """The ids of the controllers that this broker sends its requests to."""
        return tuple(voter.node_id for voter in voters)

    def make_config(self) -> BrokerConfig:
        node_id = self.node_id
        return BrokerConfig(
            node_id=node_id,
            cluster_id=CLUSTER_ID,
            endpoints=(
                BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9000 + node_id, security_protocol=0),
            ),
            features=(BrokerFeature("metadata.version", 1, DEFAULT_METADATA_VERSION),),
            directories=(directory_id(node_id),),
            broker_heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            registration_lease_timeout_ms=SESSION_TIMEOUT_MS,
            metadata_replica=structs.replace(
                OBSERVER_REPLICA,
                metadata_log_max_record_bytes_between_snapshots=4 * self.host.profile.snapshot_every_bytes,
            ),
            controlled_shutdown_timeout_ms=8_000,
        )

    def execute_own(self, effect: Any) -> None:
        match effect:
            case raft.SendRequest(to=to):
                self._calls.raft(self, self.reach(effect), to, effect)
            case SendToController():
                self._send(effect)
            case PublishImage():
                self._marks.add("broker published an image")
            case StateChanged(old=old, new=new, reason=reason):
                self.host.engine.trace(self.host.name, f"{old.name} -> {new.name}: {reason}")
                self._marks.broker_moved(old, new, reason)
            case _:
                super().execute_own(effect)

    def on_log_cut(self, effect: raft.TruncateLog | raft.ResetLog) -> None:
        self._marks.log_cut(effect)

    def _send(self, effect: SendToController) -> None:
        at, target = effect.correlation_id, effect.target
        registration = isinstance(effect.request, RegisterBrokerRequest)
        if registration:
            self._registrations.called(self, at, int(self.host.engine.now_ms))

        def finish(response: Any, outright: bool) -> None:
            if registration:
                self._registrations.answered(self, at, response, outright, int(self.host.engine.now_ms) + 1)
            self.deliver(lambda: reported(effect, response))

        def fail(reason: str) -> None:
            self.deliver(lambda: unanswered(effect, reason))

        self._calls.client(
            self.host.name, self._directory[target], effect.request, effect.timeout_ms, finish, fail
        )
