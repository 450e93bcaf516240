"""A test cluster that runs: its start and its end, its nodes, and how other threads call it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import threading
import time
import typing
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

from msgspec.structs import asdict

from metaquorum.clients.admin.access import delete_scram, set_scram
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.search import Address, ClientError
from metaquorum.metadata.errors import ApiError, ErrorCode, RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.requests.settings import SettingResult
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.node.local_nodes import HOST, give_back_ports
from metaquorum.platforms import call_in_forks
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError
from metaquorum.storage.uuids import uuid_from_text
from metaquorum.testing import failures
from metaquorum.testing.access import USER, ClientAccess
from metaquorum.testing.calls import CheckedCalls, check_keywords, check_value
from metaquorum.testing.chaos import Chaos
from metaquorum.testing.clock import ClusterClock, TimeControl
from metaquorum.testing.errors import FORKED, ClusterError, ClusterTimeoutError
from metaquorum.testing.forming import FormedNode, form, ports_of, shape_of
from metaquorum.testing.healing import NO_EFFECT, ActiveFault, ClusterEvent, Effect, FaultsInForce
from metaquorum.testing.interception import (
    LINES_MAX,
    OWN_CLIENT,
    Happening,
    Interception,
    lines_of,
    of_metadata,
)
from metaquorum.testing.loop import ClusterLoop, LoopThread, let_go
from metaquorum.testing.memory_disk import MemoryDisk, copy_files
from metaquorum.testing.network import ClusterNetwork, Network
from metaquorum.testing.node import ClusterNode, TestNode
from metaquorum.testing.releases import versions_of
from metaquorum.wire.errors import EncodeError

T = TypeVar("T")

IN_PROCESS, PROCESSES = "in-process", "processes"
"""The modes of a cluster."""
TIMEOUT_S = 30.0
"""How long anything may take by default."""
ITERATIONS = 4096
"""Of SCRAM: the fewest that Kafka allows."""
LOOK_S = 0.002
"""How often a wait looks."""
STARTS_MAX = 3
"""How often a node is started after a fault until it counts as one that does not start."""
LOOK_IN_A_HURRY_S = 1.0
"""The same while the clock is in a hurry: the loop looks, too, whenever it has nothing to do."""
TIMEOUT_MAX_S = 86_400.0
AT_ANY_TIME = frozenset({"start", "close", "directory", "events", "user", "password"})
"""What may be called before the start and after the end."""


class Wishes(TypedDict, total=False):
    """The keywords of `Cluster`."""

    properties: Mapping[str, object]
    """Settings of every node, in Kafka's names."""
    racks: Sequence[str]
    """That of each broker, in the order of their ids; by default they have none."""
    directory: str | os.PathLike[str]
    """An empty one for the data, which stays there; by default the data is in memory."""
    disk_bytes: int
    """The size of each node's disk in memory; 256 MiB."""
    log_dirs: int
    """How many directories a broker has for partitions."""
    clock: str
    """Its time: "real" follows real time, "manual" waits for `clock.advance` once the cluster has started."""
    timeout_s: float
    """How long anything may take, in real seconds, until a ClusterTimeoutError says what the cluster did."""
    seed: int
    """Repeats what the cluster draws: ids, placement, election timeouts, jitter, the schedule of chaos."""
    chaos: Chaos
    """Faults that happen while the test runs."""
    version: str
    """A release of Kafka, such as "3.6": brokers offer its APIs and versions only."""
    sasl: str
    """"scram": clients log in, as `user` with `password`, or as `add_user` has it; "oauth": with what `token`
    returns. The latter needs the extra `oauth` of this package."""
    mode: str
    """"in-process": all nodes are in the process of the test; "processes": each has one of its own."""
    tls: bool
    """Clients use TLS, and trust the certificate in `ca_file`. It needs the extra `oauth` of this package."""


_running: weakref.WeakSet[RunningCluster] = weakref.WeakSet()
_started_in: set[int] = set()
"""The processes that had a cluster: this one, or those it is a fork of."""


def _let_go_in_fork() -> None:
    for cluster in list(_running):
        cluster._let_go()


call_in_forks(_let_go_in_fork)


