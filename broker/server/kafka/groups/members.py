"""The group APIs of Kafka's protocol in front of the coordinators: for members, and for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.heartbeat import heartbeat_refused
from metaquorum.broker.coordinator.groups.group import (
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    ListGroups,
)
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.groups.find import partition_of
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.network.deferred import together
from metaquorum.wire import messages
from metaquorum.wire.codec import Request

GROUP_OPERATIONS = 328
"""Read, delete, describe: no authorizer forbids any."""

PROTOCOLS_MAX = 100
"""The most protocols (assignors) of a member: each join looks at those of all members. Clients have some."""
SUBSCRIBED_MAX = 10_000
"""The most topics that a member subscribes to by name: all of them are looked at in one turn of the loop."""
_NOT_ASKED = -(2**31)
_MANY_LEAVE, _NULL_PROTOCOL, _NAMED_PROTOCOL, _NOT_FOUND = 3, 7, 5, 6
"""Versions: LeaveGroup with several members, JoinGroup with a nullable protocol, SyncGroup that must name its
protocol (KIP-559), DescribeGroups with an error for a group that does not exist (KIP-1043)."""

_UNLISTED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}

_CODES = {
    ErrorCode.BROKER_NOT_AVAILABLE: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Codes that every client understands: find the coordinator again, or retry later."""


class GroupCoordinators:
    """Passes requests to the coordinator of a group on this broker. `image` returns the current one."""

    def __init__(
        self, requests: DataRequests, image: Callable[[], MetadataImage], node_id: int, topic: str
    ) -> None:
        self._requests = requests
        self._image = image
        self._node_id = node_id
        self._topic = topic

    async def ask(self, group_id: str, body: Any, request: Request, client: Client) -> Any | ErrorCode:
        """The answer of the group's coordinator, or why there is none."""
        image = self._image()
        topic = image.topics.topic_named(self._topic)
        count = 0 if topic is None else image.topics.partition_count_of(topic.topic_id)
        if not count:
            return ErrorCode.NOT_COORDINATOR
        return await self.ask_partition(partition_of(group_id, count), body, request, client)

    async def ask_partition(
        self, partition: int, body: Any, request: Request, client: Client
    ) -> Any | ErrorCode:
        answer: Any = await self._requests.begin(
            CoordinatorRequest(
                topic=self._topic,
                partition=partition,
                body=body,
                version=request.header.version,
                client_id=request.header.client_id or "",
                client_host=f"/{client.address}",
                principal=client.principal,
            )
        )
        if isinstance(answer, ApiError):
            return _CODES.get(answer.code, answer.code)
        return answer.body

    def led(self) -> list[int]:
        """The partitions that this broker coordinates."""
        image = self._image()
        topic = image.topics.topic_named(self._topic)
        if topic is None:
            return []
        partitions = image.topics.partitions_of(topic.topic_id)
        return [each.index for each in partitions if each.leader == self._node_id]


