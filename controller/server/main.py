"""A controller as a process: opens its directory, joins the quorum, serves brokers and operators.

Owns the order in which a controller comes up and goes down. Everything that decides is in `controller`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

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
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, BROKER_SYNONYMS
from metaquorum.proto.admin_pb2_grpc import add_AdminServicer_to_server
from metaquorum.proto.broker_ids_pb2_grpc import add_BrokerIdsServicer_to_server
from metaquorum.proto.broker_pb2_grpc import add_BrokerLifecycleServicer_to_server
from metaquorum.proto.forwarding_pb2_grpc import add_ForwardingServicer_to_server
from metaquorum.proto.metadata_pb2_grpc import add_MetadataServicer_to_server
from metaquorum.proto.partitions_pb2_grpc import add_PartitionsServicer_to_server
from metaquorum.proto.voters_pb2_grpc import add_VotersServicer_to_server
from metaquorum.raft.core import RaftCore
from metaquorum.raft.events import RaftResponseArrived
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.runtime.api.errors import Hints
from metaquorum.runtime.api.node import NodeReport
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.clock import SystemClock
from metaquorum.runtime.config.node import NodeConfig, process_rng
from metaquorum.runtime.driver.driver import Driver, Ending
from metaquorum.runtime.health import Health
from metaquorum.runtime.logging import set_log_context
from metaquorum.runtime.metadata_log import MetadataLines
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.service import BoundMetrics, bind_metrics, note_first_snapshot, open_endpoint
from metaquorum.runtime.process import handle_signals, run_process
from metaquorum.runtime.replica import OpenReplica, SnapshotFiles, check_directories, open_replica
from metaquorum.runtime.requests import WaitingRequests
from metaquorum.runtime.rpc.callers import grpc_callers
from metaquorum.runtime.rpc.channels import bind, new_server
from metaquorum.runtime.rpc.controllers import Controllers
from metaquorum.runtime.rpc.decoding import GuardedServer
from metaquorum.runtime.rpc.image_service import MetadataService
from metaquorum.runtime.rpc.raft_client import RaftClient
from metaquorum.runtime.rpc.raft_server import GrpcRaftTransport, RaftService, add_raft_service
from metaquorum.runtime.rpc.rights import grpc_rights
from metaquorum.runtime.tls.material import TlsMaterial

if TYPE_CHECKING:
    from metaquorum.runtime.metrics.endpoint import MetricsEndpoint

STOP_GRACE_S = 0.1
"""How long calls that are under way may take when the server closes; their answers have been given."""

_log = logging.getLogger(__name__)


def run(config_path: str) -> int:
    """Runs the controller that the file describes until it must stop; the process's exit code."""
    return run_process(config_path, "controller", serve)


async def serve(config: NodeConfig) -> Ending:
    """From start to end. Raises ConfigError, StartError or StorageError if it cannot start."""
    tls = TlsMaterial.load(config.tls) if config.controllers_use_tls else None
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


