"""A controller as a process: opens its directory, joins the quorum, serves brokers and operators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from metaquorum.clients.kafka.raft_client import KafkaRaftClient, KafkaWay
from metaquorum.config.node import NodeConfig
from metaquorum.controller.brokers.brokers import broker_state
from metaquorum.controller.events import Answer
from metaquorum.controller.node import ControllerNode
from metaquorum.controller.server.forwarding_service import ForwardingService, KafkaCalls
from metaquorum.controller.server.joining import Joining, SelfRegistration
from metaquorum.controller.server.kafka import controller_services, log_connections
from metaquorum.controller.server.kafka_quorum import KafkaProbe, LeaderClient, way_to_voters
from metaquorum.controller.server.metrics import ControllerFigures
from metaquorum.controller.server.services import (
    AdminService,
    BrokerIdsService,
    BrokerLifecycleService,
    MetadataService,
    PartitionsService,
)
from metaquorum.controller.server.voter_changes import VoterChanges, VotersService
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BrokerRegistration, MetadataImage
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.status import BrokerControlState, BrokerControlStatus, NodeStatus
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS
from metaquorum.metadata.text.addresses import listener_text
from metaquorum.network.files_plan import port_limits
from metaquorum.network.tls import NodeTls
from metaquorum.node.driver import Ending
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.node.node_process import NodeProcess
from metaquorum.node.node_runner import Node
from metaquorum.node.process import run_process
from metaquorum.node.replica import OpenReplica, add_directory_ids, check_directories, open_replica
from metaquorum.observability.metadata_log import MetadataLines
from metaquorum.observability.metrics.families import Source
from metaquorum.observability.metrics.service import BoundMetrics, bind_metrics
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.proto.admin_pb2_grpc import add_AdminServicer_to_server
from metaquorum.proto.broker_ids_pb2_grpc import add_BrokerIdsServicer_to_server
from metaquorum.proto.broker_pb2_grpc import add_BrokerLifecycleServicer_to_server
from metaquorum.proto.forwarding_pb2_grpc import add_ForwardingServicer_to_server
from metaquorum.proto.metadata_pb2_grpc import add_MetadataServicer_to_server
from metaquorum.proto.partitions_pb2_grpc import add_PartitionsServicer_to_server
from metaquorum.proto.voters_pb2_grpc import add_VotersServicer_to_server
from metaquorum.raft.events import RaftResponseArrived
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.controllers import GrpcAddresses
from metaquorum.rpc.health import Health
from metaquorum.rpc.messages.errors import Hints
from metaquorum.rpc.messages.tables import NodeReport
from metaquorum.rpc.requests import WaitingRequests
from metaquorum.rpc.rights import Authorizers, grpc_callers, grpc_rights
from metaquorum.rpc.server import GuardedServer
from metaquorum.rpc.transport import RaftService

STOP_GRACE_S = 0.1
"""How long calls in progress may take when the server closes; their answers have been given."""


def run(config_path: str) -> int:
    """Runs the controller that the file describes until it must stop; the process's exit code."""
    return run_process(config_path, "controller", serve)


async def serve(config: NodeConfig, machine: Machine = OWN_PROCESS) -> Ending:
    """Runs from start to end. Raises ConfigError, StartError or StorageError if it cannot start."""
    every_tls = NodeTls(config)
    add_directory_ids(config, machine)
    own = check_directories(config, machine.disk)
    machine = machine.planned(config)
    kafka = KafkaListeners(config, every_tls, machine)
    server = new_server(limits=port_limits(config, machine.shares.grpc))
    try:
        for listener in config.grpc_listeners:
            bind(server, listener.host, listener.port, every_tls.of(listener.name))
        kafka.bind()
        metrics = bind_metrics(config.metrics_listener, config.tls)
        replica = open_replica(config, own, machine.disk)
        way = way_to_voters(config, every_tls, machine.route)
        process = ControllerProcess(config, replica, server, metrics, machine, kafka=kafka, way=way)
        return await process.run()
    finally:
        await server.stop(None)


