"""Produce, Fetch and ListOffsets before a core that the test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from metaquorum.broker.coordinator.transaction import AddPartitions, TopicPartition
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.broker.server.kafka.transactions.verification import TransactionalProduces
from metaquorum.listeners.services import Client, EndConnection, Later
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration, NodeEndpoint
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.batches.format import TRANSACTIONAL
from metaquorum.storage.types import LogPosition
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from tests.unit.broker.manager_world import Cluster
from tests.unit.server.test_data_requests import ORDERS, Core, image

CLIENT = Client(listener="KAFKA", address="127.0.0.1")
STRANGE = b"?" * 16


def transactional(core: Core) -> TransactionalProduces:
    return TransactionalProduces(core.requests, Verifier(), image)  # type: ignore[arg-type]


class Verifier:
    """Says for each partition what the test wants."""

    codes: ClassVar[dict[TopicPartition, ErrorCode]] = {}

    async def verify(self, asked: AddPartitions) -> dict[TopicPartition, ErrorCode]:
        return {each: self.codes.get(each, ErrorCode.NONE) for each in asked.partitions}


REFUSALS = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


def with_a_broker() -> MetadataImage:
    """Broker 3 has two listeners."""
    builder = ImageBuilder(image())
    registered = BrokerRegistration(
        broker_id=3,
        epoch=1,
        incarnation_id=bytes(16),
        endpoints=(NodeEndpoint("OTHER", "h3", 1, 0), NodeEndpoint("KAFKA", "h3", 9093, 0)),
        rack="r3",
        fenced=False,
    )
    builder.put_broker(registered)
    return builder.freeze()


class Site:
    def __init__(self) -> None:
        self.core = Core()
        self.handlers = DataHandlers(self.core.requests, with_a_broker, transactional(self.core))

    async def ask(self, api: str, version: int, body: Any, answer: Any = None) -> Any:
        """What a handler answers; `answer` is what the core says to the one request that it gets."""
        keys = {"produce": 0, "fetch": 1, "list_offsets": 2}
        frame = b"".join(codec.encode_request(codec.RequestHeader(keys[api], version, 1), body))
        response = getattr(self.handlers, api)(codec.decode_request(frame), CLIENT)
        if isinstance(response, Awaitable):
            task = asyncio.ensure_future(response)
            if answer is not None:
                (event,) = await self.core.until(1)
                self.core.answer(event, answer)
            response = await asyncio.wait_for(task, 10)
        if response is not None:
            codec.encode_response(keys[api], version, 1, response)
        return response

    @property
    def asked(self) -> Any:
        (event,) = self.core.events
        return event.request


def produce(name: str = "orders", topic_id: bytes = bytes(16), **fields: Any) -> ProduceRequest:
    parts = tuple(ProduceRequest.PartitionProduceData(index=n, records=b"r%d" % n) for n in range(2))
    topic = ProduceRequest.TopicProduceData(name=name, topic_id=topic_id, partition_data=parts)
    return ProduceRequest(**{"acks": -1, "timeout_ms": 9, "topic_data": (topic,), **fields})


def codes(response: Any) -> list[int]:
    return [part.error_code for topic in response.responses for part in topic.partition_responses]


@pytest.mark.parametrize(
    ("version", "name", "topic_id"),
    [(3, "orders", bytes(16)), (9, "orders", bytes(16)), (10, "orders", bytes(16)), (13, "", ORDERS)],
)
async def test_produce_by_name_and_by_id(version: int, name: str, topic_id: bytes) -> None:
    site = Site()
    moved = core.ProduceResult(
        key=(ORDERS, 1), error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="moved", leader=3, leader_epoch=7
    )
    answer = core.ProduceResponse(results=(core.ProduceResult(key=(ORDERS, 0), base_offset=40), moved))
    response = await site.ask("produce", version, produce(name, topic_id), answer)
    assert [(part.key, part.batch.data) for part in site.asked.partitions] == [
        ((ORDERS, 0), b"r0"),
        ((ORDERS, 1), b"r1"),
    ]
    (topic,) = response.responses
    first, second = topic.partition_responses
    assert (topic.name, topic.topic_id, first.error_code, first.base_offset) == (name, topic_id, 0, 40)
    leader = second.current_leader
    assert (second.error_code, second.base_offset) == (6, -1)
    assert (leader.leader_id, leader.leader_epoch) == ((3, 7) if version >= 10 else (-1, -1))


async def test_of_a_partition_that_is_named_twice_the_last_batch_counts() -> None:
    """Within a topic, and in a topic that is named again."""
    part, topic = ProduceRequest.PartitionProduceData, ProduceRequest.TopicProduceData
    first = topic(name="orders", partition_data=(part(index=0, records=b"a"), part(index=0, records=b"b")))
    again = topic(name="orders", partition_data=(part(index=1, records=b"c"), part(index=0, records=b"d")))
    site = Site()
    stored = [core.ProduceResult(key=(ORDERS, index), base_offset=7 + index) for index in range(2)]
    body = ProduceRequest(acks=-1, timeout_ms=9, topic_data=(first, again))
    response = await site.ask("produce", 9, body, core.ProduceResponse(results=tuple(stored)))
    assert [(one.key[1], one.batch.data) for one in site.asked.partitions] == [(0, b"d"), (1, b"c")]
    (answered,) = response.responses
    assert [(one.index, one.base_offset) for one in answered.partition_responses] == [(0, 7), (1, 8)]


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("version", [9, 10, 12])
async def test_a_produce_names_the_leader_where_the_leadership_was_wrong(
    version: int, code: ErrorCode
) -> None:
    """And where the clients of this listener reach it, if it is known (KIP-951)."""
    for leader in (3, 4):  # broker 4 is not registered
        refused = core.ProduceResult(key=(ORDERS, 0), error=code, leader=leader, leader_epoch=7)
        other = core.ProduceResult(key=(ORDERS, 1), base_offset=1, leader=3, leader_epoch=7)
        response = await Site().ask(
            "produce", version, produce(), core.ProduceResponse(results=(refused, other))
        )
        first, second = response.responses[0].partition_responses
        named = version >= 10 and code in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
        found = first.current_leader
        assert (found.leader_id, found.leader_epoch) == ((leader, 7) if named else (-1, -1))
        assert second.current_leader.leader_id == -1
        ends = [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        assert ends == ([(3, "h3", 9093, "r3")] if named and leader == 3 else [])


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("version", [12, 13, 15, 16, 17])
async def test_a_fetch_that_failed_says_no_offset_and_the_leader_where_that_was_wrong(
    version: int, code: ErrorCode
) -> None:
    topic = FetchRequest.FetchTopic(
        topic="orders" if version < 13 else "",
        topic_id=ORDERS if version >= 13 else bytes(16),
        partitions=(FetchRequest.FetchPartition(partition=1),),
    )
    refused = core.FetchedPartition(
        key=(ORDERS, 1),
        error=code,
        high_watermark=7,
        last_stable_offset=7,
        log_start_offset=2,
        leader=3,
        leader_epoch=7,
    )
    answer = core.FetchResponse(session_id=0, partitions=(refused,))
    response = await Site().ask("fetch", version, FetchRequest(topics=(topic,)), answer)
    part = response.responses[0].partitions[0]
    assert part.error_code == code
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (-1, -1, -1)
    named = version >= 16 and code in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
    found = part.current_leader
    assert (found.leader_id, found.leader_epoch) == ((3, 7) if named else (-1, -1))
    assert [each.node_id for each in response.node_endpoints] == ([3] if named else [])


async def test_a_batch_in_a_transaction_that_the_request_does_not_name_refuses_all_of_it() -> None:
    stray = replace(in_transaction(), transactional_id=None)
    mixed = (*produce().topic_data, *stray.topic_data)
    site = Site()
    response = await site.ask("produce", 9, produce(topic_data=mixed))
    assert set(codes(response)) == {53} and site.core.events == []


async def test_what_is_not_a_batch_is_in_no_transaction_and_refused_by_its_leader() -> None:
    """In other formats the bit of a transaction means something else."""
    data = bytearray(in_transaction().topic_data[0].partition_data[0].records or b"")
    data[16] = 1
    part = ProduceRequest.PartitionProduceData(index=0, records=bytes(data))
    body = produce(topic_data=(ProduceRequest.TopicProduceData(name="orders", partition_data=(part,)),))
    refused = core.ProduceResult(key=(ORDERS, 0), error=ErrorCode.INVALID_RECORD)
    site = Site()
    assert codes(await site.ask("produce", 9, body, core.ProduceResponse(results=(refused,)))) == [87]
    assert site.asked.partitions[0].batch == Batches(bytes(data), ())


@pytest.mark.parametrize(
    ("version", "body", "code"),
    [
        (9, produce("nobody"), 3),
        (13, produce("", STRANGE), 100),
        (2, produce(), 35),
        (
            9,
            produce(
                topic_data=(
                    ProduceRequest.TopicProduceData(
                        name="orders", partition_data=(ProduceRequest.PartitionProduceData(records=None),)
                    ),
                )
            ),
            87,
        ),
    ],
)
async def test_what_is_refused_before_the_core(version: int, body: ProduceRequest, code: int) -> None:
    site = Site()
    assert set(codes(await site.ask("produce", version, body))) == {code}
    assert site.core.events == []


async def test_a_busy_broker_answers_what_every_producer_repeats() -> None:
    busy = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy")
    assert codes(await Site().ask("produce", 9, produce(), busy)) == [19, 19]


async def test_a_fenced_broker_answers_what_every_client_repeats() -> None:
    """Java's producers and kafkajs give up on BROKER_NOT_AVAILABLE."""
    fenced = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced")
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert codes(await Site().ask("produce", 9, produce(), fenced)) == [moved, moved]
    for version, named in ((4, fetch()), (12, fetch()), (13, fetch("", ORDERS))):
        response = await Site().ask("fetch", version, named, fenced)
        assert response.error_code == ErrorCode.NONE
        assert [part.error_code for topic in response.responses for part in topic.partitions] == [moved]
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=-2)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=(part,))
    response = await Site().ask("list_offsets", 5, ListOffsetsRequest(topics=(topic,)), fenced)
    assert response.topics[0].partitions[0].error_code == moved


