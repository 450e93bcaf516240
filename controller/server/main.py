"""A controller as a process: opens its directory, joins the quorum, serves brokers and operators.

Owns the order in which a controller starts and stops. Must not decide anything about the cluster:
`controller` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaquorum.controller.events import Answer
from metaquorum.controller.node import ControllerNode
from metaquorum.controller.node_status import node_status
from metaquorum.controller.server.broker_ids_service import BrokerIdsService
from metaquorum.controller.server.forwarding_service import ForwardingService
from metaquorum.controller.server.joining import Joining
from metaquorum.controller.server.metrics import ControllerFigures
from metaquorum.controller.server.partitions_service import PartitionsService
from metaquorum.controller.server.registration import SelfRegistration
from metaquorum.controller.server.services import AdminService, BrokerLifecycleService, ControllerImages
from metaquorum.controller.server.standing import Standing
from metaquorum.controller.server.voter_changes import VoterChanges
from metaquorum.controller.server.voters_service import VotersService
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS
from metaquorum.proto.admin_pb2_grpc import add_AdminServicer_to_server
from metaquorum.proto.broker_ids_pb2_grpc import add_BrokerIdsServicer_to_server
from metaquorum.proto.broker_pb2_grpc import add_BrokerLifecycleServicer_to_server
from metaquorum.proto.forwarding_pb2_grpc import add_ForwardingServicer_to_server
from metaquorum.proto.metadata_pb2_grpc import add_MetadataServicer_to_server
from metaquorum.proto.partitions_pb2_grpc import add_PartitionsServicer_to_server
from metaquorum.proto.voters_pb2_grpc import add_VotersServicer_to_server
from metaquorum.raft.events import RaftResponseArrived
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.runtime.api.errors import Hints
from metaquorum.runtime.api.node import NodeReport
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.clock import SystemClock
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.driver.driver import Ending
from metaquorum.runtime.driver.node_runner import Node
from metaquorum.runtime.health import Health
from metaquorum.runtime.metadata_log import MetadataLines
from metaquorum.runtime.metrics.families import Source
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.service import BoundMetrics, bind_metrics
from metaquorum.runtime.node_process import NodeProcess
from metaquorum.runtime.process import run_process
from metaquorum.runtime.replica import OpenReplica, add_directory_ids, check_directories, open_replica
from metaquorum.runtime.requests import WaitingRequests
from metaquorum.runtime.rpc.callers import grpc_callers
from metaquorum.runtime.rpc.channels import bind, new_server
from metaquorum.runtime.rpc.decoding import GuardedServer
from metaquorum.runtime.rpc.image_service import MetadataService
from metaquorum.runtime.rpc.raft_server import RaftService, add_raft_service
from metaquorum.runtime.rpc.rights import grpc_rights
from metaquorum.runtime.sockets.lane import PORT_KEY, LaneListener
from metaquorum.runtime.tls.material import TlsMaterial

STOP_GRACE_S = 0.1
"""How long calls in progress may take when the server closes; their answers have been given."""


def run(config_path: str) -> int:
    """Runs the controller that the file describes until it must stop; the process's exit code."""
    return run_process(config_path, "controller", serve)


async def serve(config: NodeConfig) -> Ending:
    """Runs from start to end. Raises ConfigError, StartError or StorageError if it cannot start."""
    tls = TlsMaterial.load(config.tls) if config.controllers_use_tls else None
    add_directory_ids(config)
    own, directories = check_directories(config)
    server = new_server()
    try:
        listener = config.listeners[0]
        bind(server, listener.host, listener.port, tls if listener.is_tls else None)
        metrics = bind_metrics(config.metrics_listener, config.tls)
        replica = open_replica(config, own, directories)
        process = ControllerProcess(config, replica, server, tls, metrics)
        return await process.run()
    finally:
        await server.stop(None)


