"""A stream that breaks while messages are queued on it: each has one outcome, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto import raft_pb2 as raft
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError
from metaquorum.runtime.api import raft as raft_codec
from metaquorum.runtime.data_client.connections import LinkError, _ProduceStream
from metaquorum.runtime.rpc import raft_server
from metaquorum.runtime.rpc.channels import END_OF_STREAM
from metaquorum.runtime.rpc.raft_server import RaftService
from metaquorum.runtime.transport import TransportEvent

ENDINGS = ("ended", "unreadable", "read fails", "write fails", "too much", "late", "closed")
IN_TIME_MS, NO_TIME_MS = 60_000, -10_000


class Wire:
    """The gRPC call of a produce stream: takes `room` messages, then its writer waits."""

    def __init__(self, room: int) -> None:
        self.written: list[pb.ProduceRequest] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False
        self._room = room
        self._stuck: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ProduceStream(self) -> Wire:
        return self

    async def write(self, message: pb.ProduceRequest) -> None:
        if len(self.written) == self._room:
            await self._stuck
        self.written.append(message)

    async def read(self) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return "going away"

    def cancel(self) -> None:
        self.cancelled = True

    def answer(self, number: int) -> None:
        result = pb.ProduceResponse()
        result.results.add(topic_id=bytes(16), base_offset=number)
        self.answers.put_nowait(result)

    def break_by(self, ending: str, stream: _ProduceStream) -> None:
        match ending:
            case "ended":
                self.answers.put_nowait(END_OF_STREAM)
            case "unreadable":
                self.answers.put_nowait(None)
            case "read fails":
                self.answers.put_nowait(failure())
            case "write fails":
                self._stuck.set_exception(failure())
            case "closed":
                stream.break_off("the client was closed")


def failure() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "gone")


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def _break(sent: int, room: int, answered: int, ending: str) -> None:
    wire = Wire(room)
    stream = _ProduceStream(("host", 1), wire)
    request = api.ProduceRequest(acks=-1, timeout_ms=5_000, partitions=())
    last_ms = NO_TIME_MS if ending == "late" else IN_TIME_MS
    outcomes = [stream.send(request, last_ms if number == sent - 1 else IN_TIME_MS) for number in range(sent)]
    for number in range(answered):
        wire.answer(number)
    await settle()
    if ending == "too much":
        for number in range(answered, min(room + 1, sent) + 1):
            wire.answer(number)
        answered = min(room + 1, sent)
    wire.break_by(ending, stream)
    if ending == "late":
        await asyncio.wait(outcomes)
    await settle()
    assert stream.broken and wire.cancelled
    assert all(each.done() for each in outcomes), "none is left without an outcome"
    for number, each in enumerate(outcomes):
        if number < answered:
            assert each.result().results[0].base_offset == number
        else:
            with pytest.raises(LinkError, match="host:1"):
                each.result()
    await settle()
    assert len(wire.written) <= room, "nothing leaves on it any more"
    assert not any(handle in asyncio.all_tasks() for handle in stream._tasks), "nothing goes on behind it"


@given(
    sent=st.integers(1, 8),
    room=st.integers(0, 8),
    answered=st.integers(0, 8),
    ending=st.sampled_from(ENDINGS),
)
def test_whatever_is_queued_when_a_produce_stream_breaks_has_one_outcome(
    sent: int, room: int, answered: int, ending: str
) -> None:
    room = min(room, sent - 1)  # one at least is on its way or waits behind it
    answered = min(answered, room)
    asyncio.run(_break(sent, room, answered, ending))


# ---- the controller's side -----------------------------------------------------------------------


class Caller:
    """One stream of Raft requests: `count` of them come at once; it takes `room` answers, then no more."""

    def __init__(self, node_id: int, count: int, room: int) -> None:
        self.written: list[int] = []
        self.ended = asyncio.Event()
        self._requests = [(number, node_id) for number in range(1, count + 1)]
        self._room = room

    async def read(self) -> Any:
        if self._requests:
            number, node_id = self._requests.pop(0)
            return raft_codec.encode(number, fetch(node_id))
        await self.ended.wait()
        return END_OF_STREAM

    async def write(self, envelope: bytes) -> None:
        if len(self.written) == self._room:
            await asyncio.Event().wait()
        self.written.append(raft.RaftEnvelope.FromString(envelope).correlation_id)


def fetch(node_id: int) -> FetchRequest:
    return FetchRequest(
        cluster_id="c",
        replica_id=node_id,
        replica_directory_id=bytes(16),
        epoch=1,
        fetch_offset=0,
        last_fetched_epoch=0,
        high_watermark=-1,
        max_wait_ms=100,
        max_bytes=1000,
        read_round=0,
    )


ANSWER = FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1, high_watermark=0, log_start_offset=0)


@pytest.mark.parametrize("peers", [None, frozenset({1, 2}), frozenset({2}), frozenset({9})])
@pytest.mark.parametrize(("answered", "taken"), [(0, 0), (3, 0), (3, 1), (3, 3), (5, 2), (5, 5)])
async def test_a_caller_that_goes_away_leaves_its_unanswered_requests_and_nothing_else(
    peers: frozenset[int] | None, answered: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raft_server, "OTHERS_PAUSE_MAX_S", 0)  # turns are counted here, not milliseconds
    keys: dict[int, list[int]] = {1: [], 2: []}
    abandoned: list[int] = []

    def sink(event: TransportEvent) -> bool:
        if isinstance(event, RaftRequestArrived):
            assert isinstance(event.request, FetchRequest)
            keys[event.request.replica_id].append(event.key)
        elif isinstance(event, RaftRequestAbandoned):
            abandoned.append(event.key)
        return True

    service = RaftService(sink, peers)
    gone, stays = Caller(1, 5, taken), Caller(2, 5, 5)
    tasks = [asyncio.create_task(service.exchange(None, each)) for each in (gone, stays)]  # type: ignore[arg-type]
    await settle()
    assert [len(each) for each in keys.values()] == [5, 5]
    for key in keys[1][:answered]:
        service.respond(key, ANSWER)
    await settle(200)
    gone.ended.set()
    await asyncio.wait_for(tasks[0], 10)
    assert sorted(abandoned) == keys[1][answered:], "what was answered is not abandoned, what was not is"
    before = list(gone.written)
    for key in (*keys[1], *keys[2]):  # late answers, and answers that were given before
        service.respond(key, ANSWER)
    await settle(200)
    assert gone.written == before == list(range(1, min(answered, taken) + 1))
    assert stays.written == [1, 2, 3, 4, 5] and not tasks[1].done()
    stays.ended.set()
    await asyncio.wait_for(tasks[1], 10)
    assert sorted(abandoned) == keys[1][answered:]
    assert not service._callers