async def test_acks_0_has_no_answer_and_an_error_ends_the_connection() -> None:
    results = tuple(core.ProduceResult(key=(ORDERS, index)) for index in range(2))
    stored = core.ProduceResponse(results=results)
    assert await Site().ask("produce", 9, produce(acks=0), stored) is None
    with pytest.raises(EndConnection, match="failed with error 3"):
        await Site().ask("produce", 9, produce("nobody", acks=0))


def fetch(name: str = "orders", topic_id: bytes = bytes(16), **fields: Any) -> FetchRequest:
    part = FetchRequest.FetchPartition(partition=1, fetch_offset=5, partition_max_bytes=100)
    topics = [FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=(part,))]
    if fields.pop("unknown", False):
        strange = STRANGE if topic_id != bytes(16) else bytes(16)
        topics.append(FetchRequest.FetchTopic(topic="nobody", topic_id=strange, partitions=(part,)))
    return FetchRequest(**{"max_wait_ms": 500, "min_bytes": 1, "topics": tuple(topics), **fields})


FETCHED = core.FetchedPartition(
    key=(ORDERS, 1),
    high_watermark=9,
    last_stable_offset=7,
    log_start_offset=2,
    records=b"x" * 2000,
    diverging=LogPosition(3, 4),
)


@pytest.mark.parametrize(
    ("version", "body", "unknown_code"),
    [
        (11, fetch(unknown=True), 3),
        (12, fetch(unknown=True), 3),
    ],
)
async def test_fetch_by_name(version: int, body: FetchRequest, unknown_code: int) -> None:
    site = Site()
    answer = core.FetchResponse(session_id=0, partitions=(FETCHED,))
    response = await site.ask("fetch", version, body, answer)
    # What does not exist is told at once, and not after the wait for records.
    assert site.asked.max_wait_ms == 0
    (found,), (missing,) = (topic.partitions for topic in response.responses)
    assert (found.partition_index, found.error_code, found.high_watermark) == (1, 0, 9)
    assert (found.last_stable_offset, found.log_start_offset, found.aborted_transactions) == (7, 2, None)
    assert found.records is FETCHED.records
    diverging = found.diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == ((3, 4) if version >= 12 else (-1, -1))
    assert missing.error_code == unknown_code
    assert missing.aborted_transactions == ()


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("version", [12, 16])
async def test_a_fetch_that_the_log_refuses_lists_no_aborted_transactions(
    version: int, code: ErrorCode
) -> None:
    """Null, as Kafka has it, also for readers of committed transactions; but empty for unknown partitions."""
    body = fetch() if version == 12 else fetch("", ORDERS)
    refused = core.FetchedPartition(key=(ORDERS, 1), error=code, aborted=())
    response = await Site().ask(
        "fetch", version, body, core.FetchResponse(session_id=0, partitions=(refused,))
    )
    (part,) = response.responses[0].partitions
    assert (part.error_code, part.aborted_transactions) == (code, None)