class GroupHandlers:
    """Each method is the handler of one API (`listeners.services`)."""

    def __init__(self, coordinators: GroupCoordinators) -> None:
        self._coordinators = coordinators

    # ---- members

    async def join_group(self, request: Request, client: Client) -> messages.JoinGroupResponse:
        body: messages.JoinGroupRequest = request.body
        answer: Any = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if len(body.protocols) <= PROTOCOLS_MAX:
            answer = await self._ask_member(body.group_id, request, client)
        if isinstance(answer, ErrorCode):
            answer = messages.JoinGroupResponse(
                error_code=answer, member_id=body.member_id, protocol_name=None
            )
        found: messages.JoinGroupResponse = answer
        if request.header.version < _NULL_PROTOCOL and found.protocol_name is None:
            found = _with(found, protocol_name="")
        return found

    async def sync_group(self, request: Request, client: Client) -> messages.SyncGroupResponse:
        body: messages.SyncGroupRequest = request.body
        if request.header.version >= _NAMED_PROTOCOL and None in (body.protocol_type, body.protocol_name):
            return messages.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        answer = await self._ask_member(body.group_id, request, client)
        if answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance is lost with the coordinator: the member joins again, here.
            answer = ErrorCode.REBALANCE_IN_PROGRESS
        return messages.SyncGroupResponse(error_code=answer) if isinstance(answer, ErrorCode) else answer

    async def heartbeat(self, request: Request, client: Client) -> messages.HeartbeatResponse:
        answer = await self._ask_member(request.body.group_id, request, client)
        if answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Sessions begin when the coordinator has loaded: until then no member is late.
            answer = ErrorCode.NONE
        return messages.HeartbeatResponse(error_code=answer) if isinstance(answer, ErrorCode) else answer

    async def leave_group(self, request: Request, client: Client) -> messages.LeaveGroupResponse:
        body: messages.LeaveGroupRequest = request.body
        is_single = request.header.version < _MANY_LEAVE
        if is_single:
            member = messages.LeaveGroupRequest.MemberIdentity(member_id=body.member_id)
            body = messages.LeaveGroupRequest(group_id=body.group_id, members=(member,))
        answer = await self._ask_member(body.group_id, request, client, body)
        if isinstance(answer, ErrorCode):
            return messages.LeaveGroupResponse(error_code=answer)
        return messages.LeaveGroupResponse(error_code=answer.members[0].error_code) if is_single else answer

    async def _ask_member(self, group_id: str, request: Request, client: Client, body: Any = None) -> Any:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        return await self._coordinators.ask(group_id, body or request.body, request, client)

    async def consumer_heartbeat(
        self, request: Request, client: Client
    ) -> messages.ConsumerGroupHeartbeatResponse:
        body: messages.ConsumerGroupHeartbeatRequest = request.body
        if len(body.subscribed_topic_names or ()) > SUBSCRIBED_MAX:
            text = f"a member may subscribe to {SUBSCRIBED_MAX} topics by name: use a pattern"
            return heartbeat_refused(ErrorCode.INVALID_REQUEST, text)
        answer = await self._ask_member(body.group_id, request, client)
        if isinstance(answer, ErrorCode):
            return messages.ConsumerGroupHeartbeatResponse(error_code=answer)
        found: messages.ConsumerGroupHeartbeatResponse = answer
        return found

    # ---- operators

    async def describe_consumer_groups(
        self, request: Request, client: Client
    ) -> messages.ConsumerGroupDescribeResponse:
        body: messages.ConsumerGroupDescribeRequest = request.body
        descriptions = await together(
            *(
                self._coordinators.ask(group_id, DescribeConsumerGroup(group_id=group_id), request, client)
                for group_id in body.group_ids
            )
        )
        operations = GROUP_OPERATIONS if body.include_authorized_operations else _NOT_ASKED
        kind = messages.ConsumerGroupDescribeResponse.DescribedGroup
        groups = []
        for group_id, description in zip(body.group_ids, descriptions, strict=True):
            if isinstance(description, ErrorCode):
                groups.append(kind(group_id=group_id, error_code=description))
            else:
                groups.append(_with(description, authorized_operations=operations))
        return messages.ConsumerGroupDescribeResponse(groups=tuple(groups))

    async def describe_groups(self, request: Request, client: Client) -> messages.DescribeGroupsResponse:
        body: messages.DescribeGroupsRequest = request.body
        descriptions = await together(
            *(
                self._coordinators.ask(group_id, DescribeGroup(group_id=group_id), request, client)
                for group_id in body.groups
            )
        )
        operations = GROUP_OPERATIONS if body.include_authorized_operations else _NOT_ASKED
        groups = []
        for group_id, description in zip(body.groups, descriptions, strict=True):
            if isinstance(description, ErrorCode):
                groups.append(
                    messages.DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=description)
                )
                continue
            more: dict[str, Any] = {}
            if description.group_state == "Dead" and request.header.version >= _NOT_FOUND:
                more = {
                    "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
                    "error_message": f"Group {group_id} not found.",
                }
            groups.append(_with(description, authorized_operations=operations, **more))
        return messages.DescribeGroupsResponse(groups=tuple(groups))

    async def list_groups(self, request: Request, client: Client) -> messages.ListGroupsResponse:
        body: messages.ListGroupsRequest = request.body
        asked = ListGroups(
            states=frozenset(each.lower() for each in body.states_filter),
            types=frozenset(each.lower() for each in body.types_filter),
        )
        parts = await together(
            *(
                self._coordinators.ask_partition(index, asked, request, client)
                for index in self._coordinators.led()
            )
        )
        # A partition that cannot be loaded, as its log says, must not hide the groups of all others.
        codes = {each for each in parts if isinstance(each, ErrorCode)} - _UNLISTED
        groups = [group for part in parts if not isinstance(part, ErrorCode) for group in part]
        return messages.ListGroupsResponse(
            error_code=min(codes, default=ErrorCode.NONE), groups=tuple(groups)
        )

    async def delete_groups(self, request: Request, client: Client) -> messages.DeleteGroupsResponse:
        body: messages.DeleteGroupsRequest = request.body
        names = tuple(dict.fromkeys(body.groups_names))
        codes = await together(
            *(self._coordinators.ask(name, DeleteGroup(group_id=name), request, client) for name in names)
        )
        return messages.DeleteGroupsResponse(
            results=tuple(
                messages.DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=code)
                for name, code in zip(names, codes, strict=True)
            )
        )


def _with(message: Any, **fields: Any) -> Any:
    """A copy of a message with other fields."""
    values = {name: getattr(message, name) for name in message.__struct_fields__}
    return type(message)(**(values | fields))
