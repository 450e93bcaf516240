"""What the active controller answers to administrators who ask it without a broker (KIP-919)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.listeners.forwarded.api import Call
from metaquorum.listeners.forwarded.direct import DIRECT, NotTheLeader
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.records.types import ControllerEndpoint, ControllerRecord, FeatureLevelRecord
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.common import DescribeQuorumRequest, DescribeQuorumResponse, ReplicaStatus
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.messages import ApiVersionsRequest, DescribeClusterRequest
from metaquorum.wire.table import API_BY_NAME, request_type

OWN = sorted(set(DIRECT) - set(FORWARDED))


def voter(node_id: int, *endpoints: VoterEndpoint) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=node_id,
        directory_id=b"",
        log_end_offset=0,
        lag=0,
        last_fetch_ms=None,
        last_caught_up_ms=None,
        status="Follower",
        endpoints=endpoints,
    )


QUORUM = DescribeQuorumResponse(
    cluster_id="c",
    leader_id=2,
    leader_epoch=5,
    high_watermark=9,
    voters=(
        voter(3, VoterEndpoint("A", "named", 31), VoterEndpoint("B", "other", 32)),
        voter(2, VoterEndpoint("A", "unused", 21)),
        voter(4),
    ),
    observers=(voter(7, VoterEndpoint("A", "observer", 71)),),
    kraft_version=1,
)


def image() -> MetadataImage:
    """Controller 2 registered, with two endpoints."""
    registered = ControllerRecord(
        2,
        bytes(16),
        False,
        (ControllerEndpoint("A", "registered", 22, 0), ControllerEndpoint("B", "second", 23, 0)),
        (),
    )
    records: list[Any] = [FeatureLevelRecord("metadata.version", 25), registered]
    return replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=1, records=records).image


async def ask(api: str, version: int, body: Any, answer: Any = QUORUM) -> tuple[Any, list[Any]]:
    """The answer, as the client reads it in this version, and what the controller was asked."""
    asked: list[Any] = []

    async def controller(request: Any) -> Any:
        asked.append(request)
        return answer

    call = Call(version=version, ask=controller, wall_ms=0, image=image())
    body = await DIRECT[api].handle(body, call)  # type: ignore[arg-type]
    key = API_BY_NAME[api].key
    frame = b"".join(codec.encode_response(key, version, 1, body))
    return codec.decode_response(key, version, frame).body, asked


async def test_controllers_are_where_they_registered_or_where_the_quorum_names_them() -> None:
    """Each at its first endpoint; one without any is left out, and so are observers."""
    answer, asked = await ask("DescribeCluster", 2, DescribeClusterRequest(endpoint_type=2))
    assert asked == [DescribeQuorumRequest()]
    assert (answer.endpoint_type, answer.cluster_id, answer.controller_id) == (2, "c", 2)
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [
        (2, "registered", 22),
        (3, "named", 31),
    ]
    wrong, asked = await ask("DescribeCluster", 2, DescribeClusterRequest(endpoint_type=1))
    assert (wrong.error_code, wrong.brokers, asked) == (114, (), [])
    assert wrong.error_message == "controllers describe only controllers: set endpoint type 2"


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_voter_whose_directory_is_unknown_has_the_zero_id(version: int) -> None:
    """A static voter that has not fetched since this controller leads."""
    voters = voter(3), replace(voter(2), directory_id=bytes([2]) * 16)
    topic = wire.DescribeQuorumRequest.TopicData(
        topic_name="__cluster_metadata",
        partitions=(wire.DescribeQuorumRequest.PartitionData(partition_index=0),),
    )
    quorum = replace(QUORUM, voters=voters, observers=voters)
    answer, _ = await ask("DescribeQuorum", version, wire.DescribeQuorumRequest(topics=(topic,)), quorum)
    (part,) = answer.topics[0].partitions
    expected = [bytes(16), bytes([2]) * 16 if version >= 2 else bytes(16)]
    for replicas in (part.current_voters, part.observers):
        assert [each.replica_directory_id for each in replicas] == expected


async def test_versions_are_those_of_the_table_with_the_quorums_level() -> None:
    answer, _ = await ask("ApiVersions", 4, ApiVersionsRequest())
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert found == {
        API_BY_NAME[name].key: (each.min_version, each.max_version) for name, each in DIRECT.items()
    }
    assert [each.api_key for each in answer.api_keys] == sorted(found)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels == {"metadata.version": 25, "kraft.version": 1}


@pytest.mark.parametrize("api", OWN)
async def test_only_the_leader_of_the_quorum_answers(api: str) -> None:
    body = request_type(API_BY_NAME[api].key).cls()
    if api == "DescribeCluster":
        body = replace(body, endpoint_type=2)
    version = DIRECT[api].max_version
    _, asked = await ask(api, version, body)
    assert asked == [DescribeQuorumRequest()]
    elsewhere = ApiError(ErrorCode.NOT_CONTROLLER, "node 3 leads")
    with pytest.raises(NotTheLeader) as caught:
        await ask(api, version, body, elsewhere)
    assert caught.value.error is elsewhere