@pytest.mark.parametrize("version", [13, 15, 18])
async def test_fetch_by_id_for_consumers_and_followers(version: int) -> None:
    site = Site()
    state = FetchRequest.ReplicaState(replica_id=3, replica_epoch=9)
    follower = {"replica_state": state} if version >= 15 else {"replica_id": 3}
    gone = FetchRequest.ForgottenTopic(topic_id=STRANGE, partitions=(4, 2))
    body = fetch("", ORDERS, session_id=5, session_epoch=6, forgotten_topics_data=(gone,), **follower)
    missing = core.FetchedPartition(key=(STRANGE, 1), error=ErrorCode.UNKNOWN_TOPIC_ID)
    answer = core.FetchResponse(session_id=5, partitions=(FETCHED, missing))
    response = await site.ask("fetch", version, body, answer)
    asked = site.asked
    assert (asked.replica_id, asked.replica_epoch) == (3, 9 if version >= 15 else -1)
    assert (asked.session_id, asked.session_epoch, asked.max_wait_ms) == (5, 6, 500)
    assert asked.forgotten == ((STRANGE, 4), (STRANGE, 2))
    assert [(part.key, part.fetch_offset, part.max_bytes) for part in asked.partitions] == [
        ((ORDERS, 1), 5, 100)
    ]
    assert response.session_id == 5
    assert [topic.topic_id for topic in response.responses] == [ORDERS, STRANGE]
    (found,), (unknown,) = (topic.partitions for topic in response.responses)
    assert (found.high_watermark, found.diverging_epoch.end_offset) == (9, 4)
    assert found.records is FETCHED.records
    assert (unknown.error_code, unknown.high_watermark) == (100, -1)


