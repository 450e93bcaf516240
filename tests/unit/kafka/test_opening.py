"""Producers' batches on their way to the core: opened at once or in a thread, in the order of the connection,
and within bounds whatever they claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from metaquorum.broker.replica.partition.validation import VALUES_MAX, OpenedBatch, OpenedEarlier, check_batch
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.broker.server.kafka.opening import LIGHT_VALUES, BatchOpener
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ConfigResource, ImageBuilder, MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.batch import Batches, encode_batch, plain_header, seal_batch
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.encode import encode_records, encode_varint
from metaquorum.storage.batches.format import HEADER_BYTES, Compression
from metaquorum.wire import codec
from metaquorum.wire.messages import ProduceRequest
from tests.unit.kafka.test_data_answers import Core, transactional, with_a_broker

ONE, TWO = (Client(listener="KAFKA", address="127.0.0.1", connection=number) for number in (1, 2))
ZSTD = int(Compression.ZSTD)


def compressed(records: bytes, count: int, code: int = ZSTD) -> bytes:
    header = plain_header(0, 0, 0, count)._replace(attributes=code)
    return seal_batch(header, pack(code, records))


def numbered(count: int) -> bytes:
    return encode_records(base_timestamp_ms=0, values=[None] * count)


def one_record(headers: int) -> bytes:
    body = b"\0\0\0\1\1" + encode_varint(headers) + b"\0\1" * headers
    return encode_varint(len(body)) + body


LIGHT = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b"v"])
HEAVY = {
    "many records": compressed(numbered(LIGHT_VALUES + 1), LIGHT_VALUES + 1),
    "many headers": compressed(one_record(LIGHT_VALUES + 1), 1),
    "many bytes": compressed(encode_records(base_timestamp_ms=0, values=[bytes(5 << 20)]), 1),
}


class Site:
    def __init__(self, image: Callable[[], MetadataImage] = with_a_broker) -> None:
        self.core = Core(produced_max_bytes=2**30)
        opener = BatchOpener(image, ReplicaConfig(broker_id=1), lambda: 0)
        self.handlers = DataHandlers(self.core.requests, with_a_broker, transactional(self.core), opener)

    def produce(self, client: Client, *batches: bytes) -> asyncio.Future[Any]:
        message: Any = ProduceRequest
        parts = tuple(
            message.PartitionProduceData(index=index, records=records)
            for index, records in enumerate(batches)
        )
        body = message(
            acks=-1, timeout_ms=9, topic_data=(message.TopicProduceData(name="orders", partition_data=parts),)
        )
        frame = b"".join(codec.encode_request(codec.RequestHeader(0, 9, 1), body))
        return asyncio.ensure_future(self.handlers.produce(codec.decode_request(frame), client))

    def answer(self, event: Any) -> None:
        results = tuple(core.ProduceResult(key=part.key, base_offset=0) for part in event.request.partitions)
        self.core.answer(event, core.ProduceResponse(results=results))


def outcomes(event: Any) -> list[Any]:
    return [part.opened.outcome for part in event.request.partitions]


async def test_a_light_batch_reaches_the_core_at_once_and_opened() -> None:
    site = Site()
    site.produce(ONE, LIGHT)
    (event,) = site.core.events
    (outcome,) = outcomes(event)
    assert isinstance(outcome, OpenedBatch) and not outcome.changed


@pytest.mark.parametrize("what", HEAVY)
async def test_a_heavy_batch_is_opened_in_a_thread_and_keeps_its_place(what: str) -> None:
    site = Site()
    site.produce(ONE, HEAVY[what])
    site.produce(ONE, LIGHT)
    assert site.core.events == []
    site.produce(TWO, LIGHT)
    assert len(site.core.events) == 1  # the other connection does not wait
    events = await site.core.until(3)
    assert [each.request.partitions[0].batch.data for each in events[1:]] == [HEAVY[what], LIGHT]
    assert all(isinstance(each, OpenedBatch) for event in events for each in outcomes(event))


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (compressed(numbered(2), 2)[:57] + b"\x7f\xff\xff\xff" + b"x", None),
        (compressed(b"\x0c\0\0\0\1\1\0" * (VALUES_MAX + 1), VALUES_MAX + 1), "at most 262144 may be in one"),
        (compressed(b"\x0c\0\0\0\1\1\0" * 20_000, 20_000), "not numbered 0, 1, 2"),
        (compressed(one_record(VALUES_MAX), 1), "over 262143 headers"),
        (compressed(encode_records(base_timestamp_ms=0, values=[bytes(65 << 20)]), 1), "over 67108864 bytes"),
    ],
    ids=["a wrong count", "records", "unnumbered records", "headers", "bytes"],
)
async def test_what_no_client_sends_is_refused(batch: bytes, text: str | None) -> None:
    site = Site()
    site.produce(ONE, batch)
    (event,) = await site.core.until(1)
    (part,) = event.request.partitions
    if text is None:
        assert part.opened is None  # the core refuses it by its header
        return
    outcome = part.opened.outcome
    assert isinstance(outcome, BatchRefusal)
    assert outcome.error is ErrorCode.INVALID_RECORD and text in outcome.message


@pytest.mark.parametrize("code", [1, 2, 3, 4])
async def test_a_payload_that_claims_gigabytes_is_refused_in_every_codec(code: int) -> None:
    site = Site()
    site.produce(ONE, compressed(encode_records(base_timestamp_ms=0, values=[bytes(65 << 20)]), 1, code))
    (event,) = await site.core.until(1)
    opened = event.request.partitions[0].opened
    # Snappy's are larger than the topic's bound already, which the core looks at first.
    assert opened is None if code == 2 else opened.outcome.error is ErrorCode.INVALID_RECORD


async def test_a_request_of_many_partitions_reaches_the_core_in_pieces() -> None:
    site = Site()
    answer = site.produce(ONE, *[LIGHT] * 1_100)
    events = await site.core.until(3)
    assert [len(each.request.partitions) for each in events] == [500, 500, 100]
    for each in events:
        site.answer(each)
    response = await answer
    assert len(response.responses[0].partition_responses) == 1_100
    assert {part.error_code for part in response.responses[0].partition_responses} == {0}


def configured(key: str, value: str) -> MetadataImage:
    builder = ImageBuilder(with_a_broker())
    builder.set_config(ConfigResource(2, "orders"), key, value)
    return builder.freeze()


async def test_a_batch_is_opened_by_the_settings_of_its_time() -> None:
    images = [with_a_broker(), configured("compression.type", "gzip")]
    site = Site(lambda: images[0])
    site.produce(ONE, LIGHT)
    images.pop(0)
    site.produce(ONE, LIGHT)
    found = [outcomes(event)[0].header.compression for event in site.core.events]
    assert found == [Compression.NONE, Compression.GZIP]


def test_the_core_opens_again_what_was_opened_by_other_settings() -> None:
    batch = Batches.arrived(LIGHT)
    now, before = TopicSettings(compression=Compression.GZIP), TopicSettings()
    opened = OpenedEarlier(before, OpenedBatch(batch.headers[0], LIGHT[HEADER_BYTES:], changed=False))
    same = check_batch(batch, before, opened=opened, wall_ms=0)
    other = check_batch(batch, now, opened=opened, wall_ms=0)
    assert same is opened.outcome
    assert isinstance(other, OpenedBatch) and other.header.compression == Compression.GZIP
