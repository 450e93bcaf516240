"""A broker as a process: follows the metadata log, keeps its lease, serves its image while it is unfenced."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from metaquorum.broker.channel import ControllerChannel
from metaquorum.broker.coordinator.coordinators import Coordinators, coordinator_kinds
from metaquorum.broker.events import PublishImage, SendToController, StateChanged
from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.events import SendTxnMarkers, UpkeepDone, UpkeepRequested
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.server.controllers import ControllerCalls, GrpcControllerCalls, Report
from metaquorum.broker.server.data.disk_faults import configured_faults
from metaquorum.broker.server.data.open import OpenData, look_at_directories, open_directories
from metaquorum.broker.server.data.plane import DataPlane
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.identity import settle_identity
from metaquorum.broker.server.kafka.forwarding import Forwarder, Published
from metaquorum.broker.server.kafka.services import TransactionServices, broker_services
from metaquorum.broker.server.kafka_controllers import (
    KafkaControllerCalls,
    KafkaForwarding,
    way_to_controllers,
)
from metaquorum.broker.server.metrics import BrokerFigures
from metaquorum.clients.kafka.grpc_way import ForwardsRequests, GrpcWay
from metaquorum.clients.kafka.raft_client import ControllersWay, KafkaRaftClient, KafkaWay
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import new_authorizer
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.listeners.services import Services
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.extras import install_command, is_installed
from metaquorum.metadata.features import FOREIGN_FEATURES, KNOWN_FEATURES
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import BrokerFeature
from metaquorum.metadata.replica import MetadataReplica
from metaquorum.metadata.requests.data import MarkLogDirOfflineResponse
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.network.files_plan import port_limits
from metaquorum.network.tls import NodeTls
from metaquorum.node.driver import Ending
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.node.node_process import NodeProcess
from metaquorum.node.process import keep_freed_buffers, run_process
from metaquorum.node.replica import OpenReplica, add_directory_ids, check_metadata_directory, open_replica
from metaquorum.observability.logging import set_up_logging
from metaquorum.observability.metadata_log import MetadataLines
from metaquorum.observability.metrics.service import BoundMetrics, bind_metrics
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.proto import broker_pb2 as broker_pb
from metaquorum.proto.broker_pb2_grpc import BrokerSelfServicer, add_BrokerSelfServicer_to_server
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.health import Health
from metaquorum.rpc.messages.tables import BROKER_STATUS, MARK_LOG_DIR_OFFLINE, MARKED_LOG_DIR
from metaquorum.rpc.rights import Authorizers, grpc_rights
from metaquorum.rpc.server import GuardedServer
from metaquorum.storage.disk.file_pool import OpenFiles
from metaquorum.storage.errors import DiskError
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.partition.replica_directory import leave_clean_shutdown, take_clean_shutdown
from metaquorum.storage.uuids import random_uuid

STOP_GRACE_S = 0.1
FAREWELL_TIMEOUT_MS = 2_000
"""How long a process that cannot continue tries to notify the controller, which may also be gone."""

_ALLOW_PATTERNS = f"to allow them: {install_command('re2')}"

_log = logging.getLogger(__name__)


def run(config_path: str, node_id: int | None = None) -> int:
    """Runs the broker that the file describes until it must stop; the process's exit code."""
    keep_freed_buffers()
    return run_process(config_path, "broker", serve, node_id=node_id)


async def serve(config: NodeConfig, machine: Machine = OWN_PROCESS) -> Ending:
    """Runs from start to end. Raises ConfigError, StartError or StorageError if it cannot."""
    tls = NodeTls(config)
    config = await settle_identity(config, tls.controllers, machine)
    if machine.owns_process:
        set_up_logging(
            config.text("log.format"), config.text("log.level"), role="broker", node_id=config.node_id
        )
    add_directory_ids(config, machine)
    own = check_metadata_directory(config, machine.disk)
    machine = machine.planned(config)
    kafka = KafkaListeners(config, tls, machine)
    server = new_server(
        message_max_bytes=config.number("socket.request.max.bytes"),
        limits=port_limits(config, machine.shares.grpc),
    )
    try:
        for listener in config.grpc_listeners:
            bind(server, listener.host, listener.port, tls.of(listener.name))
        kafka.bind()
        metrics = bind_metrics(config.metrics_listener, config.tls)
        process = await open_process(config, own, server, kafka, tls, metrics, machine)
        return await process.run()
    finally:
        await kafka.close()
        await server.stop(None)


