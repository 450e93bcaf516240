"""Three brokers in the state in which the golden captures' scripts found them: the topics with their replicas
and settings, a partition that had seven leader epochs, and a transactional id that had been used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import LATEST_TIMESTAMP
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from metaquorum.wire.table import API_BY_NAME
from tests.broker_calls import batch
from tests.e2e.cluster import Cluster
from tests.e2e.golden_frames import Replay
from tests.e2e.processes import wait_until

COMPACTED = ("cleanup.policy", "compact")
SHORT_SEGMENTS = (("index.interval.bytes", "64"), ("segment.bytes", "1500"))
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
TOPICS: tuple[tuple[Any, ...], ...] = (
    ("err", ((0, 1), (1, 2), (2, 0))),
    ("err-compact", ((0, 1),), COMPACTED),
    ("err-small", ((0, 1, 2),), ("max.message.bytes", "200")),
    ("life", ((2, 0, 1),)),
    ("ver2", ((0, 1, 2), (1, 2, 0), (2, 0, 1))),
    ("idx-mixed", ((1, 2, 0),), *SHORT_SEGMENTS),
    ("idx-txn", ((1, 2, 0),), *SHORT_SEGMENTS),
    ("idx-logappend", ((0, 1, 2),), *SHORT_SEGMENTS, ("message.timestamp.type", "LogAppendTime")),
    ("idx-gzip-topic", ((1, 2, 0),), ("compression.type", "gzip")),
    ("rd-codecs", ((0, 1, 2),)),
    ("rd-ts", ((0, 1, 2),)),
    ("rd-txn", ((2, 0, 1), (0, 1, 2)), ("segment.bytes", "1048576")),
    ("rd-out", ((2, 0, 1),)),
    ("rd-plain", ((2, 0, 1), (0, 1, 2), (1, 2, 0))),
    ("h1", ((2, 1, 0), (0, 2, 1))),
    ("h2", ((1, 2, 0), (2, 1, 0))),
    (OFFSETS, ((1, 2, 0), (1, 2, 0)), COMPACTED),
    (TRANSACTIONS, ((1, 2, 0), (1, 2, 0)), COMPACTED),
)
"""Each name, the replicas of each partition, the first of which leads, and settings. The leaders of internal
topics are those of the script of all versions, before which broker 0 had been restarted."""
GOLDEN_IDS = {
    "err": "68f438ea377b48a7abf7d4132d2dee7a",
    "life": "265fbcb286a0484f92a023ea6b50ba42",
    "ver2": "4c2d2c202eef4cfd836b25df419a8523",
}
"""Of the topics that a Fetch names."""
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
GROUP_KEYS, TRANSACTION_KEYS = ("g-b", "g-a"), ("err-tx", "v2-tx-1")
"""One for each partition of the internal topics."""
USED_ID, TIMES_USED = "err-tx", 9
AGED, EPOCH_0_RECORDS, LATER_RECORDS = "life", 19, 50


class Site:
    """The brokers, and what prepares them."""

    def __init__(self, cluster: Cluster) -> None:
        self.replay = Replay({node.node_id: node.kafka_port for node in cluster.brokers})

    def create_topics(self) -> None:
        new = CreateTopicsRequest
        topics = tuple(
            new.CreatableTopic(
                name=name,
                num_partitions=-1,
                replication_factor=-1,
                assignments=tuple(
                    new.CreatableReplicaAssignment(partition_index=at, broker_ids=replicas)
                    for at, replicas in enumerate(assignment)
                ),
                configs=tuple(new.CreatableTopicConfig(name=key, value=value) for key, value in settings),
            )
            for name, assignment, *settings in TOPICS
        )
        answer = self._ask(0, new(topics=topics, timeout_ms=30_000), 7)
        assert not any(topic.error_code for topic in answer.topics), answer
        metadata = self._ask(0, MetadataRequest(topics=None), 12)
        ids = {topic.name: topic.topic_id for topic in metadata.topics}
        for name, golden_id in GOLDEN_IDS.items():
            self.replay.ids["topic"][bytes.fromhex(golden_id)] = ids[name]
        for name, assignment, *_ in TOPICS:
            for partition, replicas in enumerate(assignment):
                self._wait_leader(replicas[0], name, partition)

    def lead(self, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
        """Elects the first of them, and waits until it knows that it leads."""
        new = AlterPartitionReassignmentsRequest
        part = new.ReassignablePartition(partition_index=partition, replicas=replicas)
        request = new(timeout_ms=10_000, topics=(new.ReassignableTopic(name=topic, partitions=(part,)),))
        answer = self._ask(0, request, 0)
        assert not answer.responses[0].partitions[0].error_code, answer
        named = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=(partition,))
        election = ElectLeadersRequest(election_type=0, topic_partitions=(named,), timeout_ms=10_000)
        answer = self._ask(0, election, 2)
        assert not answer.replica_election_results[0].partition_result[0].error_code, answer
        self._wait_leader(replicas[0], topic, partition)

    def age(self) -> None:
        """Gives a partition records of leader epoch 0 and, after three terms of another replica, of 6."""
        self.produce(2, AGED, batch([b""] * EPOCH_0_RECORDS))
        for _ in range(3):
            self.lead(AGED, 0, (0, 2, 1))
            self.lead(AGED, 0, (2, 0, 1))
        self.produce(2, AGED, batch([b""] * LATER_RECORDS))

    def use_transactional_id(self) -> None:
        body = InitProducerIdRequest(
            transactional_id=USED_ID, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        for _ in range(TIMES_USED):
            self._until_done(lambda: self._ask(0, body, 4).error_code)

    def produce(self, node_id: int, topic: str, records: bytes) -> None:
        """To partition 0."""
        part = ProduceRequest.PartitionProduceData(index=0, records=records)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=(part,))
        answer = self._ask(node_id, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(data,)), 9)
        assert not answer.responses[0].partition_responses[0].error_code, answer

    def _ask(self, node_id: int, body: Any, version: int) -> Any:
        api = API_BY_NAME[type(body).__name__.removesuffix("Request")]
        return self.replay.send(node_id, RequestHeader(api.key, version, 1, "site"), body)

    def _wait_leader(self, node_id: int, topic: str, partition: int) -> None:
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=LATEST_TIMESTAMP)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=(part,))
        body = ListOffsetsRequest(replica_id=-1, topics=(asked,))
        self._until_done(lambda: self._ask(node_id, body, 8).topics[0].partitions[0].error_code)
        if topic == OFFSETS:
            groups = DescribeGroupsRequest(groups=GROUP_KEYS[partition : partition + 1])
            self._until_done(lambda: self._ask(node_id, groups, 5).groups[0].error_code)
        if topic == TRANSACTIONS:
            ids = DescribeTransactionsRequest(transactional_ids=TRANSACTION_KEYS[partition : partition + 1])
            self._until_done(lambda: self._ask(node_id, ids, 0).transaction_states[0].error_code)

    def _until_done(self, attempt: Callable[[], int]) -> None:
        """Retries what fails while leaders and coordinators start."""

        def done() -> bool:
            code = ErrorCode(attempt())
            assert code.retriable or code in {ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}, code
            return not code.retriable

        wait_until(done, "the brokers to serve")


@contextmanager
def golden_site(directory: Path) -> Iterator[Site]:
    with Cluster(directory, controllers=1, brokers=3, properties={"broker": SETTINGS}) as cluster:
        for node in cluster.brokers:
            node.set_properties({"broker.rack": f"rack-{node.node_id}"})
        cluster.start()
        site = Site(cluster)
        with site.replay:
            site.create_topics()
            yield site
        cluster.assert_no_bugs()
