"""A broker as a process: follows the metadata log, keeps its lease, serves its image while it is unfenced.

Owns the order in which a broker comes up and goes down. Everything that decides is in `broker`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from metaquorum.broker.coordinator.coordinators import Coordinators
from metaquorum.broker.coordinator.kinds import coordinator_kinds
from metaquorum.broker.events import PublishImage, SendToController, StateChanged
from metaquorum.broker.node import BrokerNode
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.server.controllers import ControllerCalls
from metaquorum.broker.server.data.disk_faults import configured_faults
from metaquorum.broker.server.data.open import OpenData, look_at_directories, open_directories
from metaquorum.broker.server.data.plane import DataPlane
from metaquorum.broker.server.identity import settle_identity
from metaquorum.broker.server.images import BrokerImages
from metaquorum.broker.server.kafka.forwarding import Forwarder
from metaquorum.broker.server.kafka.services import broker_services
from metaquorum.broker.server.kafka.transactions.offered import TransactionServices
from metaquorum.broker.server.metrics import BrokerFigures
from metaquorum.broker.server.published import Published
from metaquorum.broker.server.status_service import BrokerSelfService
from metaquorum.metadata.features import KNOWN_FEATURES
from metaquorum.metadata.records.parts import BrokerFeature
from metaquorum.proto.broker_pb2_grpc import add_BrokerSelfServicer_to_server
from metaquorum.proto.metadata_pb2_grpc import add_MetadataServicer_to_server
from metaquorum.raft.core import RaftCore
from metaquorum.runtime.allocator import keep_freed_buffers
from metaquorum.runtime.api.errors import Hints
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.clock import SystemClock
from metaquorum.runtime.config.node import NodeConfig, process_rng
from metaquorum.runtime.driver.driver import Driver, Ending
from metaquorum.runtime.health import Health
from metaquorum.runtime.kafka.listener import KafkaListeners
from metaquorum.runtime.kafka.services import Services
from metaquorum.runtime.logging import set_log_context, set_up_logging
from metaquorum.runtime.metadata_log import MetadataLines
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.service import BoundMetrics, bind_metrics, note_first_snapshot, open_endpoint
from metaquorum.runtime.process import handle_signals, leave_at_once, run_process
from metaquorum.runtime.replica import OpenReplica, SnapshotFiles, check_metadata_directory, open_replica
from metaquorum.runtime.rpc.channels import bind, new_server
from metaquorum.runtime.rpc.controllers import Controllers
from metaquorum.runtime.rpc.decoding import GuardedServer
from metaquorum.runtime.rpc.image_service import MetadataService
from metaquorum.runtime.rpc.raft_client import RaftClient
from metaquorum.runtime.rpc.raft_server import GrpcRaftTransport
from metaquorum.runtime.rpc.rights import grpc_rights
from metaquorum.runtime.tls.material import TlsMaterial
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError
from metaquorum.storage.files.clean_shutdown import leave_clean_shutdown, take_clean_shutdown
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.uuids import random_uuid

if TYPE_CHECKING:
    from metaquorum.runtime.metrics.endpoint import MetricsEndpoint

STOP_GRACE_S = 0.1
FAREWELL_TIMEOUT_S = 2.0
"""How long a process that cannot go on tries to notify the controller, which may be gone as well."""

_log = logging.getLogger(__name__)


def run(config_path: str, node_id: int | None = None) -> int:
    """Runs the broker that the file describes until it must stop; the process's exit code."""
    keep_freed_buffers()
    return run_process(config_path, "broker", serve, node_id=node_id)


async def serve(config: NodeConfig) -> Ending:
    """From start to end. Raises ConfigError, StartError or StorageError if it cannot."""
    needs_tls = config.controllers_use_tls or any(each.is_tls for each in config.listeners)
    tls = TlsMaterial.load(config.tls) if needs_tls else None
    config = await settle_identity(config, tls if config.controllers_use_tls else None)
    set_up_logging(config.text("log.format"), config.text("log.level"), role="broker", node_id=config.node_id)
    own = check_metadata_directory(config)
    kafka = KafkaListeners(config, tls)
    server = new_server(message_max_bytes=config.number("socket.request.max.bytes"))
    try:
        for listener in config.grpc_listeners:
            bind(server, listener.host, listener.port, tls if listener.is_tls else None)
        kafka.bind()
        metrics = bind_metrics(config.metrics_listener, config.tls)
        process = await open_process(config, own, server, kafka, tls, metrics)
        return await process.run()
    finally:
        await kafka.close()
        await server.stop(None)