async def open_process(
    config: NodeConfig,
    own: MetaProperties,
    server: GuardedServer,
    kafka: KafkaListeners,
    tls: NodeTls,
    metrics: BoundMetrics | None = None,
    machine: Machine = OWN_PROCESS,
) -> BrokerProcess:
    """Opens everything that the broker has on its disks; nothing runs yet. Raises StartError or StorageError.
    `own`: the identity of the metadata directory."""
    stats = None if metrics is None else NodeStatistics(machine.clock.monotonic_ms())
    replica, data = await open_disks(config, config, own, stats, machine)
    return BrokerProcess(config, replica, data, server, kafka, tls, metrics, stats, machine)


async def open_disks(
    config: NodeConfig,
    broker: NodeConfig,
    own: MetaProperties,
    stats: NodeStatistics | None,
    machine: Machine = OWN_PROCESS,
) -> tuple[OpenReplica, OpenData]:
    """The metadata log of the node and the partitions of its broker. Raises StartError or StorageError."""
    faults = configured_faults(os.environ) if machine.owns_process else None
    observe = None if stats is None else stats.flushes.disk_call
    # Everything that only reads comes first: a refusal here leaves the directories unchanged.
    places = await look_at_directories(broker, own, faults=faults, observe=observe, disk=machine.disk)
    replica = open_replica(config, own, machine.disk)
    open_files = OpenFiles(machine.shares.segments)
    try:
        directories = await open_directories(broker, own, places, open_files, machine.new_rng)
    except BaseException:
        replica.store.close(clean=False)
        raise
    return replica, OpenData(directories=directories, faults=faults)


