"""A cluster of real processes on loopback, for tests and benchmarks.

Processes are `processes.Process`.

    with Cluster(tmp_path, controllers=3, brokers=2) as cluster:
        cluster.start()
        leader = cluster.leader()
        leader.kill()
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration, PartitionInfo
from metaquorum.metadata.requests.common import DescribeQuorumResponse, NewTopic, TopicResult
from metaquorum.node.local_nodes import free_ports
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.uuids import random_uuid, uuid_to_text
from tests.e2e.processes import Process, run_cli, wait_until
from tests.topics import committed_image, create_topics, delete_topics, partitions_in

HOST = "127.0.0.1"
FIRST_CONTROLLER_ID = 3000
CONTROLLER_NAMES = "CONTROLLER,GRPC_CONTROLLER"
CALL_TIMEOUT_MS = 3_000
READY_S = 60.0

FAST_BROKERS: Mapping[str, Mapping[str, str]] = {
    "controller": {"broker.session.timeout.ms": "3000"},
    "broker": {"broker.heartbeat.interval.ms": "300", "controller.request.timeout.ms": "1000"},
}
"""Sessions short enough for a test to see one expire, and long enough for a busy machine to keep them."""

BUG_SIGNS = ("Traceback", "stopped by a bug", "never awaited", "Exception ignored")
"""What a node logs about a bug of its own."""

T = TypeVar("T")


def random_id() -> str:
    """A new id for a cluster or a directory, as text."""
    return uuid_to_text(random_uuid(random.SystemRandom()))


class LoopThread:
    """An event loop on a thread of its own, so that tests are plain functions and load runs at the same
    time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="clients", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)


_loop_thread: LoopThread | None = None


def client_loop() -> LoopThread:
    """The single loop of all clients of this test process (gRPC works best with one)."""
    global _loop_thread  # noqa: PLW0603
    if _loop_thread is None:
        _loop_thread = LoopThread()
    return _loop_thread


class Node(Process):
    """One controller or broker: its files, and its process."""

    def __init__(self, home: Path, role: str, node_id: int, port: int, directory_id: str) -> None:
        home.mkdir(parents=True)
        self.role = role
        self.node_id = node_id
        self.port = port
        (self.kafka_port,) = free_ports(1)
        self.directory_id = directory_id
        self.home = home
        self.config = home / "node.properties"
        self.data = home / "data"
        self.log_dirs = [self.data]
        super().__init__(f"{role}-{node_id}", (role, "run", self.config), home / "process.log")

    @property
    def address(self) -> str:
        """Where it speaks gRPC."""
        return f"{HOST}:{self.port}"

    @property
    def kafka_address(self) -> str:
        """Where it speaks Kafka's protocol, and voters ask a controller."""
        return f"{HOST}:{self.kafka_port}"

    @property
    def metadata_log(self) -> Path:
        return self.data / METADATA_DIRECTORY

    def segments(self) -> list[Path]:
        return sorted(self.metadata_log.glob("*.log"))

    def snapshots(self) -> list[Path]:
        """Finished ones, by rising end offset."""
        return sorted(self.metadata_log.glob("*.checkpoint"))

    def quorum_state(self) -> QuorumState:
        state = load_quorum_state(PosixDisk(), str(self.metadata_log))
        assert state is not None
        return state

    def set_properties(self, values: Mapping[str, str | None]) -> None:
        """Changes the configuration file; None removes a line."""
        lines = dict(line.split("=", 1) for line in self.config.read_text().splitlines())
        for key, value in values.items():
            lines.pop(key, None)
            if value is not None:
                lines[key] = value
        self.config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


