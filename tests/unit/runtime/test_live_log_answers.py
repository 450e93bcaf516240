"""What a reader of a live log makes of each answer: it goes on, looks for the leader again, or gives up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from metaquorum.raft.messages import FetchResponse, FetchSnapshotResponse, RaftError
from metaquorum.runtime.api import raft as raft_codec
from metaquorum.runtime.client import nodes
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.client.live_log import FETCH_BYTES, READER_ID, LiveLog, _Leader, _Moved
from metaquorum.runtime.rpc.channels import END_OF_STREAM
from metaquorum.runtime.rpc.reach import UNREADABLE
from metaquorum.storage.types import LogPosition

FOUND = LiveLog(cluster_id="c", leader_id=3, epoch=7, address=("127.0.0.1", 1), start_offset=0, end_offset=0)
FETCHED = FetchResponse(error=RaftError.NONE, epoch=7, leader_id=3, high_watermark=9)
CHUNK = FetchSnapshotResponse(
    error=RaftError.NONE,
    epoch=7,
    leader_id=3,
    snapshot=LogPosition(5, 6),
    position=4,
    size_bytes=9,
    data=b"x",
)


class Stream:
    """In the place of a stream to the leader: answers with `answer`, or fails with it."""

    def __init__(self, answer: Any, correlation_id: int = 1) -> None:
        self.asked: list[Any] = []
        self._answer = answer
        self._correlation_id = correlation_id

    async def write(self, envelope: Any) -> None:
        self.asked.append(envelope)

    async def read(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        if isinstance(self._answer, FetchResponse | FetchSnapshotResponse):
            return raft_codec.encode(self._correlation_id, self._answer)
        return self._answer


def reader(answer: Any, correlation_id: int = 1) -> tuple[_Leader, Stream]:
    leader, stream = _Leader(FOUND, 10_000, None, random.Random(1)), Stream(answer, correlation_id)
    leader._call = stream
    return leader, stream


async def test_a_reader_asks_as_no_replica() -> None:
    leader, stream = reader(FETCHED)
    assert await leader.fetch(5, 4) == FETCHED
    (envelope,) = stream.asked
    asked = raft_codec.decode_request(envelope)
    assert (asked.cluster_id, asked.replica_id, asked.epoch) == ("c", READER_ID, 7)
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.high_watermark) == (5, 4, -1)
    assert (asked.max_wait_ms, asked.max_bytes) == (0, FETCH_BYTES)
    leader, stream = reader(CHUNK)
    assert await leader.chunk(LogPosition(5, 6), 4) == CHUNK
    asked = raft_codec.decode_request(stream.asked[0])
    assert (asked.snapshot, asked.position, asked.epoch) == (LogPosition(5, 6), 4, 7)


def closed() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "Socket closed")


@pytest.mark.parametrize(
    ("answer", "correlation_id", "error", "text"),
    [
        (TimeoutError(), 1, _Moved, "controller 3 did not answer in time"),
        (closed(), 1, _Moved, "controller 3: not reachable (Socket closed)"),
        (asyncio.InvalidStateError(), 1, _Moved, "controller 3 closed the stream"),
        (END_OF_STREAM, 1, _Moved, "controller 3 closed the stream"),
        (FETCHED, 2, _Moved, "controller 3 closed the stream"),
        (
            replace(FETCHED, error=RaftError.FENCED_LEADER_EPOCH),
            1,
            _Moved,
            "controller 3 answered FENCED_LEADER_EPOCH",
        ),
        (CHUNK, 1, _Moved, "got FetchSnapshotResponse as the answer to a fetch"),
    ],
)
async def test_an_answer_that_is_not_the_leaders_starts_over(
    answer: Any, correlation_id: int, error: type[Exception], text: str
) -> None:
    leader, _ = reader(answer, correlation_id)
    with pytest.raises(error) as caught:
        await leader.fetch(5, 4)
    assert str(caught.value) == text


async def test_a_fetch_is_no_answer_to_a_snapshot_fetch() -> None:
    leader, _ = reader(FETCHED)
    with pytest.raises(_Moved, match="got FetchResponse as the answer to a snapshot fetch"):
        await leader.chunk(LogPosition(5, 6), 4)


async def test_an_answer_of_another_release_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def strange(envelope: Any) -> Any:
        raise raft_codec.EnvelopeError("a field is missing")

    monkeypatch.setattr(raft_codec, "decode_response", strange)
    leader, _ = reader(FETCHED)
    with pytest.raises(ClientError, match="controller 3 runs another release: a field is missing"):
        await leader.fetch(5, 4)


@pytest.mark.parametrize("said", [None, ValueError("role 9"), closed()])
async def test_a_node_that_cannot_be_understood_is_one_line(
    said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC hands on None for what it cannot decode."""

    class Stub:
        def __init__(self, channel: Any) -> None:
            pass

        async def DescribeNode(self, request: Any, **options: float) -> Any:
            assert options == {"timeout": 0.25}
            if said is None:
                return None
            raise said

    async def of(self: Any, error: Any, address: Any) -> str:
        return f"not reachable: {address}"

    monkeypatch.setattr(nodes, "AdminStub", Stub)
    monkeypatch.setattr(nodes.Reasons, "of", of)
    address = ("127.0.0.1", 9)
    (found,) = await nodes.describe_nodes([address], timeout_ms=250)
    assert found.address == address and found.report is None
    assert (
        found.problem
        == {
            type(None): UNREADABLE,
            ValueError: "its answer comes from a newer release (role 9)",
            grpc.aio.AioRpcError: f"not reachable: {address}",
        }[type(said)]
    )
