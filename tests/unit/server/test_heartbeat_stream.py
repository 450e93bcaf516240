"""A broker's heartbeats go on one stream to a controller; one that fails takes the stream with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

from metaquorum.broker.channel import (
    ChannelRequest,
    ControllerReported,
    Farewell,
    NoAnswer,
    SendToController,
)
from metaquorum.broker.server.controllers import GrpcControllerCalls
from metaquorum.controller.server.services import BrokerLifecycleService
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
)
from metaquorum.proto import broker_pb2 as pb
from metaquorum.proto.broker_pb2_grpc import (
    BrokerLifecycleServicer,
    BrokerLifecycleStub,
    add_BrokerLifecycleServicer_to_server,
)
from metaquorum.rpc.channels import END_OF_STREAM, bind, new_server, open_channel
from metaquorum.rpc.messages.errors import Hints, error_to_pb
from metaquorum.rpc.requests import WaitingRequests
from metaquorum.rpc.rights import Authorizers
from metaquorum.rpc.transport import PeerAddress
from tests.controllers import channel_of
from tests.unit.server.nodes import silent_port

CONTROLLER = 3000
OPEN = Authorizers({"authorizer.class.name": ""})


class Lifecycle(BrokerLifecycleServicer):
    """Answers heartbeats on streams: `hold` keeps answers back, `hang_up` ends a stream instead."""

    def __init__(self) -> None:
        self.streams = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.hang_up = False

    async def Heartbeats(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        self.streams += 1
        while (request := await context.read()) is not END_OF_STREAM:
            if self.hang_up:
                return
            await self.hold.wait()
            await context.write(pb.BrokerHeartbeatResponse(session_timeout_ms=request.broker_epoch))


class Broker:
    """The calls of one broker, and their outcomes in order."""

    def __init__(self, port: int) -> None:
        self._outcomes: asyncio.Queue[ControllerReported] = asyncio.Queue()
        controllers = {CONTROLLER: PeerAddress("127.0.0.1", port)}
        self.calls = GrpcControllerCalls(controllers, self._outcomes.put_nowait, None, OPEN)

    async def beat(self, number: int, timeout_ms: int = 10_000) -> ControllerReported:
        """A heartbeat whose answer repeats `number`."""
        request = BrokerHeartbeatRequest(broker_id=1, broker_epoch=number, applied_offset=0)
        return await self._send(number, request, timeout_ms)

    async def register(self, number: int) -> ControllerReported:
        request = RegisterBrokerRequest(
            broker_id=1,
            cluster_id="c",
            incarnation_id=bytes(16),
            endpoints=(),
            features=(),
            rack=None,
            directories=(),
        )
        return await self._send(number, request, 10_000)

    async def _send(self, number: int, request: ChannelRequest, timeout_ms: int) -> ControllerReported:
        self.calls.send(
            SendToController(target=CONTROLLER, correlation_id=number, request=request, timeout_ms=timeout_ms)
        )
        return await self._outcomes.get()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Lifecycle, Broker]]:
    server = new_server()
    port = bind(server, "127.0.0.1", 0, None)
    lifecycle = Lifecycle()
    add_BrokerLifecycleServicer_to_server(lifecycle, server)
    await server.start()
    broker = Broker(port)
    try:
        yield lifecycle, broker
    finally:
        await broker.calls.close()
        await server.stop(None)


def answered(report: ControllerReported) -> int:
    """The number of the heartbeat whose answer it is, which must be that of the request."""
    assert isinstance(report.outcome, BrokerHeartbeatResponse), report
    assert report.outcome.session_timeout_ms == report.correlation_id
    return report.correlation_id


def problem(report: ControllerReported) -> str:
    assert isinstance(report.outcome, NoAnswer), report
    return report.outcome.reason


async def test_heartbeats_share_a_stream() -> None:
    async with pair() as (lifecycle, broker):
        assert [answered(await broker.beat(number)) for number in range(1, 6)] == [1, 2, 3, 4, 5]
        assert lifecycle.streams == 1


async def test_a_controller_answers_every_heartbeat_of_a_stream_and_refuses_what_it_cannot_read() -> None:
    asked: list[int] = []

    class Requests:
        async def ask(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            asked.append(request.broker_epoch)
            return BrokerHeartbeatResponse(
                is_caught_up=True,
                is_fenced=False,
                should_shut_down=False,
                in_controlled_shutdown=False,
                session_timeout_ms=9,
            )

    server = new_server()
    port = bind(server, "127.0.0.1", 0, None)
    service = BrokerLifecycleService(cast(WaitingRequests, Requests()), Hints({}), OPEN)
    add_BrokerLifecycleServicer_to_server(service, server)
    await server.start()
    async with open_channel("127.0.0.1", port, None) as channel:
        stub: Any = BrokerLifecycleStub(channel)
        call = stub.Heartbeats()
        good = pb.BrokerHeartbeatRequest(broker_id=1, broker_epoch=5)
        bad = pb.BrokerHeartbeatRequest(broker_id=1, broker_epoch=6, offline_directories=[b"short"])
        answers = []
        for request in (good, bad, good):
            await call.write(request)
            answers.append(await call.read())
        assert [each.HasField("error") for each in answers] == [False, True, False]
        assert "short" in answers[1].error.message or "16" in answers[1].error.message
        assert asked == [5, 5]
        await call.done_writing()
        assert await call.read() is END_OF_STREAM
    await server.stop(None)


async def test_a_late_answer_is_not_taken_for_the_next_ones() -> None:
    async with pair() as (lifecycle, broker):
        answered(await broker.beat(1))
        lifecycle.hold.clear()
        failed = await broker.beat(2, timeout_ms=50)
        assert problem(failed) == "no answer within 50 ms"
        lifecycle.hold.set()
        assert answered(await broker.beat(3)) == 3
        assert lifecycle.streams == 2


async def test_a_stream_that_the_controller_ends_fails_one_heartbeat() -> None:
    async with pair() as (lifecycle, broker):
        answered(await broker.beat(1))
        lifecycle.hang_up = True
        failed = await broker.beat(2)
        assert problem(failed) == "controller 3000 ended the stream of heartbeats"
        lifecycle.hang_up = False
        assert answered(await broker.beat(3)) == 3


async def test_a_registration_that_fails_takes_the_stream_with_it() -> None:
    async with pair() as (lifecycle, broker):
        answered(await broker.beat(1))
        failed = await broker.register(2)
        assert "does not serve this" in problem(failed)
        assert answered(await broker.beat(3)) == 3
        assert lifecycle.streams == 2


async def test_a_controller_that_is_gone_is_a_failure_with_a_reason() -> None:
    async with pair() as (_, broker):
        answered(await broker.beat(1))
    async with pair():  # another server: nobody listens at the first one's port any more
        late = Broker(1)
        failed = await late.beat(2, timeout_ms=20_000)
        await late.calls.close()
        assert "connection refused" in problem(failed)


# ---- the last word


class Voter(BrokerLifecycleServicer):
    """A controller that is not active and names another (0: none), or is active and takes what comes."""

    def __init__(self, names: int | None = None) -> None:
        self.names = names
        self.taken: list[Any] = []

    async def Heartbeats(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        while (request := await context.read()) is not END_OF_STREAM:
            self.taken.append(request)
            answer = pb.BrokerHeartbeatResponse()
            if self.names is not None:
                refusal = ApiError(ErrorCode.NOT_CONTROLLER, "ask another")
                answer.error.CopyFrom(error_to_pb(refusal))
                if self.names:
                    answer.error.leader.id = self.names
            await context.write(answer)


LEAVE = BrokerHeartbeatRequest(
    broker_id=1, broker_epoch=7, applied_offset=3, want_fence=True, want_shutdown=True
)


def farewell(first: int, voters: int, timeout_ms: int) -> Farewell:
    """To voters 1 to `voters`, the first of which is asked first."""
    channel = channel_of(tuple(range(1, voters + 1)), Random(0))
    channel.leader_known(0, first)
    channel.leader_known(0, None)
    return Farewell(channel, LEAVE, now_ms=clock_ms(), timeout_ms=timeout_ms)


def clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@asynccontextmanager
async def voters(*servicers: Voter) -> AsyncIterator[GrpcControllerCalls]:
    """Voters 1, 2, and so on, then one more at whose port nobody listens."""
    servers, addresses = [], {}
    for node_id, servicer in enumerate(servicers, 1):
        server = new_server()
        addresses[node_id] = PeerAddress("127.0.0.1", bind(server, "127.0.0.1", 0, None))
        add_BrokerLifecycleServicer_to_server(servicer, server)
        await server.start()
        servers.append(server)
    with silent_port() as port:
        addresses[len(servicers) + 1] = PeerAddress("127.0.0.1", port)
        calls = GrpcControllerCalls(addresses, lambda outcome: None, None, OPEN)
        try:
            yield calls
        finally:
            await calls.close()
            for server in servers:
                await server.stop(None)


async def test_the_last_word_finds_the_active_controller_past_dead_and_passive_ones() -> None:
    passive, active = Voter(names=0), Voter()
    async with voters(passive, active) as calls:
        assert await calls.farewell(farewell(3, 3, 20_000), clock_ms)
    assert len(passive.taken) == 1, "the dead one first, then the next voter, then the one after that"
    (last,) = active.taken
    assert (last.broker_epoch, last.want_fence, last.want_shutdown) == (7, True, True)


async def test_the_last_word_follows_the_hint() -> None:
    first, passed_over, active = Voter(names=3), Voter(names=0), Voter()
    async with voters(first, passed_over, active) as calls:
        assert await calls.farewell(farewell(1, 4, 20_000), clock_ms)
    assert (len(first.taken), len(passed_over.taken), len(active.taken)) == (1, 0, 1)


async def test_a_last_word_that_nobody_takes_holds_nobody_up_for_ever() -> None:
    passive = Voter(names=0)
    async with voters(passive) as calls:
        while not passive.taken:  # on a busy machine nobody may be reached in so short a time
            assert not await calls.farewell(farewell(1, 2, 300), clock_ms)
