"""WriteTxnMarkers and DescribeProducers before a core that the test answers for."""

from __future__ import annotations

import asyncio
from typing import Any

from metaquorum.broker.server.kafka.transactions.markers import ProducerHandlers, write_markers
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.batch import EndMarker, parse_header, read_marker
from metaquorum.wire import codec
from metaquorum.wire.messages import DescribeProducersRequest, WriteTxnMarkersRequest
from tests.unit.server.test_data_requests import ORDERS, Core, image

CLIENT = Client(listener="KAFKA", address="127.0.0.1")


async def ask(handled: str, key: int, body: Any, answer: Any) -> tuple[Any, Any]:
    """The request that the core got, and what the handler made of its answer."""
    served = Core()
    handlers = ProducerHandlers(served.requests, image, wall_ms=lambda: 1234, timeout_ms=5)
    frame = b"".join(codec.encode_request(codec.RequestHeader(key, 0, 1), body))
    task = asyncio.ensure_future(getattr(handlers, handled)(codec.decode_request(frame), CLIENT))
    (event,) = await served.until(1)
    served.answer(event, answer)
    response = await task
    codec.encode_response(key, 0, 1, response)
    return event.request, response


def markers() -> WriteTxnMarkersRequest:
    message = WriteTxnMarkersRequest
    topics = tuple(
        message.WritableTxnMarkerTopic(name=name, partition_indexes=(0, 1)) for name in ("orders", "nobody")
    )
    return message(
        markers=(
            message.WritableTxnMarker(
                producer_id=7, producer_epoch=2, transaction_result=True, topics=topics, coordinator_epoch=9
            ),
        )
    )


async def test_a_marker_goes_to_each_partition() -> None:
    refused = core.ProduceResult(key=(ORDERS, 1), error=ErrorCode.INVALID_PRODUCER_EPOCH)
    answer = core.ProduceResponse(results=(core.ProduceResult(key=(ORDERS, 0), base_offset=4), refused))
    asked, response = await ask("write_txn_markers", 27, markers(), answer)
    assert asked.by_coordinator and asked.acks == core.ACKS_ALL
    assert [part.key for part in asked.partitions] == [(ORDERS, 0), (ORDERS, 1)]
    data = asked.partitions[0].batch.data
    header = parse_header(data)
    assert (header.producer_id, header.producer_epoch, header.base_timestamp_ms) == (7, 2, 1234)
    assert read_marker(header, data) == EndMarker(committed=True, coordinator_epoch=9)
    (result,) = response.markers
    codes = {
        (topic.name, part.partition_index): part.error_code
        for topic in result.topics
        for part in topic.partitions
    }
    assert result.producer_id == 7
    assert codes == {("orders", 0): 0, ("orders", 1): 47, ("nobody", 0): 3, ("nobody", 1): 3}


async def test_a_busy_broker_is_asked_again() -> None:
    busy = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy")
    _, response = await ask("write_txn_markers", 27, markers(), busy)
    first = response.markers[0].topics[0].partitions
    assert [part.error_code for part in first] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2


async def test_the_producers_of_partitions() -> None:
    known = core.ActiveProducer(
        producer_id=7,
        producer_epoch=2,
        last_sequence=3,
        last_timestamp_ms=55,
        coordinator_epoch=9,
        open_from=40,
    )
    answer = core.DescribeProducersResponse(
        results=(
            core.DescribedProducers(key=(ORDERS, 0), producers=(known,)),
            core.DescribedProducers(key=(ORDERS, 1), error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="moved"),
        )
    )
    message = DescribeProducersRequest
    topics = tuple(message.TopicRequest(name=name, partition_indexes=(1, 0)) for name in ("orders", "nobody"))
    asked, response = await ask("describe_producers", 61, message(topics=topics), answer)
    assert asked.partitions == ((ORDERS, 1), (ORDERS, 0))
    orders, nobody = response.topics
    for topic, name, codes in ((orders, "orders", (6, 0)), (nobody, "nobody", (3, 3))):
        assert topic.name == name
        found = [(part.partition_index, part.error_code) for part in topic.partitions]
        assert found == [(1, codes[0]), (0, codes[1])]
    assert orders.partitions[0].error_message == "moved" and not orders.partitions[0].active_producers
    assert nobody.partitions[0].error_message == "there is no such topic"
    (one,) = orders.partitions[1].active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp) == (7, 2, 3, 55)
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (9, 40)
    busy = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy")
    _, refused = await ask("describe_producers", 61, message(topics=topics), busy)
    assert {part.error_code for topic in refused.topics for part in topic.partitions} == {busy.code}


async def test_markers_for_unknown_partitions_only_are_no_request() -> None:
    codes = await write_markers(
        None,  # type: ignore[arg-type]
        image(),
        EndMarker(committed=True, coordinator_epoch=9),
        producer_id=7,
        producer_epoch=2,
        partitions=[("nobody", 0), ("no one", 1)],
        wall_ms=1,
        timeout_ms=1,
    )
    assert codes == dict.fromkeys((("nobody", 0), ("no one", 1)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
