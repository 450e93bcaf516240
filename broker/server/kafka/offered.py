"""The APIs that a broker offers on its Kafka listeners, and the versions of each.

What is not in this table is not advertised.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.broker.server.kafka.cluster import Viewpoint, answer_describe_cluster, answer_metadata
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import KNOWN_FEATURES
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.kafka.services import Client, Features, Offered, Services
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

_NO_COORDINATOR = (
    "this broker has no coordinators: read partitions without a group and produce without transactions"
)


class ClusterHandlers:
    """What is answered from the image. `view` gives the image for a listener's name."""

    def __init__(self, view: Callable[[str], Viewpoint]) -> None:
        self._view = view

    def metadata(self, request: Request, client: Client) -> object:
        return answer_metadata(request.body, request.header.version, self._view(client.listener))

    def describe_cluster(self, request: Request, client: Client) -> object:
        return answer_describe_cluster(request.body, self._view(client.listener))

    def find_coordinator(self, request: Request, client: Client) -> object:
        """There is none: groups and transactions are not served."""
        body: FindCoordinatorRequest = request.body
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        coordinators = tuple(
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=-1, port=-1, error_code=code, error_message=_NO_COORDINATOR
            )
            for key in body.coordinator_keys
        )
        if request.header.version >= 4:
            return FindCoordinatorResponse(coordinators=coordinators)
        return FindCoordinatorResponse(error_code=code, error_message=_NO_COORDINATOR, node_id=-1, port=-1)


def broker_services(
    cluster: ClusterHandlers, data: DataHandlers, image: Callable[[], MetadataImage]
) -> Services:
    """Everything that this release's brokers offer."""
    offered = {
        "Produce": Offered(0, 13, data.produce),
        "Fetch": Offered(4, 18, data.fetch),
        "ListOffsets": Offered(1, 6, data.list_offsets),
        "Metadata": Offered(0, 13, cluster.metadata),
        "FindCoordinator": Offered(0, 6, cluster.find_coordinator),
        "InitProducerId": Offered(0, 5, data.init_producer_id),
        "DescribeCluster": Offered(0, 2, cluster.describe_cluster),
    }
    return Services(offered, lambda: features_of(image()))


def features_of(image: MetadataImage) -> Features:
    """What ApiVersions says of features."""
    return Features(
        supported={each.name: (each.min_level, each.max_level) for each in KNOWN_FEATURES},
        finalized=dict(image.features.finalized),
        epoch=image.provenance.offset,
    )
