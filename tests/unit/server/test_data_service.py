"""The Data service over real gRPC, before a core that the test answers for: order, bounds, names, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metaquorum.broker.replica.events import DataEvent, DataRequestArrived, DataRequestCancelled, DataRespond
from metaquorum.broker.server.data.requests import WAITING_MAX, DataRequests
from metaquorum.broker.server.data.service import STREAM_IN_FLIGHT_MAX, DataService
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto.data_pb2_grpc import DataStub, add_DataServicer_to_server
from metaquorum.runtime.api.errors import error_to_pb
from metaquorum.runtime.rpc.channels import new_server, open_channel

ORDERS = b"o" * 16


def image() -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    builder.topics.add_topic(ORDERS, "orders")
    return builder.freeze()


class Core:
    """Stands where the node does: keeps what came in, answers when the test says so."""

    def __init__(self, *, inbox_max: int = 1000, produced_max_bytes: int = 1000) -> None:
        self.events: list[DataEvent] = []
        self.inbox_max = inbox_max
        self.requests = DataRequests(self._submit, self._post, produced_max_bytes=produced_max_bytes)
        self._changed = asyncio.Event()

    def _submit(self, event: DataEvent) -> bool:
        if len(self.events) >= self.inbox_max:
            return False
        self._post(event)
        return True

    def _post(self, event: DataEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, count: int) -> list[Any]:
        async with asyncio.timeout(60):
            while len(self.events) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.events

    def answer(self, event: Any, response: api.DataResponse | ApiError) -> None:
        assert isinstance(event, DataRequestArrived)
        self.requests.answer(DataRespond(key=event.key, response=response))


@asynccontextmanager
async def serving(core: Core) -> AsyncIterator[Any]:
    server = new_server()
    add_DataServicer_to_server(DataService(core.requests, image), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel("127.0.0.1", port, None)
    try:
        yield DataStub(channel)
    finally:
        await channel.close()
        await server.stop(None)


def run(test: Callable[[Core, Any], Awaitable[None]], **options: int) -> None:
    async def main() -> None:
        core = Core(**options)
        async with serving(core) as stub:
            await test(core, stub)

    asyncio.run(main())


def produce(records: bytes = b"batch", *, name: str = "orders", partition: int = 0) -> pb.ProduceRequest:
    return pb.ProduceRequest(
        acks=-1,
        timeout_ms=100,
        partitions=[pb.ProducePartition(topic=pb.TopicRef(name=name), partition=partition, records=records)],
    )


def produced(offset: int) -> api.ProduceResponse:
    return api.ProduceResponse(results=(api.ProduceResult(key=(ORDERS, 0), base_offset=offset),))


def test_a_request_reaches_the_core_by_topic_id_and_is_answered() -> None:
    async def test(core: Core, stub: Any) -> None:
        call = stub.Produce(produce(b"records"))
        (event,) = await core.until(1)
        assert event.request == api.ProduceRequest(
            acks=-1,
            timeout_ms=100,
            partitions=(api.ProducePartition(key=(ORDERS, 0), records=b"records"),),
        )
        assert core.requests.produced_bytes == len(b"records")
        core.answer(event, produced(41))
        answer = await call
        assert answer.results[0].base_offset == 41
        assert (core.requests.produced_bytes, len(core.requests)) == (0, 0)

    run(test)


def test_unknown_names_and_malformed_ids_are_refused() -> None:
    async def test(core: Core, stub: Any) -> None:
        call = stub.Produce(produce(name="nobody", partition=3))
        (event,) = await core.until(1)
        assert event.request.partitions == ()
        core.answer(event, api.ProduceResponse(results=()))
        answer = await call
        assert answer.results[0].error.name == "UNKNOWN_TOPIC_OR_PARTITION"
        assert answer.results[0].partition == 3
        bad = pb.FetchRequest(partitions=[pb.FetchPartition(topic=pb.TopicRef(topic_id=b"123"))])
        assert (await stub.Fetch(bad)).error.code == ErrorCode.INVALID_REQUEST
        assert len(core.events) == 1

    run(test)


def test_a_stream_is_answered_in_the_order_of_its_requests() -> None:
    async def test(core: Core, stub: Any) -> None:
        call = stub.ProduceStream()
        for number in range(3):
            await call.write(produce(str(number).encode()))
        events = await core.until(3)
        assert [each.request.partitions[0].records for each in events] == [b"0", b"1", b"2"]
        for number in (2, 0, 1):
            core.answer(events[number], produced(number))
        await call.done_writing()
        answers = [each async for each in call]
        assert [each.results[0].base_offset for each in answers] == [0, 1, 2]

    run(test)


def test_a_stream_is_not_read_on_while_too_much_of_it_is_under_way() -> None:
    async def test(core: Core, stub: Any) -> None:
        call = stub.ProduceStream()
        total = 3 * STREAM_IN_FLIGHT_MAX

        async def write() -> None:
            for _ in range(total):
                await call.write(produce(b"x"))
            await call.done_writing()

        writer = asyncio.create_task(write())
        answered = 0
        while answered < total:
            await core.until(answered + 1)
            # One is awaited by the answering side, one was read and has no place yet.
            assert len(core.events) - answered <= STREAM_IN_FLIGHT_MAX + 2
            core.answer(core.events[answered], produced(answered))
            answer = await call.read()
            assert answer.results[0].base_offset == answered
            answered += 1
        await writer

    run(test, produced_max_bytes=10_000)


def test_who_goes_away_is_told_to_the_core() -> None:
    async def test(core: Core, stub: Any) -> None:
        fetch = stub.Fetch(pb.FetchRequest(max_wait_ms=60_000))
        stream = stub.ProduceStream()
        await stream.write(produce())
        first, second = await core.until(2)
        fetch.cancel()
        stream.cancel()
        events = await core.until(4)
        assert {each.key for each in events[2:]} == {first.key, second.key}
        assert {type(each) for each in events[2:]} == {DataRequestCancelled}
        assert (len(core.requests), core.requests.produced_bytes) == (0, 0)
        core.answer(first, api.FetchResponse(session_id=0, partitions=()))  # too late, and no harm

    run(test)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"inbox_max": 0}, "inbox is full"), ({"produced_max_bytes": 10}, "queued.max.request.bytes")],
)
def test_a_broker_that_is_full_says_so_and_keeps_nothing(options: dict[str, int], text: str) -> None:
    async def test(core: Core, stub: Any) -> None:
        if "produced_max_bytes" in options:  # the first one is always taken
            waiting = asyncio.create_task(_unary(stub, produce(b"x" * 50)))
            await core.until(1)
        answer = await stub.Produce(produce(b"x" * 50))
        assert answer.error.name == "THROTTLING_QUOTA_EXCEEDED"
        assert answer.error.retriable
        assert text in answer.error.message
        if core.events:
            core.answer(core.events[0], produced(1))
            assert (await waiting).results[0].base_offset == 1
        assert core.requests.produced_bytes == 0

    run(test, **options)


async def _unary(stub: Any, request: pb.ProduceRequest) -> Any:
    return await stub.Produce(request)


def test_everyone_is_refused_when_the_broker_stops() -> None:
    async def test(core: Core, stub: Any) -> None:
        call = stub.Produce(produce())
        await core.until(1)
        error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping: use the new leader")
        core.requests.refuse_all(error)
        assert (await call).error == error_to_pb(error)
        assert (await stub.DescribeLogDirs(pb.DescribeLogDirsRequest())).error == error_to_pb(error)
        assert len(core.events) == 1

    run(test)


def test_the_rest_of_the_service_reaches_the_core() -> None:
    async def test(core: Core, stub: Any) -> None:
        calls = [
            stub.ListOffsets(
                pb.ListOffsetsRequest(
                    partitions=[pb.ListOffsetsPartition(topic=pb.TopicRef(topic_id=ORDERS), timestamp_ms=-2)]
                )
            ),
            stub.InitProducerId(pb.InitProducerIdRequest()),
            stub.DescribeLogDirs(pb.DescribeLogDirsRequest()),
            stub.MarkLogDirOffline(pb.MarkLogDirOfflineRequest(path="/d")),
        ]
        responses: list[api.DataResponse] = [
            api.ListOffsetsResponse(results=(api.ListedOffset(key=(ORDERS, 0), offset=4),)),
            api.InitProducerIdResponse(producer_id=7, producer_epoch=0),
            api.DescribeLogDirsResponse(directories=()),
            api.MarkLogDirOfflineResponse(directory_id=b"d" * 16, was_offline=False),
        ]
        kinds = [
            api.ListOffsetsRequest,
            api.InitProducerIdRequest,
            api.DescribeLogDirsRequest,
            api.MarkLogDirOfflineRequest,
        ]
        for event in list(await core.until(len(calls))):
            core.answer(event, responses[kinds.index(type(event.request))])
        answers = [await call for call in calls]
        assert answers[0].results[0].offset == 4
        assert answers[1].producer_id == 7
        assert list(answers[2].directories) == []
        assert answers[3].directory_id == b"d" * 16

    run(test)


def test_waiting_requests_are_bounded() -> None:
    async def main() -> None:
        core = Core(inbox_max=10**9)
        request = api.InitProducerIdRequest()
        futures = [core.requests.begin(request) for _ in range(WAITING_MAX)]
        refusal = await core.requests.begin(request)
        assert isinstance(refusal, ApiError)
        assert refusal.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        for each in futures:
            each.cancel()

    asyncio.run(main())
