"""Requests to the active controller and their answers, between values and protobuf, both directions.

Owns the mapping only. What a value means and who may ask is decided elsewhere. Malformed requests (an id
that is not 16 bytes) raise `ApiError` INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metaquorum.metadata.broker_ids import key_problem
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests import common as api
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import broker_pb2 as broker
from metaquorum.proto import metadata_pb2 as common
from metaquorum.raft.config import Voter
from metaquorum.storage.files.known_committed import CommittedLoss


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Whom to ask instead."""

    node_id: int
    host: str
    port: int


class Hints:
    """Turns the id in an error into an address, as the voters are configured."""

    def __init__(self, voters: tuple[Voter, ...]) -> None:
        self._voters: Mapping[int, Voter] = {voter.node_id: voter for voter in voters}

    def of(self, node_id: int | None) -> common.LeaderHint | None:
        voter = None if node_id is None else self._voters.get(node_id)
        if voter is None:
            return None
        return common.LeaderHint(id=voter.node_id, host=voter.host, port=voter.port)

    def all(self) -> list[common.LeaderHint]:
        return [
            common.LeaderHint(id=voter.node_id, host=voter.host, port=voter.port)
            for _, voter in sorted(self._voters.items())
        ]


# ---- errors --------------------------------------------------------------------------------------


def error_to_pb(error: ApiError, hints: Hints) -> common.Error:
    return common.Error(
        code=error.code,
        name=error.code.name,
        message=error.message,
        retriable=error.retriable,
        leader=hints.of(error.leader_hint),
    )


def error_from_pb(error: common.Error) -> ApiError:
    """The same error; a code from the future becomes UNKNOWN_SERVER_ERROR with its name in the text."""
    hint = error.leader.id if error.HasField("leader") else None
    try:
        return ApiError(ErrorCode(error.code), error.message, hint)
    except ValueError:
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{error.name}: {error.message}", hint)


def leader_from_pb(error: common.Error) -> LeaderAddress | None:
    """Where the hint in an error points."""
    if not error.HasField("leader"):
        return None
    return LeaderAddress(error.leader.id, error.leader.host, error.leader.port)


def _uuid(value: bytes, what: str) -> bytes:
    if len(value) != 16:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} has {len(value)} bytes: give the 16 of a uuid")
    return value


# ---- brokers -------------------------------------------------------------------------------------


def register_to_pb(request: api.RegisterBrokerRequest) -> broker.RegisterBrokerRequest:
    return broker.RegisterBrokerRequest(
        broker_id=request.broker_id,
        cluster_id=request.cluster_id,
        incarnation_id=request.incarnation_id,
        endpoints=[
            common.Endpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in request.endpoints
        ],
        features=[
            common.Feature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ],
        rack=request.rack,
        directories=request.directories,
        previous_broker_epoch=request.previous_broker_epoch,
        binding_key=request.binding_key,
    )


def register_from_pb(request: broker.RegisterBrokerRequest) -> api.RegisterBrokerRequest:
    """Raises ApiError INVALID_REQUEST."""
    for endpoint in request.endpoints:
        if not 0 <= endpoint.port <= 65535:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"endpoint {endpoint.name} has port {endpoint.port}: give 0 to 65535",
            )
    return api.RegisterBrokerRequest(
        broker_id=request.broker_id,
        cluster_id=request.cluster_id,
        incarnation_id=_uuid(request.incarnation_id, "incarnation_id"),
        endpoints=tuple(
            BrokerEndpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in request.endpoints
        ),
        features=tuple(
            BrokerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ),
        rack=request.rack if request.HasField("rack") else None,
        directories=tuple(_uuid(each, "a directory id") for each in request.directories),
        previous_broker_epoch=request.previous_broker_epoch
        if request.HasField("previous_broker_epoch")
        else None,
        binding_key=_binding_key(request),
    )


