"""What clients ask the coordinator of a group: who it is, its members, its offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.members import heartbeat_refused
from metaquorum.broker.coordinator.groups.group import (
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchedOffset,
    FetchOffsets,
    ListGroups,
)
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.cluster import Viewpoint, endpoint_of
from metaquorum.clients.kafka.grpc_way import ForwardsRequests, ask_controllers
from metaquorum.clients.search import ClientError
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import InternalTopic
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.network.deferred import together
from metaquorum.wire import messages
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import CreateTopicsRequest, FindCoordinatorRequest, FindCoordinatorResponse

# Finds the coordinators of groups and transactional ids; creates the internal topics on first use.

GROUP, TRANSACTION = 0, 1
"""Types of keys."""
CREATE_TIMEOUT_MS = 10_000
RETRY_S = 1.0
"""How long after an attempt a topic is not created again: clients retry often."""

_MANY = 4
"""From this version on a request has several keys."""
_NO_ERROR = "NONE"
"""The message beside error code 0 in older versions, as in Kafka."""
_log = logging.getLogger(__name__)


def partition_of(key: str, partitions: int) -> int:
    """The partition of an internal topic for a group or a transactional id: by Java's string hash, where the
    smallest int, which has no absolute value, counts as 0."""
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return 0 if value == 0x80000000 else value % partitions


class InternalTopics:
    """Creates them through the active controller, each with one request at a time."""

    def __init__(self, controllers: ForwardsRequests, topics: Mapping[int, InternalTopic]) -> None:
        self._controllers = controllers
        self.by_type = topics
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._retry_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def need(self, topic: InternalTopic) -> None:
        """A client requested a topic that does not exist."""
        now_s = asyncio.get_running_loop().time()
        if topic.name not in self._creating and now_s >= self._retry_s.get(topic.name, 0):
            self._creating[topic.name] = asyncio.ensure_future(self._create(topic))

    def absence(self, topic: InternalTopic) -> str:
        """Why a topic does not exist."""
        problem = self._reported.get(topic.name)
        if problem is None:
            return f"{topic.name} does not exist yet: try again"
        return f"{topic.name} cannot be created: {problem}"

    async def _create(self, topic: InternalTopic) -> None:
        setting = CreateTopicsRequest.CreatableTopicConfig
        new = CreateTopicsRequest.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(setting(name=name, value=value) for name, value in topic.configs),
        )
        asked = CreateTopicsRequest(topics=(new,), timeout_ms=CREATE_TIMEOUT_MS)
        version = FORWARDED["CreateTopics"].max_version
        try:
            response = await ask_controllers(self._controllers, asked, version, timeout_ms=CREATE_TIMEOUT_MS)
            (result,) = response.topics
            code = ErrorCode.of(result.error_code)
            known = code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            problem = None if known else result.error_message or code.name
        except (ApiError, ClientError, OSError) as error:
            problem = str(error) or "the controllers did not answer"
        if problem is None:
            self._reported.pop(topic.name, None)
            _log.info("created the internal topic %s", topic.name)
        elif self._reported.get(topic.name) != problem:
            self._reported[topic.name] = problem
            _log.warning("the internal topic %s cannot be created: %s", topic.name, problem)
        self._retry_s[topic.name] = asyncio.get_running_loop().time() + RETRY_S
        del self._creating[topic.name]


class CoordinatorHandlers:
    """FindCoordinator. `view` gives the image for a listener's name."""

    def __init__(self, view: Callable[[str], Viewpoint], topics: InternalTopics) -> None:
        self._view = view
        self._topics = topics

    def find_coordinator(self, request: Request, client: Client) -> FindCoordinatorResponse:
        body: FindCoordinatorRequest = request.body
        view = self._view(client.listener)
        several = request.header.version >= _MANY
        coordinators = [
            self._find(body.key_type, key, view)
            for key in (body.coordinator_keys if several else (body.key,))
        ]
        if several:
            return FindCoordinatorResponse(coordinators=tuple(coordinators))
        coordinator = coordinators[0]
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message if coordinator.error_code else _NO_ERROR,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    def _find(self, key_type: int, key: str, view: Viewpoint) -> FindCoordinatorResponse.Coordinator:
        topic = self._topics.by_type.get(key_type)
        if topic is None:
            return _nowhere(key, ErrorCode.INVALID_REQUEST, f"{key_type} is not a type of coordinator")
        leader = self._leader(view.image, topic, key)
        if leader is None:
            text = self._topics.absence(topic)
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        endpoint = endpoint_of(view.image, leader, view.listener)
        if endpoint is None:
            text = f"the partition of {topic.name} for {key!r} has no leader now: try again"
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        return FindCoordinatorResponse.Coordinator(
            key=key, node_id=leader, host=endpoint.host, port=endpoint.port
        )

    def _leader(self, image: MetadataImage, topic: InternalTopic, key: str) -> int | None:
        topic_info = image.topics.topic_named(topic.name)
        count = 0 if topic_info is None else image.topics.partition_count_of(topic_info.topic_id)
        if topic_info is None or not count:
            self._topics.need(topic)
            return None
        partition = image.topics.partition(topic_info.topic_id, partition_of(key, count))
        return None if partition is None else partition.leader