class ControllerProcess(NodeProcess):
    """A process with only a controller. `metrics`: the bound socket for its metrics; None: there are none.
    `kafka`: its bound listeners of Kafka's protocol. `way`: to the other voters."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        server: GuardedServer,
        metrics: BoundMetrics | None = None,
        machine: Machine = OWN_PROCESS,
        *,
        kafka: KafkaListeners,
        way: KafkaWay,
    ) -> None:
        stats = None if metrics is None else NodeStatistics(machine.clock.monotonic_ms())
        super().__init__(config, replica, metrics, stats, machine)
        self.node = controller_node(self, config)
        self.roles = (ControllerRole(self, config, self.node, self.node, server, kafka, way),)


def controller_node(process: NodeProcess, config: NodeConfig) -> ControllerNode:
    """The pure node for the contents of a process's directory."""
    replica = process.replica
    return ControllerNode(
        config.controller(replica.identity.cluster_id, replica.bootstrap),
        process.raft,
        replica.image,
        process.rng,
        process.clock.monotonic_ms(),
    )


class ControllerRole:
    """The parts of a running controller and how they are connected. It makes the driver of its process, for
    `driven`: its own `node`, or one that has it as a part."""

    def __init__(
        self,
        process: NodeProcess,
        config: NodeConfig,
        node: ControllerNode,
        driven: Node,
        server: GuardedServer,
        kafka: KafkaListeners,
        way: KafkaWay,
    ) -> None:
        self._config = config
        self._kafka = kafka
        self._node = node
        self._raft = raft = process.raft
        self._server = server
        self._process = process
        service = RaftService(self._hear, process.controllers)
        process.drive(
            driven,
            KafkaRaftClient(process.controllers, self._hear, way, process.rng),
            service=service,
            load=lambda: len(self._requests),
        )
        self._requests = WaitingRequests(
            process.driver.submit, process.clock, None if process.stats is None else process.stats.requests
        )
        process.driver.hand_over({Answer: self._requests.answer})
        cluster_id = process.replica.identity.cluster_id
        probe, listener = KafkaProbe(cluster_id, raft, way), config.controller_listener
        self._voter_changes = VoterChanges(self._requests, raft, cluster_id, probe, listener)
        self._health = Health(server)
        leader = LeaderClient(raft, process.controllers, way)
        self._registration = SelfRegistration(node, leader, process.rng)
        joins = config.flag("controller.quorum.auto.join.enable")
        self._joining = Joining(raft, leader, probe, listener, process.rng, enabled=joins)
        self._lines = MetadataLines(process.replica.image)
        self._standing = Standing(lambda: raft.state.other_voters)
        self._seen_image: MetadataImage | None = None
        self._seen: tuple[object, ...] = ()
        hints = Hints(GrpcAddresses(config.grpc_controller_listener, self.image))
        self._add_services(service, hints, cluster_id)

    def _add_services(self, raft: RaftService, hints: Hints, cluster_id: str) -> None:
        self._server.note_callers(grpc_callers(self._config).note)
        self._server.admit_by(grpc_rights(self._config, self.image))
        listener = self._config.grpc_controller_listener or self._config.controller_listener
        add_AdminServicer_to_server(AdminService(self._requests, hints, self._report, listener), self._server)
        lifecycle = BrokerLifecycleService(self._requests, hints, Authorizers(self._config.values))
        add_BrokerLifecycleServicer_to_server(lifecycle, self._server)
        broker_ids = BrokerIdsService(self._requests, hints)
        add_BrokerIdsServicer_to_server(broker_ids, self._server)
        add_PartitionsServicer_to_server(PartitionsService(self._requests, hints), self._server)
        add_MetadataServicer_to_server(MetadataService(self._requests, hints), self._server)
        voters = VotersService(self._voter_changes, hints)
        add_VotersServicer_to_server(voters, self._server)
        calls = KafkaCalls(
            self._requests,
            self._voter_changes,
            image=self.image,
            static=self._config.set_in_file(BROKER_KEYS.keys() | BROKER_SYNONYMS),
            token_key=self._node.config.delegation_token_secret_key,
            wall_ms=self._process.clock.wall_ms,
        )
        of_raft = self._config, cluster_id, self._raft, raft
        connected = log_connections(
            *of_raft,
            self.image,
            self._process.rng,
            unsent=self._kafka.unsent,
            step_end=self._process.driver.step_end,
        )
        add_ForwardingServicer_to_server(ForwardingService(calls, hints, connected), self._server)
        self._kafka_services = controller_services(*of_raft, calls, self._process.rng)

    # --- in the order of the process

    async def start(self) -> None:
        """Accepts connections."""
        await self._server.start()
        await self._kafka.start(self._kafka_services, self.image, self._process.driver.step_end)

    def after_step(self, now_ms: int) -> None:
        """Reports changes. Most steps change nothing here, and cost one look."""
        state, image = self._raft.state, self._node.ledger.committed.image
        is_observer, loaded = state.is_observer, self._process.driver.snapshots_loaded
        is_active, fetched_in_epoch = self._node.active is not None, self._standing.fetched_in_epoch
        knows_commits = state.log.high_watermark >= 0
        seen = state.role, state.epoch, is_observer, is_active, fetched_in_epoch, knows_commits, loaded
        if image is not self._seen_image or seen != self._seen or is_observer:
            self._seen_image, self._seen = image, seen
            self._log_change(is_active=is_active)
        self._lines.tick(now_ms)

    def _log_change(self, *, is_active: bool) -> None:
        raft = self._raft
        self._registration.poke()
        self._joining.poke()
        self._standing.moved(raft.role, raft.epoch, raft.leader_id, active=is_active)
        takes_part = self._standing.takes_part(high_watermark=raft.high_watermark)
        self._health.update(takes_part and not raft.is_observer)
        loaded = self._process.driver.snapshots_loaded
        self._lines.moved(self._node.ledger.committed.image, raft.high_watermark, snapshots_loaded=loaded)

    def carry(self, by_ms: int) -> None:
        """See `ProcessRole`."""
        self._node.sessions.carry(by_ms)

    def is_serving(self) -> bool:
        """Whether it takes part in a quorum that makes progress."""
        return self._health.is_serving

    def image(self) -> MetadataImage:
        """The image for authorization."""
        return self._node.ledger.committed.image

    def source(self, stats: NodeStatistics) -> Source:
        """The controller's metrics, with those of the process."""
        process = self._process
        return ControllerFigures(
            self._node,
            process.driver,
            self._requests,
            stats,
            role=process.config.role,
            controllers=process.controllers,
        )

    def log_context(self) -> Mapping[str, object]:
        """For lines that are not about metadata: the quorum's epoch, and the offset up to which this node
        decides."""
        return {"epoch": self._raft.epoch, "offset": self._node.ledger.newest_state.end_offset}

    def refuse(self) -> None:
        """Waiting and later requests get an answer that sends the caller elsewhere."""
        self._health.update(False)
        gone = ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"controller {self._config.node_id} is stopping: use another one",
            self._raft.leader_id if self._raft.leader_id != self._config.node_id else None,
        )
        self._requests.refuse_all(gone)

    async def close(self, ending: Ending) -> None:
        """Closes clients and servers."""
        await self._joining.close()
        await self._registration.close()
        await self._kafka.close(at_once=self._process.is_killed)
        await self._server.stop(None if self._process.is_killed else STOP_GRACE_S)

    def left(self, ending: Ending) -> None:
        """The process has nothing left to do."""

    def _report(self) -> NodeReport:
        return NodeReport(status=node_status(self._node), loop=self._process.driver.statistics)

    def _hear(self, event: Any) -> bool:
        if type(event) is RaftResponseArrived:
            response = event.response
            if type(response) is FetchResponse and response.error is RaftError.NONE:
                self._standing.fetched(response.epoch)
        return self._process.driver.take_transport_event(event)


