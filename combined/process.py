"""A controller and a broker as one process, and the start of any node by the roles in its file.

Makes no decisions and does not know the order of shutdown: they are in `controller` and `broker`, and in
`combined.node`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from metaquorum.broker.server.data.open import OpenData
from metaquorum.broker.server.kafka_controllers import way_to_controllers
from metaquorum.broker.server.main import BrokerRole, broker_node, open_disks
from metaquorum.broker.server.main import serve as serve_broker
from metaquorum.combined.node import BrokerStopped, CombinedNode
from metaquorum.config.node import COMBINED, NodeConfig
from metaquorum.controller.server.kafka_quorum import way_to_voters
from metaquorum.controller.server.main import ControllerRole, controller_node
from metaquorum.controller.server.main import serve as serve_controller
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER
from metaquorum.network.files_plan import port_limits
from metaquorum.network.tls import NodeTls
from metaquorum.node.driver import Ending
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.node.node_process import NodeProcess
from metaquorum.node.process import keep_freed_buffers, run_process
from metaquorum.node.replica import OpenReplica, add_directory_ids, check_metadata_directory
from metaquorum.observability.metrics.service import BoundMetrics, bind_metrics
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.server import GuardedServer


def run(config_path: str) -> int:
    """Runs the node that the file describes, whatever its roles, until it must stop. Returns the exit
    code."""
    keep_freed_buffers()
    return run_process(config_path, None, serve_any)


def serve_any(config: NodeConfig, machine: Machine = OWN_PROCESS) -> Coroutine[Any, Any, Ending]:
    """Runs a node with the roles of its configuration, from start to end."""
    serves: dict[str, Callable[[NodeConfig, Machine], Coroutine[Any, Any, Ending]]] = {
        CONTROLLER: serve_controller,
        BROKER: serve_broker,
        COMBINED: serve,
    }
    return serves[config.role](config, machine)


async def serve(config: NodeConfig, machine: Machine = OWN_PROCESS) -> Ending:
    """Runs a combined node from start to end. Raises ConfigError, StartError or StorageError if it cannot."""
    tls = NodeTls(config)
    add_directory_ids(config, machine)
    own = check_metadata_directory(config, machine.disk)
    broker = config.of(BROKER)
    machine = machine.planned(config)
    controlling = config.of(CONTROLLER)
    kafka = KafkaListeners(broker, tls, machine)
    of_controller = KafkaListeners(controlling, tls, machine, machine.shares.quorum)
    servers = (
        new_server(limits=port_limits(controlling, machine.shares.grpc)),
        new_server(
            message_max_bytes=config.number("socket.request.max.bytes"),
            limits=port_limits(broker, machine.shares.grpc),
        ),
    )
    try:
        for server, listeners in zip(
            servers, (controlling.grpc_listeners, broker.grpc_listeners), strict=True
        ):
            for listener in listeners:
                bind(server, listener.host, listener.port, tls.of(listener.name))
        kafka.bind()
        of_controller.bind()
        metrics = bind_metrics(config.metrics_listener, config.tls)
        stats = None if metrics is None else NodeStatistics(machine.clock.monotonic_ms())
        replica, data = await open_disks(config, broker, own, stats, machine)
        listening = of_controller, kafka
        process = CombinedProcess(config, replica, data, servers, listening, tls, metrics, stats, machine)
        return await process.run()
    finally:
        await kafka.close()
        await of_controller.close()
        for server in servers:
            await server.stop(None)


class CombinedProcess(NodeProcess):
    """Both roles on one driver. `servers`, `kafka`: the gRPC servers and the listeners of Kafka's protocol,
    of the controller and of the broker; the rest is as in a process with one role. The broker asks as the
    voters do."""

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        data: OpenData,
        servers: tuple[GuardedServer, GuardedServer],
        kafka: tuple[KafkaListeners, KafkaListeners],
        tls: NodeTls,
        metrics: BoundMetrics | None = None,
        stats: NodeStatistics | None = None,
        machine: Machine = OWN_PROCESS,
    ) -> None:
        super().__init__(config, replica, metrics, stats, machine)
        controlling, serving = config.of(CONTROLLER), config.of(BROKER)
        controller = controller_node(self, controlling)
        broker = broker_node(self, serving, data, controller.replica)
        self.node = CombinedNode(controller, broker)
        voters = way_to_voters(controlling, tls, machine.route)
        asks = way_to_controllers(serving, tls, machine.route)
        first = ControllerRole(self, controlling, controller, self.node, servers[0], kafka[0], voters)
        # The controller's role logs changes of metadata.
        second = BrokerRole(self, serving, broker, data, servers[1], kafka[1], tls, lines=None, way=asks)
        self.driver.hand_over({BrokerStopped: lambda _: second.refuse()})
        self.roles = (first, second)
