"""The shell in front of the coordinators of a simulated broker: its real handlers.

Plays the part of the listener: a request is a decoded message, and so is its response. The handlers run on
the simulated loop of their process, and their requests to other brokers go through the simulated network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from metaquorum.broker.replica.events import DataEvent, DataRespond, SendTxnMarkers
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.cluster import Viewpoint
from metaquorum.broker.server.kafka.data import DataHandlers
from metaquorum.broker.server.kafka.groups import (
    GROUP,
    TRANSACTION,
    CoordinatorHandlers,
    GroupCoordinators,
    GroupHandlers,
    InternalTopics,
    OffsetHandlers,
)
from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.broker.server.kafka.transactions.handlers import TransactionHandlers
from metaquorum.broker.server.kafka.transactions.markers import MarkerSender, ProducerHandlers
from metaquorum.broker.server.kafka.transactions.verification import (
    TransactionalProduces,
    TransactionOffsets,
    TransactionVerifier,
)
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.listeners.services import Client
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import CoordinatorConfig
from metaquorum.network.deferred import Driven
from metaquorum.wire import messages
from metaquorum.wire.codec import Request, RequestHeader
from tests.sim.kafka.loop import SimulatedLoop
from tests.sim.processes import CLUSTER_ID

if TYPE_CHECKING:
    from tests.sim.kafka.broker import KafkaBroker

LISTENER = "PLAINTEXT"
OTHERS_TIMEOUT_MS = 900
_OWN = "shell"


class SimulatedBrokers:
    """`OtherBrokers` on the simulated network."""

    def __init__(self, process: KafkaBroker) -> None:
        self._process = process

    async def ask(self, broker_id: int, body: Any, *, version: int | None = None) -> Any:
        process = self._process
        future = asyncio.get_running_loop().create_future()

        def finish(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        def fail(reason: str) -> None:
            if not future.done():
                future.set_exception(ConnectionFailed(reason))

        process.ask_broker(broker_id, body, version or 0, OTHERS_TIMEOUT_MS, finish, fail)
        return await future


class KafkaServer:
    """The APIs of one broker process. `looked_at` is called with markers that are sent."""

    def __init__(self, process: KafkaBroker, config: CoordinatorConfig) -> None:
        self._process = process
        self.loop = SimulatedLoop(process.host.engine, lambda: process.alive, lambda: process.paused)
        # Distinguishes its responses from those to clients of the network, whose keys are numbers too.
        self.requests = DataRequests(self._submit, self._post, produced_max_bytes=None)
        others = cast("OtherBrokers", SimulatedBrokers(process))
        topic, offsets = config.transactions_topic.name, config.offsets_topic
        node_id, image, requests = process.node_id, self._image, self.requests
        self.markers = MarkerSender(
            requests,
            others,
            image,
            process.host.wall_ms,
            topic=topic,
            broker_id=node_id,
            timeout_ms=OTHERS_TIMEOUT_MS,
        )
        verifier = TransactionVerifier(requests, others, image, topic=topic, broker_id=node_id)
        of_groups = GroupCoordinators(requests, image, node_id, offsets.name)
        transactions = TransactionHandlers(
            GroupCoordinators(requests, image, node_id, topic),
            requests,
            image,
            (offsets.name, offsets.partitions),
        )
        groups, committed = GroupHandlers(of_groups), OffsetHandlers(of_groups, image)
        in_transactions = TransactionOffsets(of_groups, verifier, image, transactions.offsets_partition)
        producers = ProducerHandlers(
            requests, image, wall_ms=process.host.wall_ms, timeout_ms=OTHERS_TIMEOUT_MS
        )
        data = DataHandlers(requests, image, TransactionalProduces(requests, verifier, image))
        topics = SimpleNamespace(
            by_type={GROUP: offsets, TRANSACTION: config.transactions_topic},
            need=lambda topic: None,
            absence=lambda topic: f"{topic.name} does not exist",
        )
        finding = CoordinatorHandlers(self._view, cast("InternalTopics", topics))
        self._handlers: dict[type, Callable[[Request, Client], Any]] = {
            messages.FindCoordinatorRequest: finding.find_coordinator,
            messages.JoinGroupRequest: groups.join_group,
            messages.SyncGroupRequest: groups.sync_group,
            messages.HeartbeatRequest: groups.heartbeat,
            messages.LeaveGroupRequest: groups.leave_group,
            messages.ConsumerGroupHeartbeatRequest: groups.consumer_heartbeat,
            messages.OffsetCommitRequest: committed.offset_commit,
            messages.OffsetFetchRequest: committed.offset_fetch,
            messages.InitProducerIdRequest: transactions.init_producer_id,
            messages.AddPartitionsToTxnRequest: transactions.add_partitions_to_txn,
            messages.AddOffsetsToTxnRequest: transactions.add_offsets_to_txn,
            messages.EndTxnRequest: transactions.end_txn,
            messages.TxnOffsetCommitRequest: in_transactions.txn_offset_commit,
            messages.WriteTxnMarkersRequest: producers.write_txn_markers,
            messages.ProduceRequest: data.produce,
        }

    def _image(self) -> MetadataImage:
        return self._process.image or MetadataImage()

    def _view(self, listener: str) -> Viewpoint:
        node_id = self._process.node_id
        return Viewpoint(image=self._image(), cluster_id=CLUSTER_ID, node_id=node_id, listener=listener)

    # ---- requests --------------------------------------------------------------------------------

    def arrived(self, body: Any, version: int, client_id: str, answer: Callable[[Any], None]) -> None:
        """A request of a client or of another broker; `answer` gets the body of the response."""
        header = RequestHeader(api_key=-1, version=version, correlation_id=0, client_id=client_id)
        request = Request(header, body, 0)
        client = Client(listener=LISTENER, address="127.0.0.1")

        async def serve() -> None:
            found = self._handlers[type(body)](request, client)
            answer(await found if isinstance(found, Awaitable) else found)

        def begin() -> None:
            """Without a task, as in the broker's listener."""
            serving = Driven(serve())
            if serving.done():
                serving.result()
            serving.then(lambda _: serving.result())

        self.loop.call_soon(begin)

    def send_markers(self, effect: SendTxnMarkers) -> None:
        self.loop.call_soon(self.markers.send, effect)

    # ---- to the node and back --------------------------------------------------------------------

    def _submit(self, event: DataEvent) -> bool:
        self._post(event)
        return True

    def _post(self, event: Any) -> None:
        self._process.deliver(lambda: replace(event, key=(_OWN, event.key)))

    def answered(self, effect: DataRespond) -> bool:
        """False: the response is to a client of the network."""
        if not isinstance(effect.key, tuple):
            return False
        # On the loop, because coroutines continue within the call.
        self.loop.call_soon(self.requests.answer, replace(effect, key=effect.key[1]))
        return True
