"""Two requests that are sent together on one connection: the second sees what the first did."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire import codec
from metaquorum.wire import messages as kinds
from metaquorum.wire.table import API_BY_NAME
from tests.broker_calls import batch
from tests.e2e.cluster import FAST_BROKERS, Cluster
from tests.e2e.data_calls import DataCalls

pytestmark = pytest.mark.e2e

ROUNDS = 10
LATEST, EARLIEST = -1, -2
TIMEOUT_S = 30.0
VERSIONS = {
    "Produce": 9,
    "Fetch": 11,
    "ListOffsets": 5,
    "DeleteRecords": 1,
    "CreateTopics": 5,
    "Metadata": 8,
}


class Pipelined:
    """One connection on which requests leave in one piece."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)

    def ask(self, *bodies: Any) -> list[Any]:
        """The answers, in their order; a Produce with acks=0 has none."""
        sent, awaited = b"", []
        for number, body in enumerate(bodies):
            name = type(body).__name__.removesuffix("Request")
            key, version = API_BY_NAME[name].key, VERSIONS[name]
            frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, number, "test"), body))
            sent += len(frame).to_bytes(4, "big") + frame
            if not (name == "Produce" and body.acks == 0):
                awaited.append((key, version))
        self._socket.sendall(sent)
        return [codec.decode_response(*which, self._frame()).body for which in awaited]

    def _frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker closed the connection"
            found += more
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("pipelined")
    with Cluster(folder, controllers=1, brokers=3, properties=FAST_BROKERS) as cluster:
        cluster.start()
        cluster.create_topic("alone", partitions=1, replicas=1)
        cluster.create_topic("replicated", partitions=1, replicas=3)
        for topic in ("alone", "replicated"):
            DataCalls(cluster).produce_until_taken(topic, [b"first"])
        yield cluster
        cluster.assert_no_bugs()


def connection(cluster: Cluster, topic: str) -> Pipelined:
    return Pipelined(DataCalls(cluster).leader(topic).kafka_port)


def produce(topic: str, acks: int) -> kinds.ProduceRequest:
    part = kinds.ProduceRequest.PartitionProduceData(index=0, records=batch([b"v"]))
    data = kinds.ProduceRequest.TopicProduceData(name=topic, partition_data=(part,))
    return kinds.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=(data,))


def offset(topic: str, timestamp: int) -> kinds.ListOffsetsRequest:
    part = kinds.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return kinds.ListOffsetsRequest(
        topics=(kinds.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=(part,)),)
    )


def fetch(topic: str, at: int) -> kinds.FetchRequest:
    part = kinds.FetchRequest.FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=1 << 20)
    return kinds.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=(kinds.FetchRequest.FetchTopic(topic=topic, partitions=(part,)),),
    )


def delete(topic: str) -> kinds.DeleteRecordsRequest:
    part = kinds.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
    return kinds.DeleteRecordsRequest(
        timeout_ms=10_000,
        topics=(kinds.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=(part,)),),
    )


def listed(answer: Any) -> int:
    (part,) = answer.topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    return int(part.offset)


@pytest.mark.parametrize(("topic", "acks"), [("alone", 0), ("alone", 1), ("alone", -1), ("replicated", -1)])
def test_what_was_produced_is_listed_fetched_and_deleted(cluster: Cluster, topic: str, acks: int) -> None:
    caller = connection(cluster, topic)
    end = listed(caller.ask(offset(topic, LATEST))[0])
    for _ in range(ROUNDS):
        *_, found = caller.ask(produce(topic, acks), offset(topic, LATEST))
        assert listed(found) == end + 1
        *_, found = caller.ask(produce(topic, acks), fetch(topic, end + 1))
        (part,) = found.responses[0].partitions
        assert (part.error_code, part.high_watermark, bool(part.records)) == (0, end + 2, True)
        *_, first, last = caller.ask(
            produce(topic, acks), delete(topic), offset(topic, EARLIEST), offset(topic, LATEST)
        )
        end += 3
        assert (listed(first), listed(last)) == (end, end)
    caller.close()


def test_a_topic_that_was_created_is_in_the_metadata(cluster: Cluster) -> None:
    caller = connection(cluster, "alone")
    for number in range(3):
        name = f"new-{number}"
        topic = kinds.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        asked = kinds.MetadataRequest.MetadataRequestTopic(name=name)
        created, found = caller.ask(
            kinds.CreateTopicsRequest(topics=(topic,), timeout_ms=10_000),
            kinds.MetadataRequest(topics=(asked,), allow_auto_topic_creation=False),
        )
        assert created.topics[0].error_code == ErrorCode.NONE
        assert (found.topics[0].name, len(found.topics[0].partitions)) == (name, 1)
    caller.close()
