"""A controller and a broker as one process, and the start of any node by the roles in its file.

Owns what is opened before both start. Makes no decisions and does not know the order of shutdown: they are in
`controller` and `broker`, and in `combined.node`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from metaquorum.broker.server.data.open import OpenData
from metaquorum.broker.server.main import BrokerRole, broker_node, open_disks
from metaquorum.broker.server.main import serve as serve_broker
from metaquorum.combined.node import BrokerStopped, CombinedNode
from metaquorum.controller.server.main import ControllerRole, controller_node
from metaquorum.controller.server.main import serve as serve_controller
from metaquorum.runtime.allocator import keep_freed_buffers
from metaquorum.runtime.clock import SystemClock
from metaquorum.runtime.config.key import BROKER, COMBINED, CONTROLLER
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.driver.driver import Ending
from metaquorum.runtime.kafka.listener import KafkaListeners
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.service import BoundMetrics, bind_metrics
from metaquorum.runtime.node_process import NodeProcess
from metaquorum.runtime.process import run_process
from metaquorum.runtime.replica import OpenReplica, add_directory_ids, check_metadata_directory
from metaquorum.runtime.rpc.channels import bind, new_server
from metaquorum.runtime.rpc.decoding import GuardedServer
from metaquorum.runtime.tls.material import TlsMaterial


def run(config_path: str) -> int:
    """Runs the node that the file describes, whatever its roles, until it must stop. Returns the exit
    code."""
    keep_freed_buffers()
    return run_process(config_path, None, _serve_any)


def _serve_any(config: NodeConfig) -> Coroutine[Any, Any, Ending]:
    serves: dict[str, Callable[[NodeConfig], Coroutine[Any, Any, Ending]]] = {
        CONTROLLER: serve_controller,
        BROKER: serve_broker,
        COMBINED: serve,
    }
    return serves[config.role](config)


async def serve(config: NodeConfig) -> Ending:
    """Runs a combined node from start to end. Raises ConfigError, StartError or StorageError if it cannot."""
    needs_tls = config.controllers_use_tls or any(each.is_tls for each in config.listeners)
    tls = TlsMaterial.load(config.tls) if needs_tls else None
    add_directory_ids(config)
    own = check_metadata_directory(config)
    broker = config.of(BROKER)
    kafka = KafkaListeners(broker, tls)
    servers = new_server(), new_server(message_max_bytes=config.number("socket.request.max.bytes"))
    try:
        for server, listeners in zip(
            servers, (config.of(CONTROLLER).listeners, broker.grpc_listeners), strict=True
        ):
            for listener in listeners:
                bind(server, listener.host, listener.port, tls if listener.is_tls else None)
        kafka.bind()
        metrics = bind_metrics(config.metrics_listener, config.tls)
        stats = None if metrics is None else NodeStatistics(SystemClock().monotonic_ms())
        replica, data = await open_disks(config, broker, own, stats)
        process = CombinedProcess(config, replica, data, servers, kafka, tls, metrics, stats)
        return await process.run()
    finally:
        await kafka.close()
        for server in servers:
            await server.stop(None)


class CombinedProcess(NodeProcess):
    """Both roles on one driver. `servers`: the gRPC servers of the controller and of the broker; the rest is
    as in a process with one role."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        data: OpenData,
        servers: tuple[GuardedServer, GuardedServer],
        kafka: KafkaListeners,
        tls: TlsMaterial | None,
        metrics: BoundMetrics | None = None,
        stats: NodeStatistics | None = None,
    ) -> None:
        super().__init__(config, replica, metrics, stats)
        controlling, serving = config.of(CONTROLLER), config.of(BROKER)
        controller = controller_node(self, controlling)
        broker = broker_node(self, serving, data, controller.replica)
        self.node = CombinedNode(controller, broker)
        controllers_tls = tls if config.controllers_use_tls else None
        first = ControllerRole(self, controlling, controller, self.node, servers[0], controllers_tls)
        # The controller's role logs changes of metadata.
        second = BrokerRole(self, serving, broker, data, servers[1], kafka, tls, lines=None)
        self.driver.hand_over({BrokerStopped: lambda _: second.refuse()})
        self.roles = (first, second)
