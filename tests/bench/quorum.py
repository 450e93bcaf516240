"""Three real controllers for a benchmark, a stand-in for a broker, and the smallest write that they accept.

The processes are those of tests/e2e/cluster.py. All clients run on its one client loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from metaquorum.clients.quorum.nodes import describe_broker_nodes, describe_nodes
from metaquorum.metadata.features import MAX_METADATA_VERSION
from metaquorum.metadata.requests.common import NO_BROKER
from metaquorum.proto import broker_pb2 as broker
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.proto.forwarding_pb2_grpc import ForwardingStub
from metaquorum.rpc.channels import open_channel
from metaquorum.wire import codec
from metaquorum.wire.messages import CreateTopicsRequest
from metaquorum.wire.table import API_BY_NAME
from tests.e2e.cluster import Cluster, Node, client_loop
from tests.e2e.processes import wait_until

BROKER_ID = 1
EVERYTHING_APPLIED = 2**40
"""The stand-in holds no image: it reports everything as applied."""

HEARTBEAT_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_names = itertools.count()
_CREATE = API_BY_NAME["CreateTopics"]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def channel_to(node: Node) -> grpc.aio.Channel:
    return open_channel("127.0.0.1", node.port, None)


def one_topic() -> pb.ForwardRequest:
    """The small write: a topic with one partition and one replica (two records in one batch)."""
    return creation([next_name()], partitions=1, replicas=1)


def next_name() -> str:
    """The name of a topic that no other call returns."""
    return f"bench-{os.getpid()}-{next(_names)}"


def creation(names: Sequence[str], *, partitions: int, replicas: int) -> pb.ForwardRequest:
    """A request to create topics, as a command without a broker sends it to the active controller."""
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=name, num_partitions=partitions, replication_factor=replicas) for name in names]
    body = CreateTopicsRequest(topics=tuple(topics), timeout_ms=30_000)
    header = codec.RequestHeader(_CREATE.key, _CREATE.max_version, 1, "bench")
    return pb.ForwardRequest(frame=b"".join(codec.encode_request(header, body)), broker_id=NO_BROKER)


def succeeded(answer: pb.ForwardResponse) -> bool:
    """Whether all topics were created."""
    if answer.HasField("error"):
        return False
    body = codec.decode_response(_CREATE.key, _CREATE.max_version, answer.frame).body
    return not any(each.error_code for each in body.topics)


async def applied_offset(node: Node) -> int:
    """The end of the node's committed image, as it reports it; -1: no answer."""
    address = [("127.0.0.1", node.port)]
    if node.role == "broker":
        (broker,) = await describe_broker_nodes(address, timeout_ms=1_000)
        return -1 if broker.status is None else broker.status.applied_offset
    (controller,) = await describe_nodes(address, timeout_ms=1_000)
    return -1 if controller.report is None else controller.report.status.committed_offset


class StandInBroker:
    """Registers one broker and sends heartbeats to the active controller: topics need a broker."""

    def __init__(self, nodes: list[Node], cluster_id: str) -> None:
        self._nodes = nodes
        self._cluster_id = cluster_id
        self._epoch = -1
        self._task: asyncio.Task[None] | None = None
        self._unfenced = asyncio.Event()

    async def start(self) -> None:
        """Returns once it is unfenced."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        await asyncio.wait_for(self._unfenced.wait(), 30)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        channels = [channel_to(node) for node in self._nodes]
        stubs: list[Any] = [BrokerLifecycleStub(channel) for channel in channels]
        try:
            while True:
                await asyncio.gather(*(self._ask(stub) for stub in stubs))
                await asyncio.sleep(HEARTBEAT_S if self._unfenced.is_set() else 0.05)
        finally:
            await asyncio.gather(*(channel.close(None) for channel in channels))

    async def _ask(self, stub: Any) -> None:
        """Only the active controller accepts it; the others refuse it, or are dead."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            if self._epoch < 0:
                answer = await stub.Register(self._registration(), timeout=2)
                if not answer.HasField("error"):
                    self._epoch = answer.broker_epoch
                return
            request = broker.BrokerHeartbeatRequest(
                broker_id=BROKER_ID, broker_epoch=self._epoch, applied_offset=EVERYTHING_APPLIED
            )
            answer = await stub.Heartbeat(request, timeout=2)
            if not answer.HasField("error") and not answer.is_fenced:
                self._unfenced.set()

    def _registration(self) -> broker.RegisterBrokerRequest:
        return registration(BROKER_ID, self._cluster_id)


def registration(broker_id: int, cluster_id: str) -> broker.RegisterBrokerRequest:
    """A broker as our own broker process registers one."""
    return broker.RegisterBrokerRequest(
        broker_id=broker_id,
        cluster_id=cluster_id,
        incarnation_id=os.urandom(16),
        endpoints=[common.Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0)],
        features=[
            common.Feature(
                name="metadata.version", min_supported_version=1, max_supported_version=MAX_METADATA_VERSION
            )
        ],
        directories=[os.urandom(16)],
    )


@contextmanager
def three_controllers(
    *,
    broker: bool = True,
    properties: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Cluster]:
    """Three running controllers with sync on and the default configuration, and one unfenced stand-in."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ExitStack() as stack:
        cluster = Cluster(Path(directory), controllers=3, properties=properties)
        stack.enter_context(cluster)
        cluster.start()
        stand_in = StandInBroker(cluster.controllers, cluster.cluster_id)
        if broker:
            client_loop().call(stand_in.start())
        try:
            yield cluster
        finally:
            if broker:
                client_loop().call(stand_in.stop())


def wait_all_caught_up(cluster: Cluster) -> None:
    """Until every voter follows the leader and has everything."""

    def all_there() -> bool:
        quorum = cluster.quorum()
        return all(
            one.lag == 0 and (one.last_fetch_ms is not None or one.node_id == quorum.leader_id)
            for one in quorum.voters
        )

    wait_until(all_there, "every voter to be caught up")
    leader_id = cluster.quorum().leader_id
    for node in cluster.controllers:
        if node.node_id != leader_id:
            cluster.wait_caught_up(node)


def create_at(channel: grpc.aio.Channel) -> Any:
    """The call that takes what `creation` returns."""
    return ForwardingStub(channel).Forward