class Cluster:
    """See the module. `properties`: additional configuration by role. `log_dirs`: the number of directories
    for partitions per broker, besides that of its metadata log; 0: one directory holds everything.
    `formatting`: additional arguments for formatting controllers. Leaving the context kills every process."""

    def __init__(
        self,
        directory: Path,
        *,
        controllers: int = 3,
        brokers: int = 0,
        properties: Mapping[str, Mapping[str, str]] | None = None,
        log_dirs: int = 0,
        formatting: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._words = formatting
        self._log_dirs = log_dirs
        self.cluster_id = random_id()
        self._properties = properties or {}
        self._client: AdminClient | None = None
        roles = [("controller", FIRST_CONTROLLER_ID + at) for at in range(controllers)]
        roles += [("broker", at) for at in range(brokers)]
        self.nodes = [
            Node(directory / f"{role}-{node_id}", role, node_id, port, random_id())
            for (role, node_id), port in zip(roles, free_ports(len(roles)), strict=True)
        ]
        self.voters = ",".join(
            f"{one.node_id}@{one.kafka_address}:{one.directory_id}" for one in self.controllers
        )
        for node in self.nodes:
            self.write_config(node)
        for node in self.nodes:
            self._format_here(node)

    # --- making it

    def write_config(self, node: Node) -> None:
        listeners = f"CONTROLLER://{node.kafka_address},GRPC_CONTROLLER://{node.address}"
        if node.role == "broker":
            listeners = f"PLAINTEXT://{HOST}:{node.kafka_port},GRPC://{node.address}"
        node.config.write_text("")
        count = self._log_dirs if node.role == "broker" else 0
        node.log_dirs = [node.home / f"data-{at + 1}" for at in range(count)] or [node.data]
        node.set_properties(
            {
                "process.roles": node.role,
                "node.id": str(node.node_id),
                "controller.quorum.voters": self.grpc_voters if node.role == "broker" else self.voters,
                "controller.listener.names": CONTROLLER_NAMES,
                "listeners": listeners,
                "log.dirs": ",".join(map(str, node.log_dirs)),
                **({} if node.log_dirs == [node.data] else {"metadata.log.dir": str(node.data)}),
                **(self._internal_topics() if node.role == "broker" else {}),
                **self._properties.get(node.role, {}),
            }
        )

    @property
    def grpc_voters(self) -> str:
        """The voters, where brokers ask them."""
        return ",".join(f"{one.node_id}@{one.address}" for one in self.controllers)

    @property
    def quorum_servers(self) -> str:
        """The controllers, where voters ask each other."""
        return ",".join(one.kafka_address for one in self.controllers)

    def _internal_topics(self) -> dict[str, str]:
        """A replica on each broker of a small cluster: the default is three, and none with fewer brokers."""
        replicas = str(min(3, len(self.brokers)))
        return {
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
        }

    def format(self, node: Node, cluster_id: str | None = None) -> subprocess.CompletedProcess[str]:
        return run_cli(*self._formatting(node, cluster_id))

    def _format_here(self, node: Node) -> None:
        """The same command in this process: a cluster of six would otherwise start Python six times."""
        result = CliRunner().invoke(main, self._formatting(node, None))
        assert result.exit_code == 0, result.output + repr(result.exception)

    def _formatting(self, node: Node, cluster_id: str | None) -> list[str]:
        more = ["--new-cluster", *self._words] if node.role == "controller" else []
        identity = ["--cluster-id", cluster_id or self.cluster_id]
        return ["storage", "format", "--config", str(node.config), *identity, *more]

    def add_broker(self, broker_id: int, *, home: str | None = None, cluster_id: str | None = None) -> Node:
        """Adds a broker, formatted and not started; `home` names its folder (two may have one id)."""
        (port,) = free_ports(1)
        folder = self.directory / (home or f"broker-{broker_id}")
        node = Node(folder, "broker", broker_id, port, "")
        self.nodes.append(node)
        self.write_config(node)
        self.format(node, cluster_id)
        return node

    @property
    def controllers(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "controller"]

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "broker"]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.controllers)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers, for clients of Kafka's protocol."""
        return ",".join(f"{HOST}:{node.kafka_port}" for node in self.brokers)

    def controller(self, node_id: int) -> Node:
        return next(node for node in self.controllers if node.node_id == node_id)

    # --- running it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()
        if self._client is not None:
            client_loop().call(self._client.close())
            self._client = None

    def start(self) -> None:
        """Starts every node that does not run, and waits until each of them is up, there is a leader, and
        every broker is unfenced (which the log may say before the broker runs)."""
        started = [node for node in self.nodes if not node.is_running]
        for node in started:
            node.start()
        for node in started:
            node.wait_for_line("listens on", timeout_s=READY_S)
        self.wait_leader()
        self.wait_brokers({node.node_id: "running" for node in self.brokers})

    def stop(self) -> dict[str, int]:
        """SIGTERM: brokers first, the active controller last; returns the exit codes."""
        codes: dict[str, int] = {}
        for broker in self.brokers:
            if broker.is_running:
                codes[broker.name] = broker.stop()
        leader_id = self.quorum().leader_id
        for node in sorted(self.controllers, key=lambda one: one.node_id == leader_id):
            if node.is_running:
                codes[node.name] = node.stop()
        return codes

    def kill_all(self, nodes: Iterable[Node]) -> None:
        """kill -9 of all of them, with no delay in between."""
        for node in nodes:
            node.signal(signal.SIGKILL)
        for node in nodes:
            node.wait_exit()

    def assert_no_bugs(self) -> None:
        """No process has logged a traceback or a bug of its own, in any of its runs."""
        for node in self.nodes:
            if node.log_file.exists():
                text = node.log_file.read_text(errors="replace")
                for sign in BUG_SIGNS:
                    assert sign not in text, f"{node.name}: {text[max(0, text.index(sign) - 500) :]}"

    # --- asking it

    def call(self, method: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """One call of a client that knows the controllers and retries for a few seconds."""
        if self._client is None:
            self._client = AdminClient(self.bootstrap, timeout_ms=CALL_TIMEOUT_MS)
        return client_loop().call(method(self._client))

    def kafka(self, method: Callable[[KafkaClient], Coroutine[Any, Any, T]]) -> T:
        """One call in Kafka's protocol of a client that knows the brokers."""

        async def ask() -> T:
            async with KafkaClient(self.bootstrap_servers) as client:
                return await method(client)

        return client_loop().call(ask())

    def call_at(
        self, node: Node, method: Callable[[AdminClient], Coroutine[Any, Any, T]], *, timeout_ms: int = 3_000
    ) -> T:
        """A single attempt at one node."""

        async def ask() -> T:
            async with AdminClient(node.address, timeout_ms=timeout_ms, attempts_max=1) as client:
                return await method(client)

        return client_loop().call(ask())

    def quorum(self) -> DescribeQuorumResponse:
        return self.call(lambda client: client.describe_quorum())

    def leader(self) -> Node:
        return self.controller(self.quorum().leader_id)

    def registrations(self) -> dict[int, BrokerRegistration]:
        return {one.broker_id: one for one in self.call(lambda client: client.list_brokers()).brokers}

    def image(self) -> MetadataImage:
        """What is committed, read linearizably."""
        return self.call(committed_image)

    def topics(self) -> dict[str, bytes]:
        """Names and ids, read linearizably."""
        return {each.name: each.topic_id for each in self.image().topics.all()}

    def partitions(self, topic: str) -> list[PartitionInfo]:
        """Read linearizably; none if there is no such topic."""
        return partitions_in(self.image(), topic)

    def create_topics(self, *topics: NewTopic) -> tuple[TopicResult, ...]:
        """One result per topic."""
        return self.call(lambda client: create_topics(client, topics, timeout_ms=CALL_TIMEOUT_MS))

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> TopicResult:
        """Creates it and returns the result, which must be a success. `more`: fields of NewTopic."""
        if "assignments" not in more:
            more |= {"partitions": partitions, "replication_factor": replicas}
        (result,) = self.create_topics(NewTopic(name=name, **more))
        assert result.error == 0, result
        return result

    def delete_topics(self, *names: str) -> tuple[TopicResult, ...]:
        """One result per topic."""
        return self.call(lambda client: delete_topics(client, names, timeout_ms=CALL_TIMEOUT_MS))

    # --- waiting for it

    def wait(self, condition: Callable[[], T | None], what: str, timeout_s: float = READY_S) -> T:
        """`wait_until`; while the quorum does not respond, the condition is not true yet."""
        problems: list[str] = []

        def guarded() -> T | None:
            try:
                return condition()
            except (ApiError, ClientError) as error:
                problems.append(str(error))
                return None

        return wait_until(guarded, what, timeout_s=timeout_s, details=lambda: self.report(problems[-1:]))

    def wait_leader(self, *, after_epoch: int = -1, not_node: int | None = None) -> DescribeQuorumResponse:
        """Waits for a leader of an epoch later than `after_epoch`; returns the quorum that it reports."""

        def led() -> DescribeQuorumResponse | None:
            found = self.quorum()
            right = found.leader_epoch > after_epoch and found.leader_id != not_node
            return found if right and found.leader_id >= 0 else None

        return self.wait(led, f"a leader after epoch {after_epoch}")

    def wait_brokers(self, wanted: Mapping[int, str], timeout_s: float = READY_S) -> None:
        """Until each broker is `running`, `fenced` or `absent` according to the active controller."""

        def there() -> bool:
            known = self.registrations()
            return all(broker_state(known.get(broker_id)) == state for broker_id, state in wanted.items())

        if wanted:
            self.wait(there, f"brokers to be {dict(wanted)}", timeout_s)

    def wait_new_epoch(self, broker_id: int, *, after: int) -> BrokerRegistration:
        """Until the broker is unfenced in a registration newer than the broker epoch `after`."""

        def renewed() -> BrokerRegistration | None:
            found = self.registrations().get(broker_id)
            return found if found is not None and found.epoch > after and not found.fenced else None

        return self.wait(renewed, f"broker {broker_id} to run in an epoch after {after}")

    def wait_caught_up(self, node: Node) -> None:
        """Until the leader reports that the voter has everything that is committed now."""
        high_watermark = self.wait(lambda: self.quorum().high_watermark, "a high watermark")

        def caught_up() -> bool:
            voter = next(one for one in self.quorum().voters if one.node_id == node.node_id)
            return voter.log_end_offset >= high_watermark

        self.wait(caught_up, f"{node.name} to reach offset {high_watermark}")

    def report(self, problems: list[str]) -> str:
        """What to print for a failure: the last problem and the ends of all logs."""
        ends = [
            f"--- {node.name} (exit code {node.exit_code})\n" + "\n".join(node.lines()[-8:])
            for node in self.nodes
            if node.log_file.exists()
        ]
        return "\n".join([*problems, *ends])


def broker_state(registration: BrokerRegistration | None) -> str:
    if registration is None:
        return "absent"
    return "fenced" if registration.fenced else "running"


def read_batches(node: Node, *, from_offset: int = 0) -> list[RecordBatch]:
    """Every whole batch that is in a node's log files now, from the one with `from_offset` on."""
    reader = LogReader(PosixDisk(), str(node.metadata_log), start_offset=from_offset)
    try:
        return list(reader.batches())
    finally:
        reader.close()


def log_end_offset(node: Node) -> int:
    """Where a node's log ends, according to its files."""
    return read_batches(node)[-1].header.next_offset


def log_start_offset(node: Node) -> int:
    """Where a node's log begins, according to its files."""
    return min(int(path.stem) for path in node.segments())


def log_bytes(node: Node, *, from_offset: int = 0, to_offset: int) -> bytes:
    """The bytes of a node's batches from `from_offset` up to `to_offset`, which must both be batch
    boundaries."""
    batches = read_batches(node, from_offset=from_offset)
    wanted = [one for one in batches if from_offset <= one.header.base_offset < to_offset]
    assert wanted, f"{node.name} has nothing from {from_offset} to {to_offset}"
    first, last = wanted[0].header, wanted[-1].header
    assert (first.base_offset, last.next_offset) == (from_offset, to_offset), node.name
    return b"".join(one.data for one in wanted)