async def open_process(
    config: NodeConfig,
    own: MetaProperties,
    server: GuardedServer,
    kafka: KafkaListeners,
    tls: TlsMaterial | None,
    metrics: BoundMetrics | None = None,
) -> BrokerProcess:
    """Opens everything that the broker has on its disks; nothing runs yet. Raises StartError or
    StorageError. `own`: the identity of the metadata directory."""
    faults = configured_faults(os.environ)
    stats = None if metrics is None else NodeStatistics(SystemClock().monotonic_ms())
    observe = None if stats is None else stats.flushes.disk_call
    # All that is only read comes first: what is refused here leaves the directories as they were.
    places = await look_at_directories(config, own, faults=faults, observe=observe)
    replica = open_replica(config, own, ())
    try:
        data = OpenData(directories=await open_directories(config, own, places), faults=faults)
    except BaseException:
        replica.store.close(clean=False)
        raise
    return BrokerProcess(config, replica, data, server, kafka, tls, metrics, stats)


class BrokerProcess:
    """The parts of a running broker and how they are tied together. `metrics`, `stats`: the bound socket for
    its figures, and what counts them; None: they are not kept."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        data: OpenData,
        server: GuardedServer,
        kafka: KafkaListeners,
        tls: TlsMaterial | None,
        metrics: BoundMetrics | None = None,
        stats: NodeStatistics | None = None,
    ) -> None:
        clock, rng = SystemClock(), process_rng()
        now_ms = clock.monotonic_ms()
        self._config = config
        self._directories = [str(path) for path in config.log_dirs]
        self._store = replica.store
        self._server = server
        self._kafka = kafka
        self._clock = clock
        self._cluster_id = replica.identity.cluster_id
        self._metrics = metrics
        self._stats = stats
        self._raft = RaftCore(
            config.raft,
            replica.identity,
            config.voters,
            replica.store.recovered(),
            rng,
        )
        self._controllers = Controllers(config, self._raft)
        asked = tuple(self._controllers)
        self.node = _node(config, replica, data, self._raft, asked, rng, now_ms)
        controllers_tls = tls if config.controllers_use_tls else None
        self._client = RaftClient(self._controllers, self._on_transport_event, tls=controllers_tls, rng=rng)
        self._transport = GrpcRaftTransport(self._client, None)
        self.driver = Driver(
            self.node,
            replica.store,
            self._transport,
            SnapshotFiles(),
            clock=clock,
            on_effect=self._on_effect,
            after_step=self._after_step,
            inbox_max=config.number("inbox.max.events"),
            watch=self._stats,
        )
        self._calls = ControllerCalls(self._controllers, self.driver.post, controllers_tls)
        addresses = self._controllers.addresses
        self._data = DataPlane(config, data, self.driver, replica.image, tls, stats, controllers=addresses)
        self._published = Published(replica.image)
        asks = AdminClient(addresses, tls=controllers_tls, rng=rng)
        self._forwarder = Forwarder(asks, node_id=config.node_id, published=self._published)
        self._transactions = TransactionServices(config, self._data, clock=clock)
        self._health = Health(server)
        self._lines = MetadataLines(replica.image)
        self._add_services()

    def _add_services(self) -> None:
        config, server = self._config, self._server
        server.admit_by(grpc_rights(config, lambda: self._data.image))
        images = BrokerImages(self.node, self._clock)
        hints = Hints(self._controllers)
        service = MetadataService(
            images,
            node_id=config.node_id,
            cluster_id=self._cluster_id,
            hints=hints,
        )
        add_MetadataServicer_to_server(service, server)
        own = BrokerSelfService(
            lambda: self.node.status(now_ms=self._clock.monotonic_ms()),
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
        )

    async def run(self) -> Ending:
        """Serves until the node stops or the process cannot go on; then closes everything in order."""
        ending = Ending(reason="cancelled", failed=True)
        endpoint = opening = None
        try:
            await self._server.start()
            opening = asyncio.ensure_future(self._open_to_clients())
            endpoint = await self._open_metrics()
            handle_signals(self.driver)
            set_log_context(self._log_context)
            self._data.start()
            self.driver.start()
            ports = ", ".join(
                f"{listener.name} {listener.host or 'every interface'}:{listener.port}"
                for listener in self._config.listeners
            )
            _log.info("broker %d listens on %s", self._config.node_id, ports)
            ending = await self.driver.wait()
        finally:
            self._health.update(False)
            if opening is not None:
                opening.cancel()
            self._data.refuse_clients()
            if ending.failed:
                await self._say_farewell()
            await asyncio.gather(self._kafka.close(), self._server.stop(STOP_GRACE_S))
            await self._transactions.close()
            await self._calls.close()
            await self._forwarder.close()
            closed = await self._data.close()
            if self._data.metadata_hangs:
                leave_at_once(f"broker {self._config.node_id}: {ending.reason}")
            await self._transport.close()
            await self.driver.close()
            if endpoint is not None:
                await endpoint.close()
            self._store.close(clean=not ending.failed)
            if not ending.failed:
                self._leave_proof(closed)
        return ending

    async def _open_to_clients(self) -> None:
        """Connections of Kafka's clients are taken once there is an image: from an empty one they would learn
        that the cluster has no brokers and no topics, and some never ask anyone again."""
        await self._published.first()
        await self._kafka.start(self._kafka_services(), lambda: self._data.image)

    async def _say_farewell(self) -> None:
        """This process cannot go on (its last directory is bad, say): its leaders move now, and not when its
        session ends. No one is served any more."""
        last = self.node.farewell()
        if last is None:
            return
        target, request = last
        if await self._calls.farewell(target, request, FAREWELL_TIMEOUT_S):
            _log.info("the controller knows that this broker is stopping and moves its leaderships")
        else:
            _log.warning(
                "no controller could be notified that this broker is stopping: its session must expire first"
            )

    async def _open_metrics(self) -> MetricsEndpoint | None:
        if self._metrics is None or self._stats is None:
            return None
        self._stats.watch(self._raft)
        note_first_snapshot(self._stats, self._config.metadata_log_dir)
        figures = BrokerFigures(
            self.node,
            self._raft,
            self.driver,
            self._stats,
            cluster_id=self._cluster_id,
            controllers=self._controllers,
            directories=self._directories,
        )
        return await open_endpoint(self._metrics, (figures,), self._clock)

    def _leave_proof(self, directories: Sequence[str]) -> None:
        """Everything in these directories is on disk: the next process may say so."""
        epoch = self.node.vouched_epoch
        if epoch is None:
            return
        try:
            leave_clean_shutdown(PosixDisk(), directories, epoch)
        except DiskError as error:
            _log.warning("the next start cannot prove that this stop was clean: %s", error)

    # --- what the driver hands over

    def _on_transport_event(self, event: Any) -> bool:
        return self.driver.take_transport_event(event)

    def _on_effect(self, effect: Any) -> None:
        if self._data.carry_out(effect):
            return
        match effect:
            case SendTxnMarkers():
                self._transactions.markers.send(effect)
            case SendToController():
                self._calls.send(effect)
            case PublishImage(image=image):
                self._data.image = image
                self._published.publish(image)
                loaded = self.driver.snapshots_loaded
                self._lines.moved(image, self._raft.high_watermark, snapshots_loaded=loaded)
            case StateChanged(old=old, new=new, reason=reason):
                _log.info(
                    "%s -> %s: %s",
                    old.name,
                    new.name,
                    reason,
                    extra={**self._log_context(), "source": "live"},
                )
            case _:
                raise TypeError(f"a broker has no use for the effect {type(effect).__name__}")

    def _after_step(self, now_ms: int) -> None:
        self._controllers.let_go(self._client)
        self._health.update(self.node.serves(now_ms))
        self._lines.tick(now_ms)

    def _log_context(self) -> dict[str, object]:
        """For lines that are not about metadata: the quorum's epoch, this broker's, how far it applied."""
        epoch = self.node.status(now_ms=self._clock.monotonic_ms()).broker_epoch
        return {
            "epoch": self._raft.epoch,
            "offset": self.node.provenance.offset,
            "broker_epoch": -1 if epoch is None else epoch,
        }


def _node(
    config: NodeConfig,
    replica: OpenReplica,
    data: OpenData,
    raft: RaftCore,
    asked: tuple[int, ...],
    rng: random.Random,
    now_ms: int,
) -> BrokerNode:
    """The pure node on what was found in the directories. Takes the proof of a clean stop away."""
    own = replica.identity.directory_id
    return BrokerNode(
        config.broker(replica.identity.cluster_id, data.good_ids, _features()),
        raft,
        replica.image,
        voters=asked,
        incarnation_id=random_uuid(rng),
        rng=rng,
        now_ms=now_ms,
        previous_broker_epoch=take_clean_shutdown(PosixDisk(), data.good_paths),
        replicas=ReplicaManager(
            config.replicas(),
            data.found,
            rng=rng,
            now_ms=now_ms,
            metadata_directory=own if config.metadata_log_dir in config.log_dirs else None,
            new_user=partial(Coordinators, coordinator_kinds(config.coordinators(), rng)),
        ),
    )


def _features() -> tuple[BrokerFeature, ...]:
    """What this program can work at, as every broker of it registers."""
    return tuple(
        BrokerFeature(
            name=feature.name,
            min_supported_version=feature.min_level,
            max_supported_version=feature.max_level,
        )
        for feature in KNOWN_FEATURES
    )
