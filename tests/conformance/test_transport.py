"""What every Raft transport promises, on the gRPC one over loopback and on the in-memory one."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from metaquorum.network.lane import LaneListener
from metaquorum.network.limits import ConnectionLimits
from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.voters import PreferredCandidate
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.raft_client import PeerAddress, RaftClient
from metaquorum.rpc.raft_server import GrpcRaftTransport, RaftService, add_raft_service
from metaquorum.rpc.transport import RaftTransport
from metaquorum.storage.types import LogPosition
from tests.conformance.memory_transport import MemoryNetwork

DIRECTORY = bytes(range(16))
PATIENT_MS = 30_000


def fetch(offset: int = 0) -> FetchRequest:
    return FetchRequest(
        cluster_id="c",
        replica_id=1,
        replica_directory_id=DIRECTORY,
        epoch=3,
        fetch_offset=offset,
        last_fetched_epoch=2,
        high_watermark=-1,
        max_wait_ms=100,
        max_bytes=1 << 20,
    )


def fetched(high_watermark: int = -1, records: bytes = b"") -> FetchResponse:
    return FetchResponse(
        error=RaftError.NONE, epoch=3, leader_id=2, high_watermark=high_watermark, records=records
    )


async def until(condition: Callable[[], bool]) -> None:
    """Returns when this is so."""
    async with asyncio.timeout(60):
        for _ in iter(condition, True):
            await asyncio.sleep(0.001)


class Sink:
    """Collects what a transport reports; `next` waits for the next event."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.accepts = True

    def __call__(self, event: Any) -> bool:
        if self.accepts:
            self.events.put_nowait(event)
        return self.accepts

    async def next(self, kind: type) -> Any:
        event = await asyncio.wait_for(self.events.get(), 60)
        assert isinstance(event, kind), event
        return event


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


class GrpcPair(Pair):
    lane_listener: LaneListener | None = None

    async def start(self) -> None:
        self.server = new_server()
        port = bind(self.server, "127.0.0.1", 0, None)
        service = RaftService(self.callee_sink, None, self.lane_listener)
        add_raft_service(service, self.server)
        await self.server.start()
        rng = random.Random(1)
        self.callee = GrpcRaftTransport(RaftClient({}, self.callee_sink, rng=rng), service)
        addresses = {2: PeerAddress("127.0.0.1", port)}
        self.client = RaftClient(addresses, self.caller_sink, rng=rng, lanes=self.lane_listener is not None)
        self.caller = GrpcRaftTransport(self.client, None)

    async def kill(self) -> None:
        await self.server.stop(None)

    async def close(self) -> None:
        await self.caller.close()
        await self.server.stop(None)


class LanePair(GrpcPair):
    async def start(self) -> None:
        self.lane_listener = LaneListener("127.0.0.1", 0, ConnectionLimits())
        await self.lane_listener.open()
        await super().start()
        self.caller.send(2, 999, fetch(), PATIENT_MS)
        arrived = await self.callee_sink.next(RaftRequestArrived)
        self.callee.respond(arrived.key, fetched())
        await self.caller_sink.next(RaftResponseArrived)
        await until(lambda: self.client.has_lane(2))

    async def close(self) -> None:
        await super().close()
        assert self.lane_listener is not None
        self.lane_listener.close()


@pytest.fixture(params=[MemoryPair, GrpcPair, LanePair])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    made: Pair = request.param()
    await made.start()
    yield made
    await made.close()


EXCHANGES: list[tuple[RaftRequest, RaftResponse]] = [
    (
        VoteRequest(
            cluster_id="c",
            epoch=7,
            candidate_id=1,
            candidate_directory_id=DIRECTORY,
            voter_id=2,
            voter_directory_id=b"",
            last_position=LogPosition(6, 1 << 40),
            pre_vote=True,
        ),
        VoteResponse(error=RaftError.NONE, epoch=7, leader_id=None, vote_granted=True, pre_vote=True),
    ),
    (
        BeginQuorumEpochRequest(
            cluster_id="c", epoch=7, leader_id=0, voter_id=2, voter_directory_id=DIRECTORY
        ),
        BeginQuorumEpochResponse(error=RaftError.NONE, epoch=0, leader_id=0),
    ),
    (
        EndQuorumEpochRequest(
            cluster_id="c",
            epoch=7,
            leader_id=0,
            preferred_candidates=(PreferredCandidate(3, DIRECTORY), PreferredCandidate(1, b"")),
        ),
        EndQuorumEpochResponse(error=RaftError.FENCED_LEADER_EPOCH, epoch=8, leader_id=None),
    ),
    (fetch(1 << 40), fetched(0, b"batch" * 1000)),
    (
        fetch(5),
        FetchResponse(
            error=RaftError.NONE, epoch=9, leader_id=0, log_start_offset=4, diverging=LogPosition(0, 0)
        ),
    ),
    (
        fetch(5),
        FetchResponse(error=RaftError.NONE, epoch=9, leader_id=0, snapshot=LogPosition(2, 17)),
    ),
    (
        FetchSnapshotRequest(
            cluster_id="c",
            replica_id=1,
            replica_directory_id=DIRECTORY,
            epoch=9,
            snapshot=LogPosition(2, 17),
            position=1 << 33,
            max_bytes=1 << 20,
        ),
        FetchSnapshotResponse(
            error=RaftError.NONE,
            epoch=9,
            leader_id=1,
            snapshot=LogPosition(2, 17),
            size_bytes=1 << 34,
            position=1 << 33,
            data=bytes(range(256)),
        ),
    ),
]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda pair: type(pair[1]).__name__)
async def test_every_message_arrives_as_it_was_sent(
    pair: Pair, exchange: tuple[RaftRequest, RaftResponse]
) -> None:
    request, response = exchange
    pair.caller.send(2, 41, request, PATIENT_MS)
    arrived = await pair.callee_sink.next(RaftRequestArrived)
    assert arrived.request == request
    pair.callee.respond(arrived.key, response)
    assert await pair.caller_sink.next(RaftResponseArrived) == RaftResponseArrived(
        source=2, correlation_id=41, response=response
    )


