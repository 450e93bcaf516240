"""Offsets of groups moved by rule, and transactions that hang: what is asked of whom, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from metaquorum.clients.admin import partition_logs
from metaquorum.clients.admin.groups import (
    Aim,
    Committed,
    Goal,
    _within,
    committed_offsets,
    describe_group,
    partitions_of,
    plan_reset,
)
from metaquorum.clients.admin.partition_logs import EARLIEST, LATEST, TopicPartition, log_offsets
from metaquorum.clients.admin.transactions import abort_transaction, describe_producers, find_hanging
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.wire.messages import (
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    ListTransactionsResponse,
    MetadataResponse,
    OffsetFetchResponse,
    WriteTxnMarkersResponse,
)
from tests.unit.kafka.kafka_node import FakeNode, running

A, B, C = ("t", 0), ("t", 1), ("u", 0)


class Broker(FakeNode):
    """A broker of a cluster whose partitions `leaders` names; `logs`: start and end of each."""

    def __init__(
        self, leaders: dict[TopicPartition, int], logs: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        self.leaders, self.logs = leaders, logs
        self.open: Any
        self.producers: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        self.transactions: dict[str, tuple[int, str, list[TopicPartition]]] = {}
        self.codes: list[int] = []
        self.markers: list[Any] = []
        super().__init__(
            {
                "Metadata": self.metadata,
                "ListOffsets": self.list_offsets,
                "DescribeProducers": self.describe_producers,
                "ListTransactions": self.list_transactions,
                "DescribeTransactions": self.describe_transactions,
                "FindCoordinator": self.find,
                "WriteTxnMarkers": self.write,
            }
        )

    def metadata(self, body: Any) -> MetadataResponse:
        message = MetadataResponse
        topics = []
        for name in [each.name for each in body.topics]:
            parts = tuple(
                message.MetadataResponsePartition(partition_index=index, leader_id=leader)
                for (topic, index), leader in self.leaders.items()
                if topic == name
            )
            code = 0 if parts else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(message.MetadataResponseTopic(name=name, error_code=code, partitions=parts))
        return message(brokers=self.brokers(body).brokers, topics=tuple(topics))

    def list_offsets(self, body: Any) -> ListOffsetsResponse:
        message = ListOffsetsResponse

        def found(place: TopicPartition, time_ms: int) -> tuple[int, int]:
            if self.peers[self.leaders[place]] is not self:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            start, end = self.logs[place]
            return 0, {EARLIEST: start, LATEST: end}.get(time_ms, time_ms if time_ms < end else -1)

        return message(
            topics=tuple(
                message.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        message.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index, error_code=code, offset=offset
                        )
                        for each in topic.partitions
                        for code, offset in [found((topic.name, each.partition_index), each.timestamp)]
                    ),
                )
                for topic in body.topics
            )
        )

    def describe_producers(self, body: Any) -> DescribeProducersResponse:
        message = DescribeProducersResponse
        return message(
            topics=tuple(
                message.TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        message.PartitionResponse(
                            partition_index=index,
                            active_producers=tuple(
                                message.ProducerState(
                                    producer_id=producer_id,
                                    last_timestamp=last_ms,
                                    current_txn_start_offset=opened,
                                )
                                for producer_id, last_ms, opened in self.producers.get(
                                    (topic.name, index), ()
                                )
                            ),
                        )
                        for index in topic.partition_indexes
                    ),
                )
                for topic in body.topics
            )
        )

    def list_transactions(self, body: Any) -> ListTransactionsResponse:
        State = ListTransactionsResponse.TransactionState
        return ListTransactionsResponse(
            transaction_states=tuple(
                State(transactional_id=name, producer_id=producer_id, transaction_state=state)
                for name, (producer_id, state, _) in self.transactions.items()
                if producer_id in body.producer_id_filters
            )
        )

    def describe_transactions(self, body: Any) -> DescribeTransactionsResponse:
        message = DescribeTransactionsResponse
        (name,) = body.transactional_ids
        producer_id, state, places = self.transactions[name]
        return message(
            transaction_states=(
                message.TransactionState(
                    transactional_id=name,
                    producer_id=producer_id,
                    transaction_state=state,
                    topics=tuple(
                        message.TopicData(topic=topic, partitions=(index,)) for topic, index in places
                    ),
                ),
            )
        )

    def find(self, body: Any) -> FindCoordinatorResponse:
        Coordinator = FindCoordinatorResponse.Coordinator
        return FindCoordinatorResponse(
            coordinators=(Coordinator(key=body.coordinator_keys[0], host="127.0.0.1", port=self.port),)
        )

    def write(self, body: Any) -> WriteTxnMarkersResponse:
        self.markers.append(body)
        message = WriteTxnMarkersResponse
        part = message.WritableTxnMarkerPartitionResult(error_code=self.codes.pop(0))
        topic = message.WritableTxnMarkerTopicResult(name="t", partitions=(part,))
        return message(markers=(message.WritableTxnMarkerResult(topics=(topic,)),))


LOGS = {A: (10, 100), B: (0, 0), C: (5, 50)}
COMMITTED = {
    A: Committed(offset=40, metadata=""),
    C: Committed(offset=6, metadata="m"),
}


@pytest.mark.parametrize(
    ("goal", "offsets"),
    [
        (Goal(aim=Aim.EARLIEST), [10, 0, 5]),
        (Goal(aim=Aim.LATEST), [100, 0, 50]),
        (Goal(aim=Aim.CURRENT), [40, 0, 6]),
        (Goal(aim=Aim.TIME, value=30), [30, 0, 30]),
        (Goal(aim=Aim.TIME, value=70), [70, 0, 50]),
        (Goal(aim=Aim.OFFSET, value=7), [10, 0, 7]),
        (Goal(aim=Aim.OFFSET, value=100), [100, 0, 50]),
        (Goal(aim=Aim.SHIFT, value=5), [45, None, 11]),
        (Goal(aim=Aim.SHIFT, value=-35), [10, None, 5]),
        (Goal(aim=Aim.SHIFT, value=1000), [100, None, 50]),
        (Goal(aim=Aim.GIVEN, given={A: 99, B: 3, C: 50}), [99, 0, 50]),
    ],
    ids=lambda one: f"{one.aim.value} {one.value}" if isinstance(one, Goal) else "",
)
async def test_where_offsets_go(goal: Goal, offsets: list[int | None]) -> None:
    leaders = {A: 0, B: 1, C: 1}
    async with running(Broker(leaders, LOGS), Broker(leaders, LOGS)) as servers:
        async with KafkaClient(servers, timeout_ms=60_000) as client:
            plan = await plan_reset(client, goal, [A, B, C], COMMITTED)
    assert [each.partition for each in plan] == [A, B, C]
    assert [each.new for each in plan] == offsets
    assert [each.committed for each in plan] == [40, None, 6]


async def test_a_new_leader_is_looked_for_and_a_missing_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_logs, "_PAUSE_S", 0.01)
    stale, right = {A: 1, B: -1, C: 7}, {A: 0, B: -1, C: 7}
    first, second = Broker(stale, LOGS), Broker(right, LOGS)

    def lead_later(body: Any) -> Any:
        answer = Broker.list_offsets(second, body)
        first.leaders = right
        return answer

    second.handlers["ListOffsets"] = lead_later
    async with running(first, second) as servers:
        async with KafkaClient(servers.split(",")[0], timeout_ms=60_000) as client:
            found = await log_offsets(
                client, {A: LATEST, B: LATEST, C: LATEST, ("no", 0): LATEST, ("t", 9): LATEST}
            )
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_leader = ErrorCode.LEADER_NOT_AVAILABLE
    assert found == {A: 100, B: no_leader, C: no_leader, ("no", 0): missing, ("t", 9): missing}


async def test_partitions_that_do_not_exist_are_named() -> None:
    leaders = {A: 0, B: 0, C: 0}
    async with running(Broker(leaders, LOGS)) as servers, KafkaClient(servers) as client:
        places, missing = await partitions_of(client, [("u", None), ("t", (1, 2)), ("no", None), ("t", (1,))])
    assert places == [B, C]
    assert missing == [
        "t-2 does not exist: the topic has 2 partitions",
        "UNKNOWN_TOPIC_OR_PARTITION: topic no",
    ]


def cluster_with(**transactions: tuple[int, str, list[TopicPartition]]) -> tuple[Broker, Broker]:
    """Producers 1 to 5 have transactions open at A; that of 5 wrote a moment ago."""
    leaders = {A: 0, B: 1}
    first, second = Broker(leaders, LOGS), Broker(leaders, LOGS)
    first.producers = {A: [(1, 10, 20), (2, 10, 21), (3, 10, 22), (4, 10, -1), (5, 99, 23)]}
    second.producers = {B: [(1, 10, 30)]}
    first.transactions = transactions
    return first, second


async def test_what_no_coordinator_will_end_hangs() -> None:
    nodes = cluster_with(
        one=(1, "PrepareAbort", [B]),  # of its partitions only B waits for its marker
        three=(3, "Ongoing", [A]),
        five=(5, "Empty", []),
    )
    async with running(*nodes) as servers, KafkaClient(servers) as client:
        found = await find_hanging(client, [A, B], broker=None, silent_since_ms=50)
        assert [(each.partition, each.producer_id, each.open_from) for each in found] == [
            (A, 1, 20),
            (A, 2, 21),
        ]
        assert await find_hanging(client, [A, B], broker=None, silent_since_ms=10) == []
        asked = nodes[1].asked.count("DescribeProducers")
        assert [
            each.producer_id for each in await find_hanging(client, [A], broker=0, silent_since_ms=50)
        ] == [1, 2]
        assert nodes[1].asked.count("DescribeProducers") == asked


async def test_a_transaction_that_ends_meanwhile_does_not_hang() -> None:
    nodes = cluster_with()

    def end(body: Any) -> Any:
        nodes[0].producers = {A: [(1, 10, -1), (2, 10, 44)]}
        return Broker.list_transactions(nodes[0], body)

    nodes[0].handlers["ListTransactions"] = end
    async with running(*nodes) as servers, KafkaClient(servers) as client:
        found = await find_hanging(client, [A], broker=None, silent_since_ms=50)
    assert found == []


async def test_a_marker_goes_to_the_leader_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaquorum.clients.admin.transactions._PAUSE_S", 0.01)
    nodes = cluster_with()
    nodes[1].codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH]
    async with running(*nodes) as servers, KafkaClient(servers) as client:
        await abort_transaction(client, B, producer_id=9, producer_epoch=4, coordinator_epoch=-1)
        with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
            await abort_transaction(client, B, producer_id=9, producer_epoch=4, coordinator_epoch=3)
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await describe_producers(client, [A, ("t", 5)])
    (marker,) = nodes[1].markers[0].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (9, 4, 0)
    assert marker.transaction_result is False
    assert [(each.name, each.partition_indexes) for each in marker.topics] == [("t", (1,))]
    assert (len(nodes[1].markers), nodes[0].markers) == (3, [])


@pytest.mark.parametrize("newer", [True, False], ids=["new kinds of groups", "classic groups only"])
async def test_a_classic_group_that_is_dead_does_not_exist(newer: bool) -> None:
    """A classic coordinator describes a group that it does not have, without an error, as dead."""
    kinds: Any = DescribeGroupsResponse
    states = {"payments": "Empty", "gone": "Dead"}

    def describe(body: Any) -> Any:
        return kinds(
            groups=tuple(
                kinds.DescribedGroup(group_id=each, group_state=states[each], protocol_type="consumer")
                for each in body.groups
            )
        )

    def newer_kinds(body: Any) -> Any:
        group = ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=body.group_ids[0], error_code=ErrorCode.GROUP_ID_NOT_FOUND
        )
        return ConsumerGroupDescribeResponse(groups=(group,))

    def find(body: Any) -> FindCoordinatorResponse:
        coordinator = FindCoordinatorResponse.Coordinator(
            key=body.coordinator_keys[0], host="127.0.0.1", port=node.port
        )
        return FindCoordinatorResponse(coordinators=(coordinator,))

    handlers: dict[str, Any] = {"FindCoordinator": find, "DescribeGroups": describe}
    node = FakeNode(handlers | ({"ConsumerGroupDescribe": newer_kinds} if newer else {}))
    async with running(node) as servers, KafkaClient(servers) as client:
        described = {each: await describe_group(client, each) for each in states}
    assert described["gone"] is None
    assert described["payments"] is not None and described["payments"].state == "Empty"


@pytest.mark.parametrize(
    ("wanted", "new", "note"),
    [
        (4, 5, "4 is below the start of the log"),
        (5, 5, ""),
        (9, 9, ""),
        (10, 9, "10 is past the end of the log"),
    ],
)
def test_an_offset_that_is_asked_for_is_kept_within_the_log(wanted: int, new: int, note: str) -> None:
    place = ("t", 0)
    (planned,) = _within([place], {}, lambda _: wanted, {place: 5}, {place: 9})
    assert (planned.new, planned.note) == (new, note)


async def test_the_first_record_is_a_place_that_may_be_committed_and_minus_one_is_none() -> None:
    kinds = OffsetFetchResponse
    partitions = tuple(
        kinds.OffsetFetchResponsePartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=-1, metadata=""
        )
        for index, offset in enumerate((0, -1, 7))
    )
    topic = kinds.OffsetFetchResponseTopic(name="t", partitions=partitions)

    class Client:
        refuse = staticmethod(KafkaClient.refuse)

        async def ask(self, body: Any, **how: Any) -> Any:
            return kinds(topics=(topic,))

    found = await committed_offsets(Client(), "g")  # type: ignore[arg-type]
    assert {place: each.offset for place, each in found.items()} == {("t", 0): 0, ("t", 2): 7}