def _binding_key(request: broker.RegisterBrokerRequest) -> str | None:
    if not request.HasField("binding_key"):
        return None
    problem = key_problem(request.binding_key)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    return request.binding_key


def heartbeat_to_pb(request: api.BrokerHeartbeatRequest) -> broker.BrokerHeartbeatRequest:
    return broker.BrokerHeartbeatRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        applied_offset=request.applied_offset,
        want_fence=request.want_fence,
        want_shutdown=request.want_shutdown,
        offline_directories=request.offline_directories,
    )


def heartbeat_from_pb(request: broker.BrokerHeartbeatRequest) -> api.BrokerHeartbeatRequest:
    """Raises ApiError INVALID_REQUEST."""
    return api.BrokerHeartbeatRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        applied_offset=request.applied_offset,
        want_fence=request.want_fence,
        want_shutdown=request.want_shutdown,
        offline_directories=tuple(_uuid(each, "a directory id") for each in request.offline_directories),
    )


def register_response_to_pb(response: api.RegisterBrokerResponse) -> broker.RegisterBrokerResponse:
    return broker.RegisterBrokerResponse(
        broker_epoch=response.broker_epoch, session_timeout_ms=response.session_timeout_ms
    )


def register_response_from_pb(response: broker.RegisterBrokerResponse) -> api.RegisterBrokerResponse:
    return api.RegisterBrokerResponse(
        broker_epoch=response.broker_epoch, session_timeout_ms=response.session_timeout_ms
    )


def heartbeat_response_to_pb(response: api.BrokerHeartbeatResponse) -> broker.BrokerHeartbeatResponse:
    return broker.BrokerHeartbeatResponse(
        is_caught_up=response.is_caught_up,
        is_fenced=response.is_fenced,
        should_shut_down=response.should_shut_down,
        in_controlled_shutdown=response.in_controlled_shutdown,
        session_timeout_ms=response.session_timeout_ms,
    )


def heartbeat_response_from_pb(response: broker.BrokerHeartbeatResponse) -> api.BrokerHeartbeatResponse:
    return api.BrokerHeartbeatResponse(
        is_caught_up=response.is_caught_up,
        is_fenced=response.is_fenced,
        should_shut_down=response.should_shut_down,
        in_controlled_shutdown=response.in_controlled_shutdown,
        session_timeout_ms=response.session_timeout_ms,
    )


# ---- topics --------------------------------------------------------------------------------------


def create_topics_to_pb(request: api.CreateTopicsRequest) -> admin.CreateTopicsRequest:
    return admin.CreateTopicsRequest(
        topics=[
            admin.NewTopic(
                name=each.name,
                partitions=each.partitions,
                replication_factor=each.replication_factor,
                assignments=[admin.ReplicaList(broker_ids=replicas) for replicas in each.assignments or ()],
                configs=dict(each.configs),
            )
            for each in request.topics
        ],
        validate_only=request.validate_only,
    )


def create_topics_from_pb(request: admin.CreateTopicsRequest) -> api.CreateTopicsRequest:
    return api.CreateTopicsRequest(
        topics=tuple(
            api.NewTopic(
                name=each.name,
                partitions=each.partitions if each.HasField("partitions") else None,
                replication_factor=each.replication_factor if each.HasField("replication_factor") else None,
                assignments=tuple(tuple(one.broker_ids) for one in each.assignments) or None,
                configs=tuple(sorted(each.configs.items())),
            )
            for each in request.topics
        ),
        validate_only=request.validate_only,
    )


def delete_topics_to_pb(request: api.DeleteTopicsRequest) -> admin.DeleteTopicsRequest:
    return admin.DeleteTopicsRequest(
        topics=[
            admin.TopicReference(name=each) if isinstance(each, str) else admin.TopicReference(topic_id=each)
            for each in request.topics
        ]
    )