async def test_a_session_of_a_client_that_names_topics() -> None:
    site = Site()
    begun = core.FetchResponse(session_id=4, partitions=(replace(FETCHED, aborted=((7, 3),)),))
    response = await site.ask("fetch", 12, fetch(session_epoch=0, isolation_level=1), begun)
    assert site.asked.read_committed
    assert (response.session_id, site.asked.session_epoch, site.asked.max_wait_ms) == (4, 0, 500)
    (aborted,) = response.responses[0].partitions[0].aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (7, 3)
    # From then on only what changed is named, on either side.
    site = Site()
    gone = FetchRequest.ForgottenTopic(topic="orders", partitions=(4,))
    body = fetch(topics=(), session_id=4, session_epoch=1, forgotten_topics_data=(gone,))
    response = await site.ask("fetch", 12, body, core.FetchResponse(session_id=4, partitions=(FETCHED,)))
    assert (site.asked.session_id, site.asked.session_epoch, site.asked.max_wait_ms) == (4, 1, 500)
    assert (site.asked.partitions, site.asked.forgotten) == ((), ((ORDERS, 4),))
    assert [(each.topic, len(each.partitions)) for each in response.responses] == [("orders", 1)]


async def test_a_session_ends_when_names_and_ids_no_longer_belong_together() -> None:
    # A name without an id: no session begins, and one that is there cannot take it up.
    site = Site()
    answer = core.FetchResponse(session_id=0, partitions=(FETCHED,))
    response = await site.ask("fetch", 12, fetch(unknown=True, session_epoch=0), answer)
    assert (response.session_id, site.asked.session_epoch, site.asked.max_wait_ms) == (0, -1, 0)
    refused = await Site().ask("fetch", 12, fetch("nobody", session_id=4, session_epoch=1))
    assert (refused.error_code, refused.responses) == (70, ())
    # An id without a name: the topic was deleted, perhaps there is another one of its name.
    lost = core.FetchedPartition(key=(STRANGE, 1), error=ErrorCode.UNKNOWN_TOPIC_ID)
    over = core.FetchResponse(session_id=4, partitions=(FETCHED, lost))
    response = await Site().ask("fetch", 12, fetch(session_id=4, session_epoch=1), over)
    assert (response.error_code, response.responses) == (70, ())


