"""Where static voters listen: the active controller's configuration has it, and no record."""

from __future__ import annotations

from typing import Any

from metaquorum.controller.server.services import AdminService
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
from metaquorum.proto import admin_pb2 as pb
from metaquorum.rpc.messages import tables as codec
from metaquorum.rpc.messages.errors import Hints
from metaquorum.rpc.transport import PeerAddress


def replica(node_id: int, *endpoints: VoterEndpoint) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=node_id,
        directory_id=bytes(16),
        log_end_offset=5,
        lag=0,
        last_fetch_ms=None,
        last_caught_up_ms=None,
        status="Follower",
        endpoints=endpoints,
    )


class Controller:
    """In the place of the node."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def ask(self, request: Any) -> Any:
        return self._answer


async def described(answer: Any) -> pb.DescribeQuorumResponse:
    known = Hints({1: PeerAddress("one", 9093), 2: PeerAddress("two", 9094), 4: PeerAddress("four", 9095)})
    service: Any = AdminService(Controller(answer), known, None, "CONTROLLER")  # type: ignore[arg-type]
    found: pb.DescribeQuorumResponse = await service.DescribeQuorum(pb.DescribeQuorumRequest(), None)
    return found


async def test_a_voter_without_a_record_is_where_the_configuration_has_it() -> None:
    recorded = VoterEndpoint("OTHER", "elsewhere", 1)
    answer = DescribeQuorumResponse(
        cluster_id="c",
        leader_id=1,
        leader_epoch=2,
        high_watermark=5,
        voters=(replica(1), replica(2, recorded), replica(3)),
        observers=(replica(4),),
    )
    found = codec.QUORUM.from_pb(await described(answer))
    assert [each.endpoints for each in found.voters] == [
        (VoterEndpoint("CONTROLLER", "one", 9093),),
        (recorded,),
        (),
    ]
    assert found.observers == answer.observers, "an observer is where it has registered"


async def test_a_refusal_stays_one() -> None:
    found = await described(ApiError(ErrorCode.NOT_CONTROLLER, "no", 2))
    assert (found.error.name, found.error.leader.host) == ("NOT_CONTROLLER", "two")
