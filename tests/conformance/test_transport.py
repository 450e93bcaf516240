"""What every Raft transport promises: Kafka's protocol over loopback, gRPC that carries it, and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from metaquorum.clients.kafka.grpc_way import GrpcWay
from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import FetchRequest, FetchSnapshotRequest, RaftRequest, RaftResponse
from metaquorum.rpc.transport import NodeTransport, PeerAddress, RaftService, RaftTransport
from tests.conformance.exchanges import EXCHANGES, PATIENT_MS, Sink, fetch, fetched
from tests.conformance.memory_transport import MemoryNetwork
from tests.unit.kafka.raft_pair import HOST, Voter, caller_of, carrying_server


class Pair:
    """Node 1 calls, node 2 answers; `kill` ends node 2 as a crash does."""

    caller: RaftTransport
    callee: RaftTransport

    def __init__(self) -> None:
        self.caller_sink = Sink()
        self.callee_sink = Sink()

    async def start(self) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class MemoryPair(Pair):
    async def start(self) -> None:
        self.network = MemoryNetwork()
        self.caller = self.network.transport(1, self.caller_sink)
        callee = self.network.transport(2, self.callee_sink)
        self.callee = callee
        self.network.start(callee)

    async def kill(self) -> None:
        self.network.stop(2)

    async def close(self) -> None:
        await self.caller.close()


class KafkaPair(Pair):
    async def start(self) -> None:
        self.voter = await Voter(sink=self.callee_sink).start()
        self.callee = NodeTransport(caller_of({}, self.callee_sink), self.voter.service)
        self.caller = caller_of({2: PeerAddress(HOST, self.voter.port)}, self.caller_sink)

    async def kill(self) -> None:
        self.voter.kill()

    async def close(self) -> None:
        await self.caller.close()
        self.voter.kill()
        await asyncio.sleep(0)


class StreamPair(Pair):
    """An observer, whose connection gRPC carries."""

    async def start(self) -> None:
        service = RaftService(self.callee_sink)
        self.server, port = await carrying_server(service)
        self.callee = NodeTransport(caller_of({}, self.callee_sink), service)
        way = GrpcWay.of("raft-client-1", None)
        self.caller = caller_of({2: PeerAddress(HOST, port)}, self.caller_sink, way)

    async def kill(self) -> None:
        await self.server.stop(None)

    async def close(self) -> None:
        await self.caller.close()
        await self.server.stop(None)


@pytest.fixture(params=[MemoryPair, KafkaPair, StreamPair])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    made: Pair = request.param()
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda pair: type(pair[1]).__name__)
async def test_every_message_arrives_as_it_was_sent(
    pair: Pair, exchange: tuple[RaftRequest, RaftResponse]
) -> None:
    request, response = exchange
    pair.caller.send(2, 41, request, PATIENT_MS)
    if isinstance(pair, StreamPair) and not isinstance(request, FetchRequest | FetchSnapshotRequest):
        assert "does not offer" in (await pair.caller_sink.next(RaftRequestFailed)).reason
        return
    arrived = await pair.callee_sink.next(RaftRequestArrived)
    assert arrived.request == request
    pair.callee.respond(arrived.key, response)
    assert await pair.caller_sink.next(RaftResponseArrived) == RaftResponseArrived(
        source=2, correlation_id=41, response=response
    )


async def test_answers_find_their_requests(pair: Pair) -> None:
    for number in range(10):
        pair.caller.send(2, 100 + number, fetch(number), PATIENT_MS)
    keys = set()
    for number in range(10):  # a connection may hold the next one back until this one is answered
        arrived = await pair.callee_sink.next(RaftRequestArrived)
        assert arrived.request.fetch_offset == number
        keys.add(arrived.key)
        pair.callee.respond(arrived.key, fetched(number))
    assert len(keys) == 10
    answers = [await pair.caller_sink.next(RaftResponseArrived) for _ in range(10)]
    assert sorted((a.correlation_id, a.response.high_watermark) for a in answers) == [
        (100 + number, number) for number in range(10)
    ]


async def test_a_second_answer_to_one_request_is_nothing(pair: Pair) -> None:
    pair.caller.send(2, 1, fetch(), PATIENT_MS)
    first = await pair.callee_sink.next(RaftRequestArrived)
    pair.callee.respond(first.key, fetched(1))
    pair.callee.respond(first.key, fetched(2))
    pair.caller.send(2, 2, fetch(), PATIENT_MS)
    second = await pair.callee_sink.next(RaftRequestArrived)
    pair.callee.respond(second.key, fetched(3))
    answers = [await pair.caller_sink.next(RaftResponseArrived) for _ in range(2)]
    assert [(a.correlation_id, a.response.high_watermark) for a in answers] == [(1, 1), (2, 3)]


async def test_a_crashed_peer_fails_everything_outstanding_and_then_refuses(pair: Pair) -> None:
    for number in range(3):
        pair.caller.send(2, number, fetch(), PATIENT_MS)
    await pair.callee_sink.next(RaftRequestArrived)
    await pair.kill()
    failed = [await pair.caller_sink.next(RaftRequestFailed) for _ in range(3)]
    assert {(f.target, f.correlation_id) for f in failed} == {(2, 0), (2, 1), (2, 2)}
    pair.caller.send(2, 9, fetch(), PATIENT_MS)
    refused = await pair.caller_sink.next(RaftRequestFailed)
    assert refused.correlation_id == 9
    assert "cannot reach node 2" in refused.reason


async def test_a_request_without_an_answer_fails_at_its_timeout(pair: Pair) -> None:
    pair.caller.send(2, 5, fetch(), 30)
    failure = await pair.caller_sink.next(RaftRequestFailed)
    assert (failure.correlation_id, failure.reason) == (5, "no answer within 30 ms")
    assert pair.caller_sink.events.empty()


async def test_a_late_answer_is_dropped(pair: Pair) -> None:
    pair.caller.send(2, 1, fetch(), PATIENT_MS)
    warm_up = await pair.callee_sink.next(RaftRequestArrived)
    pair.callee.respond(warm_up.key, fetched())
    await pair.caller_sink.next(RaftResponseArrived)
    pair.caller.send(2, 5, fetch(), 30)
    late = await pair.callee_sink.next(RaftRequestArrived)
    await pair.caller_sink.next(RaftRequestFailed)
    pair.callee.respond(late.key, fetched())
    pair.caller.send(2, 6, fetch(), PATIENT_MS)
    arrived = await pair.callee_sink.events.get()
    if isinstance(arrived, RaftRequestAbandoned):  # its connection ended with it
        arrived = await pair.callee_sink.next(RaftRequestArrived)
    pair.callee.respond(arrived.key, fetched())
    assert (await pair.caller_sink.next(RaftResponseArrived)).correlation_id == 6


async def test_a_caller_that_goes_away_abandons_its_requests(pair: Pair) -> None:
    pair.caller.send(2, 1, fetch(), PATIENT_MS)
    arrived = await pair.callee_sink.next(RaftRequestArrived)
    await pair.caller.close()
    assert await pair.callee_sink.next(RaftRequestAbandoned) == RaftRequestAbandoned(key=arrived.key)
    pair.callee.respond(arrived.key, fetched())
    assert pair.caller_sink.events.empty()


async def test_a_full_inbox_fails_the_request(pair: Pair) -> None:
    pair.callee_sink.accepts = False
    pair.caller.send(2, 1, fetch(), 500)
    assert (await pair.caller_sink.next(RaftRequestFailed)).correlation_id == 1


async def test_an_answer_of_many_megabytes_arrives_whole(pair: Pair) -> None:
    records = bytes(9 * 1024 * 1024)
    pair.caller.send(2, 1, fetch(), PATIENT_MS)
    arrived = await pair.callee_sink.next(RaftRequestArrived)
    pair.callee.respond(arrived.key, fetched(1, records))
    assert (await pair.caller_sink.next(RaftResponseArrived)).response.records == records