def delete_topics_from_pb(request: admin.DeleteTopicsRequest) -> api.DeleteTopicsRequest:
    """Raises ApiError INVALID_REQUEST."""
    topics: list[str | bytes] = []
    for each in request.topics:
        match each.WhichOneof("by"):
            case "name":
                topics.append(each.name)
            case "topic_id":
                topics.append(_uuid(each.topic_id, "a topic id"))
            case _:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, "a topic to delete has neither name nor id: give one"
                )
    return api.DeleteTopicsRequest(topics=tuple(topics))


def topics_to_pb(response: api.TopicsResponse, hints: Hints) -> admin.TopicsResponse:
    results = []
    for each in response.results:
        failed = each.error is not ErrorCode.NONE
        error = ApiError(each.error, each.message or each.error.name) if failed else None
        results.append(
            admin.TopicResult(
                name=each.name,
                topic_id=each.topic_id,
                error=None if error is None else error_to_pb(error, hints),
                partitions=each.partitions,
                replication_factor=each.replication_factor,
                configs=dict(each.configs),
                note=each.note,
            )
        )
    return admin.TopicsResponse(results=results)


def topics_from_pb(response: admin.TopicsResponse) -> api.TopicsResponse:
    results = []
    for each in response.results:
        error = error_from_pb(each.error) if each.HasField("error") else None
        results.append(
            api.TopicResult(
                name=each.name if each.HasField("name") else None,
                topic_id=each.topic_id if each.HasField("topic_id") else None,
                error=ErrorCode.NONE if error is None else error.code,
                message=None if error is None else error.message,
                partitions=each.partitions,
                replication_factor=each.replication_factor,
                configs=tuple(sorted(each.configs.items())),
                note=each.note if each.HasField("note") else None,
            )
        )
    return api.TopicsResponse(results=tuple(results))


# ---- the quorum ----------------------------------------------------------------------------------


def quorum_to_pb(response: api.DescribeQuorumResponse) -> admin.DescribeQuorumResponse:
    return admin.DescribeQuorumResponse(
        cluster_id=response.cluster_id,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
        high_watermark=response.high_watermark,
        voters=[_replica_to_pb(each) for each in response.voters],
        observers=[_replica_to_pb(each) for each in response.observers],
        losses=losses_to_pb(response.losses),
    )


def quorum_from_pb(response: admin.DescribeQuorumResponse) -> api.DescribeQuorumResponse:
    return api.DescribeQuorumResponse(
        cluster_id=response.cluster_id,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
        high_watermark=response.high_watermark,
        voters=tuple(_replica_from_pb(each) for each in response.voters),
        observers=tuple(_replica_from_pb(each) for each in response.observers),
        losses=losses_from_pb(response.losses),
    )


def losses_to_pb(losses: Iterable[CommittedLoss]) -> list[admin.CommittedLoss]:
    return [
        admin.CommittedLoss(
            node_id=one.node_id, known_offset=one.known_offset, common_offset=one.common_offset
        )
        for one in losses
    ]


def losses_from_pb(losses: Iterable[admin.CommittedLoss]) -> tuple[CommittedLoss, ...]:
    return tuple(
        CommittedLoss(node_id=one.node_id, known_offset=one.known_offset, common_offset=one.common_offset)
        for one in losses
    )


def _replica_to_pb(replica: api.ReplicaStatus) -> admin.ReplicaStatus:
    return admin.ReplicaStatus(
        node_id=replica.node_id,
        directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        lag=replica.lag,
        last_fetch_ms=replica.last_fetch_ms,
        last_caught_up_ms=replica.last_caught_up_ms,
        status=replica.status,
    )


def _replica_from_pb(replica: admin.ReplicaStatus) -> api.ReplicaStatus:
    return api.ReplicaStatus(
        node_id=replica.node_id,
        directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        lag=replica.lag,
        last_fetch_ms=replica.last_fetch_ms if replica.HasField("last_fetch_ms") else None,
        last_caught_up_ms=replica.last_caught_up_ms if replica.HasField("last_caught_up_ms") else None,
        status=replica.status,
    )
