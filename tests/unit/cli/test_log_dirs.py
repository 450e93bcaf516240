"""`log-dirs describe` against nodes in memory over real sockets: ours, with fields that Kafka does not have,
and Kafka's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.unit.kafka.kafka_node import FakeNode, running

Directory = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition
A, B = b"a" * 16, b"b" * 16


class Node(FakeNode):
    """A broker with these directories; a topic `t` of two partitions, led by broker 0 and by no one."""

    def __init__(self, *directories: Directory) -> None:
        handlers = {
            "Metadata": self.metadata,
            "DescribeCluster": self.cluster,
            "DescribeLogDirs": self.describe,
        }
        super().__init__(handlers)
        self.directories = directories
        self.refuses = 0
        self.fenced: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = (0, 1)
        self.named: list[DescribeLogDirsRequest] = []

    def metadata(self, body: MetadataRequest) -> MetadataResponse:
        at = self.brokers(body)
        parts = tuple(
            MetadataResponse.MetadataResponsePartition(
                partition_index=index, leader_id=leader, replica_nodes=self.replicas
            )
            for index, leader in enumerate((0, -1))
        )
        topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=b"t" * 16, partitions=parts)
        return MetadataResponse(brokers=at.brokers, controller_id=at.controller_id, topics=(topic,))

    def cluster(self, body: DescribeClusterRequest) -> DescribeClusterResponse:
        Broker = DescribeClusterResponse.DescribeClusterBroker
        return DescribeClusterResponse(
            brokers=tuple(Broker(broker_id=each, is_fenced=True) for each in self.fenced)
        )

    def describe(self, body: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        self.named.append(body)
        return DescribeLogDirsResponse(error_code=self.refuses, results=self.directories)


def topics(**fields: int) -> tuple[Topic, ...]:
    parts = (Partition(partition_index=1, partition_size=300), Partition(partition_size=200, **fields))
    return (Topic(name="t", partitions=parts),)


OURS = Directory(
    log_dir="/d/a",
    directory_id=A,
    topics=topics(start_offset=2, high_watermark=7, end_offset=9),
    total_bytes=1000,
    usable_bytes=400,
)
LOST = Directory(
    error_code=ErrorCode.KAFKA_STORAGE_ERROR,
    error_message="it gave EIO; replace the disk",
    log_dir="/d/b",
    directory_id=B,
    offline_topics=(Topic(name="t", partitions=(Partition(partition_index=1, partition_size=-1),)),),
    total_bytes=1000,
)
KAFKAS = (
    Directory(log_dir="/k/a", topics=topics(offset_lag=4), total_bytes=1000, usable_bytes=400),
    Directory(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir="/k/b"),
)


@pytest.fixture(name="nodes")
def fixture_nodes() -> Iterator[list[Node]]:
    """Broker 0 is ours, broker 1 Kafka's."""
    nodes = [Node(OURS, LOST), Node(*KAFKAS)]
    with served(*nodes):
        yield nodes


@contextlib.contextmanager
def served(*nodes: FakeNode) -> Iterator[None]:
    """Nodes that answer from a thread of their own."""
    loop, up, down = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with running(*nodes):
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert up.wait(60)
    yield
    loop.call_soon_threadsafe(down.set)
    thread.join(60)
    loop.close()


def describe(nodes: list[Node], *more: str) -> Result:
    bootstrap = f"127.0.0.1:{nodes[0].port}"
    return CliRunner().invoke(main, ["log-dirs", "describe", "-b", bootstrap, *more])


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines() if line]


def test_directories_are_listed_with_their_replicas(nodes: list[Node]) -> None:
    ended = describe(nodes, "--broker", "0", "--topic", "t")
    assert ended.exit_code == 0
    found = rows(ended)
    assert found[1] == ["0", "/d/a", uuid_to_text(A), "online", "2", "1", "500", "400", "1000"]
    assert found[2] == ["0", "/d/b", uuid_to_text(B), "offline", "1", "0", "-", "-", "1000"]
    assert found[4] == ["0", "/d/a", "t-0", "leader", "200", "2", "7", "9", "0"]
    assert found[5] == ["0", "/d/a", "t-1", "follower", "300", "-", "-", "-", "0"]
    assert found[6][:5] == ["0", "/d/b", "t-1", "offline", "-"]
    assert ended.stderr == "broker 0: /d/b is offline: it gave EIO; replace the disk\n"
    (asked,) = nodes[0].named
    assert asked.topics is not None
    assert [(each.topic, each.partitions) for each in asked.topics] == [("t", (0, 1))]
    assert nodes[1].named == []


