"""Requests on their way to a core that the test answers for: keys, bounds, leaving, and the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.broker.replica.events import DataEvent, DataRequestArrived, DataRequestCancelled, DataRespond
from metaquorum.broker.server.data.requests import WAITING_MAX, DataRequests
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.requests import data as api
from metaquorum.storage.batches.batch import Batches

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


def produce(size: int) -> api.ProduceRequest:
    part = api.ProducePartition(key=(ORDERS, 0), batch=Batches.arrived(b"x" * size))
    return api.ProduceRequest(acks=-1, timeout_ms=100, partitions=(part,))


def produced(offset: int) -> api.ProduceResponse:
    return api.ProduceResponse(results=(api.ProduceResult(key=(ORDERS, 0), base_offset=offset),))


async def test_an_answer_reaches_the_one_who_asked() -> None:
    core = Core()
    waiting = [core.requests.begin(produce(size)) for size in (3, 4)]
    first, second = core.events
    assert core.requests.produced_bytes == 7
    core.answer(second, produced(2))
    assert await waiting[1] == produced(2)
    assert not waiting[0].done()
    core.answer(first, produced(1))
    assert await waiting[0] == produced(1)
    await asyncio.sleep(0)
    assert (core.requests.produced_bytes, len(core.requests)) == (0, 0)


async def test_who_goes_away_is_told_to_the_core() -> None:
    core = Core()
    waiting = [core.requests.begin(produce(1)) for _ in range(2)]
    first, second = list(core.events)
    for each in waiting:
        each.cancel()
    events = await core.until(4)
    assert [each.key for each in events[2:]] == [first.key, second.key]
    assert {type(each) for each in events[2:]} == {DataRequestCancelled}
    assert (len(core.requests), core.requests.produced_bytes) == (0, 0)
    core.answer(first, produced(1))  # too late, and no harm


@pytest.mark.parametrize(
    ("options", "text"),
    [({"inbox_max": 0}, "inbox is full"), ({"produced_max_bytes": 10}, "queued.max.request.bytes")],
)
async def test_a_broker_that_is_full_says_so_and_keeps_nothing(options: dict[str, int], text: str) -> None:
    core = Core(**options)
    # Of bytes, the first request is always taken.
    taken = core.requests.begin(produce(50)) if "produced_max_bytes" in options else None
    refused = await core.requests.begin(produce(50))
    assert isinstance(refused, ApiError)
    assert refused.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED and refused.retriable
    assert text in refused.message
    if taken is not None:
        core.answer(core.events[0], produced(1))
        assert await taken == produced(1)
    await asyncio.sleep(0)
    assert core.requests.produced_bytes == 0


async def test_everyone_is_refused_when_the_broker_stops() -> None:
    core = Core()
    waiting = core.requests.begin(produce(1))
    error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping: use the new leader")
    core.requests.refuse_all(error)
    assert await waiting is error
    assert await core.requests.begin(api.DescribeLogDirsRequest()) is error
    assert len(core.events) == 1


async def test_waiting_requests_are_bounded() -> None:
    core = Core(inbox_max=10**9)
    request = api.InitProducerIdRequest()
    futures = [core.requests.begin(request) for _ in range(WAITING_MAX)]
    refusal = await core.requests.begin(request)
    assert isinstance(refusal, ApiError)
    assert refusal.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    for each in futures:
        each.cancel()
