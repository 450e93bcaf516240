"""The APIs of coordinators, and the versions of each.

Owns these versions. Does not handle requests: `find`, `members` and `offsets` do. Those of transactions are
in `transactions.offered`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.cluster import Viewpoint
from metaquorum.broker.server.kafka.groups.find import GROUP, TRANSACTION, CoordinatorHandlers, InternalTopics
from metaquorum.broker.server.kafka.groups.members import GroupCoordinators, GroupHandlers
from metaquorum.broker.server.kafka.groups.offsets import OffsetHandlers
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.coordinators import CoordinatorConfig
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.kafka.services import Offered, at_once


class GroupServices:
    """`view` returns the cluster as a listener's clients see it; `controllers` finds the active one."""

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
            "JoinGroup": Offered(0, 9, at_once(groups.join_group)),
            "SyncGroup": Offered(0, 5, at_once(groups.sync_group)),
            "Heartbeat": Offered(0, 4, at_once(groups.heartbeat)),
            "LeaveGroup": Offered(0, 5, at_once(groups.leave_group)),
            "OffsetCommit": Offered(0, 10, at_once(offsets.offset_commit)),
            "OffsetFetch": Offered(0, 10, at_once(offsets.offset_fetch)),
            "OffsetDelete": Offered(0, 0, at_once(offsets.offset_delete)),
            "DescribeGroups": Offered(0, 6, at_once(groups.describe_groups)),
            "ListGroups": Offered(0, 5, at_once(groups.list_groups)),
            "ConsumerGroupHeartbeat": Offered(0, 1, at_once(groups.consumer_heartbeat)),
            "ConsumerGroupDescribe": Offered(0, 1, at_once(groups.describe_consumer_groups)),
            "DeleteGroups": Offered(0, 2, at_once(groups.delete_groups)),
        }