class ControllerProcess:
    """The parts of a running controller and how they are tied together. `metrics`: the bound socket for its
    figures; None: they are not kept."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        server: GuardedServer,
        tls: TlsMaterial | None,
        metrics: BoundMetrics | None = None,
    ) -> None:
        clock, rng = SystemClock(), process_rng()
        now_ms = clock.monotonic_ms()
        self._config = config
        self._store = replica.store
        self._server = server
        self._clock = clock
        self._metrics = metrics
        self._stats = None if metrics is None else NodeStatistics(now_ms)
        self._raft = RaftCore(
            config.raft,
            replica.identity,
            config.voters,
            replica.store.recovered(),
            rng,
        )
        self.node = ControllerNode(
            config.controller(replica.identity.cluster_id, replica.bootstrap),
            self._raft,
            replica.image,
            rng,
            now_ms,
        )
        self._controllers = Controllers(config, self._raft)
        service = RaftService(self._on_transport_event, self._controllers)
        self._client = RaftClient(self._controllers, self._on_transport_event, tls=tls, rng=rng)
        self._transport = GrpcRaftTransport(self._client, service)
        self.driver = Driver(
            self.node,
            replica.store,
            self._transport,
            SnapshotFiles(),
            clock=clock,
            on_effect=self._on_effect,
            after_step=self._after_step,
            load=lambda: len(self._requests),
            inbox_max=config.number("inbox.max.events"),
            watch=self._stats,
        )
        self._requests = WaitingRequests(
            self.driver.submit, clock, None if self._stats is None else self._stats.requests
        )
        self.voter_changes = VoterChanges(self._requests, self._raft, replica.identity.cluster_id, tls)
        self._health = Health(server)
        asks = AdminClient(self._controllers.addresses, tls=tls, rng=rng)
        self._registration = SelfRegistration(self.node, asks, rng)
        joins = config.text("controller.quorum.auto.join.enable") == "true"
        self._joining = Joining(self._raft, asks, rng, tls, enabled=joins)
        self._lines = MetadataLines(replica.image)
        self._standing = Standing(lambda: self._raft.state.other_voters)
        self._add_services(service, Hints(self._controllers), replica.identity.cluster_id)

    def _add_services(self, raft: RaftService, hints: Hints, cluster_id: str) -> None:
        self._server.note_callers(grpc_callers(self._config).note)
        self._server.admit_by(grpc_rights(self._config, lambda: self.node.ledger.committed.image))
        add_raft_service(raft, self._server)
        add_AdminServicer_to_server(AdminService(self._requests, hints, self._report), self._server)
        add_BrokerLifecycleServicer_to_server(BrokerLifecycleService(self._requests, hints), self._server)
        broker_ids = BrokerIdsService(self._requests, hints, self._config.node_id)
        add_BrokerIdsServicer_to_server(broker_ids, self._server)
        add_PartitionsServicer_to_server(PartitionsService(self._requests, hints), self._server)
        images = ControllerImages(self._requests)
        metadata = MetadataService(images, node_id=self._config.node_id, cluster_id=cluster_id, hints=hints)
        add_MetadataServicer_to_server(metadata, self._server)
        voters = VotersService(self._requests, self.voter_changes, hints)
        add_VotersServicer_to_server(voters, self._server)
        forwarding = ForwardingService(
            self._requests,
            hints,
            self.voter_changes,
            image=lambda: self.node.ledger.committed.image,
            static=self._config.set_in_file(BROKER_KEYS.keys() | BROKER_SYNONYMS),
            token_key=self.node.config.delegation_token_secret_key,
        )
        add_ForwardingServicer_to_server(forwarding, self._server)

    async def run(self) -> Ending:
        """Serves until the node stops or the process cannot go on; then closes everything in order."""
        ending = Ending(reason="cancelled", failed=True)
        endpoint = None
        try:
            await self._server.start()
            endpoint = await self._open_metrics()
            handle_signals(self.driver)
            set_log_context(self._log_context)
            self.driver.start()
            _log.info("controller %d listens on %s", self._config.node_id, self._config.listeners[0].port)
            ending = await self.driver.wait()
        finally:
            self._health.update(False)
            gone = ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"controller {self._config.node_id} is stopping: use another one",
                self._raft.leader_id if self._raft.leader_id != self._config.node_id else None,
            )
            self._requests.refuse_all(gone)
            await self._joining.close()
            await self._registration.close()
            await self._server.stop(STOP_GRACE_S)
            await self._transport.close()
            await self.driver.close()
            if endpoint is not None:
                await endpoint.close()
            self._store.close(clean=not ending.failed)
        return ending

    async def _open_metrics(self) -> MetricsEndpoint | None:
        if self._metrics is None or self._stats is None:
            return None
        self._stats.watch(self._raft)
        note_first_snapshot(self._stats, self._config.metadata_log_dir)
        figures = ControllerFigures(
            self.node,
            self.driver,
            self._requests,
            self._stats,
            controllers=self._controllers,
        )
        return await open_endpoint(self._metrics, (figures,), self._clock)

    def _report(self) -> NodeReport:
        return NodeReport(status=node_status(self.node), loop=self.driver.statistics)

    # --- what the driver hands over

    def _on_transport_event(self, event: Any) -> bool:
        if type(event) is RaftResponseArrived:
            response = event.response
            if type(response) is FetchResponse and response.error is RaftError.NONE:
                self._standing.fetched(response.epoch)
        return self.driver.take_transport_event(event)

    def _on_effect(self, effect: Any) -> None:
        if type(effect) is not Answer:
            raise TypeError(f"a controller has no use for the effect {type(effect).__name__}")
        self._requests.answer(effect)

    def _after_step(self, now_ms: int) -> None:
        raft, node = self._raft, self.node
        self._controllers.let_go(self._client)
        self._registration.poke()
        self._joining.poke()
        self._standing.moved(raft.role, raft.epoch, raft.leader_id, active=node.active is not None)
        takes_part = self._standing.takes_part(high_watermark=raft.high_watermark)
        self._health.update(takes_part and not raft.is_observer)
        loaded = self.driver.snapshots_loaded
        self._lines.moved(node.ledger.committed.image, raft.high_watermark, snapshots_loaded=loaded)
        self._lines.tick(now_ms)

    def _log_context(self) -> dict[str, object]:
        """For lines that are not about metadata: the quorum's epoch, and how far this node decides."""
        return {"epoch": self._raft.epoch, "offset": self.node.ledger.newest_state.end_offset}
