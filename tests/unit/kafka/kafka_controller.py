"""A controller of Apache Kafka, for tests of clients: the log of a node's directory behind Kafka's protocol,
in the versions that 3.7 offers, and a broker beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from metaquorum.clients.kafka.observer import AskNode
from metaquorum.clients.kafka.raft_messages import request_of, response_body
from metaquorum.listeners.login import SaslRules
from metaquorum.metadata.errors import ErrorCode
from metaquorum.raft.messages import FetchRequest, FetchSnapshotResponse, RaftError
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import list_snapshots, snapshot_path
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.types import LogPosition
from metaquorum.wire import messages as wire
from tests.unit.clients.metadata_leader import ADDRESSES, CLUSTER, MetadataLeader
from tests.unit.kafka.kafka_node import FakeNode

OFFERED = {"Fetch": (0, 16), "FetchSnapshot": (0, 0), "DescribeCluster": (0, 1), "DescribeQuorum": (0, 1)}
"""What Apache Kafka 3.7 offers."""


class KafkaController(FakeNode):
    """Node 1 leads and has the log in `directory`. `quorum` is what happens to it."""

    def __init__(self, directory: Path, *, allowed: bool = True, sasl: SaslRules | None = None) -> None:
        handlers = {
            "Fetch": self._fetch,
            "FetchSnapshot": self._fetch_snapshot,
            "DescribeCluster": self._describe_cluster,
            "DescribeQuorum": self._describe_quorum,
        }
        super().__init__(handlers, sasl=sasl, **OFFERED)
        self.allowed = allowed
        self.voters: dict[int, int] = {}
        """The log end of each voter, by the leader; empty: it does not say."""
        self.named: dict[int, int] = {}
        """The ports of other controllers."""
        self.describes = True
        """Whether it lets the client describe the cluster."""
        self.fetched: list[FetchRequest] = []
        self._directory = str(directory)
        self._disk = PosixDisk()
        self.quorum = quorum = MetadataLeader(Random(1))
        batches = list(LogReader(self._disk, self._directory).batches())
        quorum.log = [
            (
                LogPosition(each.header.leader_epoch, each.header.next_offset),
                each.header.base_offset,
                each.data,
            )
            for each in batches
        ]
        quorum.epoch = batches[-1].header.leader_epoch
        quorum.high_watermark = quorum.end.offset
        quorum.snapshots = set(list_snapshots(self._disk, self._directory))

    def trim(self) -> None:
        """The log starts at its oldest snapshot."""
        quorum = self.quorum
        quorum.log_start = min(quorum.snapshots)
        quorum.log = [each for each in quorum.log if each[1] >= quorum.log_start.offset]

    def content(self, snapshot: LogPosition) -> bytes:
        return Path(snapshot_path(self._directory, snapshot)).read_bytes()

    def _describe_cluster(self, body: wire.DescribeClusterRequest) -> wire.DescribeClusterResponse:
        if body.endpoint_type != 2:
            return wire.DescribeClusterResponse(error_code=114)
        if not self.describes:
            return wire.DescribeClusterResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        Broker = wire.DescribeClusterResponse.DescribeClusterBroker
        return wire.DescribeClusterResponse(
            endpoint_type=2,
            cluster_id=CLUSTER,
            controller_id=1,
            brokers=tuple(
                Broker(broker_id=node, host="127.0.0.1", port=port)
                for node, port in {1: self.port, **self.named}.items()
            ),
        )

    def _describe_quorum(self, body: wire.DescribeQuorumRequest) -> wire.DescribeQuorumResponse:
        if not self.describes:
            return wire.DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if not self.voters:
            return wire.DescribeQuorumResponse(error_code=ErrorCode.INVALID_REQUEST)
        types = wire.DescribeQuorumResponse
        partition = types.PartitionData(
            leader_id=1,
            leader_epoch=self.quorum.epoch,
            high_watermark=self.quorum.high_watermark,
            current_voters=tuple(
                types.ReplicaState(replica_id=node, log_end_offset=end) for node, end in self.voters.items()
            ),
        )
        topic = types.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
        return types(topics=(topic,))

    def _fetch(self, body: wire.FetchRequest) -> wire.FetchResponse:
        if not self.allowed:
            return wire.FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request = request_of(body, 16, cluster_id=CLUSTER, node_id=1)
        assert request.replica_id == -1
        self.fetched.append(request)
        found: wire.FetchResponse = response_body(self.quorum.result(AskNode(ADDRESSES[1], request)), 16)
        return found

    def _fetch_snapshot(self, body: wire.FetchSnapshotRequest) -> wire.FetchSnapshotResponse:
        asked = request_of(body, 0, cluster_id=CLUSTER, node_id=1)
        if asked.snapshot not in self.quorum.snapshots or asked.epoch != self.quorum.epoch:
            return wire.FetchSnapshotResponse(error_code=-1)
        content = self.content(asked.snapshot)
        end = asked.position + min(1_000, asked.max_bytes)
        found: wire.FetchSnapshotResponse = response_body(
            FetchSnapshotResponse(
                error=RaftError.NONE,
                epoch=self.quorum.epoch,
                leader_id=1,
                snapshot=asked.snapshot,
                size_bytes=len(content),
                position=asked.position,
                data=content[asked.position : end],
            ),
            0,
        )
        return found


class KafkaBroker(FakeNode):
    """A broker beside `controller`; `names_controllers` as from 3.9 on, otherwise only its configuration
    does, unless it `hides` that. It `refuses` both to a client without the rights."""

    def __init__(
        self,
        controller: KafkaController,
        *,
        names_controllers: bool = False,
        hides: bool = False,
        refuses: bool = False,
        sasl: SaslRules | None = None,
    ) -> None:
        highest = 2 if names_controllers else 1
        versions = {"DescribeCluster": (0, 1), "DescribeQuorum": (0, highest), "DescribeConfigs": (0, 4)}
        super().__init__(
            {
                "DescribeCluster": self._describe_cluster,
                "DescribeQuorum": self._describe_quorum,
                "DescribeConfigs": self._describe_configs,
            },
            sasl=sasl,
            **versions,
        )
        self._controller = controller
        self._hides = hides
        self._refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if refuses else ErrorCode.NONE

    def _describe_cluster(self, body: Any) -> wire.DescribeClusterResponse:
        Broker = wire.DescribeClusterResponse.DescribeClusterBroker
        here = Broker(broker_id=101, host="127.0.0.1", port=self.port)
        return wire.DescribeClusterResponse(cluster_id=CLUSTER, controller_id=101, brokers=(here,))

    def _describe_quorum(self, body: Any) -> wire.DescribeQuorumResponse:
        types = wire.DescribeQuorumResponse
        if self._refused:
            return types(error_code=self._refused)
        here = types.Listener(name="CONTROLLER", host="127.0.0.1", port=self._controller.port)
        return types(nodes=(types.Node(node_id=1, listeners=(here,)),))

    def _describe_configs(self, body: wire.DescribeConfigsRequest) -> wire.DescribeConfigsResponse:
        types = wire.DescribeConfigsResponse
        (asked,) = body.resources
        assert (asked.resource_type, asked.resource_name) == (4, "101")
        value = f"1@127.0.0.1:{self._controller.port}"
        voters = types.DescribeConfigsResourceResult(name="controller.quorum.voters", value=value)
        result = types.DescribeConfigsResult(
            error_code=self._refused,
            resource_type=4,
            resource_name="101",
            configs=() if self._hides or self._refused else (voters,),
        )
        return types(results=(result,))


@contextlib.contextmanager
def on_a_thread(*nodes: FakeNode) -> Iterator[None]:
    """The nodes listen until the end of the context."""
    loop = asyncio.new_event_loop()
    servers = []
    for node in nodes:
        server = loop.run_until_complete(loop.create_server(node.connection, "127.0.0.1", 0))
        node.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def end() -> None:
        for server in servers:
            server.close()
        for node in nodes:
            for each in list(node.open):
                each.end()

    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
