"""The Kafka services of a broker's process: connects each handler to the part of the process that it needs.

Owns the connections. Does not know versions, which `offered` has, or handle a request.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.broker.server.data.plane import DataPlane
from metaquorum.broker.server.kafka.access.guard import Rights
from metaquorum.broker.server.kafka.auto_topics import BY_DEFAULT, AutoTopics
from metaquorum.broker.server.kafka.cluster import Viewpoint
from metaquorum.broker.server.kafka.configs import OwnConfig
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.broker.server.kafka.forwarding import Forwarder
from metaquorum.broker.server.kafka.groups.offered import GroupServices
from metaquorum.broker.server.kafka.log_dirs import LogDirHandlers
from metaquorum.broker.server.kafka.log_ends import LogEndHandlers
from metaquorum.broker.server.kafka.offered import (
    ClusterHandlers,
    SettingsHandlers,
    offered_services,
)
from metaquorum.broker.server.kafka.transactions.offered import TransactionServices
from metaquorum.broker.server.published import Published
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.config.access.listeners import new_authorizer
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.kafka.prepared import Prepared
from metaquorum.runtime.kafka.services import Services, features_of


def broker_services(
    config: NodeConfig,
    cluster_id: str,
    data: DataPlane,
    published: Published,
    transactions: TransactionServices,
    *,
    forwarder: Forwarder,
    kraft_version: Callable[[], int],
) -> Services:
    """The services of this broker's listeners. `kraft_version`: returns the committed level."""
    prepared = Prepared()
    creates_topics = config.text("auto.create.topics.enable") == "true"
    sizes = config.set_in_file(("num.partitions", "default.replication.factor"))
    auto_topics = AutoTopics(
        forwarder,
        enabled=creates_topics,
        partitions=int(sizes.get("num.partitions", BY_DEFAULT)),
        replication_factor=int(sizes.get("default.replication.factor", BY_DEFAULT)),
    )

    def image() -> MetadataImage:
        return published.image

    def view(listener: str) -> Viewpoint:
        return Viewpoint(
            image=published.image, cluster_id=cluster_id, node_id=config.node_id, listener=listener
        )

    return offered_services(
        ClusterHandlers(view, prepared, auto_topics),
        DataHandlers(data.requests, image, transactions.produces),
        {
            **LogDirHandlers(data.requests, image).offered(),
            **LogEndHandlers(data.requests, image).offered(),
        },
        SettingsHandlers(image, OwnConfig.of(config)),
        forwarder,
        GroupServices(
            config.coordinators(),
            data.requests,
            image,
            view,
            node_id=config.node_id,
            controllers=forwarder.controllers,
        ),
        transactions,
        lambda: features_of(image(), kraft_version()),
        Rights(
            authorizer=new_authorizer(config.values),
            image=image,
            creates_topics=creates_topics,
        ),
    )
