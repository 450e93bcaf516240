"""The group APIs: what coordinators are asked, and what clients hear."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.coordinator.groups.group import (
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    ListGroups,
)
from metaquorum.broker.server.kafka.groups import PROTOCOLS_MAX, partition_of
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from tests.unit.kafka.group_broker import OFFSETS, PARTITIONS, Broker, refused

NOT_ASKED = -(2**31)
MEMBERS = {
    "JoinGroup": (9, JoinGroupRequest(group_id="g", member_id="m")),
    "SyncGroup": (5, SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range")),
    "Heartbeat": (4, HeartbeatRequest(group_id="g", member_id="m")),
    "LeaveGroup": (5, LeaveGroupRequest(group_id="g")),
    "ConsumerGroupHeartbeat": (1, ConsumerGroupHeartbeatRequest(group_id="g", member_id="m")),
}


@pytest.mark.parametrize("api", MEMBERS)
async def test_the_groups_own_coordinator_is_asked_who_it_is_that_asks(api: str) -> None:
    broker = Broker(refused(ErrorCode.UNKNOWN_MEMBER_ID))
    version, body = MEMBERS[api]
    for group in ("g", "another"):
        named = type(body)(
            **{**{each: getattr(body, each) for each in body.__struct_fields__}, "group_id": group}
        )
        assert (await broker.ask(api, version, named)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        asked = broker.asked.pop()
        assert asked.body == named and not broker.asked
        assert (asked.topic, asked.partition) == (OFFSETS, partition_of(group, PARTITIONS))
        assert (asked.version, asked.client_id) == (version, "app")
        assert (asked.client_host, asked.principal) == ("/10.0.0.7", "User:ann")


@pytest.mark.parametrize("api", MEMBERS)
@pytest.mark.parametrize(
    ("code", "heard", "by"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID, {}),
        (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, {}),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR, {}),
        *[
            (
                code,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                {"SyncGroup": ErrorCode.REBALANCE_IN_PROGRESS, "Heartbeat": ErrorCode.NONE},
            )
            for code in (ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        ],
    ],
)
async def test_members_hear_what_they_understand(
    api: str, code: ErrorCode, heard: ErrorCode, by: dict[str, ErrorCode]
) -> None:
    version, body = MEMBERS[api]
    assert (await Broker(refused(code)).ask(api, version, body)).error_code == by.get(api, heard)
    nowhere = Broker(refused(code), MetadataImage())
    assert (await nowhere.ask(api, version, body)).error_code == ErrorCode.NOT_COORDINATOR
    unnamed = Broker(refused(code))
    assert (await unnamed.ask(api, version, type(body)(group_id="", **_protocol(api)))).error_code == 24
    assert nowhere.asked == unnamed.asked == []


def _protocol(api: str) -> dict[str, str]:
    return {"protocol_type": "consumer", "protocol_name": "range"} if api == "SyncGroup" else {}


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
async def test_a_member_that_is_refused_keeps_its_id(version: int, name: str | None) -> None:
    answer = await Broker(refused(ErrorCode.REBALANCE_IN_PROGRESS)).ask(
        "JoinGroup", version, MEMBERS["JoinGroup"][1]
    )
    assert (answer.member_id, answer.protocol_name) == ("m", name)
    taken = JoinGroupResponse(protocol_name="range", member_id="m")
    assert await Broker(lambda request: taken).ask("JoinGroup", version, MEMBERS["JoinGroup"][1]) == taken


@pytest.mark.parametrize("version", [2, 3])
async def test_one_member_leaves_as_many_do(version: int) -> None:
    gone = LeaveGroupResponse(
        members=(LeaveGroupResponse.MemberResponse(member_id="m", error_code=ErrorCode.UNKNOWN_MEMBER_ID),)
    )
    broker = Broker(lambda request: gone)
    member = LeaveGroupRequest.MemberIdentity(member_id="m")
    one = version < 3
    body = LeaveGroupRequest(group_id="g", **({"member_id": "m"} if one else {"members": (member,)}))
    answer = await broker.ask("LeaveGroup", version, body)
    assert broker.asked[0].body == LeaveGroupRequest(group_id="g", members=(member,))
    assert answer == (LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID) if one else gone)


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, 69)])
async def test_groups_are_described_each_by_its_coordinator(version: int, code: int, asks: bool) -> None:
    group = DescribeGroupsResponse.DescribedGroup

    def say(request: CoordinatorRequest) -> Any:
        assert request.partition == partition_of(request.body.group_id, PARTITIONS)
        name = request.body.group_id
        if name == "no":
            return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "elsewhere")
        return group(group_id=name, group_state="Dead" if name == "gone" else "Stable")

    broker = Broker(say)
    body = DescribeGroupsRequest(groups=("here", "no", "gone"), include_authorized_operations=asks)
    found = (await broker.ask("DescribeGroups", version, body)).groups
    assert [each.body for each in broker.asked] == [DescribeGroup(group_id=name) for name in body.groups]
    assert [(each.group_id, each.error_code) for each in found] == [("here", 0), ("no", 16), ("gone", code)]
    assert found[2].error_message == ("Group gone not found." if code else None)
    shown = 328 if asks else NOT_ASKED
    assert [each.authorized_operations for each in found] == [shown, NOT_ASKED, shown]


@pytest.mark.parametrize("asks", [False, True])
async def test_consumer_groups_are_described_each_by_its_coordinator(asks: bool) -> None:
    group = ConsumerGroupDescribeResponse.DescribedGroup

    def say(request: CoordinatorRequest) -> Any:
        name = request.body.group_id
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, "none") if name == "no" else group(group_id=name)

    broker = Broker(say)
    body = ConsumerGroupDescribeRequest(group_ids=("here", "no"), include_authorized_operations=asks)
    found = (await broker.ask("ConsumerGroupDescribe", 1, body)).groups
    assert [each.body for each in broker.asked] == [
        DescribeConsumerGroup(group_id=name) for name in ("here", "no")
    ]
    assert [(each.group_id, each.error_code) for each in found] == [("here", 0), ("no", 69)]
    assert [each.authorized_operations for each in found] == [328 if asks else NOT_ASKED, NOT_ASKED]


@pytest.mark.parametrize(
    ("codes", "heard"),
    [
        ({}, 0),
        ({0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, 0),
        ({1: ErrorCode.COORDINATOR_NOT_AVAILABLE}, 0),
        ({1: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, 14),
        ({0: ErrorCode.NOT_COORDINATOR, 3: ErrorCode.THROTTLING_QUOTA_EXCEEDED}, 14),
        ({0: ErrorCode.UNKNOWN_SERVER_ERROR, 1: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, -1),
    ],
)
async def test_groups_are_listed_from_every_partition_that_is_led_here(
    codes: dict[int, ErrorCode], heard: int
) -> None:
    def say(request: CoordinatorRequest) -> Any:
        if request.partition in codes:
            return ApiError(codes[request.partition], "no")
        return [ListGroupsResponse.ListedGroup(group_id=f"g{request.partition}")]

    broker = Broker(say)
    body = ListGroupsRequest(states_filter=("Stable", "EMPTY"), types_filter=("Consumer",))
    answer = await broker.ask("ListGroups", 5, body)
    wanted = ListGroups(states=frozenset({"stable", "empty"}), types=frozenset({"consumer"}))
    assert [(each.partition, each.body) for each in broker.asked] == [(at, wanted) for at in (0, 1, 3)]
    assert answer.error_code == heard
    assert [each.group_id for each in answer.groups] == [f"g{at}" for at in (0, 1, 3) if at not in codes]
    assert await Broker(say, MetadataImage()).ask("ListGroups", 5, body) == ListGroupsResponse()


async def test_groups_are_deleted_once_each() -> None:
    codes = {"a": ErrorCode.NONE, "b": ErrorCode.NON_EMPTY_GROUP}
    broker = Broker(lambda request: codes[request.body.group_id])
    answer = await broker.ask("DeleteGroups", 2, DeleteGroupsRequest(groups_names=("b", "a", "b")))
    assert [each.body for each in broker.asked] == [DeleteGroup(group_id="b"), DeleteGroup(group_id="a")]
    assert [(each.group_id, each.error_code) for each in answer.results] == [("b", 68), ("a", 0)]


async def test_a_member_with_more_protocols_than_any_client_has_is_refused_before_its_coordinator() -> None:
    broker = Broker(refused(ErrorCode.UNKNOWN_MEMBER_ID))

    async def joined(count: int) -> ErrorCode:
        protocols = tuple(JoinGroupRequest.JoinGroupRequestProtocol(name=f"p{n}") for n in range(count))
        body = JoinGroupRequest(group_id="g", member_id="m", protocols=protocols)
        return ErrorCode((await broker.ask("JoinGroup", 9, body)).error_code)

    assert await joined(PROTOCOLS_MAX) is ErrorCode.UNKNOWN_MEMBER_ID and len(broker.asked) == 1
    assert await joined(PROTOCOLS_MAX + 1) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(broker.asked) == 1
