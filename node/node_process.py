"""The parts of a node's process: one Raft core, one driver, one page of metrics, one start and one end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from metaquorum.config.node import NodeConfig
from metaquorum.metadata.image import MetadataImage
from metaquorum.network.files_plan import log_plan, port_limits
from metaquorum.node.driver import Driver, Ending
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.node.node_runner import Node
from metaquorum.node.replica import OpenReplica, SnapshotFiles
from metaquorum.observability.logging import set_log_context
from metaquorum.observability.metrics.families import Source
from metaquorum.observability.metrics.rights import scraper_rights
from metaquorum.observability.metrics.service import BoundMetrics, note_first_snapshot, open_endpoint
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.raft.core import RaftCore
from metaquorum.rpc.controllers import Controllers
from metaquorum.rpc.transport import NodeTransport, RaftCaller, RaftService

if TYPE_CHECKING:
    from metaquorum.observability.metrics.endpoint import MetricsEndpoint

_log = logging.getLogger(__name__)


class ProcessRole(Protocol):
    """One role of a process. `start` is called before the driver starts, `refuse` once the driver has
    stopped, then `close`, and `left` once the metadata log is closed."""

    async def start(self) -> None: ...

    def after_step(self, now_ms: int) -> None: ...

    def carry(self, by_ms: int) -> None:
        """See `NodeProcess.carry`."""

    def is_serving(self) -> bool:
        """Whether others may call it now."""

    def source(self, stats: NodeStatistics) -> Source: ...

    def image(self) -> MetadataImage: ...

    def log_context(self) -> Mapping[str, object]: ...

    def refuse(self) -> None: ...

    async def close(self, ending: Ending) -> None: ...

    def left(self, ending: Ending) -> None: ...


class NodeProcess:
    """The parts that roles share. `metrics` is the bound socket of the metrics, `stats` has the counts; None:
    there are no metrics."""

    driver: Driver

    def __init__(
        self,
        config: NodeConfig,
        replica: OpenReplica,
        metrics: BoundMetrics | None = None,
        stats: NodeStatistics | None = None,
        machine: Machine = OWN_PROCESS,
    ) -> None:
        self.config = config
        self.machine = machine
        self.plan = machine.shares
        self.replica = replica
        self.clock = machine.clock
        self.rng = machine.new_rng()
        self.stats = stats
        self.raft = RaftCore(
            config.raft, replica.identity, config.voters, replica.store.recovered(), self.rng
        )
        self.controllers = Controllers(config, self.raft)
        self.roles: Sequence[ProcessRole] = ()
        self.is_killed = False
        self._metrics = metrics

    def drive(
        self,
        node: Node,
        client: RaftCaller,
        *,
        service: RaftService | None = None,
        load: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates the driver of `node`. `client` asks the controllers; `service` receives the requests of
        other nodes, None if this node does not vote."""
        self._client = client
        self._transport = NodeTransport(client, service)
        self.driver = Driver(
            node,
            self.replica.store,
            self._transport,
            SnapshotFiles(self.machine.disk),
            clock=self.clock,
            after_step=self._after_step,
            load=load,
            inbox_max=self.config.number("inbox.max.events"),
            watch=self.stats,
        )

    def kill(self) -> None:
        """Ends a node that shares its process as the death of a process does: it tells no one."""
        self.is_killed = True
        self.driver.end("killed", failed=True)

    def carry(self, by_ms: int) -> None:
        """The clock is set forward by so much at once: what waits for other nodes waits no less for it, as
        if they had been heard from all the while."""
        self.raft.carry(by_ms)
        for role in self.roles:
            role.carry(by_ms)

    async def run(self) -> Ending:
        """Runs until the node stops or the process cannot continue; then closes everything in order."""
        ending = Ending(reason="cancelled", failed=True)
        endpoint = None
        try:
            for role in self.roles:
                await role.start()
            endpoint = await self._open_metrics()
            self.machine.attend(self)
            if self.machine.owns_process:
                set_log_context(self._log_context)
            self.driver.start()
            ports = ", ".join(
                f"{listener.name} {listener.host or 'every interface'}:{listener.port}"
                for listener in self.config.listeners
            )
            if self.machine.plan is not None:
                log_plan(self.plan, self.config)
            _log.info("%s %d listens on %s", self.config.role, self.config.node_id, ports)
            ending = await self.driver.wait()
        finally:
            for role in self.roles:
                role.refuse()
            # In reverse order: a broker's last requests may need its controller's connections.
            for role in reversed(self.roles):
                await role.close(ending)
            await self._transport.close()
            await self.driver.close()
            if endpoint is not None:
                await endpoint.close()
            self.replica.store.close(clean=not ending.failed)
            for role in self.roles:
                role.left(ending)
        return ending

    async def _open_metrics(self) -> MetricsEndpoint | None:
        if self._metrics is None or self.stats is None:
            return None
        self.stats.watch(self.raft)
        note_first_snapshot(self.stats, self.config.metadata_log_dir, self.machine.disk)
        sources = [role.source(self.stats) for role in self.roles]
        rights = scraper_rights(self.config, self.roles[0].image)
        limits = port_limits(self.config, self.plan.metrics)
        return await open_endpoint(self._metrics, sources, self.clock, rights, limits)

    def hear(self, event: Any) -> bool:
        """Takes an event of the transport."""
        return self.driver.take_transport_event(event)

    def _after_step(self, now_ms: int) -> None:
        self.controllers.let_go(self._client)
        for role in self.roles:
            role.after_step(now_ms)

    def _log_context(self) -> Mapping[str, object]:
        """Fields for log lines that are not about metadata; the first role takes precedence."""
        found: dict[str, object] = {}
        for role in reversed(self.roles):
            found.update(role.log_context())
        return found
