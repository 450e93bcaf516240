"""What the calling side still sends, and what not, when a peer takes nothing for a while."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft.events import RaftRequestFailed
from metaquorum.raft.messages import FetchRequest
from metaquorum.runtime.rpc import raft_client
from metaquorum.runtime.rpc.raft_client import PeerAddress, RaftClient
from tests.conformance.test_transport import until

FETCH = FetchRequest(
    cluster_id="c",
    replica_id=1,
    replica_directory_id=bytes(16),
    epoch=1,
    fetch_offset=0,
    last_fetched_epoch=0,
    high_watermark=-1,
    max_wait_ms=100,
    max_bytes=1000,
)


class Stream:
    """A stream as gRPC gives it to the client: it takes a message while `room` is set, and answers none."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.taken: list[int] = []

    async def write(self, envelope: pb.RaftEnvelope) -> None:
        await self.room.wait()
        self.taken.append(envelope.correlation_id)

    async def read(self) -> Any:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self.room.set()


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()

    class Stub:
        def __init__(self, channel: object) -> None:
            self.Exchange = lambda: made

    monkeypatch.setattr(raft_client, "RaftStub", Stub)
    return made


async def test_a_request_that_timed_out_before_it_was_sent_is_not_sent(stream: Stream) -> None:
    failed: list[Any] = []

    def sink(event: Any) -> bool:
        failed.append(event)
        return True

    client = RaftClient({2: PeerAddress("127.0.0.1", 1)}, sink, rng=random.Random(1))
    client.send(2, 1, FETCH, 60_000)
    client.send(2, 2, FETCH, 1)
    client.send(2, 3, FETCH, 60_000)
    await until(lambda: bool(failed))
    assert failed == [RaftRequestFailed(target=2, correlation_id=2, reason="no answer within 1 ms")]
    stream.room.set()
    await until(lambda: stream.taken[-1:] == [3])
    assert stream.taken == [1, 3]
    await client.close()