# A controller process's part in the quorum: health, and one log line per change.

SEARCHES_BEFORE_SILENCE = 3
"""Consecutive attempts, in one epoch and without an answer from a leader, before one warning replaces the
rest."""

_log = logging.getLogger(__name__)

_Logged = tuple[str, int, int | None, bool]


class Standing:
    """Call `fetched` for each successful answer of a leader, `moved` after every step. `others`: the other
    current voters."""

    def __init__(self, others: Callable[[], Iterable[int]]) -> None:
        self._others = others
        self._fetched_in_epoch = -1
        self._now: _Logged | None = None
        self._logged: _Logged | None = None
        self._searches = 0

    def fetched(self, epoch: int) -> None:
        """A leader of `epoch` answered a fetch successfully."""
        self._fetched_in_epoch = epoch
        self._searches = 0

    @property
    def fetched_in_epoch(self) -> int:
        """The epoch of the leader that answered last; -1 if none has."""
        return self._fetched_in_epoch

    def moved(self, role: str, epoch: int, leader_id: int | None, *, active: bool) -> None:
        """The node's present role; logs one line if that is news."""
        now = (role, epoch, leader_id, active)
        if now != self._now:
            before, self._now = self._now, now
            if role != "follower":
                # Whatever a leader answered before: it has fallen silent, or this node took its place.
                self._fetched_in_epoch = -1
            if before is not None and before[1] != epoch:
                self._searches = 0
            if role == "prospective":
                self._searches += 1
                if self._searches == SEARCHES_BEFORE_SILENCE:
                    self._logged = None
                    _log.warning(
                        "epoch %d: no leader, and no majority of voters answers; check that controllers "
                        "%s run and are reachable; this controller keeps trying",
                        epoch,
                        ", ".join(str(node_id) for node_id in self._others()),
                    )
        searching = role in ("prospective", "follower", "unattached")
        if now != self._logged and not (searching and self._searches >= SEARCHES_BEFORE_SILENCE):
            self._logged = now
            where = "no leader is known" if leader_id is None else f"node {leader_id} leads"
            _log.info(
                "epoch %d: %s%s, %s",
                *(epoch, role, " (active)" if active else "", where),
                extra={
                    "epoch": epoch,
                    "leader_id": -1 if leader_id is None else leader_id,
                    "quorum_role": role,
                    "active": active,
                    "source": "live",
                },
            )

    def takes_part(self, *, high_watermark: int) -> bool:
        """Whether this voter takes part in a quorum that makes progress, as far as it knows: it leads
        actively, or follows a leader that has answered it since it began to follow."""
        if self._now is None:
            return False
        role, epoch, _, active = self._now
        if role == "leader":
            return active
        return role == "follower" and self._fetched_in_epoch == epoch and high_watermark >= 0