class RunningCluster(CheckedCalls):
    """A running cluster, as a context manager, also an asynchronous one.

    `brokers`: how many; `controllers`: how many beside them. None: the brokers are controllers, too. `Wishes`
    has the keywords.
    """

    _look_s = LOOK_S
    _starts_in_a_hurry = True
    """Elections and retries of the start do not wait in real time."""

    def __init__(self, brokers: int = 1, controllers: int | None = None, **wishes: Unpack[Wishes]) -> None:
        unknown = sorted(set(wishes) - set(Wishes.__annotations__))
        if unknown:
            raise ClusterError(
                f"a cluster has no {', '.join(unknown)}: it has {', '.join(Wishes.__annotations__)}"
            )
        check_value("Cluster", "brokers", int, brokers)
        check_value("Cluster", "controllers", int | None, controllers)
        check_keywords("Cluster", typing.get_type_hints(Wishes), wishes)
        wishes = cast(Wishes, {name: value for name, value in wishes.items() if value is not None})
        clock = wishes.get("clock", "real")
        if clock not in ("real", "manual"):
            raise ClusterError(f'clock={clock!r}: write "real" or "manual"')
        mode = wishes.get("mode", IN_PROCESS)
        if mode not in (IN_PROCESS, PROCESSES):
            raise ClusterError(f'mode={mode!r}: write "{IN_PROCESS}" or "{PROCESSES}"')
        timeout_s = wishes.get("timeout_s", TIMEOUT_S)
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise ClusterError(
                f"timeout_s={timeout_s:g}: give a number of seconds above 0, and at most {TIMEOUT_MAX_S:g}"
            )
        self.seed: int = wishes.get("seed", random.SystemRandom().getrandbits(32))
        """Of everything that the cluster draws."""
        self._rng = random.Random(self.seed)
        self._chaos = wishes.get("chaos", Chaos())
        check_keywords("Chaos", typing.get_type_hints(Chaos), asdict(self._chaos))
        self._access = ClientAccess.of(wishes.get("sasl"), wishes.get("tls", False), self._rng)
        self._shape = shape_of(brokers, controllers, wishes, self._access)
        self.timeout_s = self._first_timeout_s = timeout_s
        self._is_manual = clock == "manual"
        self._time = ClusterClock()
        self.clock = TimeControl(self._time, self._run_settled, self._looks_whole, self._carry)
        """Moves the cluster's time."""
        self._nodes: dict[int, ClusterNode] = {}
        self._voters: dict[int, bytes] = {}
        """The directories of the controllers that vote, by node, as last seen."""
        self._disk_ids: dict[int, bytes] = {}
        """The directories that the controllers have now."""
        self._clients: dict[tuple[Address, ...], KafkaClient] = {}
        """By the brokers that they ask."""
        self._thread: LoopThread | None = None
        self._cluster_id = ""
        self._first_image = MetadataImage()
        self._faults = FaultsInForce()
        self._interception = Interception(self._rng, self._time)
        self._network: ClusterNetwork
        if "version" in wishes:
            self._interception.highest = versions_of(wishes["version"])
        self._events: list[ClusterEvent] = []
        self._state = "not started"
        self._pid = os.getpid()
        self._lock = threading.Lock()

    # --- start and end

    def start(self) -> Self:
        """Starts all nodes and waits until they serve. `with` does it."""
        with self._lock:
            if self._state != "not started":
                raise ClusterError(f"this cluster is {self._state}: make another one")
            self._pid = os.getpid()
            if _started_in - {self._pid}:
                raise ClusterError(
                    "this process is a fork of one that has had a cluster, and gRPC does not start again in"
                    ' it: start processes with multiprocessing.get_context("spawn"), or before the first'
                    " cluster"
                )
            _started_in.add(self._pid)
            _running.add(self)
            self._access.open(self._home())
            self._nodes.update(self._form())
            self._thread = LoopThread(self._time, "kafka cluster")
            self._state = "running"
        try:
            if self._starts_in_a_hurry:
                self._time.hurry()
            self._run(self._start_nodes(), "the nodes to start")
            if self._starts_in_a_hurry:
                self._start_brokers()
            self._until(self._is_ready, "all nodes to serve")
            if self._starts_in_a_hurry:
                self._time.follow()
            if self._access.password is not None:
                self.add_user(USER, self._access.password)
        except BaseException:
            self.close()
            raise
        self._first_image = self._brokers()[0].image or MetadataImage()
        if self._is_manual:
            self._time.hold()
        return self

    def _home(self) -> Path | None:
        """Where the cluster keeps files, made if need be; None: it keeps none."""
        return None

    def _form(self) -> dict[int, ClusterNode]:
        """The nodes by id, which do not run yet; all share the interception and the network."""
        formed = form(self._shape, self._time, self._rng)
        self._cluster_id = formed[0].cluster_id
        controllers = [each.local for each in formed if each.local.controls]
        self._voters = {each.node_id: uuid_from_text(each.directory_id) for each in controllers}
        self._disk_ids = dict(self._voters)
        try:
            return {node.node_id: node for node in self._new_nodes(formed)}
        except BaseException:
            give_back_ports(ports_of(each.local for each in formed))
            raise

    def _new_nodes(self, formed: Sequence[FormedNode]) -> Sequence[ClusterNode]:
        """The first ones that are wrong raise ClusterError."""
        rngs = (random.Random(self._rng.getrandbits(64)) for _ in formed)
        self._network = network = Network(self._rng)
        return [
            TestNode(each, self._time, rng, self._interception, network)
            for each, rng in zip(formed, rngs, strict=False)
        ]

    def close(self) -> None:
        """Ends all nodes, and gives back threads, ports and memory; a second call does nothing."""
        if os.getpid() != self._pid:  # a fork has nothing of it
            return
        with self._lock:
            thread, self._thread = self._thread, None
            self._state = "closed"
        if thread is None:
            return
        try:
            thread.run(self._end(), self.timeout_s, "the cluster to end")
        finally:
            thread.close()
            self._access.close()
            give_back_ports(ports_of(node.local for node in self._nodes.values()))
            self._nodes.clear()
            # The parts of a node refer to each other: their memory comes back now, not some clusters later.
            gc.collect(1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._note_failure(error)
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._note_failure, error)
        await asyncio.to_thread(self.close)

    def failure_report(self, since_ms: int = 0) -> str:
        """For the report of a failed test: the timeline since a Unix time, and the command that opens the
        metadata logs, which are kept."""
        return failures.report_of(self, since_ms)

    def _note_failure(self, error: BaseException | None) -> None:
        """Under pytest, what the cluster did becomes a part of the report of the test."""
        if failures.is_wanted and isinstance(error, Exception) and self._state == "running":
            failures.note(self)

    # --- nodes

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, as clients see it."""
        self._require_running()
        return self._cluster_id

    @property
    def directory(self) -> str | None:
        """Where its data is; None: in memory."""
        return None if self._shape.directory is None else str(self._shape.directory)

    @property
    def bootstrap_servers(self) -> str:
        """For any client's `bootstrap.servers`."""
        ports = (node.local.client_port or node.local.kafka_port for node in self._brokers())
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def client_config(self) -> dict[str, str]:
        """The settings of librdkafka with which a client reaches the cluster, with `sasl` and `tls`, too."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._access.client_config()}

    @property
    def user(self) -> str:
        """With `sasl`, the user that exists from the start."""
        return USER

    @property
    def password(self) -> str | None:
        """That of `user`; None without `sasl`."""
        return self._access.password

    @property
    def ca_file(self) -> str | None:
        """With `tls`, the file with the certificate that clients trust, while the cluster runs."""
        return self._access.ca_file

    def add_user(self, name: str, password: str) -> None:
        """With `sasl`, another user may log in, or a user has another password; open connections stay."""
        self._access.require_users()
        mechanism = Mechanism.SCRAM_SHA_256
        setting = set_scram(self._asks(), name, mechanism, password, iterations=ITERATIONS)
        self._changed_user(self._run(setting, f"user {name}"), name, True)

    def remove_user(self, name: str) -> None:
        """With `sasl`, a user cannot log in any longer; open connections stay."""
        self._access.require_users()
        deletion = delete_scram(self._asks(), name, Mechanism.SCRAM_SHA_256)
        self._changed_user(self._run(deletion, f"user {name}"), name, False)

    def _changed_user(self, result: SettingResult, name: str, exists: bool) -> None:
        if result.error is not ErrorCode.NONE:
            raise ClusterError(f"user {name}: {result.error.name}: {result.message}")

        def is_known() -> bool:
            images = [node.image for node in self._brokers() if node.is_serving]
            answers = [
                image.scram.get((Mechanism.SCRAM_SHA_256.value, name)) is not None
                for image in images
                if image is not None
            ]
            return all(each is exists for each in answers)

        self._until(is_known, f"every broker to know user {name}")
        self._note(f"user {name} {'may log in' if exists else 'was removed'}")

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of all nodes."""
        return tuple(self._nodes)

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of all brokers."""
        return tuple(node.node_id for node in self._brokers())

    @property
    def controllers(self) -> tuple[int, ...]:
        """The ids of all controllers."""
        return tuple(node.node_id for node in self._nodes.values() if node.local.controls)

    @property
    def active_controller(self) -> int:
        """The id of the active controller. Waits until there is one."""
        return self._wait_for_value(self._leader_of_quorum, "an active controller")

    def timeline(self, lines_max: int = LINES_MAX, *, since_ms: int = 0) -> list[str]:
        """The newest of what happened, one a line, on the cluster's time: the story of the metadata log,
        rebalances, transactions, requests that were answered with an error, and faults. `since_ms`: from when
        on, in Unix time by the cluster's clock."""
        happenings = self._happenings()
        with contextlib.suppress(ClusterError, StorageError, ReplayError, RecordDecodeError):
            happenings += of_metadata(self.log())
        return lines_of([each for each in happenings if each.wall_ms >= since_ms], lines_max)

    def _happenings(self) -> list[Happening]:
        faults = [Happening(wall_ms=each.wall_ms, kind="fault", text=each.text) for each in self.events]
        return [*self._interception.observed.kept, *faults]

    def log(self, node: int | None = None) -> MetadataLog:
        """The metadata log of a node as it is now, as `metaquorum.open_log` opens it; by default that of the
        controller that has most of it."""
        holders = [self._node(node)] if node is not None else [self._nodes[each] for each in self.controllers]
        logs = [self._open_log(each) for each in holders]
        return max(logs, key=lambda log: log.end_offset)

    def _open_log(self, node: ClusterNode) -> MetadataLog:
        disk = node.disk.copy().disk if isinstance(node.disk, MemoryDisk) else node.disk
        return open_log(disk, str(node.config.metadata_log_dir))

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the metadata logs of all nodes to a directory, for the log tools."""
        target = PosixDisk()
        for node in self._nodes.values():
            source = node.disk.copy().disk if isinstance(node.disk, MemoryDisk) else node.disk
            home = str(node.config.metadata_log_dir)
            copy_files(source, home, target, join(os.fspath(directory), f"{node.name}/data"))

    @property
    def events(self) -> tuple[ClusterEvent, ...]:
        """What the test did to the cluster, in order."""
        return tuple(self._events)

    def wait_until(self, condition: Callable[[], bool], what: str = "a condition of the test") -> None:
        """Calls `condition` on this thread until it is true."""
        deadline_s = time.monotonic() + self.timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise ClusterTimeoutError(f"waited {self.timeout_s:g} s for {what}; {self._what_nodes_do()}")
            time.sleep(self._look_s)

    # --- for the parts of the cluster

    def _fault(
        self,
        text: str,
        end: Callable[[], None],
        effect: Effect = NO_EFFECT,
        begin: Coroutine[Any, Any, object] | None = None,
    ) -> ActiveFault:
        """A fault that is in force before `begin` has it happen, on the loop: what heals meanwhile starts no
        node that is about to be killed."""

        def recover() -> None:
            if effect != NO_EFFECT:
                self._recover()
            self._note(f"healed: {text}")

        fault = ActiveFault(text, end, effect, recover)
        self._faults.add(fault)
        if begin is not None:
            try:
                self._run(begin, text)
            except BaseException:
                fault.end()
                raise
        self._note(text)
        return fault

    def _note(self, text: str) -> None:
        self._events.append(ClusterEvent(wall_ms=self._time.wall_ms(), text=text))

    def _recover(self) -> None:
        """Starts the nodes that no fault keeps down, and waits until those serve that no fault keeps from it.
        One that ends by itself, by a fault that has just healed, is started again. Raises ClusterError."""
        if self._disk_ids != self._voters:
            self._see_voters()
        starts: dict[int, int] = {}
        while True:
            for node in self._left_down(starts):
                self._run(self._start(node), f"{node.name} to start")
                starts[node.node_id] = starts.get(node.node_id, 0) + 1
            self._until_recovered(lambda: bool(self._left_down(starts)) or self._is_whole())
            if not self._left_down(starts):
                break
        for node_id in starts:
            self._note(f"{self._nodes[node_id].name} was started")

    def _left_down(self, starts: Mapping[int, int]) -> list[ClusterNode]:
        """The nodes to be started. `starts`: how often each was. Raises ClusterError for one that does not
        start whatever is done."""
        kept = self._faults.down
        ended = [node for node in self._nodes.values() if not node.is_up and node.node_id not in kept]
        able = self._able()
        for node in ended:
            if node.node_id in able and starts.get(node.node_id, 0) >= STARTS_MAX:
                raise ClusterError(f"{node.name} did not start: {node.last_words}")
        return [node for node in ended if starts.get(node.node_id, 0) < STARTS_MAX]

    def _see_voters(self) -> None:
        """Which directories vote now; unchanged if no controller leads the quorum."""

        async def look() -> dict[int, bytes]:
            active = self._leader_of_quorum()
            process = None if active is None else self._nodes[active].process
            if process is None:
                return {}
            voters = process.raft.voters
            return {each: voters[each].directory_id or b"" for each in voters}

        self._voters = self._run(look(), "the voters") or self._voters

    def _until_recovered(self, condition: Callable[[], bool]) -> None:
        """A manual clock moves, for elections."""
        if self._time.is_manual:
            self.clock.pass_until(lambda: self._looks(condition))
        self._until(condition, "all nodes to serve that no fault keeps from it")

    @staticmethod
    async def _start(node: ClusterNode) -> None:
        if not node.is_up:  # another thread may have healed a fault, too
            node.start()

    def _able(self) -> frozenset[int]:
        """The nodes that no fault in force keeps from serving."""
        voters = [each for each in self.controllers if self._disk_ids.get(each) == self._voters.get(each)]
        return self._faults.able(self._nodes, voters, len(self._voters))

    def _start_brokers(self) -> None:
        """Once the controllers have elected: brokers would ask for the leader again and again."""
        controllers = [node for node in self._nodes.values() if node.local.controls]
        brokers = [node for node in self._nodes.values() if not node.local.controls]
        if not brokers:
            return

        async def start() -> None:
            for node in brokers:
                node.start()

        self._until(lambda: self._are_up(controllers) and self._leader_of_quorum() is not None, "an election")
        self._run(start(), "the brokers to start")

    # --- on the loop

    async def _start_nodes(self) -> None:
        """All of them; in a hurry, those that are controllers."""
        for node in self._nodes.values():
            if node.local.controls or not self._starts_in_a_hurry:
                node.start()

    def _carry(self, by_s: float) -> None:
        for node in self._nodes.values():
            if node.process is not None:
                node.process.carry(round(by_s * 1000))

    async def _end(self) -> None:
        for client in self._clients.values():
            await client.close()
        await asyncio.gather(*(node.kill() for node in self._nodes.values()))
        await self._network.close()

    def _is_ready(self) -> bool:
        nodes = list(self._nodes.values())
        return self._are_up(nodes) and all(node.is_serving for node in nodes) and self._agree()

    def _are_up(self, nodes: Sequence[ClusterNode]) -> bool:
        """True. Raises ClusterError for one that could not start."""
        for node in nodes:
            if not node.is_up:
                raise ClusterError(f"{node.name} did not start: {node.last_words}")
        return True

    def _is_whole(self) -> bool:
        """Whether all nodes serve that no fault keeps from it, and their brokers know each other."""
        able = self._able()
        return all(self._nodes[each].is_serving for each in able) and self._agree()

    def _looks_whole(self) -> bool:
        """`_is_whole`, for the threads of tests."""
        return self._looks(self._is_whole)

    def _looks(self, condition: Callable[[], bool]) -> bool:
        async def look() -> bool:
            return condition()

        return self._run(look(), "the nodes")

    def _agree(self) -> bool:
        """Whether the brokers that can serve know each other as ones that do."""
        able = self._able()
        running = [node for node in self._brokers() if node.is_serving and node.node_id in able]
        for node in running:
            known = (node.image or MetadataImage()).brokers
            others = [known.get(each.node_id) for each in running]
            if any(other is None or other.fenced for other in others):
                return False
        return True

    def _leader_of_quorum(self) -> int | None:
        leaders = [
            (process.raft.epoch, node.node_id)
            for node in self._nodes.values()
            if node.local.controls and (process := node.process) is not None
            if process.raft.leader_id == node.node_id
        ]
        return max(leaders)[1] if leaders else None

    def _asks(self) -> KafkaClient:
        self._require_running()
        asked = tuple((HOST, node.local.kafka_port) for node in self._asked_brokers() or self._brokers())
        if asked not in self._clients:
            limit_ms = int(self._first_timeout_s * 1000)
            self._clients[asked] = KafkaClient(asked, client_id=OWN_CLIENT, timeout_ms=limit_ms)
        return self._clients[asked]

    # --- nodes and threads

    def _check_use(self, name: str, *, is_method: bool) -> None:
        """See `CheckedCalls`. What was read before is there in a fork, too."""
        if name in AT_ANY_TIME:
            return
        self._require_running()
        if is_method:
            self._require_owner()

    def _require_owner(self) -> None:
        """Raises ClusterError in a fork of the process that started it."""
        if os.getpid() != self._pid:
            raise ClusterError(FORKED)

    def _let_go(self) -> None:
        """Of sockets, in a fork: while it had them, a killed node would keep its port, and clients would not
        learn of its end."""
        thread = self._thread
        if thread is not None:
            ports = {*ports_of(node.local for node in self._nodes.values()), *self._network.ports}
            let_go(thread.loop.descriptors(), ports)

    def _require_running(self) -> None:
        """Raises ClusterError."""
        if self._thread is None:
            raise ClusterError(self._why_not())

    def _why_not(self) -> str:
        """Why a cluster without a loop cannot be used, in one line."""
        return (
            f"this cluster is {self._state}: {'make another one' if self._state == 'closed' else 'start it'}"
        )

    def _asked_brokers(self) -> list[ClusterNode]:
        """Those that answer; while no fault lets any serve, those that run."""
        able, silent = self._able(), self._faults.silent(self._nodes)
        running = [node for node in self._brokers() if node.is_up]
        serving = [node for node in running if node.node_id in able]
        return serving or [node for node in running if node.node_id not in silent]

    def _brokers(self) -> list[ClusterNode]:
        return [node for node in self._nodes.values() if node.local.serves]

    def _node(self, node: int) -> ClusterNode:
        cluster_node = self._nodes.get(node)
        if cluster_node is None:
            ids = ", ".join(map(str, self._nodes)) or f"none, it is {self._state}"
            raise ClusterError(f"the cluster has no node {node}: it has {ids}")
        return cluster_node

    def _name(self, end: int | str) -> str:
        """For messages: of a node, or of a client."""
        return self._node(end).name if isinstance(end, int) else f"client {end}"

    def _running(self, node: int) -> ClusterNode:
        found = self._node(node)
        if not found.is_up:
            raise ClusterError(f"{found.name} is down already: {found.last_words}")
        return found

    def _what_nodes_do(self) -> str:
        """One line for a message."""
        states = []
        for node in self._nodes.values():
            state = "serves" if node.is_serving else "does not serve yet"
            states.append(f"{node.name} {state if node.is_up else f'is down ({node.last_words})'}")
        return ", ".join(states)

    def _run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work` on the cluster's loop."""
        thread = self._thread
        problem = None
        if os.getpid() != self._pid:
            problem = FORKED
        elif thread is None:
            problem = self._why_not()
        elif thread.is_current:
            problem = "this call waits for the cluster and cannot be made on the cluster's own thread"
        if problem is not None or thread is None:
            work.close()
            raise ClusterError(problem or self._state)
        try:
            return thread.run(work, self.timeout_s + 5, what)
        except ClusterTimeoutError as error:
            nodes = [f"{node.name} {'runs' if node.is_up else 'is down'}" for node in self._nodes.values()]
            raise ClusterTimeoutError(f"{error}; {', '.join(nodes)}") from error
        except (ApiError, ClientError, EncodeError, UnicodeError) as error:
            raise ClusterError(f"{what}: {error}") from error

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Looks, on the loop, until the condition is true."""

        async def look() -> bool:
            return condition()

        deadline_s = time.monotonic() + self.timeout_s
        while not self._run(look(), what):
            if time.monotonic() > deadline_s:
                raise ClusterTimeoutError(f"waited {self.timeout_s:g} s for {what}; {self._what_nodes_do()}")
            if self._time.is_hurried and self._thread is not None:
                self._thread.loop.wait_in_a_hurry(condition, LOOK_IN_A_HURRY_S)
            else:
                time.sleep(LOOK_S)

    def _wait_for_value(self, value: Callable[[], int | None], what: str) -> int:
        values: list[int] = []

        def look() -> bool:
            seen = value()
            values.extend(() if seen is None else (seen,))
            return seen is not None

        self._until(look, what)
        return values[-1]

    def _run_settled(self, move: Callable[[], None], text: str) -> None:
        """Moves the clock, for `clock`: nodes do what is due before it moves on."""

        async def moved() -> None:
            move()
            await cast("ClusterLoop", asyncio.get_running_loop()).settled()

        self._run(moved(), text)