class BrokerProcess(NodeProcess):
    """A process with only a broker. `metrics`, `stats`: the bound socket for its metrics, and what counts
    them; None: there are none."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        data: OpenData,
        server: GuardedServer,
        kafka: KafkaListeners,
        tls: NodeTls,
        metrics: BoundMetrics | None = None,
        stats: NodeStatistics | None = None,
        machine: Machine = OWN_PROCESS,
    ) -> None:
        super().__init__(config, replica, metrics, stats, machine)
        self.node = broker_node(self, config, data, replica.image)
        self._turns = -1
        way = way_to_controllers(config, tls, machine.route) if config.quorum_speaks_kafka else None
        client_id = f"raft-client-{config.node_id}"
        reads: ControllersWay
        if way is None:
            reads = GrpcWay.of(client_id, tls.controllers, machine.route)
        else:
            reads = replace(way, client_id=client_id)
        self.drive(self.node, KafkaRaftClient(self.controllers, self.hear, reads, self.rng))
        lines = MetadataLines(replica.image)
        self.roles = (BrokerRole(self, config, self.node, data, server, kafka, tls, lines=lines, way=way),)

    def _after_step(self, now_ms: int) -> None:
        """Most steps concern only partition data."""
        if self.node.turns != self._turns:
            self._turns = self.node.turns
            super()._after_step(now_ms)


class BrokerRole:
    """The parts of a running broker and how they are connected; the process has its driver. `lines`: logs
    changes of metadata; None: another role of the process does. `way`: to controllers over Kafka's protocol;
    None: they speak gRPC."""

    def __init__(
        self,
        process: NodeProcess,
        config: NodeConfig,
        node: BrokerNode,
        data: OpenData,
        server: GuardedServer,
        kafka: KafkaListeners,
        tls: NodeTls,
        *,
        lines: MetadataLines | None,
        way: KafkaWay | None = None,
    ) -> None:
        image, driver = process.replica.image, process.driver
        self._process = process
        self._config = config
        self._directories = [str(path) for path in config.log_dirs]
        self._server = server
        self.kafka = kafka
        if node.replicas is not None:
            node.replicas.room.left = kafka.unsent.left
        self._clock = process.clock
        self._cluster_id = process.replica.identity.cluster_id
        self._raft = process.raft
        self._controllers = process.controllers
        self._node = node
        self._turns = -1
        self._calls, asks = controller_calls(config, process, tls, driver.post, way)
        self._data = DataPlane(config, data, driver, image, tls, process.stats, machine=process.machine)
        self._published = Published(image)
        self._forwarder = Forwarder(asks, node_id=config.node_id, published=self._published)
        self._transactions = TransactionServices(config, self._data, clock=self._clock)
        self._health = Health(server)
        self._lines = lines
        self._opening: asyncio.Future[None] | None = None
        self._closed: Sequence[str] = ()
        self._upkeep: asyncio.Future[None] | None = None
        driver.hand_over(
            {
                SendTxnMarkers: self._transactions.markers.send,
                SendToController: self._calls.send,
                PublishImage: self._publish,
                StateChanged: self._log_state,
                UpkeepDone: self._upkeep_done,
            }
        )
        self._add_services()

    def _add_services(self) -> None:
        config, server = self._config, self._server
        server.admit_by(grpc_rights(config, self.image))
        own = BrokerSelfService(
            lambda: self._node.status(now_ms=self._clock.monotonic_ms()),
            self._data.requests,
            cluster_id=self._cluster_id,
        )
        add_BrokerSelfServicer_to_server(own, server)

    def _kafka_services(self) -> Services:
        return broker_services(
            self._config,
            self._cluster_id,
            self._data,
            self._published,
            self._transactions,
            forwarder=self._forwarder,
            kraft_version=lambda: self._raft.committed_kraft_version,
            serves=lambda: self._node.serves(self._clock.monotonic_ms()),
            wall_ms=self._clock.wall_ms,
        )

    # --- in the order of the process

    async def start(self) -> None:
        """Accepts connections, those of clients as soon as there is an image."""
        await self._server.start()
        self._opening = asyncio.ensure_future(self._open_to_clients())
        self._data.start()

    def refuse(self) -> None:
        """Waiting and later requests get an answer that sends the caller elsewhere."""
        self._health.update(False)
        if self._opening is not None:
            self._opening.cancel()
        self._data.refuse_clients()

    async def close(self, ending: Ending) -> None:
        """Closes clients, servers, and the partitions' directories."""
        killed = self._process.is_killed
        if ending.failed and not killed:
            await self._say_farewell()
        grace_s = None if killed else STOP_GRACE_S
        await asyncio.gather(self.kafka.close(at_once=killed), self._server.stop(grace_s))
        await self._transactions.close()
        await self._calls.close()
        await self._forwarder.close()
        self._closed = await self._data.close(clean=not killed)
        if await self._data.metadata_hangs():
            self._process.machine.leave(f"broker {self._config.node_id}: {ending.reason}")

    def left(self, ending: Ending) -> None:
        """Everything in the closed directories is on disk: leaves the proof of it for the next process."""
        epoch = self._node.vouched_epoch
        if epoch is None or ending.failed:
            return
        try:
            leave_clean_shutdown(self._process.machine.disk, self._closed, epoch)
        except DiskError as error:
            _log.warning("the next start cannot prove a clean shutdown: %s", error)

    async def _open_to_clients(self) -> None:
        """Kafka clients may connect once there is an image: from an empty one they would learn that the
        cluster has no brokers and no topics, and some never ask again."""
        await self._published.first()
        services = self._process.machine.offer(self._kafka_services())
        await self.kafka.start(services, self.image, self._process.driver.step_end)

    async def _say_farewell(self) -> None:
        """This process cannot continue (its last directory is bad, say): its leaders move now, and not when
        its session ends. It no longer serves."""
        now_ms = self._clock.monotonic_ms()
        last = self._node.farewell(now_ms=now_ms, timeout_ms=FAREWELL_TIMEOUT_MS)
        if last is None:
            return
        if await self._calls.farewell(last, self._clock.monotonic_ms):
            _log.info("the controller was notified that this broker is stopping, and moves its leaderships")
        else:
            _log.warning(
                "no controller could be notified that this broker is stopping: its session must expire first"
            )

    def abandon(self) -> None:
        """See `DataPlane.abandon`."""
        self._data.abandon()

    async def do_upkeep(self) -> None:
        """Does now what is done periodically, above all retention and compaction. Returns when the good
        directories have done it."""
        self._upkeep = self._upkeep or asyncio.get_running_loop().create_future()
        self._process.driver.post(UpkeepRequested())
        await self._upkeep
        good = (threads for threads in self._data.threads.values() if not threads.is_bad)
        await asyncio.gather(*(threads.settle() for threads in good))

    def carry(self, by_ms: int) -> None:
        """See `ProcessRole`."""
        self._node.carry(by_ms)

    def is_serving(self) -> bool:
        """Whether the broker is unfenced and accepts clients."""
        return self._health.is_serving and self._opening is not None and self._opening.done()

    def image(self) -> MetadataImage:
        """The image for authorization."""
        return self._data.image

    def source(self, stats: NodeStatistics) -> BrokerFigures:
        """The broker's metrics, with those of the process if it has no other role."""
        process = self._process
        return BrokerFigures(
            self._node,
            self._raft,
            process.driver,
            stats,
            cluster_id=self._cluster_id,
            controllers=self._controllers,
            directories=self._directories,
            alone=len(process.roles) == 1,
        )

    # --- effects of the driver

    def _publish(self, effect: PublishImage) -> None:
        image = effect.image
        self._data.image = image
        self._published.publish(image)
        if self._lines is not None:
            loaded = self._process.driver.snapshots_loaded
            self._lines.moved(image, self._raft.high_watermark, snapshots_loaded=loaded)

    def _upkeep_done(self, effect: UpkeepDone) -> None:
        upkeep, self._upkeep = self._upkeep, None
        if upkeep is not None and not upkeep.done():
            upkeep.set_result(None)

    def _log_state(self, effect: StateChanged) -> None:
        extra = {**self.log_context(), "source": "live"}
        _log.info("%s -> %s: %s", effect.old.name, effect.new.name, effect.reason, extra=extra)

    def after_step(self, now_ms: int) -> None:
        """Reports changes, unless they were of partition data alone."""
        if self._node.turns == self._turns:
            return
        self._turns = self._node.turns
        self._health.update(self._node.serves(now_ms))
        if self._lines is not None:
            self._lines.tick(now_ms)

    def log_context(self) -> Mapping[str, object]:
        """For lines that are not about metadata: the quorum's epoch, this broker's, how far it has applied
        the log."""
        epoch = self._node.status(now_ms=self._clock.monotonic_ms()).broker_epoch
        return {
            "epoch": self._raft.epoch,
            "offset": self._node.provenance.offset,
            "broker_epoch": -1 if epoch is None else epoch,
        }