# What a controller node reports about itself, for operators.
# Reads a node between two of its inputs, and must not change it. Metrics are in `server.metrics`.


def node_status(node: ControllerNode) -> NodeStatus:
    """The state after the node's last input; brokers are those of the committed image."""
    raft, ledger, active = node.raft, node.ledger, node.active
    image, identity = ledger.committed.image, raft.state.identity
    return NodeStatus(
        node_id=node.config.node_id,
        directory_id=identity.directory_id,
        cluster_id=node.config.cluster_id,
        kraft_version=raft.kraft_version,
        min_kraft_version=identity.versions.lowest,
        max_kraft_version=identity.versions.highest,
        role=raft.role,
        epoch=raft.epoch,
        leader_id=raft.leader_id,
        voted_id=raft.voted_id,
        is_observer=raft.is_observer,
        is_active=active is not None,
        high_watermark=raft.high_watermark,
        log_start_offset=raft.log_start_offset,
        log_end_offset=raft.log_end_offset,
        synced_offset=raft.synced_offset,
        committed_offset=ledger.committed_offset,
        applied_offset=ledger.newest_state.end_offset,
        last_snapshot_offset=node.replica.snapshots.last_offset,
        metadata_version=image.features.metadata_version,
        pending_batches=len(ledger.pending),
        answers_waiting=ledger.replies_waiting,
        work=() if active is None else tuple([str(work) for work in active.work]),
        topics=len(image.topics),
        partitions=image.topics.partition_count,
        sessions=len(node.sessions),
        brokers=tuple([_broker(node, broker_id, known) for broker_id, known in image.brokers.items()]),
        losses=raft.losses,
        endpoints=tuple(
            [VoterEndpoint(endpoint.name, endpoint.host, endpoint.port) for endpoint in node.config.endpoints]
        ),
        counters=node.counters,
    )


def _broker(node: ControllerNode, broker_id: int, registration: BrokerRegistration) -> BrokerControlStatus:
    sessions = node.sessions
    session = sessions.get(broker_id)
    leads = node.active is not None
    return BrokerControlStatus(
        broker_id=broker_id,
        epoch=registration.epoch,
        state=state_of(node, broker_id),
        rack=registration.rack,
        listeners=tuple([listener_text(each.name, each.host, each.port) for each in registration.endpoints]),
        lease_remaining_ms=sessions.remaining_ms(broker_id, node.now_ms) if leads else None,
        applied_offset=session.applied_offset if leads and session is not None else None,
    )


def state_of(node: ControllerNode, broker_id: int) -> BrokerControlState:
    """A broker's committed state, with what this node knows of it if it is active."""
    session = node.sessions.get(broker_id)
    return broker_state(
        node.ledger.committed.image.brokers,
        broker_id,
        fencing=broker_id in node.sessions.fencing,
        should_shut_down=session is not None and session.should_shut_down,
    )