@pytest.mark.parametrize(("version", "rack"), [(10, None), (11, "r"), (13, "r")])
async def test_a_clients_rack_and_the_replica_that_it_is_sent_to(version: int, rack: str | None) -> None:
    site = Site()
    by_id = {"name": "", "topic_id": ORDERS} if version >= 13 else {}
    preferred = 3 if rack else -1
    sent = core.FetchedPartition(key=(ORDERS, 1), high_watermark=9, preferred_read_replica=preferred)
    answer = core.FetchResponse(session_id=0, partitions=(sent,))
    response = await site.ask("fetch", version, fetch(rack_id="r" if rack else "", **by_id), answer)
    assert site.asked.rack == rack
    (found,) = response.responses[0].partitions
    assert (found.error_code, bytes(found.records)) == (0, b"")
    assert found.preferred_read_replica == (3 if version >= 11 else -1)


@pytest.mark.parametrize("version", [12, 13])
async def test_a_session_with_a_fenced_broker_ends_before_its_partitions_are_refused(version: int) -> None:
    """It names only what changed, and Java's consumer would not look for new leaders."""
    fenced = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced")
    body = fetch(topics=(), session_id=4, session_epoch=1)
    response = await Site().ask("fetch", version, body, fenced)
    assert (response.error_code, response.responses) == (70, ())
    named = fetch("", ORDERS) if version >= 13 else fetch()
    response = await Site().ask("fetch", version, replace(named, session_epoch=0), fenced)
    assert [part.error_code for topic in response.responses for part in topic.partitions] == [6]
    assert (response.error_code, response.session_id) == (0, 0)


async def test_a_refusal_of_a_whole_fetch_has_its_place_in_every_version() -> None:
    refused = ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, "skipped")
    response = await Site().ask("fetch", 12, fetch(), refused)
    assert (response.error_code, response.responses) == (71, ())
    response = await Site().ask("fetch", 4, fetch(), refused)
    assert [part.error_code for topic in response.responses for part in topic.partitions] == [71]


async def test_offsets_of_known_and_unknown_topics() -> None:
    parts = (ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=-2),)
    body = ListOffsetsRequest(
        topics=tuple(
            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name in ("orders", "nobody")
        )
    )
    found = core.ListedOffset(key=(ORDERS, 1), offset=7, timestamp_ms=-1, leader_epoch=2)
    for version in (1, 6):
        site = Site()
        response = await site.ask("list_offsets", version, body, core.ListOffsetsResponse(results=(found,)))
        assert [each.timestamp_ms for each in site.asked.partitions] == [-2]
        first, second = (topic.partitions[0] for topic in response.topics)
        assert (first.error_code, first.offset, second.error_code) == (0, 7, 3)


@pytest.mark.parametrize("asked", [0, 1, 5])
async def test_the_oldest_version_lists_at_most_one_offset(asked: int) -> None:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=-1, max_num_offsets=asked)
    other = ListOffsetsRequest.ListOffsetsPartition(partition_index=2, timestamp=1_000, max_num_offsets=asked)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=(part, other))
    found = core.ListedOffset(key=(ORDERS, 1), offset=7, leader_epoch=2)
    body, answer = ListOffsetsRequest(topics=(topic,)), core.ListOffsetsResponse(results=(found,))
    response = await Site().ask("list_offsets", 0, body, answer)
    listed, by_time = response.topics[0].partitions
    assert (listed.error_code, listed.old_style_offsets) == (0, (7,) if asked else ())
    assert (by_time.error_code, by_time.old_style_offsets) == (35, ())


