"""One node of a test cluster: what it keeps between its runs, and the run, in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from metaquorum.broker.server.main import BrokerRole
from metaquorum.combined.process import serve_any
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError, StartError
from metaquorum.lines import one_line
from metaquorum.listeners.services import Services
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.node.driver import Ending
from metaquorum.node.local_nodes import LocalNode
from metaquorum.node.machine import Machine, OpenNode
from metaquorum.node.node_process import NodeProcess
from metaquorum.raft.events import ShutdownRequested
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.errors import StorageError
from metaquorum.testing.clock import ClusterClock, NodeClock
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.forming import FormedNode, ports_of
from metaquorum.testing.interception import InterceptedServices, Interception, RequestPath, topic_name
from metaquorum.testing.memory_disk import MemoryDisk
from metaquorum.testing.network import Network


class ClusterNode(Protocol):
    """A node of a test cluster, in this process or another one. Its coroutines are for the cluster's loop."""

    local: LocalNode
    disk: Disk
    config: NodeConfig
    format_again: Callable[[Disk], None]

    @property
    def last_words(self) -> str:
        """Why the last run ended."""
        ...

    @property
    def node_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def is_up(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    @property
    def is_serving(self) -> bool:
        """Whether every role of it serves."""
        ...

    @property
    def process(self) -> NodeProcess | None:
        """What runs in this process; None: nothing."""
        ...

    @property
    def image(self) -> MetadataImage | None:
        """The metadata that it knows, as a broker if it is one; None: it does not run."""
        ...

    def start(self) -> None:
        """Starts it; it serves later, or fails."""
        ...

    async def kill(self, *, power_lost: bool = False) -> None:
        """Ends it as the death of its process does."""
        ...

    async def stop(self) -> None:
        """A controlled shutdown."""
        ...

    async def end_connections(self, client: str) -> int:
        """Ends the connections of a client, which is named by its client id or its principal; returns how
        many."""
        ...

    async def do_upkeep(self) -> None:
        """See `BrokerRole.do_upkeep`; nothing while it is down."""
        ...


class TestNode:
    """A node in this process. Every method is for the cluster's loop."""

    __test__ = False

    def __init__(
        self,
        formed: FormedNode,
        clock: ClusterClock,
        rng: random.Random,
        interception: Interception,
        network: Network,
    ) -> None:
        """`rng`: of everything that the node draws."""
        self.format_again = formed.format_again
        self._network = network
        network.place(formed.local.node_id, ports_of([formed.local]))
        self.local = formed.local
        self.disk = formed.disk
        self.config = configured(self.local.name, formed.settings)
        self._clock = clock
        self._rng = rng
        self._interception = interception
        self._process: NodeProcess | None = None
        self._task: asyncio.Task[Ending] | None = None
        self.last_words = ""

    @property
    def node_id(self) -> int:
        return self.local.node_id

    @property
    def name(self) -> str:
        return self.local.name

    @property
    def is_up(self) -> bool:
        """Whether it was started and has not ended."""
        return self._task is not None and not self._task.done()

    @property
    def process(self) -> NodeProcess | None:
        """What runs; None: nothing."""
        return self._process if self.is_up else None

    @property
    def is_serving(self) -> bool:
        """Whether every role of it serves."""
        process = self.process
        roles = () if process is None else process.roles
        return bool(roles) and all(each.is_serving() for each in roles)

    @property
    def image(self) -> MetadataImage | None:
        """The metadata that it knows, as a broker if it is one; None: it does not run."""
        process = self.process
        return process.roles[-1].image() if process is not None and process.roles else None

    def start(self) -> None:
        """Starts it; it serves later, or fails."""
        clock = NodeClock(self._clock)
        machine = Machine(
            disk=self.disk,
            clock=clock,
            new_rng=lambda: random.Random(self._rng.getrandbits(64)),
            owns_process=False,
            attend=self._attend,
            leave=self._leave,
            offer=self._offer,
            route=self._network.route_of(self.node_id),
        )
        self._process = None
        self._task = asyncio.get_running_loop().create_task(self._run(machine, clock), name=self.name)

    async def kill(self, *, power_lost: bool = False) -> None:
        """Ends it as the death of its process does."""
        if isinstance(self.disk, MemoryDisk):
            self.disk.kill()
        if self._process is not None:
            if self.process is not None and self.local.serves:
                cast(BrokerRole, self.process.roles[-1]).abandon()
            self._process.kill()
        elif self._task is not None:
            self._task.cancel()
        await self._ended()
        if isinstance(self.disk, MemoryDisk):
            self.disk.killed(power_lost=power_lost)

    async def stop(self) -> None:
        """A controlled shutdown."""
        if self._process is not None:
            self._process.driver.post(ShutdownRequested())
        elif self._task is not None:
            self._task.cancel()
        await self._ended()

    async def end_connections(self, client: str) -> int:
        """Ends the connections of a client, which is named by its client id or its principal; returns how
        many."""
        process = self.process
        if process is None or not self.local.serves:
            return 0
        ids = self._interception.client_ids
        role = cast(BrokerRole, process.roles[-1])
        return role.kafka.end_those(lambda peer: client in (peer.principal, ids.get(peer.connection)))

    async def do_upkeep(self) -> None:
        """See `BrokerRole.do_upkeep`; nothing while it is down."""
        process = self.process
        if process is not None and self.local.serves:
            await cast(BrokerRole, process.roles[-1]).do_upkeep()

    async def _ended(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        self._process = None

    async def _run(self, machine: Machine, clock: NodeClock) -> Ending:
        try:
            ending = await serve_any(self.config, machine)
        except (ConfigError, StartError, StorageError, ReplayError, RecordDecodeError) as error:
            ending = Ending(reason=one_line(error), failed=True)
        finally:
            clock.close()
        self.last_words = ending.reason
        return ending

    def _attend(self, node: OpenNode) -> None:
        self._process = cast(NodeProcess, node)

    def _offer(self, services: Services) -> Services:
        if self._interception.highest is not None:
            services.limit(self._interception.highest)
        request_path = RequestPath(self.node_id, self._interception, self._topic_of)
        return cast(Services, InterceptedServices(services, request_path))

    def _topic_of(self, entry: Any) -> str | None:
        def by_id(topic_id: bytes) -> str | None:
            image = self.image
            topic = None if image is None else image.topics.topic(topic_id)
            return None if topic is None else topic.name

        return topic_name(entry, by_id)

    def _leave(self, last_line: str) -> None:
        self.last_words = last_line


def configured(name: str, settings: Mapping[str, str]) -> NodeConfig:
    """The configuration of a node. Raises ClusterError for a setting that a node does not take."""
    try:
        config = load_config(Path(name), settings=settings)
    except ConfigError as error:
        raise ClusterError(str(error)) from None
    unknown = [each for each in config.warnings if "neither Kafka nor metaquorum" in each]
    if unknown:
        keys = unknown[0].partition(": ")[2]
        raise ClusterError(f"{name}: neither Kafka nor metaquorum has {keys}: correct `properties`")
    return config