def test_what_kafkas_brokers_do_not_say_is_left_open(nodes: list[Node]) -> None:
    ended = describe(nodes, "--broker", "1", "--replicas")
    found = rows(ended)
    assert found[1] == ["1", "/k/a", "-", "online", "2", "0", "500", "400", "1000"]
    assert found[2] == ["1", "/k/b", "-", "offline", "-", "-", "-", "-", "-"]
    assert found[4] == ["1", "/k/a", "t-0", "follower", "200", "-", "-", "-", "4"]
    assert ended.stderr == "broker 1: /k/b is offline: KAFKA_STORAGE_ERROR\n"
    assert nodes[1].named[0].topics is None


def test_json_has_everything_that_is_known(nodes: list[Node]) -> None:
    ours, kafkas = json.loads(describe(nodes, "--json").stdout)
    assert (ours["brokerId"], kafkas["brokerId"], kafkas["problem"]) == (0, 1, None)
    good, lost = ours["directories"]
    assert (good["online"], lost["online"], lost["message"]) == (True, False, LOST.error_message)
    (replica, _) = good["replicas"]
    assert replica == {
        "topic": "t",
        "topicId": uuid_to_text(b"t" * 16),
        "partition": 0,
        "role": "leader",
        "leads": True,
        "sizeBytes": 200,
        "startOffset": 2,
        "highWatermark": 7,
        "endOffset": 9,
        "lag": 0,
    }
    assert kafkas["directories"][0]["replicas"][0]["highWatermark"] is None
    assert kafkas["directories"][0]["directoryId"] is None


def test_a_broker_that_does_not_say_hides_no_other(nodes: list[Node]) -> None:
    nodes[1].refuses = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    ended = describe(nodes)
    assert ended.exit_code == 1 and "/d/a" in ended.stdout
    last = ended.stderr.splitlines()[-1]
    assert last == "metaquorum: broker 1 did not answer: CLUSTER_AUTHORIZATION_FAILED: refused"


@pytest.mark.parametrize(
    ("fenced", "replicas", "more", "silent"),
    [
        ((5,), (0, 1), (), [5]),
        ((), (0, 6), (), [6]),
        ((5,), (6, 1), (), [5, 6]),
        ((5,), (6, 1), ("--topic", "t"), [6]),
        ((5,), (0, 6), ("--broker", "0"), []),
    ],
)
def test_a_broker_that_is_not_live_is_not_left_out(
    nodes: list[Node],
    fenced: tuple[int, ...],
    replicas: tuple[int, ...],
    more: tuple[str, ...],
    silent: list[int],
) -> None:
    for node in nodes:
        node.fenced, node.replicas = fenced, replicas
    ended = describe(nodes, *more)
    lines = [one for one in ended.stderr.splitlines() if one.startswith("metaquorum:")]
    assert lines == [
        f"metaquorum: broker {each} did not answer: it is not live; see: metaquorum brokers list"
        for each in silent
    ]
    assert ended.exit_code == bool(silent) and "/d/a" in ended.stdout
    listed = json.loads(describe(nodes, "--json", *more).stdout)
    assert [each["brokerId"] for each in listed if each["problem"]] == silent


def test_a_copy_that_is_on_its_way_is_no_replica_yet(nodes: list[Node]) -> None:
    copy = (Topic(name="t", partitions=(Partition(partition_size=50, offset_lag=3, is_future_key=True),)),)
    nodes[0].directories = (
        Directory(log_dir="/d/a", topics=topics()),
        Directory(log_dir="/d/b", topics=copy),
    )
    found = rows(describe(nodes, "--broker", "0", "--replicas"))
    assert [each[4:7] for each in found[1:3]] == [["2", "1", "500"], ["0", "0", "50"]]
    assert found[6] == ["0", "/d/b", "t-0", "future", "50", "-", "-", "-", "3"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--broker", "7"), "broker 7 is not live; see: metaquorum brokers list"),
        (("--topic", "nope"), "topic nope does not exist; see: metaquorum topics list"),
    ],
)
def test_what_there_is_not_is_said_in_one_line(nodes: list[Node], more: tuple[str, str], text: str) -> None:
    ended = describe(nodes, *more)
    assert (ended.exit_code, ended.stderr, ended.stdout) == (1, f"metaquorum: {text}\n", "")
