"""The APIs that the active controller answers to clients that send them without a broker (KIP-919).

Which these are: those that brokers forward, and those with which Kafka's controllers describe settings,
feature levels and themselves. Responses are the leader's; another controller refuses and names the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from metaquorum.listeners.forwarded.api import Call, Forwarded, answers
from metaquorum.listeners.forwarded.describe import DESCRIBED_BY_CONTROLLERS, Described
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.services import features_of, versions_answer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage, NodeEndpoint
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from metaquorum.wire.table import API_BY_NAME

MISMATCHED = DescribeClusterResponse(
    error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
    error_message="controllers describe only controllers: set endpoint type 2",
)


class NotTheLeader(Exception):
    """This controller is not the active one: another leads the quorum, or none."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error)
        self.error = error


async def _quorum(call: Call) -> core.DescribeQuorumResponse:
    """The state of the quorum. Raises NotTheLeader."""
    found = await call.answer(core.DescribeQuorumRequest(), core.DescribeQuorumResponse)
    if isinstance(found, ApiError):
        raise NotTheLeader(found)
    return found


async def _api_versions(body: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    quorum = await _quorum(call)
    keys = tuple(
        ApiVersionsResponse.ApiVersion(
            api_key=key, min_version=each.min_version, max_version=each.max_version
        )
        for key, each in sorted(DIRECT_BY_KEY.items())
    )
    return versions_answer(keys, features_of(call.image, quorum.kraft_version), call.version)


async def _describe_cluster(body: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """The controllers (endpoint type 2)."""
    if body.endpoint_type != CONTROLLERS:
        return MISMATCHED
    quorum = await _quorum(call)
    return DescribeClusterResponse(
        endpoint_type=CONTROLLERS,
        cluster_id=quorum.cluster_id,
        controller_id=quorum.leader_id,
        brokers=tuple(
            DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=at.host, port=at.port)
            for node_id, at in sorted(_endpoints(quorum, call.image).items())
        ),
    )


def _endpoints(
    quorum: core.DescribeQuorumResponse, image: MetadataImage
) -> dict[int, NodeEndpoint | VoterEndpoint]:
    """The voters' addresses: from their registrations, otherwise from the voters record (KIP-853)."""
    endpoints_of: dict[int, NodeEndpoint | VoterEndpoint] = {}
    for voter in quorum.voters:
        registered = image.controllers.get(voter.node_id)
        endpoints = registered.endpoints if registered is not None else voter.endpoints
        if endpoints:
            endpoints_of[voter.node_id] = endpoints[0]
    return endpoints_of


def _out_of_image(described: Described) -> Callable[[Any, Call], Awaitable[Any]]:
    async def handle(body: Any, call: Call) -> object:
        await _quorum(call)
        return described.answer(body, call.version, call.image)

    return handle


DIRECT: dict[str, Forwarded] = {
    **FORWARDED,
    "ApiVersions": answers("ApiVersions")(_api_versions),
    "DescribeCluster": answers("DescribeCluster", since=1)(_describe_cluster),
    **{name: answers(name)(_out_of_image(each)) for name, each in DESCRIBED_BY_CONTROLLERS.items()},
}
"""Who asks them directly is asked for rights by the gRPC service alone."""
DIRECT_BY_KEY = {API_BY_NAME[name].key: each for name, each in DIRECT.items()}
