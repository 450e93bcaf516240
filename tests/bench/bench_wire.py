"""Requests and responses of Kafka's protocol, bytes to values and back, in processor time.

The messages are those of the published measurements of other codecs: a client's first requests, and the most
common ones on brokers. `--against-kio` also measures kio, the implementation that the tests compare with.
"""

from __future__ import annotations

import argparse
import importlib
import io
import time
from collections.abc import Callable
from typing import Any

from metaquorum.wire import codec
from metaquorum.wire.messages import (
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    MetadataResponse,
    ProduceRequest,
)
from metaquorum.wire.primitives import Buffer
from metaquorum.wire.table import APIS, python_name, request_type, response_type
from tests.bench.figures import Figure

ROUNDS = 7


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against-kio", action="store_true", help="measure kio too")


def run(options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    for name, key, version, is_request, body in messages():
        figures += measure(name, key, version, is_request, body, against_kio=options.against_kio)
    return figures


def messages() -> list[tuple[str, int, int, bool, Any]]:
    """(name, API, version, whether it is a request, body)."""
    return [
        ("ApiVersions 3 response, 80 keys", 18, 3, False, api_versions()),
        ("Metadata 12 response, 10 topics of 100 partitions", 3, 12, False, metadata()),
        ("Fetch 13 request, 100 partitions", 1, 13, True, fetch_request()),
        ("Fetch 13 response, 10 times 100 kB", 1, 13, False, fetch_response()),
        ("Produce 9 request, 10 times 16 kB", 0, 9, True, produce()),
    ]


def api_versions() -> Any:
    keys = (ApiVersionsResponse.ApiVersion(api_key=key, max_version=9) for key in range(80))
    return ApiVersionsResponse(api_keys=tuple(keys))


def metadata() -> Any:
    partitions = tuple(
        MetadataResponse.MetadataResponsePartition(
            partition_index=index, leader_id=1, leader_epoch=3, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3)
        )
        for index in range(100)
    )
    topics = (
        MetadataResponse.MetadataResponseTopic(name=f"topic-{n}", topic_id=bytes(16), partitions=partitions)
        for n in range(10)
    )
    brokers = (
        MetadataResponse.MetadataResponseBroker(node_id=n, host=f"broker-{n}", port=9092) for n in range(3)
    )
    return MetadataResponse(brokers=tuple(brokers), cluster_id="c" * 22, topics=tuple(topics))


def fetch_request() -> Any:
    partitions = tuple(
        FetchRequest.FetchPartition(partition=index, fetch_offset=5, partition_max_bytes=2**20)
        for index in range(10)
    )
    topic = FetchRequest.FetchTopic(topic_id=bytes(16), partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=(topic,) * 10)


def fetch_response() -> Any:
    part = FetchResponse.PartitionData(partition_index=0, high_watermark=4, records=bytes(100_000))
    topic = FetchResponse.FetchableTopicResponse(topic_id=bytes(16), partitions=(part,))
    return FetchResponse(responses=(topic,) * 10)


def produce() -> Any:
    parts = (ProduceRequest.PartitionProduceData(index=n, records=bytes(16_384)) for n in range(10))
    topic = ProduceRequest.TopicProduceData(name="topic", partition_data=tuple(parts))
    return ProduceRequest(acks=-1, topic_data=(topic,))


def measure(
    name: str, key: int, version: int, is_request: bool, body: Any, *, against_kio: bool
) -> list[Figure]:
    """Reading and writing one message."""
    header = codec.RequestHeader(key, version, 1, "bench")

    def write() -> list[Buffer]:
        if is_request:
            return codec.encode_request(header, body)
        return codec.encode_response(key, version, 1, body)

    frame = b"".join(write())

    def read() -> object:
        return codec.decode_request(frame) if is_request else codec.decode_response(key, version, frame)

    figures = [
        Figure(name=f"{name}: read", value=microseconds(read), unit="us"),
        Figure(name=f"{name}: write", value=microseconds(write), unit="us"),
    ]
    if against_kio:
        figures += measure_kio(name, key, version, is_request, body)
    return figures


def measure_kio(name: str, key: int, version: int, is_request: bool, body: Any) -> list[Figure]:
    from kio.serial import entity_reader, entity_writer

    kind = (request_type if is_request else response_type)(key)
    part = "request" if is_request else "response"
    folder = f"kio.schema.{python_name(APIS[key].name)}.v{version}.{part}"
    cls = getattr(importlib.import_module(folder), kind.name)
    data = bytearray()
    kind.writer(version)(body, data)
    read, write = entity_reader(cls), entity_writer(cls)
    entity, _ = read(bytes(data), 0)
    reading = microseconds(lambda: read(bytes(data), 0))
    writing = microseconds(lambda: write(io.BytesIO(), entity))
    return [
        Figure(name=f"{name}: read by kio", value=reading, unit="us"),
        Figure(name=f"{name}: write by kio", value=writing, unit="us"),
    ]


def microseconds(work: Callable[[], object]) -> float:
    """Processor time of one call: the best of several rounds of at least 20 ms."""
    begun = time.process_time()
    work()
    calls = max(1, int(0.02 / max(time.process_time() - begun, 1e-6)))
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time() - begun) / calls)
    return best * 1e6