@pytest.mark.parametrize(("version", "code"), [(0, 5), (4, 5), (5, 78), (10, 78)])
async def test_a_new_leader_says_so_in_a_code_that_the_client_knows(version: int, code: int) -> None:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=(part,))
    found = core.ListedOffset(key=(ORDERS, 1), error=ErrorCode.OFFSET_NOT_AVAILABLE)
    body, answer = ListOffsetsRequest(topics=(topic,)), core.ListOffsetsResponse(results=(found,))
    response = await Site().ask("list_offsets", version, body, answer)
    listed = response.topics[0].partitions[0]
    assert (listed.error_code, listed.old_style_offsets) == (code, ())


@pytest.mark.parametrize("timestamp", [-6, -99, -900])
async def test_a_number_that_means_nothing_is_an_early_time_for_old_clients(timestamp: int) -> None:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=(part,))
    found = core.ListedOffset(key=(ORDERS, 1), offset=7, timestamp_ms=9, leader_epoch=2)
    for version in range(11):
        site, body = Site(), ListOffsetsRequest(topics=(topic,))
        taken = 1 <= version <= 8
        answer = core.ListOffsetsResponse(results=(found,)) if taken else None
        response = await site.ask("list_offsets", version, body, answer)
        assert response.topics[0].partitions[0].error_code == (0 if taken else 35), version
        if taken:
            assert site.asked.partitions[0].timestamp_ms == -99


@pytest.mark.parametrize(("timestamp", "since"), [(-1, 0), (-2, 0), (-3, 7), (-4, 8), (-5, 9)])
async def test_a_special_timestamp_needs_the_version_that_knows_it(timestamp: int, since: int) -> None:
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=(part,))
    found = core.ListedOffset(key=(ORDERS, 1), offset=7, timestamp_ms=-1, leader_epoch=2)
    for version in range(11):
        body = ListOffsetsRequest(topics=(topic,))
        answer = core.ListOffsetsResponse(results=(found,)) if version >= since else None
        response = await Site().ask("list_offsets", version, body, answer)
        assert response.topics[0].partitions[0].error_code == (0 if version >= since else 35), version


