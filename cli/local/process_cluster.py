"""A test cluster whose nodes have processes of their own, as those of `metaquorum local up`.

They end with this process, however it ends: each watches a pipe, and a guardian kills those that are paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Unpack, cast

import msgspec
import psutil
from msgspec.structs import replace

from metaquorum.cli.__main__ import OWNER_LINE
from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import adopt
from metaquorum.cli.local.cluster import Processes
from metaquorum.cli.local.forks import ForkServer, NewProcesses, OwnerPipe, node_starter
from metaquorum.cli.local.guardian import KEEP, REMOVE
from metaquorum.clients.admin.cluster import describe_quorum
from metaquorum.clients.admin.topics import look_up_topics
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.search import ClientError
from metaquorum.lines import one_line
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.node.local_nodes import HOST
from metaquorum.platforms import UnsupportedError, check_nodes_run_here, limit_memory, pause_signals
from metaquorum.rpc.health import health_problem
from metaquorum.storage.errors import StorageError
from metaquorum.testing.breaking import NodeCopy
from metaquorum.testing.cluster import Cluster
from metaquorum.testing.contents import PartitionState
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.forming import FormedNode, ports_of
from metaquorum.testing.healing import ActiveFault, Effect
from metaquorum.testing.interception import OWN_CLIENT, RequestPath, topic_name
from metaquorum.testing.line import (
    AskedRequest,
    DiskOrder,
    Line,
    LineError,
    MetRequests,
    NetworkOrder,
    Order,
    Welcome,
)
from metaquorum.testing.memory_disk import DiskCopy, DiskFaultOrder
from metaquorum.testing.network import Delay, Pair
from metaquorum.testing.node import ClusterNode, configured
from metaquorum.testing.running import IN_PROCESS, Wishes
from metaquorum.wire import codec
from metaquorum.wire.codec import Request

T = TypeVar("T")

LOOK_S = 0.01
ANSWER_MS = 2_000
"""How long one look at a node may take."""
GUARDIAN_WAIT_S = 10.0
ONLY_IN_PROCESS = ("disk_bytes",)
"""What a cluster of processes cannot be given."""
REFUSED = ("expire_tokens", "expire_transaction", "unclean_election")
"""Methods that move the clock."""
_starters: dict[int, ForkServer | NewProcesses] = {}
"""What starts the nodes of all clusters of a process, by its pid: a fork of this one has its own."""


def _refusal(what: str) -> ClusterError:
    return ClusterError(f'{what} needs nodes in the process of the test: use Cluster(mode="{IN_PROCESS}")')


def _starter() -> ForkServer | NewProcesses:
    if os.getpid() not in _starters:
        _starters[os.getpid()] = node_starter(OwnerPipe())
    return _starters[os.getpid()]


class Guardian:
    """A process that ends the nodes of a cluster when this one has ended; `remove`: their directory, too."""

    def __init__(self, directory: Path, *, remove: bool) -> None:
        self._owner = OwnerPipe()
        words = [
            sys.executable,
            "-m",
            "metaquorum.cli.local.guardian",
            str(directory),
            REMOVE if remove else KEEP,
        ]
        self._process = subprocess.Popen(
            words,
            stdin=self._owner.reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """It finds no nodes any longer."""
        self._owner.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GUARDIAN_WAIT_S)


class ProcessNode:
    """A node that is a process. See `ClusterNode`."""

    process = None

    def __init__(
        self, formed: FormedNode, processes: Processes, is_serving: Callable[[ProcessNode], bool]
    ) -> None:
        self.local = formed.local
        self.disk = formed.disk
        self.format_again = formed.format_again
        self.config = configured(self.local.name, formed.settings)
        self.processes = processes
        self._is_serving = is_serving
        self.line: Line | None = None
        self.is_paused = False

    @property
    def node_id(self) -> int:
        return self.local.node_id

    @property
    def name(self) -> str:
        return self.local.name

    @property
    def last_words(self) -> str:
        return self.processes.last_line(self.local)

    @property
    def is_up(self) -> bool:
        return self.processes.pid(self.local) is not None

    @property
    def is_serving(self) -> bool:
        return self.is_up and self._is_serving(self)

    @property
    def image(self) -> MetadataImage | None:
        """What the metadata log on its disk says; None: it has none, or it is being written."""
        try:
            return state_at(open_log(self.disk, str(self.config.metadata_log_dir))).image
        except (StorageError, InspectError):
            return None

    def start(self) -> None:
        try:
            self.processes.start(self.local)
        except Failure as error:
            _starters.pop(os.getpid(), None)
            raise ClusterError(one_line(error)) from error

    async def kill(self, *, power_lost: bool = False) -> None:
        await self._in_thread(self.processes.kill)

    async def stop(self) -> None:
        await self._in_thread(self.processes.stop)

    async def _in_thread(self, end: Callable[[Any], object]) -> None:
        try:
            await asyncio.to_thread(end, self.local)
        except Failure as error:
            raise ClusterError(one_line(error)) from error

    async def end_connections(self, client: str) -> int:
        return int(await self.ask("end_connections", client) or 0)

    async def do_upkeep(self) -> None:
        await self.ask("upkeep")

    async def ask(self, name: str, value: object = None) -> Any:
        """What the node answers; None: it does not run, or ends meanwhile. A node that is paused answers when
        it goes on."""
        line = self.line
        if line is None:
            return None
        asked = asyncio.ensure_future(line.call(name, value))
        if self.is_paused:
            asked.add_done_callback(_seen)
            return None
        try:
            return await asked
        except LineError as error:
            if self.line is line:
                raise ClusterError(f"{self.name}: {error}") from error
            return None


def _seen(asked: asyncio.Future[Any]) -> None:
    if not asked.cancelled():
        asked.exception()


class RemoteNetwork:
    """The network of nodes in processes, each of which has the connections that it opened; see `Network`."""

    def __init__(self, nodes: Mapping[int, ClusterNode], orders: Orders) -> None:
        self._nodes = nodes
        self._orders = orders
        self._begun: list[tuple[Sequence[Pair], Delay | None, int]] = []

    async def begin(self, pairs: Sequence[Pair], delay: Delay | None) -> None:
        order = NetworkOrder(pairs=tuple(pairs), delay=delay)
        number = await self._orders.begin({node for pair in pairs for node in pair}, order)
        self._begun.append((pairs, delay, number))

    async def end(self, pairs: Sequence[Pair], delay: Delay | None) -> None:
        found = next(each for each in self._begun if each[:2] == (pairs, delay))
        self._begun.remove(found)
        await self._orders.end(found[2])

    async def drop(self, a: int, b: int) -> int:
        found = [await cast(ProcessNode, self._nodes[each]).ask("drop", (a, b)) for each in (a, b)]
        return sum(each or 0 for each in found)

    @property
    def ports(self) -> Collection[int]:
        """None: the nodes have them."""
        return ()

    async def close(self) -> None:
        """The nodes have ended."""


class Orders:
    """The faults in force in nodes: also a node that starts later gets them."""

    def __init__(self, nodes: Mapping[int, ClusterNode]) -> None:
        self._nodes = nodes
        self._numbers = itertools.count()
        self._held: dict[int, tuple[set[int], Order]] = {}

    def of(self, node: int) -> tuple[tuple[int, Order], ...]:
        return tuple((number, order) for number, (nodes, order) in self._held.items() if node in nodes)

    async def begin(self, nodes: set[int], order: Order) -> int:
        """It is in force; returns its number."""
        number = next(self._numbers)
        self._held[number] = nodes, order
        await self._ask(nodes, "begin", (number, order))
        return number

    async def end(self, number: int) -> None:
        nodes, _ = self._held.pop(number)
        await self._ask(nodes, "end", number)

    async def _ask(self, nodes: set[int], name: str, value: object) -> None:
        await asyncio.gather(*(cast(ProcessNode, self._nodes[each]).ask(name, value) for each in nodes))


class ProcessCluster(Cluster):
    """`Cluster(mode="processes")`."""

    _look_s = LOOK_S
    _starts_in_a_hurry = False

    def __init__(self, brokers: int = 1, controllers: int | None = None, **wishes: Unpack[Wishes]) -> None:
        for name in ONLY_IN_PROCESS:
            if wishes.get(name) is not None:
                raise _refusal(f"{name}=")
        if wishes.get("clock") not in (None, "real"):
            raise _refusal(f"clock={wishes['clock']!r}")
        super().__init__(brokers, controllers, **wishes)
        try:
            check_nodes_run_here()
        except UnsupportedError as error:
            raise ClusterError(f'{error}: use Cluster(mode="{IN_PROCESS}")') from error
        self._is_temporary = self._shape.directory is None
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._orders = Orders(self._nodes)
        self._token = secrets.token_hex()
        self._listening: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._guardian: Guardian | None = None
        self._pauses: dict[int, ActiveFault] = {}

    # --- start and end

    def _home(self) -> Path:
        directory = self._shape.directory or Path(tempfile.mkdtemp(prefix="kafka-processes-"))
        self._shape = replace(self._shape, directory=directory)
        self._guardian = Guardian(directory, remove=self._is_temporary)
        _starter()  # imports what nodes need, meanwhile
        directory.mkdir(exist_ok=True)
        return directory

    def _form(self) -> dict[int, ClusterNode]:
        try:
            self._listening = socket.create_server((HOST, 0))
            return super()._form()
        except BaseException:
            self._leave()
            raise

    def _new_nodes(self, formed: Sequence[FormedNode]) -> list[ClusterNode]:
        assert self._listening is not None
        layout = adopt(
            self._shape.directory or Path(),
            formed[0].cluster_id,
            [each.local for each in formed],
            {each.local.name: each.settings for each in formed},
        )
        line = f"{self._listening.getsockname()[1]}:{self._token}"
        processes = Processes(layout, _starter(), {OWNER_LINE: line})
        self._network = RemoteNetwork(self._nodes, self._orders)
        return [ProcessNode(each, processes, self._serves) for each in formed]

    async def _start_nodes(self) -> None:
        self._server = await asyncio.start_server(self._welcome, sock=self._listening)
        await super()._start_nodes()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        await super()._end()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A node has started."""
        node: ProcessNode | None = None

        async def answer(name: str, given: Any) -> Any:
            nonlocal node
            if node is None and name == "hello" and secrets.compare_digest(given[0], self._token):
                node = cast(ProcessNode, self._nodes[given[1]])
                node.line = line
                return self._welcome_of(node)
            if node is None or name != "request":
                raise LineError(f"there is no call {name}")
            return await self._decided(node, msgspec.convert(given, AskedRequest))

        line = Line(reader, writer, answer)
        try:
            await line.serve()
        finally:
            if node is not None and node.line is line:
                node.line = None

    def _welcome_of(self, node: ProcessNode) -> Welcome:
        return Welcome(
            ports={str(each.node_id): tuple(ports_of([each.local])) for each in self._nodes.values()},
            seed=self._rng.getrandbits(64) >> 1,
            highest=self._interception.highest,
            met=self._met(node.node_id),
            orders=self._orders.of(node.node_id),
        )

    def close(self) -> None:
        """Ends all nodes, and gives back ports and files; a second call does nothing."""
        try:
            super().close()
        finally:
            self._leave()

    def _leave(self) -> None:
        guardian, self._guardian = self._guardian, None
        if guardian is None or os.getpid() != self._pid:
            return
        if self._listening is not None:
            self._listening.close()
        if self._copies is not None:
            self._copies.cleanup()
        if self._is_temporary and self._shape.directory is not None:
            shutil.rmtree(self._shape.directory, ignore_errors=True)
        guardian.end()

    @property
    def directory(self) -> str | None:
        """Where its data stays; None: it goes with the cluster."""
        return None if self._is_temporary else super().directory

    @property
    def pids(self) -> dict[int, int]:
        """The processes of the nodes that run, by node id."""
        found = {node.node_id: node.processes.pid(node.local) for node in self._all()}
        return {node_id: pid for node_id, pid in found.items() if pid is not None}

    # --- requests

    def _met(self, node: int) -> MetRequests:
        """What a node asks about."""
        shared = self._interception
        return MetRequests(
            all=any(fault.node == node for fault in shared.client_faults),
            apis=frozenset(
                (*(each.api for each in shared.faults), *(each.api for each in shared.interceptors))
            ),
        )

    async def _meet_requests(self) -> None:
        await asyncio.gather(*(node.ask("meet", self._met(node.node_id)) for node in self._all()))

    def _requests_changed(self) -> None:
        if self._thread is not None:
            self._run(self._meet_requests(), "nodes to know of a fault")

    async def _decided(self, node: ProcessNode, asked: AskedRequest) -> bytes | None:
        """What becomes of a request; the frame of its answer."""
        request = codec.decode_request(asked.frame)
        header, names = request.header, dict(asked.names)
        client = Client(
            listener=asked.listener,
            address=asked.address,
            principal=asked.principal,
            connection=asked.connection,
        )

        async def carry_out(left: Request, client: Client) -> Any:
            frame = None if left is request else b"".join(codec.encode_request(header, left.body))
            assert node.line is not None
            answer = await node.line.call("carry_out", (asked.number, frame))
            if answer is None:
                return None
            return codec.decode_response(header.api_key, header.version, answer).body

        request_path = RequestPath(
            node.node_id, self._interception, lambda entry: topic_name(entry, names.get)
        )
        answer = await request_path.passed(carry_out, request, client)
        if answer is None:
            return None
        return b"".join(codec.encode_response(header.api_key, header.version, header.correlation_id, answer))

    # --- faults

    def kill(self, node: int, *, power_lost: bool = False) -> ActiveFault:
        """Sends SIGKILL to the process of a node; healing starts it again."""
        if power_lost:
            raise _refusal("a power loss")
        return super().kill(node)

    def _home_of(self, node: ClusterNode) -> str:
        return str((self._shape.directory or Path()) / node.name)

    def _begin_disk_fault(self, node: ClusterNode, wanted: DiskFaultOrder) -> Callable[[], None]:
        begun = self._orders.begin({node.node_id}, DiskOrder(fault=wanted))
        number = self._run(begun, f"the disk of {node.name} to fail")
        return lambda: self._run(self._orders.end(number), f"the disk of {node.name} to heal")

    def copy_disk(self, node: int) -> NodeCopy:
        """What is on a node's disk now, for `restore_disk_from`. A node that runs is paused meanwhile."""
        paused = self._node(node)
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="copies-", dir=self._shape.directory)
        target = Path(tempfile.mkdtemp(dir=self._copies.name))
        with self.pause(node) if paused.is_up and node not in self._pauses else contextlib.nullcontext():
            for place in self._places(paused):
                shutil.copytree(place, target / place.name)
        return NodeCopy(node, target, self.clock.wall_ms)

    @staticmethod
    def _places(node: ClusterNode) -> set[Path]:
        return {*node.config.log_dirs, node.config.metadata_log_dir}

    def pause(self, node: int) -> ActiveFault:
        """Stops the process of a node as SIGSTOP does; healing has it go on."""
        signals, running = pause_signals(), self._running(node)
        if signals is None or node in self._pauses:
            raise ClusterError(f"{running.name} is paused already: resume it first")
        stop, resume = signals
        self._signal(node, stop)
        owned = cast(ProcessNode, running)
        owned.is_paused = True

        def go() -> None:
            self._pauses.pop(node, None)
            owned.is_paused = False
            self._signal(node, resume)

        effect = Effect(down=frozenset([node]))
        self._pauses[node] = self._fault(f"{running.name} is paused", go, effect)
        return self._pauses[node]

    def resume(self, node: int) -> None:
        """A paused node goes on."""
        name = self._node(node).name
        if node not in self._pauses:
            raise ClusterError(f"{name} is not paused")
        self._pauses[node].heal()

    def limit_memory(self, node: int, *, more_bytes: int) -> ActiveFault:
        """A node can allocate at most `more_bytes` beyond what it has now; healing lifts the limit. Only on
        Linux."""
        name = self._running(node).name

        def limit(size: int | None) -> bool:
            pid = self.pids.get(node)
            try:
                return pid is None or limit_memory(pid, size)
            except psutil.Error as error:
                raise ClusterError(f"the memory of {name} has no limit: {error}") from error

        if not limit(more_bytes):
            raise ClusterError("this system cannot limit the memory of another process: use Linux")

        def heal() -> None:
            limit(None)

        text = f"{name} can allocate {more_bytes} bytes more"
        return self._fault(text, heal, Effect(hampered=frozenset([node])))

    def stop(self, node: int) -> ActiveFault:
        """A controlled shutdown of a node; healing starts it again."""
        if node in self._pauses:
            raise ClusterError(f"{self._node(node).name} is paused: resume it first, or kill it")
        return super().stop(node)

    def _replace_disk(self, node: int, copy: DiskCopy | Path | None, what: str) -> ActiveFault:
        owned = self._node(node)
        if isinstance(copy, DiskCopy):
            raise ClusterError("this copy is of a cluster in the process of the test: restore it there")
        if copy is None:
            self._check_quorum_outlives(owned)

        async def replace() -> None:
            await owned.kill()
            for place in self._places(owned):
                shutil.rmtree(place, ignore_errors=True)
                if copy is not None:
                    shutil.copytree(copy / place.name, place)
            if copy is None:
                owned.format_again(owned.disk)
            self._see_disk(owned, owned.disk)

        return self._down(owned, f"{owned.name} {what}", replace())

    def _signal(self, node: int, number: int) -> bool:
        (found,) = [each for each in self._all() if each.node_id == node]
        return found.processes.signal(found.local, number)

    def _run_settled(self, move: Callable[[], None], text: str) -> None:
        raise _refusal("to move the clock")

    # --- what nodes say

    def _all(self) -> list[ProcessNode]:
        return [node for node in self._nodes.values() if isinstance(node, ProcessNode)]

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Looks, on this thread, until the condition is true."""
        self.wait_until(condition, what)

    def _answer(self, work: Coroutine[Any, Any, T], what: str) -> T | None:
        """None: there was no answer, or an error."""

        async def asked() -> T | None:
            try:
                return await work
            except (ApiError, ClientError):
                return None

        return self._run(asked(), what)

    def _serves(self, node: ProcessNode) -> bool:
        if node.node_id in self._pauses:
            return False
        for port in node.local.health_ports:
            if self._run(health_problem((HOST, port), timeout_ms=ANSWER_MS), f"{node.name} to answer"):
                return False
        return True

    def _at(self, node: ClusterNode) -> KafkaClient:
        """Asks this broker alone."""
        address = ((HOST, node.local.kafka_port),)
        if address not in self._clients:
            self._clients[address] = KafkaClient(address, client_id=OWN_CLIENT, timeout_ms=ANSWER_MS)
        return self._clients[address]

    def _agree(self) -> bool:
        able = self._able()
        running = [node for node in self._brokers() if node.is_up and node.node_id in able]
        wanted = {node.node_id for node in running}
        for node in running:
            known = self._answer(self._at(node).brokers(), f"{node.name} to answer")
            if known is None or not wanted <= {*known}:
                return False
        return True

    def _all_know(self, topic: str, exists: bool) -> bool:
        for node in self._asked_brokers():
            found = self._answer(look_up_topics(self._at(node), (topic,)), f"{node.name} to answer")
            if found is None or bool(found) is not exists:
                return False
        return True

    def _partitions_of(self, topic: str) -> Sequence[PartitionState] | None:
        found = self._answer(look_up_topics(self._asks(), (topic,)), f"topic {topic}")
        return None if found is None else found[0].partitions if found else ()

    def _leader_of_quorum(self) -> int | None:
        quorum = self._answer(describe_quorum(self._asks()), "the quorum")
        leader = None if quorum is None else self._nodes.get(quorum.leader_id)
        silent = self._faults.silent(self._nodes)
        is_there = leader is not None and leader.is_up and leader.node_id not in silent
        return leader.node_id if leader is not None and is_there else None

    def _see_voters(self) -> None:
        quorum = self._answer(describe_quorum(self._asks()), "the quorum")
        if quorum is not None:
            self._voters = {each.node_id: each.directory_id for each in quorum.voters}


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: ProcessCluster, *args: object, **how: object) -> NoReturn:
        raise _refusal(name)

    return refuse


for _name in REFUSED:
    setattr(ProcessCluster, _name, _refusing(_name))