async def test_answers_find_their_requests_out_of_order(pair: Pair) -> None:
    for number in range(10):
        pair.caller.send(2, 100 + number, fetch(number), PATIENT_MS)
    arrived = [await pair.callee_sink.next(RaftRequestArrived) for _ in range(10)]
    assert [a.request.fetch_offset for a in arrived] == list(range(10))
    assert len({a.key for a in arrived}) == 10
    for one in reversed(arrived):
        pair.callee.respond(one.key, fetched(one.request.fetch_offset))
    answers = [await pair.caller_sink.next(RaftResponseArrived) for _ in range(10)]
    assert [(a.correlation_id, a.response.high_watermark) for a in answers] == [
        (100 + number, number) for number in reversed(range(10))
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
    for _ in range(3):
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


async def test_a_full_inbox_leaves_the_request_to_its_timeout(pair: Pair) -> None:
    pair.callee_sink.accepts = False
    pair.caller.send(2, 1, fetch(), 30)
    assert (await pair.caller_sink.next(RaftRequestFailed)).reason == "no answer within 30 ms"


async def test_an_answer_of_many_megabytes_arrives_whole(pair: Pair) -> None:
    records = bytes(9 * 1024 * 1024)
    pair.caller.send(2, 1, fetch(), PATIENT_MS)
    arrived = await pair.callee_sink.next(RaftRequestArrived)
    pair.callee.respond(arrived.key, fetched(1, records))
    assert (await pair.caller_sink.next(RaftResponseArrived)).response.records == records


async def test_an_unknown_peer_fails_without_a_call_back_inside_send() -> None:
    sink = Sink()
    client = RaftClient({}, sink, rng=random.Random(1))
    client.send(8, 3, fetch(), PATIENT_MS)
    assert sink.events.empty()
    failure = await sink.next(RaftRequestFailed)
    assert (failure.target, failure.correlation_id) == (8, 3)


async def test_a_peer_that_comes_back_is_reached_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sink, server_sink = Sink(), Sink()
    client = RaftClient({2: PeerAddress("127.0.0.1", port)}, sink, rng=random.Random(1))
    client.send(2, 1, fetch(), PATIENT_MS)
    assert "cannot reach node 2" in (await sink.next(RaftRequestFailed)).reason
    server = new_server()
    bind(server, "127.0.0.1", port, None)
    service = RaftService(server_sink)
    add_raft_service(service, server)
    await server.start()
    correlation_id = 2
    while server_sink.events.empty():
        client.send(2, correlation_id, fetch(), 5_000)
        correlation_id += 1
        getter = asyncio.ensure_future(sink.events.get())
        arrival = asyncio.ensure_future(server_sink.events.get())
        await asyncio.wait({getter, arrival}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        if arrival.done():
            service.respond(arrival.result().key, fetched(7))
            assert (await asyncio.wait_for(getter, 60)).response == fetched(7)
            break
        arrival.cancel()
    await client.close()
    await server.stop(None)


async def test_a_peer_that_moved_is_asked_where_it_is_now_and_one_that_left_is_let_go() -> None:
    sink, sinks, servers = Sink(), [Sink(), Sink()], [new_server(), new_server()]
    ports = [bind(server, "127.0.0.1", 0, None) for server in servers]
    for server_sink, server in zip(sinks, servers, strict=True):
        add_raft_service(RaftService(server_sink), server)
        await server.start()
    addresses = {2: PeerAddress("127.0.0.1", ports[0])}
    client = RaftClient(addresses, sink, rng=random.Random(1))
    client.send(2, 1, fetch(), PATIENT_MS)
    await sinks[0].next(RaftRequestArrived)
    addresses[2] = PeerAddress("127.0.0.1", ports[1])
    client.send(2, 2, fetch(), PATIENT_MS)
    moved = await sink.next(RaftRequestFailed)
    assert (moved.correlation_id, moved.reason) == (1, f"node 2 moved to 127.0.0.1:{ports[1]}")
    await sinks[0].next(RaftRequestAbandoned)
    await sinks[1].next(RaftRequestArrived)
    client.retain({2})
    assert sink.events.empty()
    client.retain(())
    assert (await sink.next(RaftRequestFailed)).correlation_id == 2
    await sinks[1].next(RaftRequestAbandoned)
    await client.close()
    for server in servers:
        await server.stop(None)


async def test_an_unanswered_flood_from_one_caller_is_bounded() -> None:
    sink, server_sink = Sink(), Sink()
    server = new_server()
    port = bind(server, "127.0.0.1", 0, None)
    add_raft_service(RaftService(server_sink), server)
    await server.start()
    client = RaftClient({2: PeerAddress("127.0.0.1", port)}, sink, rng=random.Random(1))
    for number in range(300):
        client.send(2, number, fetch(), PATIENT_MS)
    failed = [await sink.next(RaftRequestFailed) for _ in range(300 - 256)]
    assert {f.correlation_id for f in failed} == set(range(256, 300))
    assert failed[0].reason == "256 requests are unanswered"
    await client.close()
    await server.stop(None)
