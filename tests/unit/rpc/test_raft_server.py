"""Who is answered first: peers at once, brokers a few in each turn of the loop, in order and all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft.events import RaftRequestArrived
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError, VoteRequest, VoteResponse
from metaquorum.rpc import raft_server
from metaquorum.rpc.channels import END_OF_STREAM
from metaquorum.rpc.messages import raft as raft_codec
from metaquorum.rpc.raft_server import OTHERS_BYTES_PER_TURN, OTHERS_PER_TURN, RaftService
from metaquorum.rpc.transport import TransportEvent
from metaquorum.storage.types import LogPosition
from tests.unit.rpc.fetches import fetch

PEER = 3001
FIRST_BROKER = 100


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are counted here, not milliseconds."""
    monkeypatch.setattr(raft_server, "OTHERS_PAUSE_MAX_S", 0)


class Caller:
    """One stream as gRPC hands it to the service: what it reads, and what was written to it."""

    def __init__(self, node_id: int, written: list[int]) -> None:
        self.node_id = node_id
        self.ended = asyncio.Event()
        self._written = written
        self._sent = False

    async def read(self) -> Any:
        if not self._sent:
            self._sent = True
            return raft_codec.encode(1, fetch(self.node_id))
        await self.ended.wait()
        return END_OF_STREAM

    async def write(self, envelope: bytes) -> None:
        assert pb.RaftEnvelope.FromString(envelope).correlation_id == 1
        self._written.append(self.node_id)


def response(records: bytes = b"") -> FetchResponse:
    return FetchResponse(
        error=RaftError.NONE, epoch=1, leader_id=1, high_watermark=0, log_start_offset=0, records=records
    )


VOTE = VoteRequest(
    cluster_id="c",
    epoch=2,
    candidate_id=FIRST_BROKER,
    candidate_directory_id=bytes(16),
    voter_id=1,
    voter_directory_id=bytes(16),
    last_position=LogPosition(1, 1),
    pre_vote=False,
)


class Pushed(raft_server._Caller):
    """A caller that notes which of its requests are answered, in which order."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.pushed: list[int] = []

    def push(self, envelope: bytes, *, now: bool) -> None:
        self.pushed.append(pb.RaftEnvelope.FromString(envelope).correlation_id)


async def nothing() -> AsyncIterator[pb.RaftEnvelope]:
    return
    yield


class Served:
    """A service with callers, the key of each one's request, and the order in which they were answered."""

    def __init__(self, *callers: int) -> None:
        self.keys: dict[int, int] = {}
        self.written: list[int] = []
        self.service = RaftService(self._take, frozenset({PEER}))
        self.callers = [Caller(node_id, self.written) for node_id in callers]
        self.tasks = [
            asyncio.create_task(self.service.exchange(nothing(), caller))  # type: ignore[arg-type]
            for caller in self.callers
        ]

    def _take(self, event: TransportEvent) -> bool:
        if isinstance(event, RaftRequestArrived):
            assert isinstance(event.request, FetchRequest)
            self.keys[event.request.replica_id] = event.key
        return True

    async def settle(self, turns: int = 5) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for caller in self.callers:
            caller.ended.set()
        await asyncio.gather(*self.tasks)


async def test_a_peer_does_not_wait_behind_brokers() -> None:
    brokers = range(FIRST_BROKER, FIRST_BROKER + 20 * OTHERS_PER_TURN)
    served = Served(*brokers, PEER)
    await served.settle()
    for broker in brokers:
        served.service.respond(served.keys[broker], response())
    served.service.respond(served.keys[PEER], response())
    await served.settle()
    assert PEER in served.written[: 2 * OTHERS_PER_TURN]
    assert len(served.written) < len(brokers)
    await served.settle(400)
    assert [each for each in served.written if each != PEER] == list(brokers)
    await served.end()


async def test_a_vote_does_not_wait_behind_brokers_whatever_node_asks_for_it() -> None:
    service = RaftService(lambda event: True, frozenset({PEER}))
    caller = Pushed()
    service._take(caller, raft_codec.parse(raft_codec.encode(7, VOTE).SerializeToString()))
    service.respond(
        1, VoteResponse(error=RaftError.NONE, epoch=2, leader_id=None, vote_granted=True, pre_vote=False)
    )
    assert caller.pushed == [7]


async def test_large_answers_are_fewer_in_a_turn() -> None:
    brokers = range(FIRST_BROKER, FIRST_BROKER + 12)
    served = Served(*brokers)
    await served.settle()
    large = bytes(OTHERS_BYTES_PER_TURN // 2)
    for broker in brokers:
        served.service.respond(served.keys[broker], response(large))
    await served.settle(4)
    assert 2 <= len(served.written) <= 8
    await served.settle(100)
    assert served.written == list(brokers)
    await served.end()


async def test_a_broker_that_went_away_is_passed_over() -> None:
    brokers = range(FIRST_BROKER, FIRST_BROKER + 3 * OTHERS_PER_TURN)
    served = Served(*brokers)
    await served.settle()
    gone = served.callers[-2]
    for broker in brokers:
        served.service.respond(served.keys[broker], response())
    gone.ended.set()
    await served.settle(100)
    assert served.written == [broker for broker in brokers if broker != gone.node_id]
    await served.end()


async def test_a_caller_that_sends_on_without_reading_loses_its_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(raft_server, "REQUESTS_PER_STREAM_MAX", 5)
    asked: list[int] = []

    def sink(event: TransportEvent) -> bool:
        if isinstance(event, RaftRequestArrived):
            asked.append(event.key)
            service.respond(event.key, response())
        return True

    class Deaf:
        """Takes one answer, and then no more."""

        reason = ""
        taken = 0

        async def read(self) -> Any:
            await asyncio.sleep(0)
            return raft_codec.encode(1, fetch(PEER))

        async def write(self, envelope: bytes) -> None:
            if self.taken:
                await asyncio.Event().wait()
            self.taken += 1

        async def abort(self, code: object, reason: str) -> None:
            self.reason = reason

    service, caller = RaftService(sink), Deaf()
    await service.exchange(nothing(), caller)  # type: ignore[arg-type]
    assert caller.reason == "more than 5 requests are unanswered"
    assert len(asked) == caller.taken + 5
    assert "closed the stream" in caplog.text
