"""What a controller's listeners of Kafka's protocol offer: the metadata log for observers, the quorum, what
Kafka's brokers ask for themselves and forward, and the same administration without a broker (KIP-919).

Requests become those that arrive over gRPC. Every controller answers what its own log shows; what only the
active one decides, another refuses with NOT_CONTROLLER, and a fetch with the leader's id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from metaquorum.clients.kafka.quorum import FETCH_HIGHEST, FETCH_LOWEST
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import new_authorizer
from metaquorum.controller.server.envelopes import Envelopes, asked
from metaquorum.controller.server.forwarding_service import KafkaCalls
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.access.table import CHECKS_OF_CONTROLLERS
from metaquorum.listeners.forwarded.describe import (
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_user_scram_credentials,
)
from metaquorum.listeners.forwarded.direct import DIRECT, MISMATCHED
from metaquorum.listeners.forwarded.table import ASKED_BY_NODES, FORWARDED
from metaquorum.listeners.metadata_fetch import (
    LeaderAt,
    fetch_answer,
    fetch_of,
    snapshot_answer,
    snapshot_fetch_of,
)
from metaquorum.listeners.services import Client, EndConnection, Offered, Services, features_of
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ControllerRegistration, MetadataImage, NodeEndpoint
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import FetchRequest, FetchSnapshotRequest, RaftResponse
from metaquorum.rpc.raft_server import RaftService
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FetchResponse,
    FetchSnapshotResponse,
)


def controller_services(
    config: NodeConfig,
    cluster_id: str,
    raft: RaftCore,
    service: RaftService,
    calls: KafkaCalls,
    rng: random.Random,
) -> Services:
    """The services of a controller's listeners."""
    reads = MetadataReads(cluster_id, raft, service, random_uuid(rng), calls.image)
    image = calls.image
    described = {
        "DescribeConfigs": _out_of_image(lambda body, version: describe_configs(body, version, image())),
        "DescribeAcls": _out_of_image(lambda body, _: describe_acls(body, image())),
        "DescribeClientQuotas": _out_of_image(lambda body, _: describe_client_quotas(body, image())),
        "DescribeUserScramCredentials": _out_of_image(
            lambda body, _: describe_user_scram_credentials(body, image())
        ),
    }
    rights = Rights(authorizer=new_authorizer(config.values), image=image, checks=CHECKS_OF_CONTROLLERS)
    offered = {
        **{name: asked(api, calls) for name, api in FORWARDED.items()},
        **{name: asked(api, calls, often=True) for name, api in ASKED_BY_NODES.items()},
        "Envelope": Offered(0, 0, Envelopes(calls, rights).answer),
        **{
            name: Offered(DIRECT[name].min_version, DIRECT[name].max_version, handle)
            for name, handle in described.items()
        },
        "DescribeCluster": Offered(1, 2, ControllersOf(cluster_id, raft, image).describe),
        "Fetch": Offered(FETCH_LOWEST, FETCH_HIGHEST, reads.fetch),
        "FetchSnapshot": Offered(0, 1, reads.fetch_snapshot),
    }
    return Services(guarded(offered, rights), lambda: features_of(image(), raft.kraft_version))


def _out_of_image(describe: Callable[[Any, int], Any]) -> Callable[[Request, Client], Any]:
    return lambda request, client: describe(request.body, request.header.version)


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
                if (at := _listens_at(registered, node_id, client)) is not None
            ),
        )


def _listens_at(
    registered: Mapping[int, ControllerRegistration], node_id: int, client: Client
) -> NodeEndpoint | None:
    """Where a controller has the listener by whose name the client came."""
    each = registered.get(node_id)
    endpoints = () if each is None else each.endpoints
    return next((at for at in endpoints if at.name == client.listener), None)


class MetadataReads:
    """Fetch and FetchSnapshot of the metadata log. A caller that names a voter's id is refused: voters
    replicate over gRPC, and nothing else may count as one. `reader`: stands for callers without a directory
    id. `image` has the leader's address, for readers that learn it from answers (KIP-853)."""

    def __init__(
        self,
        cluster_id: str,
        raft: RaftCore,
        service: RaftService,
        reader: bytes,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._service = service
        self._reader = reader
        self._image = image

    def _reader_of(self, client: Client) -> bytes:
        """Each connection is a reader of its own: a leader holds one fetch of each."""
        return self._reader[:8] + client.connection.to_bytes(8, "big")

    def _may(self, asked: FetchRequest | FetchSnapshotRequest | None) -> bool:
        return asked is not None and asked.replica_id not in self._raft.voters

    def _ask(self, asked: FetchRequest | FetchSnapshotRequest) -> asyncio.Future[RaftResponse]:
        waiting = self._service.ask(asked)
        if waiting is None:
            raise EndConnection("this node is stopping")
        return waiting

    async def fetch(self, request: Request, client: Client) -> FetchResponse:
        version = request.header.version
        asked = fetch_of(request.body, version, self._reader_of(client), self._cluster_id)
        if asked is None or not self._may(asked):
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        answer = await self._ask(asked)
        return fetch_answer(answer, version, self._leader(answer, client))

    async def fetch_snapshot(self, request: Request, client: Client) -> FetchSnapshotResponse:
        asked = snapshot_fetch_of(request.body, self._reader_of(client), self._cluster_id)
        if asked is None or not self._may(asked):
            return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
        answer = await self._ask(asked)
        return snapshot_answer(answer, request.header.version, self._leader(answer, client))

    def _leader(self, answer: RaftResponse, client: Client) -> LeaderAt | None:
        node_id = answer.leader_id
        at = None if node_id is None else _listens_at(self._image().controllers, node_id, client)
        return None if at is None or node_id is None else LeaderAt(node_id, at.host, at.port)
