"""What a reader of a live log makes of a controller's answers over gRPC: values, or one line."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from metaquorum.clients.kafka.live_log import _GrpcNode
from metaquorum.clients.kafka.observer import NothingHeard, QuorumNodes
from metaquorum.clients.quorum import nodes
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import raft_pb2 as raft
from metaquorum.proto.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError
from metaquorum.rpc.channels import END_OF_STREAM, bind, new_server
from metaquorum.rpc.messages import raft as raft_codec
from metaquorum.rpc.reach import NOT_SERVED, UNREADABLE

FETCHED = FetchResponse(error=RaftError.NONE, epoch=7, leader_id=3, high_watermark=9)
ASKED = FetchRequest(
    cluster_id="c",
    replica_id=-1,
    replica_directory_id=bytes(16),
    epoch=7,
    fetch_offset=5,
    last_fetched_epoch=4,
    high_watermark=-1,
    max_wait_ms=0,
    max_bytes=100,
)


class Stream:
    """In the place of a stream to a controller: answers with `answer`, or fails with it."""

    def __init__(self, answer: Any, correlation_id: int = 1) -> None:
        self.asked: list[Any] = []
        self._answer = answer
        self._correlation_id = correlation_id

    async def write(self, envelope: Any) -> None:
        self.asked.append(envelope)

    async def read(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        if isinstance(self._answer, FetchResponse):
            return raft_codec.encode(self._correlation_id, self._answer)
        return self._answer

    def cancel(self) -> None:
        pass


async def asked(answer: Any, correlation_id: int = 1) -> tuple[Any, Stream]:
    node, stream = _GrpcNode(("127.0.0.1", 1), None), Stream(answer, correlation_id)
    node._call = stream
    try:
        return await node.ask(ASKED, 1), stream
    finally:
        await node.close()


async def test_a_request_and_its_answer_are_values() -> None:
    found, stream = await asked(FETCHED)
    assert found == FETCHED
    (envelope,) = stream.asked
    assert raft_codec.decode_request(envelope) == ASKED


def closed(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, "Connection refused")


@pytest.mark.parametrize(
    ("answer", "correlation_id", "failed"),
    [
        (closed(), 1, NothingHeard(text="not reachable (connection refused: no process listens there)")),
        (
            closed(grpc.StatusCode.PERMISSION_DENIED),
            1,
            NothingHeard(text="refused: Connection refused", is_refusal=True),
        ),
        (asyncio.InvalidStateError(), 1, NothingHeard(text="it closed the stream")),
        (END_OF_STREAM, 1, NothingHeard(text="it closed the stream")),
        (FETCHED, 2, NothingHeard(text="it closed the stream")),
    ],
)
async def test_no_answer_is_one_line(answer: Any, correlation_id: int, failed: NothingHeard) -> None:
    found, _ = await asked(answer, correlation_id)
    assert found == failed


async def test_an_answer_of_another_release_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def strange(envelope: Any) -> Any:
        raise raft_codec.EnvelopeError("a field is missing")

    monkeypatch.setattr(raft_codec, "decode_response", strange)
    found, _ = await asked(FETCHED)
    assert found == NothingHeard(text="it runs another release: a field is missing", lasts=True)


class Controller(AdminServicer):
    """Says which cluster it belongs to, and what `quorum` is."""

    def __init__(self, quorum: admin.DescribeQuorumResponse) -> None:
        self._quorum = quorum

    async def DescribeNode(self, request: Any, context: Any) -> admin.DescribeNodeResponse:
        return admin.DescribeNodeResponse(node_id=1, cluster_id="c")

    async def DescribeQuorum(self, request: Any, context: Any) -> admin.DescribeQuorumResponse:
        return self._quorum

    async def TransferLeadership(self, request: Any, context: Any) -> Any:
        raise NotImplementedError


def voter(node_id: int, *ports: int) -> admin.ReplicaStatus:
    places = [raft.VoterEndpoint(name="CONTROLLER", host="h", port=port) for port in ports]
    return admin.ReplicaStatus(node_id=node_id, endpoints=places)


async def located(quorum: admin.DescribeQuorumResponse | None) -> Any:
    """What a reader makes of a controller that answers so; None: it is a broker's listener."""
    server = new_server()
    if quorum is not None:
        add_AdminServicer_to_server(Controller(quorum), server)
    port = bind(server, "127.0.0.1", 0, None)
    await server.start()
    node = _GrpcNode(("127.0.0.1", port), None)
    try:
        return await node.locate(20)
    finally:
        await node.close()
        await server.stop(None)


async def test_the_leader_names_the_voters_and_another_one_the_leader() -> None:
    leader = admin.DescribeQuorumResponse(leader_id=2, voters=[voter(1), voter(2, 9, 8), voter(3, 7)])
    found = await located(leader)
    assert found == QuorumNodes(controllers={2: ("h", 9), 3: ("h", 7)}, is_controller=True, cluster_id="c")
    refusal = common.Error(code=41, name="NOT_CONTROLLER", message="no")
    unknown = await located(admin.DescribeQuorumResponse(error=refusal))
    assert unknown == QuorumNodes(controllers={}, is_controller=True, cluster_id="c")
    refusal.leader.CopyFrom(common.LeaderHint(id=2, host="h", port=9))
    follower = await located(admin.DescribeQuorumResponse(error=refusal))
    assert follower == QuorumNodes(controllers={2: ("h", 9)}, is_controller=True, cluster_id="c")


async def test_a_brokers_grpc_listener_has_no_log() -> None:
    assert await located(None) == NothingHeard(text=NOT_SERVED, lasts=True)


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