def controller_calls(
    config: NodeConfig, process: NodeProcess, tls: NodeTls, report: Report, way: KafkaWay | None
) -> tuple[ControllerCalls, ForwardsRequests]:
    """What sends a broker's own requests to controllers, and those of its clients."""
    controllers, route, rng = process.controllers, process.machine.route, process.rng
    if way is None:
        authorizers = Authorizers(config.values)
        calls = GrpcControllerCalls(controllers, report, tls.controllers, authorizers, route)
        return calls, AdminClient(controllers.addresses, tls=tls.controllers, rng=rng, route=route)
    timeout_ms = config.number("broker.session.timeout.ms")
    return (
        KafkaControllerCalls(controllers, report, way, session_timeout_ms=timeout_ms),
        KafkaForwarding(controllers, lambda: process.raft.leader_id, way, rng),
    )


def broker_node(
    process: NodeProcess, config: NodeConfig, data: OpenData, metadata: MetadataImage | MetadataReplica
) -> BrokerNode:
    """The pure node for the contents of the directories. Removes the proof of a clean shutdown. `metadata`:
    see `BrokerNode`."""
    own, rng = process.replica.identity, process.rng
    if not is_installed("re2"):
        _log.info(
            "google-re2 is not installed: groups that subscribe by pattern are refused; %s", _ALLOW_PATTERNS
        )
    kinds = coordinator_kinds(config.coordinators(), rng, new_authorizer(config.values))
    now_ms = process.clock.monotonic_ms()
    broker = config.broker(own.cluster_id, data.good_ids, _features())
    channel = ControllerChannel(
        tuple(process.controllers),
        rng,
        backoff_ms=broker.retry_backoff_ms,
        backoff_max_ms=broker.retry_backoff_max_ms,
    )
    return BrokerNode(
        broker,
        process.raft,
        metadata,
        channel=channel,
        incarnation_id=random_uuid(rng),
        now_ms=now_ms,
        previous_broker_epoch=take_clean_shutdown(process.machine.disk, data.good_paths),
        replicas=ReplicaManager(
            config.replicas(),
            data.found,
            channel=channel,
            rng=rng,
            now_ms=now_ms,
            metadata_directory=own.directory_id if config.metadata_log_dir in config.log_dirs else None,
            new_user=partial(Coordinators, kinds),
        ),
    )


def _features() -> tuple[BrokerFeature, ...]:
    """The features that this program supports, as every broker of it registers them."""
    ranges = [(feature.name, feature.min_level, feature.max_level) for feature in KNOWN_FEATURES]
    ranges += [(name, 0, level) for name, level in FOREIGN_FEATURES.items()]
    return tuple(
        BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
        for name, low, high in ranges
    )


class BrokerSelfService(BrokerSelfServicer):
    """`status` is called at each request."""

    def __init__(
        self, status: Callable[[], BrokerStatus], requests: DataRequests, *, cluster_id: str
    ) -> None:
        self._status = status
        self._requests = requests
        self._cluster_id = cluster_id

    async def DescribeBroker(
        self, request: broker_pb.DescribeBrokerRequest, context: Any
    ) -> broker_pb.DescribeBrokerResponse:
        answer = BROKER_STATUS.to_pb(self._status())
        answer.cluster_id = self._cluster_id
        return answer

    async def MarkLogDirOffline(
        self, request: broker_pb.MarkLogDirOfflineRequest, context: Any
    ) -> broker_pb.MarkLogDirOfflineResponse:
        try:
            asked = MARK_LOG_DIR_OFFLINE.from_pb(request)
        except ApiError as error:
            return MARKED_LOG_DIR.answer_to_pb(error)
        answer = await self._requests.begin(asked)
        return MARKED_LOG_DIR.answer_to_pb(cast("MarkLogDirOfflineResponse | ApiError", answer))
