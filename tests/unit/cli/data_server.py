"""Brokers in memory behind real sockets, for tests of the commands: the fake cluster of the client's tests,
served over gRPC by threads, so that a command can run in the test's own thread with a loop of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration, NodeEndpoint
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto import metadata_pb2 as meta
from metaquorum.proto.data_pb2_grpc import DataServicer, add_DataServicer_to_server
from metaquorum.proto.metadata_pb2_grpc import MetadataServicer, add_MetadataServicer_to_server
from metaquorum.runtime.api import data as codec
from metaquorum.runtime.api.image import BROKER, PARTITION
from tests.unit.runtime.fake_broker import FakeCluster, Faults


class DataServer(DataServicer, MetadataServicer):
    """One broker of `cluster`. Metadata is the cluster's."""

    def __init__(self, cluster: FakeCluster, broker_id: int, ports: list[int], lock: threading.RLock) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.ports = ports
        self.lock = lock
        self.directories: tuple[api.LogDirDescription, ...] = ()
        self.waiting = 0
        self.marked: list[api.MarkLogDirOfflineRequest] = []

    def ProduceStream(self, request_iterator: Any, context: Any) -> Iterator[pb.ProduceResponse]:
        for message in request_iterator:
            if self.broker_id in self.cluster.silent:
                self.waiting += 1
                while context.is_active():
                    time.sleep(0.005)
                return
            request = codec.PRODUCE.from_pb(message)
            self.cluster.produced.append(request)
            with self.lock:
                if self.cluster._chance(self.cluster.faults.lose_request):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "it broke")
                answer = self.cluster._carry_out(("broker", self.broker_id), request)
                if self.cluster._chance(self.cluster.faults.lose_answer):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "it broke")
            yield codec.PRODUCED.answer_to_pb(answer)

    def Fetch(self, message: Any, context: Any) -> pb.FetchResponse:
        request = codec.FETCH.from_pb(message)
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while True:
            with self.lock:
                found = tuple(self.cluster._read(self.broker_id, each) for each in request.partitions)
            news = any(each.records or each.error or each.diverging for each in found)
            if news or time.monotonic() >= deadline or not context.is_active():
                return codec.FETCHED.to_pb(api.FetchResponse(session_id=0, partitions=found))
            time.sleep(0.005)

    def ListOffsets(self, message: Any, context: Any) -> pb.ListOffsetsResponse:
        request = codec.LIST_OFFSETS.from_pb(message)
        with self.lock:
            results = tuple(self.cluster._list(self.broker_id, each) for each in request.partitions)
        return codec.LISTED_OFFSETS.to_pb(api.ListOffsetsResponse(results=results))

    def InitProducerId(self, message: Any, context: Any) -> pb.InitProducerIdResponse:
        request = codec.INIT_PRODUCER_ID.from_pb(message)
        with self.lock:
            self.cluster.next_producer_id += 1
            first = request.producer_id < 0
            answer = api.InitProducerIdResponse(
                producer_id=self.cluster.next_producer_id if first else request.producer_id,
                producer_epoch=0 if first else request.producer_epoch + 1,
            )
        return codec.PRODUCER_ID.to_pb(answer)

    def DescribeLogDirs(self, message: Any, context: Any) -> pb.DescribeLogDirsResponse:
        request = codec.DESCRIBE_LOG_DIRS.from_pb(message)
        if self.broker_id in self.cluster.silent:
            context.abort(grpc.StatusCode.UNAVAILABLE, "it is down")
        return codec.LOG_DIRS.to_pb(
            api.DescribeLogDirsResponse(
                directories=tuple(_only(each, request.topic_ids) for each in self.directories)
            )
        )

    def MarkLogDirOffline(self, message: Any, context: Any) -> pb.MarkLogDirOfflineResponse:
        request = codec.MARK_LOG_DIR_OFFLINE.from_pb(message)
        self.marked.append(request)
        for each in self.directories:
            if each.path == request.path or each.directory_id == request.directory_id:
                offline = each.error is not ErrorCode.NONE
                return codec.MARKED_LOG_DIR.to_pb(
                    api.MarkLogDirOfflineResponse(directory_id=each.directory_id, was_offline=offline)
                )
        refusal = ApiError(ErrorCode.LOG_DIR_NOT_FOUND, "this broker has no such directory")
        return codec.MARKED_LOG_DIR.answer_to_pb(refusal)

    def ListBrokers(self, request: Any, context: Any) -> meta.ListBrokersResponse:
        return meta.ListBrokersResponse(
            read=meta.ReadInfo(linearizable=True),
            brokers=[
                BROKER.to_pb(
                    BrokerRegistration(
                        broker_id=each,
                        epoch=1,
                        incarnation_id=bytes(16),
                        fenced=False,
                        endpoints=(NodeEndpoint("GRPC", "127.0.0.1", port, 0),),
                    )
                )
                for each, port in zip(self.cluster.brokers, self.ports, strict=True)
            ],
        )

    def DescribeTopics(self, request: Any, context: Any) -> meta.DescribeTopicsResponse:
        with self.lock:
            found = [self.cluster._describe(name) for name in request.names if name in self.cluster.topics]
        return meta.DescribeTopicsResponse(
            read=meta.ReadInfo(linearizable=True),
            topics=[
                meta.Topic(
                    name=each.info.name,
                    topic_id=each.info.topic_id,
                    partitions=[PARTITION.to_pb(one) for one in each.partitions],
                )
                for each in found
            ],
            unknown_names=[name for name in request.names if name not in self.cluster.topics],
        )


def _only(directory: api.LogDirDescription, ids: tuple[bytes, ...] | None) -> api.LogDirDescription:
    chosen = tuple(each for each in directory.replicas if ids is None or each.key[0] in ids)
    return api.LogDirDescription(
        path=directory.path,
        directory_id=directory.directory_id,
        error=directory.error,
        message=directory.message,
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
        replicas=chosen,
    )


class Served:
    """A cluster that listens. `bootstrap` names its first broker."""

    def __init__(self, cluster: FakeCluster, services: list[DataServer]) -> None:
        self.cluster = cluster
        self.services = services
        self.bootstrap = f"127.0.0.1:{services[0].ports[0]}"


@contextlib.contextmanager
def served(*, brokers: int = 2, faults: Faults | None = None, seed: int = 0) -> Iterator[Served]:
    """Brokers that listen on loopback for as long as the context lasts."""
    cluster = FakeCluster(brokers=brokers, faults=faults, seed=seed)
    ports: list[int] = []
    lock = threading.RLock()
    services, servers = [], []
    pool = ThreadPoolExecutor(max_workers=32)
    for broker_id in cluster.brokers:
        service = DataServer(cluster, broker_id, ports, lock)
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        add_DataServicer_to_server(service, server)
        add_MetadataServicer_to_server(service, server)
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        services.append(service)
        servers.append(server)
    try:
        yield Served(cluster, services)
    finally:
        for server in servers:
            server.stop(0).wait()
        pool.shutdown(wait=True, cancel_futures=True)
