"""A node of a test cluster in a process of its own: runs it with faults that its owner sets over a line.

The owner decides about the requests that its faults may meet: they go there, by the code of clusters in one
process, and come back to be carried out.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from metaquorum.broker.server.main import BrokerRole
from metaquorum.combined.process import serve_any
from metaquorum.config.node import NodeConfig
from metaquorum.errors import StartError
from metaquorum.listeners.services import Client, Handler, Services
from metaquorum.network.deferred import Driven
from metaquorum.node.driver import Ending
from metaquorum.node.local_nodes import HOST
from metaquorum.node.machine import OWN_PROCESS, OpenNode
from metaquorum.node.node_process import NodeProcess
from metaquorum.node.process import handle_signals, keep_freed_buffers, run_process
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.disk.posix import PosixDisk, PosixFile, PosixFileSystem
from metaquorum.testing.interception import answer_of, later
from metaquorum.testing.line import AskedRequest, DiskOrder, Line, LineError, MetRequests, Order, Welcome
from metaquorum.testing.memory_disk import DiskFault, begin_disk_fault
from metaquorum.testing.network import Network
from metaquorum.wire import codec
from metaquorum.wire.codec import Request
from metaquorum.wire.table import APIS

# The real disk of a node in a process of its own, with faults as those of a disk in memory.


class BreakablePosixDisk(PosixDisk):
    """`faults` may change at any time; files that are open meet them, too."""

    def __init__(self) -> None:
        self.faults: tuple[DiskFault, ...] = ()
        self._fault_changed = threading.Condition()

    def wait(self, seconds: float, is_healed: Callable[[], bool]) -> None:
        """See `BreakableDisk`."""
        with self._fault_changed:
            self._fault_changed.wait_for(is_healed, seconds)

    def fault_healed(self) -> None:
        with self._fault_changed:
            self._fault_changed.notify_all()

    def meet(self, operation: str, path: str, size: int = 0) -> None:
        """Raises DiskError, or waits, as the faults have it."""
        for fault in self.faults:
            fault(operation, path, size)

    def _wrap(self, path: str, descriptor: int, *, writable: bool) -> PosixFile:
        return _BreakableFile(self, path, descriptor, writable=writable)

    def open_read(self, path: str) -> PosixFile:
        """As `PosixDisk` does, like all methods."""
        self.meet("open", path)
        return super().open_read(path)

    def open_append(self, path: str) -> PosixFile:
        self.meet("open", path)
        return super().open_append(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.meet("utime", path)
        super().set_modified_ms(path, modified_ms)

    def list_directory(self, path: str) -> list[str]:
        self.meet("list", path)
        return super().list_directory(path)

    def make_directory(self, path: str) -> None:
        self.meet("mkdir", path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.meet("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.meet("remove", path)
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        self.meet("remove", path)
        super().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.meet("sync_directory", path)
        super().sync_directory(path)

    def file_system(self, directory: str) -> PosixFileSystem:
        return _BreakableFileSystem(self, directory)


class _BreakableFile(PosixFile):
    def __init__(self, disk: BreakablePosixDisk, path: str, descriptor: int, *, writable: bool) -> None:
        super().__init__(path, descriptor, writable=writable)
        self._disk = disk

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.meet("read", self.path)
        return super().read_at(position, length)

    def append(self, data: bytes) -> None:
        self._disk.meet("write", self.path, len(data))
        super().append(data)

    def truncate(self, size: int) -> None:
        self._disk.meet("truncate", self.path)
        super().truncate(size)

    def to_sync(self) -> int:
        self._disk.meet("sync", self.path)
        return super().to_sync()


class _BreakableFileSystem(PosixFileSystem):
    def __init__(self, disk: BreakablePosixDisk, directory: str) -> None:
        super().__init__(directory)
        self._disk = disk
        self._of = directory

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        """As `PosixFileSystem` does."""
        self._disk.meet("sync", self._of)
        super().sync(files, directories)


TOPICS = ("topics", "topic_data")
"""Fields of requests with entries that have the id of a topic."""


def run(config_path: str, line: str) -> int:
    """As `combined.process.run`. `line`: the port of the owner and the token, with a colon between."""
    keep_freed_buffers()
    port, _, token = line.partition(":")

    async def serve(config: NodeConfig) -> Ending:
        node = OwnedNode(config)
        await node.connect(int(port), token)
        try:
            return await node.serve()
        finally:
            await node.close()

    return run_process(config_path, None, serve)


class OwnedNode:
    """Everything is for the node's loop."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._disk = BreakablePosixDisk()
        self._met = MetRequests()
        self._highest: dict[str, int] | None = None
        self._heals: dict[int, Callable[[], Awaitable[None]]] = {}
        """By the number of an order in force."""
        self._requests: dict[int, tuple[Handler, Request, Client]] = {}
        """Those that the owner decides about now."""
        self._numbers = itertools.count()
        self._client_ids: dict[int, str | None] = {}
        self._process: NodeProcess | None = None

    async def connect(self, port: int, token: str) -> None:
        """Raises StartError."""
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            self._line = Line(reader, writer, self._carry_out)
            self._serving = asyncio.get_running_loop().create_task(self._line.serve())
            answer = await self._line.call("hello", (token, self._config.node_id))
        except (OSError, LineError) as error:
            raise StartError(f"the owner of the cluster does not answer: {error}") from error
        welcome = msgspec.convert(answer, Welcome)
        self._met, self._highest = welcome.met, welcome.highest
        self._network = Network(random.Random(welcome.seed))
        for node, ports in welcome.ports.items():
            self._network.place(int(node), ports)
        for number, order in welcome.orders:
            await self._begin(number, order)

    async def serve(self) -> Ending:
        """Runs the node from start to end."""
        machine = replace(
            OWN_PROCESS,
            disk=self._disk,
            attend=self._attend,
            offer=self._offer,
            route=self._network.route_of(self._config.node_id),
        )
        return await serve_any(self._config, machine)

    async def close(self) -> None:
        await self._network.close()
        self._line.close()
        await asyncio.gather(self._serving, return_exceptions=True)

    def _attend(self, node: OpenNode) -> None:
        self._process = cast(NodeProcess, node)
        handle_signals(node.driver)

    # --- requests

    def _offer(self, services: Services) -> Services:
        if self._highest is not None:
            services.limit(self._highest)
        return cast(Services, _OwnedServices(services, self))

    def begin(self, api: str, handler: Handler, request: Request, client: Client) -> Any:
        """The answer to a request, or what will be."""
        self._client_ids[client.connection] = request.header.client_id
        if not self._met.all and api not in self._met.apis:
            return handler(request, client)
        return later(Driven(self._asked(handler, request, client)))

    async def _asked(self, handler: Handler, request: Request, client: Client) -> Any:
        number, header = next(self._numbers), request.header
        frame = request.frame
        asked = AskedRequest(
            number=number,
            frame=b"".join(codec.encode_request(header, request.body)) if frame is None else bytes(frame),
            address=client.address,
            listener=client.listener,
            principal=client.principal,
            connection=client.connection,
            names=self._names_in(request.body),
        )
        self._requests[number] = handler, request, client
        try:
            answer = await self._line.call("request", asked)
        finally:
            del self._requests[number]
        return None if answer is None else codec.decode_response(header.api_key, header.version, answer).body

    def _names_in(self, body: Any) -> tuple[tuple[bytes, str], ...]:
        entries = [each for name in TOPICS for each in getattr(body, name, None) or ()]
        ids = {topic_id for each in entries if (topic_id := getattr(each, "topic_id", None))}
        topics = None if self._process is None else self._process.roles[-1].image().topics
        known = [(each, topics.topic(each)) for each in ids] if topics is not None else []
        return tuple((each, topic.name) for each, topic in known if topic is not None)

    # --- what the owner wants

    async def _carry_out(self, name: str, given: Any) -> Any:
        match name:
            case "begin":
                number, order = msgspec.convert(given, tuple[int, Order])
                await self._begin(number, order)
            case "end":
                heal = self._heals.pop(given, None)
                if heal is not None:
                    await heal()
            case "meet":
                self._met = msgspec.convert(given, MetRequests)
            case "carry_out":
                return await self._carried_out(*given)
            case "drop":
                return await self._network.drop(*given)
            case "end_connections":
                return self._end_connections(given)
            case "upkeep":
                role = self._broker()
                if role is not None:
                    await role.do_upkeep()
            case _:
                raise LineError(f"there is no call {name}")

    async def _begin(self, number: int, order: Order) -> None:
        if isinstance(order, DiskOrder):
            release = begin_disk_fault(self._disk, order.fault)

            async def heal() -> None:
                release()
        else:
            await self._network.begin(order.pairs, order.delay)

            async def heal() -> None:
                await self._network.end(order.pairs, order.delay)

        self._heals[number] = heal

    async def _carried_out(self, number: int, frame: bytes | None) -> bytes | None:
        handler, request, client = self._requests[number]
        if frame is not None:
            request = request.changed(codec.decode_request(frame).body)
        answer = await answer_of(handler, request, client)
        header = request.header
        if answer is None:
            return None
        return b"".join(codec.encode_response(header.api_key, header.version, header.correlation_id, answer))

    def _broker(self) -> BrokerRole | None:
        role = None if self._process is None else self._process.roles[-1]
        return role if isinstance(role, BrokerRole) else None

    def _end_connections(self, client: str) -> int:
        role, ids = self._broker(), self._client_ids
        if role is None:
            return 0
        return role.kafka.end_those(lambda peer: client in (peer.principal, ids.get(peer.connection)))


class _OwnedServices:
    """A broker's services, of which the owner may decide; used as `Services`."""

    def __init__(self, services: Services, node: OwnedNode) -> None:
        self._services = services
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services, name)

    def find(self, api_key: int, version: int) -> Handler | None:
        """As `Services.find`."""
        handler = self._services.find(api_key, version)
        if handler is None:
            return None
        api = APIS[api_key].name
        return lambda request, client: self._node.begin(api, handler, request, client)
