"""What the calling side still sends, and what not, when a peer takes nothing for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft.events import RaftRequestFailed
from metaquorum.rpc import raft_client
from metaquorum.rpc.raft_client import PeerAddress, RaftClient
from tests.conformance.test_transport import until
from tests.unit.rpc.fetches import fetch

FETCH = fetch(1)


class Stream:
    """A stream as gRPC gives it to the client: it takes a message while `room` is set, and answers none.
    `taking` is called with each message that it takes; `answer` ends the wait for one."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.taken: list[int] = []
        self.taking: Callable[[int], None] = lambda correlation_id: None
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def write(self, envelope: pb.RaftEnvelope) -> None:
        await self.room.wait()
        self.taken.append(envelope.correlation_id)
        self.taking(envelope.correlation_id)

    async def read(self) -> Any:
        return await self.answer

    def cancel(self) -> None:
        self.room.set()


@pytest.fixture
async def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()

    class Stub:
        def __init__(self, channel: object) -> None:
            self.Exchange = lambda: made

    monkeypatch.setattr(raft_client, "RaftStub", Stub)
    return made


class Asking:
    """Node 1, which sends to node 2, and what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.client = RaftClient({2: PeerAddress("127.0.0.1", 1)}, self._hear, rng=random.Random(1))

    def _hear(self, event: Any) -> bool:
        self.heard.append(event)
        return True

    def send(self, correlation_id: int, timeout_ms: int = 60_000) -> None:
        self.client.send(2, correlation_id, FETCH, timeout_ms)


async def test_a_request_that_timed_out_before_it_was_sent_is_not_sent(stream: Stream) -> None:
    asking = Asking()
    asking.send(1)
    asking.send(2, timeout_ms=1)
    asking.send(3)
    await until(lambda: bool(asking.heard))
    assert asking.heard == [RaftRequestFailed(target=2, correlation_id=2, reason="no answer within 1 ms")]
    stream.room.set()
    await until(lambda: stream.taken[-1:] == [3])
    assert stream.taken == [1, 3]
    await asking.client.close()


async def test_a_request_that_comes_between_two_writers_is_sent(stream: Stream) -> None:
    """Behind the last look of one at what is queued, and before the client has heard that it ended."""
    asking = Asking()

    def taking(correlation_id: int) -> None:
        if correlation_id == 1:
            asyncio.get_running_loop().call_soon(asking.send, 2)

    stream.taking = taking
    asking.send(1)
    await until(lambda: bool(asking.client._peers[2]._writer))
    stream.room.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert stream.taken == [1, 2]
    await asking.client.close()


async def test_bytes_that_grpc_cannot_decode_end_the_stream(stream: Stream) -> None:
    asking = Asking()
    asking.send(1)
    stream.answer.set_result(None)
    await until(lambda: bool(asking.heard))
    (failed,) = asking.heard
    assert "it sent an invalid answer: its bytes cannot be decoded" in failed.reason
    await asking.client.close()