class ControllerProcess(NodeProcess):
    """A process with only a controller. `metrics`: the bound socket for its metrics; None: there are none."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        server: GuardedServer,
        tls: TlsMaterial | None,
        metrics: BoundMetrics | None = None,
    ) -> None:
        now_ms = SystemClock().monotonic_ms()
        super().__init__(config, replica, metrics, None if metrics is None else NodeStatistics(now_ms))
        self.node = controller_node(self, config)
        self.roles = (ControllerRole(self, config, self.node, self.node, server, tls),)


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


def lane_listener(config: NodeConfig, tls: TlsMaterial | None) -> LaneListener | None:
    """The listener for other voters' lanes; None if the configuration wants none."""
    listener, port = config.listeners[0], config.number(PORT_KEY)
    if port < 0:
        return None
    context = None
    if listener.is_tls and tls is not None:
        context = tls.server_context("required" if config.tls.client_auth else "none")
    return LaneListener(listener.host, port, context)


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
        tls: TlsMaterial | None,
    ) -> None:
        self._config = config
        self._node = node
        self._raft = raft = process.raft
        self._server = server
        self._process = process
        self._lane_listener = lane_listener(config, tls)
        service = RaftService(self._hear, process.controllers, self._lane_listener)
        process.drive(
            driven,
            tls,
            hear=self._hear,
            service=service,
            load=lambda: len(self._requests),
        )
        self._requests = WaitingRequests(
            process.driver.submit, process.clock, None if process.stats is None else process.stats.requests
        )
        process.driver.hand_over({Answer: self._requests.answer})
        cluster_id = process.replica.identity.cluster_id
        self._voter_changes = VoterChanges(self._requests, raft, cluster_id, tls)
        self._health = Health(server)
        asks = AdminClient(process.controllers.addresses, tls=tls, rng=process.rng)
        self._registration = SelfRegistration(node, asks, process.rng)
        joins = config.text("controller.quorum.auto.join.enable") == "true"
        self._joining = Joining(raft, asks, process.rng, tls, enabled=joins)
        self._lines = MetadataLines(process.replica.image)
        self._standing = Standing(lambda: raft.state.other_voters)
        self._seen_image: MetadataImage | None = None
        self._seen: tuple[object, ...] = ()
        self._add_services(service, Hints(process.controllers), cluster_id)

    def _add_services(self, raft: RaftService, hints: Hints, cluster_id: str) -> None:
        self._server.note_callers(grpc_callers(self._config).note)
        self._server.admit_by(grpc_rights(self._config, self.image))
        add_raft_service(raft, self._server)
        add_AdminServicer_to_server(AdminService(self._requests, hints, self._report), self._server)
        add_BrokerLifecycleServicer_to_server(BrokerLifecycleService(self._requests, hints), self._server)
        broker_ids = BrokerIdsService(self._requests, hints, self._config.node_id)
        add_BrokerIdsServicer_to_server(broker_ids, self._server)
        add_PartitionsServicer_to_server(PartitionsService(self._requests, hints), self._server)
        images = ControllerImages(self._requests)
        metadata = MetadataService(images, node_id=self._config.node_id, cluster_id=cluster_id, hints=hints)
        add_MetadataServicer_to_server(metadata, self._server)
        voters = VotersService(self._requests, self._voter_changes, hints)
        add_VotersServicer_to_server(voters, self._server)
        forwarding = ForwardingService(
            self._requests,
            hints,
            self._voter_changes,
            image=self.image,
            static=self._config.set_in_file(BROKER_KEYS.keys() | BROKER_SYNONYMS),
            token_key=self._node.config.delegation_token_secret_key,
        )
        add_ForwardingServicer_to_server(forwarding, self._server)

    # --- in the order of the process

    async def start(self) -> None:
        """Accepts connections."""
        if self._lane_listener is not None:
            await self._lane_listener.open()
        await self._server.start()

    def after_step(self, now_ms: int) -> None:
        """Reports changes. Most steps change nothing here, and cost one look."""
        state, image = self._raft.state, self._node.ledger.committed.image
        is_observer, loaded = state.is_observer, self._process.driver.snapshots_loaded
        is_active, fetched_in_epoch = self._node.active is not None, self._standing.fetched_in_epoch
        knows_commits = state.log.high_watermark >= 0
        seen = state.role, state.epoch, is_observer, is_active, fetched_in_epoch, knows_commits, loaded
        if image is not self._seen_image or seen != self._seen or is_observer:
            self._seen_image, self._seen = image, seen
            self._tell(is_active=is_active)
        self._lines.tick(now_ms)

    def _tell(self, *, is_active: bool) -> None:
        raft = self._raft
        self._registration.poke()
        self._joining.poke()
        self._standing.moved(raft.role, raft.epoch, raft.leader_id, active=is_active)
        takes_part = self._standing.takes_part(high_watermark=raft.high_watermark)
        self._health.update(takes_part and not raft.is_observer)
        loaded = self._process.driver.snapshots_loaded
        self._lines.moved(self._node.ledger.committed.image, raft.high_watermark, snapshots_loaded=loaded)

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
        if self._lane_listener is not None:
            self._lane_listener.close()
        await self._server.stop(STOP_GRACE_S)

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