def _nowhere(key: str, error: ErrorCode, text: str) -> FindCoordinatorResponse.Coordinator:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, port=-1, error_code=error, error_message=text
    )


# The group APIs of Kafka's protocol in front of the coordinators: for members, and for operators.

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


# OffsetCommit, OffsetFetch and OffsetDelete of Kafka's protocol in front of the groups' coordinators.

_IN_KAFKA, _TOP_LEVEL, _SEVERAL, _IDS = 1, 2, 8, 10
"""Versions: those that keep offsets in Kafka; of OffsetFetch, those with an error of the whole request, and
with several groups; those with topic ids instead of names."""

Part = tuple[str, int]


def last_of_each(parts: Iterable[Any]) -> dict[int, Any]:
    """The parts of a topic by their index; of several with one index, the last."""
    return {part.partition_index: part for part in parts}


class OffsetHandlers:
    """Each method is the handler of one API (`listeners.services`)."""

    def __init__(self, coordinators: GroupCoordinators, image: Callable[[], MetadataImage]) -> None:
        self._coordinators = coordinators
        self._image = image

    def _name(self, topic_id: bytes) -> str | None:
        topic = self._image().topics.topic(topic_id)
        return None if topic is None else topic.name

    def _exists(self, topic: str, partition: int) -> bool:
        topics = self._image().topics
        known = topics.topic_named(topic)
        return known is not None and topics.partition(known.topic_id, partition) is not None

    # ---- OffsetCommit

    async def offset_commit(self, request: Request, client: Client) -> messages.OffsetCommitResponse:
        body: messages.OffsetCommitRequest = request.body
        kinds = messages.OffsetCommitResponse
        asked, codes = self._known_parts(body, request.header.version)
        if asked:
            codes |= await self._committed(body, asked, request, client)
        answers = {
            key: kinds.OffsetCommitResponsePartition(partition_index=key[2], error_code=code)
            for key, code in codes.items()
        }
        return kinds(
            topics=tuple(
                kinds.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        [
                            answers[topic.name, topic.topic_id, part.partition_index]
                            for part in topic.partitions
                        ]
                    ),
                )
                for topic in body.topics
            )
        )

    def _known_parts(
        self, body: messages.OffsetCommitRequest, version: int
    ) -> tuple[tuple[Any, ...], dict[tuple[str, bytes, int], ErrorCode]]:
        """The partitions that exist, each once, with the last offset for it: so a request stores no more
        records than there are partitions. And the code of each, should it not exist."""
        codes: dict[tuple[str, bytes, int], ErrorCode] = {}
        topics: dict[tuple[str, bytes], dict[int, Any]] = {}
        for topic in body.topics:
            name = self._name(topic.topic_id) if version >= _IDS else topic.name
            missing = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if version < _IN_KAFKA:
                name, missing = None, ErrorCode.UNSUPPORTED_VERSION
            for index, part in last_of_each(topic.partitions).items():
                codes[topic.name, topic.topic_id, index] = missing
                if name is not None and self._exists(name, index):
                    topics.setdefault((name, topic.topic_id), {})[index] = part
        kind = messages.OffsetCommitRequest.OffsetCommitRequestTopic
        asked = tuple(
            kind(name=name, topic_id=topic_id, partitions=tuple(parts.values()))
            for (name, topic_id), parts in topics.items()
        )
        return asked, codes

    async def _committed(
        self, body: messages.OffsetCommitRequest, topics: tuple[Any, ...], request: Request, client: Client
    ) -> dict[tuple[str, bytes, int], ErrorCode]:
        """The result of each partition, under the name or id that the request has for it."""
        by_id = request.header.version >= _IDS
        fixed = messages.OffsetCommitRequest(
            group_id=body.group_id,
            generation_id_or_member_epoch=body.generation_id_or_member_epoch,
            member_id=body.member_id,
            group_instance_id=body.group_instance_id,
            retention_time_ms=body.retention_time_ms,
            topics=topics,
        )
        answer = await self._coordinators.ask(body.group_id, fixed, request, client)
        answered = topics if isinstance(answer, ErrorCode) else answer.topics
        return {
            ("" if by_id else topic.name, topic.topic_id, part.partition_index): (
                answer if isinstance(answer, ErrorCode) else ErrorCode(part.error_code)
            )
            for topic in answered
            for part in topic.partitions
        }

    # ---- OffsetFetch

    async def offset_fetch(self, request: Request, client: Client) -> messages.OffsetFetchResponse:
        body: messages.OffsetFetchRequest = request.body
        version = request.header.version
        if version >= _SEVERAL:
            groups = await together(
                *(self._fetch_group(group, body.require_stable, request, client) for group in body.groups)
            )
            return messages.OffsetFetchResponse(groups=tuple(groups))
        wanted = None
        if body.topics is not None:
            wanted = tuple((topic.name, index) for topic in body.topics for index in topic.partition_indexes)
        if version < _IN_KAFKA:
            fetched: Any = ErrorCode.UNSUPPORTED_VERSION
        else:
            fetched = await self._fetched(body.group_id, wanted, body.require_stable, request, client)
        code = ErrorCode.NONE
        if isinstance(fetched, ErrorCode):
            code, fetched = fetched, _failed(wanted or (), fetched)
            if version >= _TOP_LEVEL:
                return messages.OffsetFetchResponse(error_code=code)
        kinds = messages.OffsetFetchResponse
        return messages.OffsetFetchResponse(
            topics=tuple(
                kinds.OffsetFetchResponseTopic(
                    name=name,
                    partitions=tuple(kinds.OffsetFetchResponsePartition(**_fields(each)) for each in parts),
                )
                for name, parts in _by_topic(fetched).items()
            )
        )

    async def _fetch_group(
        self,
        group: messages.OffsetFetchRequest.OffsetFetchRequestGroup,
        require_stable: bool,
        request: Request,
        client: Client,
    ) -> messages.OffsetFetchResponse.OffsetFetchResponseGroup:
        kinds = messages.OffsetFetchResponse
        by_id = request.header.version >= _IDS
        wanted: tuple[Part, ...] | None = None
        unknown = []
        if group.topics is not None:
            names = [(self._name(each.topic_id) if by_id else each.name, each) for each in group.topics]
            wanted = tuple(
                (name, index) for name, each in names if name is not None for index in each.partition_indexes
            )
            unknown = [each for name, each in names if name is None]
        fetched = await self._fetched(group.group_id, wanted, require_stable, request, client)
        if isinstance(fetched, ErrorCode):
            return kinds.OffsetFetchResponseGroup(group_id=group.group_id, error_code=fetched)
        topics = []
        for name, parts in _by_topic(fetched).items():
            topic = self._image().topics.topic_named(name)
            if by_id and topic is None:
                continue
            topics.append(
                kinds.OffsetFetchResponseTopics(
                    name=name,
                    topic_id=bytes(16) if topic is None else topic.topic_id,
                    partitions=tuple(kinds.OffsetFetchResponsePartitions(**_fields(each)) for each in parts),
                )
            )
        for partition in unknown:
            missing = _failed(
                [("", index) for index in partition.partition_indexes], ErrorCode.UNKNOWN_TOPIC_ID
            )
            topics.append(
                kinds.OffsetFetchResponseTopics(
                    topic_id=partition.topic_id,
                    partitions=tuple(kinds.OffsetFetchResponsePartitions(**_fields(one)) for one in missing),
                )
            )
        return kinds.OffsetFetchResponseGroup(group_id=group.group_id, topics=tuple(topics))

    async def _fetched(
        self,
        group_id: str,
        wanted: tuple[Part, ...] | None,
        require_stable: bool,
        request: Request,
        client: Client,
    ) -> Any:
        once = None if wanted is None else tuple(dict.fromkeys(wanted))
        asked = FetchOffsets(group_id=group_id, partitions=once, require_stable=require_stable)
        return await self._coordinators.ask(group_id, asked, request, client)

    # ---- OffsetDelete

    async def offset_delete(self, request: Request, client: Client) -> messages.OffsetDeleteResponse:
        body: messages.OffsetDeleteRequest = request.body
        if not body.group_id:
            return messages.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        kinds = messages.OffsetDeleteRequest
        existing = tuple(
            kinds.OffsetDeleteRequestTopic(
                name=topic.name,
                partitions=tuple(
                    part for part in topic.partitions if self._exists(topic.name, part.partition_index)
                ),
            )
            for topic in body.topics
        )
        asked = messages.OffsetDeleteRequest(group_id=body.group_id, topics=existing)
        answer = await self._coordinators.ask(body.group_id, asked, request, client)
        if isinstance(answer, ErrorCode) or answer.error_code:
            code = answer if isinstance(answer, ErrorCode) else answer.error_code
            return messages.OffsetDeleteResponse(error_code=code)
        codes = {
            (topic.name, part.partition_index): part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return messages.OffsetDeleteResponse(
            topics=tuple(
                messages.OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        messages.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes.get((topic.name, part.partition_index), unknown),
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )


def _failed(parts: Iterable[Part], error: ErrorCode) -> tuple[FetchedOffset, ...]:
    return tuple(FetchedOffset(topic=topic, partition=partition, error=error) for topic, partition in parts)


def _by_topic(offsets: Iterable[FetchedOffset]) -> dict[str, list[FetchedOffset]]:
    topics: dict[str, list[FetchedOffset]] = {}
    for each in offsets:
        topics.setdefault(each.topic, []).append(each)
    return topics


def _fields(offset: FetchedOffset) -> dict[str, Any]:
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": offset.error,
    }
