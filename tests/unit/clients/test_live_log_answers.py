"""What a reader of a live log makes of a controller's answers over gRPC: values, or one line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from metaquorum.clients.kafka.live_log import LiveSource, _GrpcNode, _Nodes, ask_voters
from metaquorum.clients.kafka.observer import AskNode, LiveLog, LocateQuorum, NothingHeard, QuorumNodes
from metaquorum.clients.kafka.quorum import VoterEnd
from metaquorum.clients.quorum import nodes
from metaquorum.clients.search import Address
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from metaquorum.raft.events import RaftRequestArrived
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.reach import NOT_SERVED, UNREADABLE
from metaquorum.rpc.server import GuardedServer
from metaquorum.rpc.transport import RaftService
from tests.conformance.exchanges import Sink
from tests.unit.clients.metadata_leader import ADDRESSES
from tests.unit.kafka.raft_pair import HOST, carrying_server

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


@contextlib.asynccontextmanager
async def following() -> AsyncIterator[tuple[_Nodes, Address, Sink, RaftService, GuardedServer]]:
    """A reader at a controller's gRPC port, and what the controller's core is asked."""
    sink = Sink()
    service = RaftService(sink)
    server, port = await carrying_server(service)
    address = (HOST, port)
    reader = _Nodes(LiveSource(addresses=[address], timeout_ms=60_000))
    yield reader, address, sink, service, server
    await reader.close()
    await server.stop(None)


async def test_a_request_and_its_answer_are_values() -> None:
    async with following() as (reader, address, sink, service, _):
        for _ in range(2):
            asked = asyncio.ensure_future(reader.result(AskNode(address, ASKED)))
            arrived = await sink.next(RaftRequestArrived)
            service.respond(arrived.key, FETCHED)
            assert await asked == FETCHED
            assert (arrived.request.fetch_offset, arrived.request.replica_id) == (5, -1)


async def test_a_controller_that_refuses_or_ends_is_one_line() -> None:
    async with following() as (reader, address, sink, _, server):
        asked = asyncio.ensure_future(reader.result(AskNode(address, ASKED)))
        await sink.next(RaftRequestArrived)
        await server.stop(None)
        found = await asked
        assert isinstance(found, NothingHeard) and found.text and not found.lasts
    async with following() as (reader, address, *_, server):
        server.admit_by(lambda method, context: "User:x may not")
        found = await reader.result(AskNode(address, ASKED))
        assert found == NothingHeard(text="User:x may not", lasts=True)


def closed() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "Connection refused")


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
    places = [common.VoterEndpoint(name="CONTROLLER", host="h", port=port) for port in ports]
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


# Whom `log check --bootstrap` asks about the voters, beside the leader.


BROKER = ("127.0.0.1", 9101)
SILENT_BROKER = ("127.0.0.1", 9102)
LOG = LiveLog(
    cluster_id=None,
    leader_id=1,
    epoch=4,
    address=ADDRESSES[1],
    start_offset=0,
    end_offset=100,
    snapshot=None,
    last_epoch=4,
)


class Quorum:
    """Controllers that name no address, as Apache Kafka's to a principal without Alter, and a broker whose
    configuration names those of the voters."""

    located: list[Address]

    def __init__(self, source: LiveSource) -> None:
        type(self).located = []

    async def result(self, step: LocateQuorum | AskNode) -> Any:
        if isinstance(step, AskNode):
            return FetchResponse(error=RaftError.NOT_LEADER_OR_FOLLOWER, epoch=4, leader_id=1)
        self.located.append(step.address)
        if step.address == SILENT_BROKER:
            return NothingHeard(text="no answer in time")
        known = ADDRESSES if step.address == BROKER else {}
        return QuorumNodes(controllers=known, is_controller=step.address != BROKER)

    async def voters(self, address: Address) -> list[VoterEnd]:
        return [VoterEnd(node_id, 100) for node_id in ADDRESSES]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ((SILENT_BROKER, BROKER, ADDRESSES[2]), {1, 2, 3}),
        ((ADDRESSES[1], ADDRESSES[2]), {1}),
    ],
)
def test_a_broker_names_voters_that_no_controller_names(
    monkeypatch: pytest.MonkeyPatch, given: tuple[Address, ...], asked: set[int]
) -> None:
    monkeypatch.setattr("metaquorum.clients.kafka.live_log._Nodes", Quorum)
    reports = asyncio.run(ask_voters(LiveSource(addresses=given, timeout_ms=1_000), LOG))
    assert {each.node_id for each in reports if each.is_in_order} == asked
    assert [each.address for each in reports if each.node_id in asked] == [ADDRESSES[each] for each in asked]
    assert ADDRESSES[2] not in Quorum.located or BROKER not in given
