"""The handlers of the group APIs before coordinators that a test answers for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.broker.server.kafka.groups import GroupCoordinators, GroupHandlers, OffsetHandlers
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import CoordinatorRequest, CoordinatorResponse
from metaquorum.wire import codec
from metaquorum.wire.table import API_BY_NAME
from tests.unit.broker.manager_world import ME, Cluster, topic_id

OFFSETS, PARTITIONS = "__consumer_offsets", 4
CLIENT = Client(listener="KAFKA", address="10.0.0.7", principal="User:ann")
Say = Callable[[CoordinatorRequest], Any]
HANDLERS = {
    "JoinGroup": "join_group",
    "SyncGroup": "sync_group",
    "Heartbeat": "heartbeat",
    "LeaveGroup": "leave_group",
    "ConsumerGroupHeartbeat": "consumer_heartbeat",
    "DescribeGroups": "describe_groups",
    "ConsumerGroupDescribe": "describe_consumer_groups",
    "ListGroups": "list_groups",
    "DeleteGroups": "delete_groups",
    "OffsetCommit": "offset_commit",
    "OffsetFetch": "offset_fetch",
    "OffsetDelete": "offset_delete",
}


def image() -> MetadataImage:
    cluster = Cluster()
    cluster.topic(OFFSETS, partitions=PARTITIONS)
    cluster.change((topic_id(OFFSETS), 2), leader=ME + 1)
    cluster.topic("orders", partitions=2)
    return cluster.image()


class Broker:
    """`say`: what a coordinator answers. Keeps what was asked."""

    def __init__(self, say: Say, known: MetadataImage | None = None) -> None:
        self._say = say
        self.asked: list[CoordinatorRequest] = []
        found = known or image()
        coordinators = GroupCoordinators(self, lambda: found, ME, OFFSETS)  # type: ignore[arg-type]
        self._handlers = GroupHandlers(coordinators), OffsetHandlers(coordinators, lambda: found)

    async def begin(self, request: CoordinatorRequest) -> CoordinatorResponse | ApiError:
        self.asked.append(request)
        answer = self._say(request)
        return answer if isinstance(answer, ApiError) else CoordinatorResponse(body=answer)

    async def ask(self, api: str, version: int, body: Any) -> Any:
        key, name = API_BY_NAME[api].key, HANDLERS[api]
        frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, 1, "app"), body))
        handlers = next(each for each in self._handlers if hasattr(each, name))
        answer = await getattr(handlers, name)(codec.decode_request(frame), CLIENT)
        codec.encode_response(key, version, 1, answer)
        return answer


def refused(code: ErrorCode) -> Say:
    return lambda request: ApiError(code, "no")
