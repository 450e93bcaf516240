"""A running cluster for the rows of the Kafka benchmark, its resource usage, and a client that only sends
requests.

The producers are librdkafka's.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil

from metaquorum.platforms import sync_file
from metaquorum.wire import codec
from metaquorum.wire.table import API_BY_NAME, request_type
from tests.bench.quorum import cpu_seconds
from tests.e2e.cluster import HOST, Cluster

MB = 1_000_000
MIB = 1 << 20
WAIT_S = 120.0
_LENGTH = struct.Struct(">i")


class Site:
    """A controller and three brokers, each with two directories for partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bootstrap = ",".join(f"{HOST}:{node.kafka_port}" for node in cluster.brokers)
        self.ports = {node.node_id: node.kafka_port for node in cluster.brokers}

    def create(self, name: str, partitions: int, *, replicas: int = 3, **configs: str) -> bytes:
        """Returns the topic's id, once a first message is in each of its partitions."""
        settings = tuple((key.replace("_", "."), value) for key, value in configs.items())
        self.cluster.create_topic(name, partitions, replicas, configs=settings)
        producer = self.producer()
        for partition in range(partitions):
            producer.produce(name, b"first", b"first", partition=partition)
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        return self.cluster.topics()[name]

    def producer(self, **config: Any) -> confluent_kafka.Producer:
        return confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "acks": "all", **config})

    def consumer(self, **config: Any) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "enable.auto.commit": False, **config}
        )

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition."""
        answer = self.wire(next(iter(self.ports)), "Metadata", 12, topics=None)
        found = next(each for each in answer.topics if each.name == topic)
        return {part.partition_index: part.leader_id for part in found.partitions}

    def wire(self, broker_id: int, api: str, version: int, **fields: Any) -> Any:
        """One request on a connection of its own."""
        with Wire(self.ports[broker_id]) as wire:
            return wire.ask(api, version, **fields)

    def brokers_cpu_s(self) -> float:
        return sum(cpu_seconds(node.pid) for node in self.cluster.brokers)

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(node.pid) for node in self.cluster.brokers]


@contextmanager
def running_site(properties: Mapping[str, str] | None = None) -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(
            Path(directory), controllers=1, brokers=3, properties={"broker": properties or {}}, log_dirs=2
        ) as cluster,
    ):
        cluster.start()
        yield Site(cluster)
        cluster.assert_no_bugs()


class Wire:
    """A blocking connection. `ask` decodes the response; `read` returns its frame, in a buffer that the next
    one overwrites."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(64 * 1024)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        self.send(request_frame(api, version, **fields))
        return codec.decode_response(API_BY_NAME[api].key, version, self.read()).body

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def read(self) -> memoryview:
        self._receive(4)
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > len(self._buffer):
            self._buffer = bytearray(length)
        return self._receive(length)

    def _receive(self, length: int) -> memoryview:
        view, filled = memoryview(self._buffer)[:length], 0
        while filled < length:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            filled += count
        return view


def request_frame(api: str, version: int, **fields: Any) -> bytes:
    entry = API_BY_NAME[api]
    body = request_type(entry.key).cls(**fields)
    frame = b"".join(codec.encode_request(codec.RequestHeader(entry.key, version, 1, "bench"), body))
    return _LENGTH.pack(len(frame)) + frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """The cost of a piece of work: seconds, and those of the brokers' processors and of this process's."""

    took_s: float
    brokers_s: float
    client_s: float


def using(site: Site, work: Callable[[], None]) -> Used:
    brokers_s, client_s, begun = site.brokers_cpu_s(), time.process_time(), time.perf_counter()
    work()
    return Used(
        took_s=time.perf_counter() - begun,
        brokers_s=site.brokers_cpu_s() - brokers_s,
        client_s=time.process_time() - client_s,
    )


def disk_mb_s(count: int = 400, size: int = 256 * 1024) -> float:
    """Blocks of 256 KiB, each synced: the current speed of the disk."""
    data = os.urandom(size)
    with tempfile.TemporaryFile(prefix="bench-") as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        return count * size / MB / (time.perf_counter() - began)