def in_transaction() -> ProduceRequest:
    records = encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=1,
        values=[b"v"],
        producer_id=7,
        producer_epoch=1,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    parts = tuple(ProduceRequest.PartitionProduceData(index=n, records=records) for n in range(3))
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=parts)
    return produce(topic_data=(topic,), transactional_id="t")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NONE, 0),
        (ErrorCode.INVALID_TXN_STATE, 48),
        (ErrorCode.PRODUCER_FENCED, 47),
        (ErrorCode.NOT_COORDINATOR, 19),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 19),
    ],
)
async def test_the_coordinator_is_asked_before_a_transaction_begins(
    code: ErrorCode, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is under way already, the others are not, and the coordinator says no to the last one."""
    monkeypatch.setattr(Verifier, "codes", {("orders", 2): code, ("orders", 0): ErrorCode.INVALID_TXN_STATE})
    site = Site()
    frame = b"".join(codec.encode_request(codec.RequestHeader(0, 9, 1), in_transaction()))
    task = asyncio.ensure_future(site.handlers.produce(codec.decode_request(frame), CLIENT))
    (asked,) = await site.core.until(1)
    assert [(part.producer_id, part.producer_epoch) for part in asked.request.partitions] == [(7, 1)] * 3
    guards = tuple(core.VerificationGuard(key=(ORDERS, n), guard=n or None) for n in range(3))
    site.core.answer(asked, core.VerificationBegun(guards=guards))
    _, sent = await site.core.until(2)
    allowed = [(part.key[1], part.guard) for part in sent.request.partitions]
    assert allowed == ([(0, None), (1, 1), (2, 2)] if code is ErrorCode.NONE else [(0, None), (1, 1)])
    results = tuple(core.ProduceResult(key=part.key, base_offset=4) for part in sent.request.partitions)
    site.core.answer(sent, core.ProduceResponse(results=results))
    assert codes(await task) == [0, 0, told]


async def test_a_producers_batches_keep_their_order_while_the_coordinator_is_asked() -> None:
    site = Site()
    frame = b"".join(codec.encode_request(codec.RequestHeader(0, 9, 1), in_transaction()))
    tasks = [
        asyncio.ensure_future(site.handlers.produce(codec.decode_request(frame), CLIENT)) for _ in range(2)
    ]
    (first,) = await site.core.until(1)
    await asyncio.sleep(0)
    assert len(site.core.events) == 1, "the second one waits"
    for at in (0, 2):
        asked = (await site.core.until(at + 1))[at]
        assert isinstance(asked.request, core.BeginVerification)
        guards = tuple(core.VerificationGuard(key=(ORDERS, n)) for n in range(3))
        site.core.answer(asked, core.VerificationBegun(guards=guards))
        sent = (await site.core.until(at + 2))[at + 1]
        assert isinstance(sent.request, core.ProduceRequest)
        site.core.answer(sent, core.ProduceResponse(results=()))
    await asyncio.gather(*tasks)
    assert first is site.core.events[0]


ZSTD = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"v"], attributes=4)
PLAIN = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"v"])


@pytest.mark.parametrize("records", [ZSTD, PLAIN])
@pytest.mark.parametrize("version", [4, 9, 10, 12, 13, 18])
async def test_only_clients_that_know_zstd_get_it(version: int, records: bytes) -> None:
    body = fetch() if version < 13 else fetch("", ORDERS)
    found = core.FetchedPartition(key=(ORDERS, 1), high_watermark=9, records=records)
    response = await Site().ask("fetch", version, body, core.FetchResponse(session_id=0, partitions=(found,)))
    (part,) = response.responses[0].partitions
    refused = version < 10 and records is ZSTD
    assert (part.error_code, part.high_watermark) == ((76, -1) if refused else (0, 9))
    assert part.records == (b"" if refused else records)


@pytest.mark.parametrize("records", [ZSTD, PLAIN])
@pytest.mark.parametrize("version", [3, 6, 7, 12])
async def test_only_clients_that_know_zstd_may_send_it(version: int, records: bytes) -> None:
    part = ProduceRequest.PartitionProduceData(index=0, records=records)
    body = produce(topic_data=(ProduceRequest.TopicProduceData(name="orders", partition_data=(part,)),))
    if version < 7 and records is ZSTD:
        site = Site()
        response = await site.ask("produce", version, body)
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == 76 and site.core.events == []
        if version >= 8:
            assert "use another compression.type" in (answer.error_message or "")
        return
    stored = core.ProduceResponse(results=(core.ProduceResult(key=(ORDERS, 0), base_offset=3),))
    assert codes(await Site().ask("produce", version, body, stored)) == [0]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "orders"])
@pytest.mark.parametrize("client_id", ["app", "", None, "__admin_client"])
async def test_only_the_administration_tool_writes_to_internal_topics(
    name: str, client_id: str | None
) -> None:
    cluster = Cluster()
    cluster.topic(name)
    known = cluster.image()
    served = Core()
    handlers = DataHandlers(served.requests, lambda: known, transactional(served))
    header = codec.RequestHeader(0, 9, 1, client_id)
    frame = b"".join(codec.encode_request(header, produce(name)))
    found = handlers.produce(codec.decode_request(frame), CLIENT)
    if name == "orders" or client_id == "__admin_client":
        assert isinstance(found, Later) and len(served.events) == 1
        return
    assert codes(found) == [17, 17] and served.events == []
    (part, _) = found.responses[0].partition_responses
    assert part.error_message == f"only brokers write to {name}: use another topic"


@pytest.mark.parametrize(("count", "pieces"), [(4_095, 1), (4_096, 16)])
async def test_a_produce_is_cut_only_where_it_is_alone_on_its_connection(count: int, pieces: int) -> None:
    """By its number of values, of which its topic is one."""
    part, topic = ProduceRequest.PartitionProduceData, ProduceRequest.TopicProduceData
    parts = tuple(part(index=index, records=b"") for index in range(count))
    body = ProduceRequest(acks=-1, timeout_ms=9, topic_data=(topic(name="orders", partition_data=parts),))
    site = Site()
    task = asyncio.ensure_future(site.ask("produce", 9, body))
    for event in await site.core.until(pieces):
        stored = [core.ProduceResult(key=one.key, base_offset=one.key[1]) for one in event.request.partitions]
        site.core.answer(event, core.ProduceResponse(results=tuple(stored)))
    (answered,) = (await asyncio.wait_for(task, 10)).responses
    assert [(one.index, one.base_offset) for one in answered.partition_responses] == [
        (index, index) for index in range(count)
    ]
