"""A stream that breaks while messages are queued on it: each has one outcome, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.proto import raft_pb2 as raft
from metaquorum.raft.events import RaftRequestAbandoned, RaftRequestArrived
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError
from metaquorum.rpc import raft_server
from metaquorum.rpc.channels import END_OF_STREAM
from metaquorum.rpc.messages import raft as raft_codec
from metaquorum.rpc.raft_server import RaftService
from metaquorum.rpc.transport import TransportEvent
from tests.unit.rpc.fetches import fetch


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


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
