"""What a controller's listeners of Kafka's protocol offer: the metadata log for observers, the quorum, what
Kafka's brokers ask for themselves and forward, and the same administration without a broker (KIP-919).

Requests become those that arrive over gRPC. Every controller answers what its own log shows; what only the
active one decides, another refuses with NOT_CONTROLLER, and a fetch with the leader's id.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from metaquorum.config.node import NodeConfig
from metaquorum.config.security import new_authorizer
from metaquorum.controller.server.envelopes import Envelopes, asked
from metaquorum.controller.server.forwarding_service import KafkaCalls
from metaquorum.controller.server.raft_requests import RaftRequests, listens_at
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.forwarded.describe import DESCRIBED_BY_CONTROLLERS, out_of_image
from metaquorum.listeners.forwarded.direct import MISMATCHED
from metaquorum.listeners.forwarded.table import ANSWERED
from metaquorum.listeners.response_memory import Unsent
from metaquorum.listeners.rights import CHECKS_OF_CONTROLLERS
from metaquorum.listeners.services import Client, Offered, Services, at_once, features_of
from metaquorum.listeners.slices import sliced
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.node.scheduler import StepEnd
from metaquorum.raft.core import RaftCore
from metaquorum.rpc.server import USUAL_MAX_BYTES
from metaquorum.rpc.transport import RaftService
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import DescribeClusterRequest, DescribeClusterResponse


def controller_services(
    config: NodeConfig,
    cluster_id: str,
    raft: RaftCore,
    service: RaftService,
    calls: KafkaCalls,
    rng: random.Random,
) -> Services:
    """The services of a controller's listeners."""
    reads = RaftRequests(cluster_id, raft, service, random_uuid(rng), calls.image, voters_ask=True)
    image = calls.image
    rights = Rights(authorizer=new_authorizer(config.values), image=image, checks=CHECKS_OF_CONTROLLERS)
    offered = {
        **{name: asked(api, calls) for name, api in ANSWERED.items()},
        "Envelope": Offered(0, 0, at_once(Envelopes(calls, rights).answer)),
        **out_of_image(DESCRIBED_BY_CONTROLLERS, image),
        "DescribeCluster": Offered(1, 2, ControllersOf(cluster_id, raft, image).describe),
        **reads.offered(),
    }
    return Services(sliced(guarded(offered, rights)), lambda: features_of(image(), raft.kraft_version))


def log_connections(
    config: NodeConfig,
    cluster_id: str,
    raft: RaftCore,
    service: RaftService,
    image: Callable[[], MetadataImage],
    rng: random.Random,
    *,
    unsent: Unsent,
    step_end: StepEnd,
) -> Callable[[str], ClientConnection]:
    """Makes connections that gRPC carries, whose callers it has admitted and counted: for fetches of the
    metadata log alone, and not for voters'."""
    reads = RaftRequests(cluster_id, raft, service, random_uuid(rng), image)
    services = Services(reads.offered(), lambda: features_of(image(), raft.kraft_version))
    settings = ConnectionConfig(
        listener=config.grpc_controller_listener or "",
        request_max_bytes=USUAL_MAX_BYTES,
        max_idle_s=math.inf,
        unsent=unsent,
        step_end=step_end,
    )
    limits = ConnectionLimits()

    def connected(address: str) -> ClientConnection:
        place = ConnectionSlot(limits, settings.listener, address)
        return ClientConnection(settings, services, place, _counted, _counted)

    return connected


def _counted(connection: ClientConnection) -> None:
    return


class ControllersOf:
    """DescribeCluster, with the controllers' listeners of the name by which the client came."""

    def __init__(self, cluster_id: str, raft: RaftCore, image: Callable[[], MetadataImage]) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._image = image

    def describe(self, request: Request, client: Client) -> DescribeClusterResponse:
        body: DescribeClusterRequest = request.body
        if body.endpoint_type != CONTROLLERS:
            return MISMATCHED
        named = DescribeClusterResponse.DescribeClusterBroker
        registered = self._image().controllers
        return DescribeClusterResponse(
            endpoint_type=CONTROLLERS,
            cluster_id=self._cluster_id,
            controller_id=-1 if self._raft.leader_id is None else self._raft.leader_id,
            brokers=tuple(
                named(broker_id=node_id, host=at.host, port=at.port)
                for node_id in sorted(registered)
                if (at := listens_at(registered, node_id, client)) is not None
            ),
        )
