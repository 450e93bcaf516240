"""The APIs of coordinators, and the versions of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaquorum.broker.coordinator.config import CoordinatorConfig
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.cluster import Viewpoint
from metaquorum.broker.server.kafka.groups.find import GROUP, TRANSACTION, CoordinatorHandlers, InternalTopics
from metaquorum.broker.server.kafka.groups.members import GroupCoordinators, GroupHandlers
from metaquorum.broker.server.kafka.groups.offsets import OffsetHandlers
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.kafka.services import Offered


class GroupServices:
    """`view` gives the cluster as a listener's clients see it; `controllers` finds the active one."""

    def __init__(
        self,
        config: CoordinatorConfig,
        requests: DataRequests,
        image: Callable[[], MetadataImage],
        view: Callable[[str], Viewpoint],
        *,
        node_id: int,
        controllers: AdminClient,
    ) -> None:
        by_type = {GROUP: config.offsets_topic, TRANSACTION: config.transactions_topic}
        self._finding = CoordinatorHandlers(view, InternalTopics(controllers, by_type))
        coordinators = GroupCoordinators(requests, image, node_id, config.offsets_topic.name)
        self._groups = GroupHandlers(coordinators)
        self._offsets = OffsetHandlers(coordinators, image)

    def offered(self) -> Mapping[str, Offered]:
        groups, offsets = self._groups, self._offsets
        return {
            "FindCoordinator": Offered(0, 6, self._finding.find_coordinator),
            "JoinGroup": Offered(0, 9, groups.join_group),
            "SyncGroup": Offered(0, 5, groups.sync_group),
            "Heartbeat": Offered(0, 4, groups.heartbeat),
            "LeaveGroup": Offered(0, 5, groups.leave_group),
            "OffsetCommit": Offered(0, 10, offsets.offset_commit),
            "OffsetFetch": Offered(0, 10, offsets.offset_fetch),
            "OffsetDelete": Offered(0, 0, offsets.offset_delete),
            "DescribeGroups": Offered(0, 6, groups.describe_groups),
            "ListGroups": Offered(0, 5, groups.list_groups),
            "ConsumerGroupHeartbeat": Offered(0, 1, groups.consumer_heartbeat),
            "ConsumerGroupDescribe": Offered(0, 1, groups.describe_consumer_groups),
            "DeleteGroups": Offered(0, 2, groups.delete_groups),
        }
