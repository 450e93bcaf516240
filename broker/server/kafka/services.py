"""The Kafka services of a broker's process: connects each handler to the part that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaquorum.broker.server.data.plane import DataPlane
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.cluster import (
    MetadataCache,
    Viewpoint,
    answer_describe_cluster,
    answer_describe_topic_partitions,
)
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.broker.server.kafka.forwarding import BY_DEFAULT, AutoTopics, Forwarder, Published
from metaquorum.broker.server.kafka.groups import (
    GROUP,
    TRANSACTION,
    CoordinatorHandlers,
    GroupCoordinators,
    GroupHandlers,
    InternalTopics,
    OffsetHandlers,
)
from metaquorum.broker.server.kafka.log_dirs import LogDirHandlers
from metaquorum.broker.server.kafka.log_ends import LogEndHandlers
from metaquorum.broker.server.kafka.opening import BatchOpener
from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.broker.server.kafka.transactions.handlers import TransactionHandlers
from metaquorum.broker.server.kafka.transactions.markers import MarkerSender, ProducerHandlers
from metaquorum.broker.server.kafka.transactions.verification import (
    TransactionalProduces,
    TransactionOffsets,
    TransactionVerifier,
)
from metaquorum.clients.kafka.grpc_way import ForwardsRequests
from metaquorum.clock import Clock
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import new_authorizer
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.answers import Prepared
from metaquorum.listeners.forwarded.describe import DESCRIBED, out_of_image
from metaquorum.listeners.forwarded.described_configs import OwnConfig
from metaquorum.listeners.forwarded.own_changes import OwnChanges
from metaquorum.listeners.rights import CHECKS
from metaquorum.listeners.services import (
    Client,
    Features,
    Offered,
    Services,
    at_once,
    features_of,
)
from metaquorum.listeners.slices import sliced
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import CoordinatorConfig
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import MetadataRequest


def broker_services(
    config: NodeConfig,
    cluster_id: str,
    data: DataPlane,
    published: Published,
    transactions: TransactionServices,
    *,
    forwarder: Forwarder,
    kraft_version: Callable[[], int],
    serves: Callable[[], bool] = lambda: True,
    wall_ms: Callable[[], int],
) -> Services:
    """The services of this broker's listeners. `kraft_version`: returns the committed level; `serves`:
    whether the broker is unfenced and its lease is valid; `wall_ms`: its clock."""
    prepared = Prepared()
    creates_topics, authorizer = config.flag("auto.create.topics.enable"), new_authorizer(config.values)
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
            image=published.image,
            cluster_id=cluster_id,
            node_id=config.node_id,
            listener=listener,
            serves=serves(),
        )

    return offered_services(
        ClusterHandlers(view, prepared, auto_topics),
        DataHandlers(
            data.requests, image, transactions.produces, BatchOpener(image, config.replicas(), wall_ms)
        ),
        {
            **LogDirHandlers(data.requests, image).offered(),
            **LogEndHandlers(data.requests, image).offered(),
        },
        OwnConfig.of(config),
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
        Rights(authorizer=authorizer, image=image, checks=CHECKS, creates_topics=creates_topics),
    )


# The APIs that a broker offers on its Kafka listeners, and the versions of each.


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


def offered_services(
    cluster: ClusterHandlers,
    data: DataHandlers,
    logs: Mapping[str, Offered],
    own: OwnConfig,
    forwarder: Forwarder,
    groups: GroupServices,
    transactions: TransactionServices,
    features: Callable[[], Features],
    rights: Rights,
) -> Services:
    """Everything that this release's brokers offer, behind the checks of each API. Settings come from the
    image; a fenced broker answers with what it last knew, as in Kafka."""
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
        **out_of_image(DESCRIBED, rights.image, own),
        **forwarder.offered(),
    }
    OwnChanges.before(offered, own.node_id, is_broker=True)
    return Services(sliced(guarded(offered, rights)), features, cluster.prepared)


# The APIs of coordinators, and the versions of each.
# Those of transactions are in `transactions.offered`.


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
        controllers: ForwardsRequests,
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


# Transactions of a broker's process: the APIs of their coordinators, and the coordinators' requests to
# others.


class TransactionServices:
    """`markers` carries out `SendTxnMarkers`, `produces` begins produces in transactions."""

    def __init__(self, config: NodeConfig, data: DataPlane, *, clock: Clock) -> None:
        requests = data.requests

        def image() -> MetadataImage:
            return data.image

        coordinators, node_id = config.coordinators(), config.node_id
        topic, offsets = coordinators.transactions_topic.name, coordinators.offsets_topic
        listener = config.inter_broker_listener
        timeout_ms = config.number("replica.socket.timeout.ms")
        self._brokers = OtherBrokers(
            image,
            data.connector,
            listener="" if listener is None else listener.name,
            broker_id=node_id,
            timeout_s=timeout_ms / 1000,
        )
        self.markers = MarkerSender(
            requests,
            self._brokers,
            image,
            clock.wall_ms,
            topic=topic,
            broker_id=node_id,
            timeout_ms=timeout_ms,
        )
        self._producers = ProducerHandlers(requests, image, wall_ms=clock.wall_ms, timeout_ms=timeout_ms)
        verifier = TransactionVerifier(requests, self._brokers, image, topic=topic, broker_id=node_id)
        self.produces = TransactionalProduces(requests, verifier, image)
        of_transactions = GroupCoordinators(requests, image, node_id, topic)
        of_groups = GroupCoordinators(requests, image, node_id, offsets.name)
        self._handlers = TransactionHandlers(
            of_transactions, requests, image, (offsets.name, offsets.partitions)
        )
        self._offsets = TransactionOffsets(of_groups, verifier, image, self._handlers.offsets_partition)

    def offered(self) -> Mapping[str, Offered]:
        handlers = self._handlers
        return {
            "InitProducerId": Offered(0, 5, at_once(handlers.init_producer_id)),
            "AddPartitionsToTxn": Offered(0, 4, at_once(handlers.add_partitions_to_txn)),
            "AddOffsetsToTxn": Offered(0, 3, at_once(handlers.add_offsets_to_txn)),
            "EndTxn": Offered(0, 3, at_once(handlers.end_txn)),
            "TxnOffsetCommit": Offered(0, 3, at_once(self._offsets.txn_offset_commit)),
            "DescribeTransactions": Offered(0, 0, at_once(handlers.describe_transactions)),
            "ListTransactions": Offered(0, 1, at_once(handlers.list_transactions)),
            "WriteTxnMarkers": Offered(0, 1, at_once(self._producers.write_txn_markers)),
            "DescribeProducers": Offered(0, 0, at_once(self._producers.describe_producers)),
        }

    async def close(self) -> None:
        """Ends what is in progress: the next coordinator sends what is missing."""
        self.markers.close()
        self._brokers.close()
