"""The APIs that a broker offers on its Kafka listeners, and the versions of each.

Owns the table: APIs outside it are not advertised. Does not check permissions, as `access.guard` does, or
handle requests itself, apart from those that only need the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metaquorum.broker.server.kafka.access.guard import Rights, guarded
from metaquorum.broker.server.kafka.auto_topics import AutoTopics
from metaquorum.broker.server.kafka.cluster import Viewpoint, answer_describe_cluster
from metaquorum.broker.server.kafka.configs import OwnConfig, describe_configs
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.broker.server.kafka.forwarding import Forwarder
from metaquorum.broker.server.kafka.groups.offered import GroupServices
from metaquorum.broker.server.kafka.loggers import LoggerChanges
from metaquorum.broker.server.kafka.metadata_cache import MetadataCache
from metaquorum.broker.server.kafka.topic_partitions import answer_describe_topic_partitions
from metaquorum.broker.server.kafka.transactions.offered import TransactionServices
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.kafka.forwarded.describe import (
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
    list_config_resources,
)
from metaquorum.runtime.kafka.prepared import Prepared
from metaquorum.runtime.kafka.services import Client, Features, Handler, Offered, Services
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import MetadataRequest


class ClusterHandlers:
    """Answers from the image. `view` returns the image for a listener's name."""

    def __init__(self, view: Callable[[str], Viewpoint], prepared: Prepared, auto_topics: AutoTopics) -> None:
        self._view = view
        self.prepared = prepared
        self._metadata = MetadataCache(prepared)
        self._auto_topics = auto_topics

    def metadata(self, request: Request, client: Client) -> object:
        """Creates missing topics if the client and this broker allow it; the answer reports them as
        missing."""
        body: MetadataRequest = request.body
        known = self._metadata.answer(body, request.header.version, self._view(client.listener))
        if known.missing and body.allow_auto_topic_creation:
            self._auto_topics.want(known.missing, client, request.header.client_id)
        return known.body

    def describe_cluster(self, request: Request, client: Client) -> object:
        return answer_describe_cluster(request.body, self._view(client.listener))

    def describe_topic_partitions(self, request: Request, client: Client) -> object:
        return answer_describe_topic_partitions(request.body, self._view(client.listener))


class SettingsHandlers:
    """Settings, from the image; a fenced broker answers with what it last knew, as in Kafka."""

    def __init__(self, image: Callable[[], MetadataImage], own: OwnConfig) -> None:
        self._image = image
        self._own = own

    @property
    def node_id(self) -> int:
        return self._own.node_id

    def offered(self) -> Mapping[str, Offered]:
        return {
            "DescribeConfigs": Offered(0, 4, self._describe_configs),
            "DescribeAcls": Offered(0, 3, self._out_of_image(describe_acls)),
            "DescribeUserScramCredentials": Offered(
                0, 0, self._out_of_image(describe_user_scram_credentials)
            ),
            "DescribeClientQuotas": Offered(0, 1, self._out_of_image(describe_client_quotas)),
            "ListConfigResources": Offered(0, 1, self._list_config_resources),
        }

    def _describe_configs(self, request: Request, client: Client) -> object:
        return describe_configs(request.body, request.header.version, self._image(), self._own)

    def _list_config_resources(self, request: Request, client: Client) -> object:
        return list_config_resources(request.body, request.header.version, self._image())

    def _out_of_image(self, describe: Callable[[Any, MetadataImage], object]) -> Handler:
        return lambda request, client: describe(request.body, self._image())


def offered_services(
    cluster: ClusterHandlers,
    data: DataHandlers,
    logs: Mapping[str, Offered],
    settings: SettingsHandlers,
    forwarder: Forwarder,
    groups: GroupServices,
    transactions: TransactionServices,
    features: Callable[[], Features],
    rights: Rights,
) -> Services:
    """Everything that this release's brokers offer, behind the checks of each API."""
    offered = {
        "Produce": Offered(0, 13, data.produce),
        "Fetch": Offered(4, 18, data.fetch),
        "ListOffsets": Offered(0, 10, data.list_offsets),
        "Metadata": Offered(0, 13, cluster.metadata),
        **groups.offered(),
        **transactions.offered(),
        "DescribeCluster": Offered(0, 2, cluster.describe_cluster),
        "DescribeTopicPartitions": Offered(0, 0, cluster.describe_topic_partitions),
        **logs,
        **settings.offered(),
        **forwarder.offered(),
    }
    whole = offered["IncrementalAlterConfigs"]
    changes = LoggerChanges(settings.node_id, forwarder.handle)
    offered["IncrementalAlterConfigs"] = Offered(whole.min_version, whole.max_version, changes.handle)
    return Services(guarded(offered, rights), features, cluster.prepared)
