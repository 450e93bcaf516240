"""Transactions of a broker's process: the APIs of their coordinators, and the coordinators' requests to
others.

Owns the versions, and how the parts are connected. Does not handle requests: `handlers`, `offsets` and
`producers` do.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaquorum.broker.server.data.plane import DataPlane
from metaquorum.broker.server.kafka.groups.members import GroupCoordinators
from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.broker.server.kafka.transactions.handlers import TransactionHandlers
from metaquorum.broker.server.kafka.transactions.markers import MarkerSender
from metaquorum.broker.server.kafka.transactions.offsets import TransactionOffsets
from metaquorum.broker.server.kafka.transactions.producers import ProducerHandlers
from metaquorum.broker.server.kafka.transactions.verification import (
    TransactionalProduces,
    TransactionVerifier,
)
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.clock import Clock
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.kafka.services import Offered, at_once


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
