"""What nodes ask the active controller for themselves: brokers' registrations, heartbeats, ISRs, directories
and blocks of producer ids, and controllers' registrations (KIP-631, KIP-497, KIP-858, KIP-730, KIP-919).

The requests become those that arrive over gRPC; only names, offsets and codes differ.
"""

from __future__ import annotations

from typing import TypeVar

from metaquorum.clients.kafka.node_messages import answer_tags, min_insync_replicas_of
from metaquorum.listeners.access.steps import on_cluster
from metaquorum.listeners.forwarded.api import AskedBy, Call, answers
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records import types as records
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests import partitions as parts
from metaquorum.metadata.requests import settings
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.wire.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)

TOPIC_IDS_FROM = 2
"""The first version of AlterPartition that names topics by id, and has codes of its own for ineligible
replicas and new leaders (KIP-841)."""
_EPOCHS_FROM = 3
_UNKNOWN_EPOCH = -1

_BEFORE_TOPIC_IDS = {
    ErrorCode.INELIGIBLE_REPLICA: ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.NEW_LEADER_ELECTED: ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}

Result = TypeVar("Result", parts.AlteredPartition, parts.AssignmentResult)


def _code(error: ApiError) -> ErrorCode:
    """As in Kafka, the epoch of a broker that is not registered has ended: it registers again."""
    if error.code is ErrorCode.BROKER_ID_NOT_REGISTERED:
        return ErrorCode.STALE_BROKER_EPOCH
    return error.code


@answers("BrokerRegistration", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES)
async def broker_registration(body: BrokerRegistrationRequest, call: Call) -> BrokerRegistrationResponse:
    if body.is_migrating_zk_broker:  # Kafka's code: there is no migration that it could be a part of
        return BrokerRegistrationResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
    previous = body.previous_broker_epoch
    request = core.RegisterBrokerRequest(
        broker_id=body.broker_id,
        cluster_id=body.cluster_id,
        incarnation_id=body.incarnation_id,
        endpoints=tuple(
            records.BrokerEndpoint(each.name, each.host, each.port, each.security_protocol)
            for each in body.listeners
        ),
        features=tuple(
            records.BrokerFeature(each.name, each.min_supported_version, each.max_supported_version)
            for each in body.features
        ),
        rack=body.rack,
        directories=tuple(body.log_dirs),
        previous_broker_epoch=None if previous == _UNKNOWN_EPOCH else previous,
    )
    answer = await call.answer(request, core.RegisterBrokerResponse)
    tags = answer_tags(body, answer)
    if isinstance(answer, ApiError):
        return BrokerRegistrationResponse(error_code=answer.code, unknown_tags=tags)
    return BrokerRegistrationResponse(broker_epoch=answer.broker_epoch, unknown_tags=tags)


@answers("BrokerHeartbeat", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES, until=1)
async def broker_heartbeat(body: BrokerHeartbeatRequest, call: Call) -> BrokerHeartbeatResponse:
    request = core.BrokerHeartbeatRequest(
        broker_id=body.broker_id,
        broker_epoch=body.broker_epoch,
        applied_offset=body.current_metadata_offset + 1,  # Kafka's is that of the last record applied
        want_fence=body.want_fence,
        want_shutdown=body.want_shut_down,
        offline_directories=tuple(body.offline_log_dirs),
        min_insync_replicas=min_insync_replicas_of(body),
    )
    answer = await call.answer(request, core.BrokerHeartbeatResponse)
    tags = answer_tags(body, answer)
    if isinstance(answer, ApiError):
        return BrokerHeartbeatResponse(error_code=_code(answer), unknown_tags=tags)
    return BrokerHeartbeatResponse(
        is_caught_up=answer.is_caught_up,
        is_fenced=answer.is_fenced,
        should_shut_down=answer.should_shut_down,
        unknown_tags=tags,
    )


@answers("AllocateProducerIds", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES)
async def allocate_producer_ids(body: AllocateProducerIdsRequest, call: Call) -> AllocateProducerIdsResponse:
    request = settings.AllocateProducerIdsRequest(broker_id=body.broker_id, broker_epoch=body.broker_epoch)
    answer = await call.answer(request, settings.AllocateProducerIdsResponse)
    if isinstance(answer, ApiError):
        return AllocateProducerIdsResponse(error_code=_code(answer))
    return AllocateProducerIdsResponse(producer_id_start=answer.first_id, producer_id_len=answer.count)


@answers("ControllerRegistration", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES)
async def controller_registration(
    body: ControllerRegistrationRequest, call: Call
) -> ControllerRegistrationResponse:
    request = settings.RegisterControllerRequest(
        controller_id=body.controller_id,
        incarnation_id=body.incarnation_id,
        endpoints=tuple(
            records.ControllerEndpoint(each.name, each.host, each.port, each.security_protocol)
            for each in body.listeners
        ),
        features=tuple(
            records.ControllerFeature(each.name, each.min_supported_version, each.max_supported_version)
            for each in body.features
        ),
    )
    answer = await call.answer(request, core.Done)
    if isinstance(answer, ApiError):
        return ControllerRegistrationResponse(error_code=answer.code, error_message=answer.message)
    return ControllerRegistrationResponse(error_message="")


# ---- ISRs


@answers("AlterPartition", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES)
async def alter_partition(body: AlterPartitionRequest, call: Call) -> AlterPartitionResponse:
    named = call.version < TOPIC_IDS_FROM
    ids = [_topic_id(topic, call) if named else topic.topic_id for topic in body.topics]
    wanted = tuple(
        _alteration(topic_id, part, call.version)
        for topic, topic_id in zip(body.topics, ids, strict=True)
        if topic_id is not None
        for part in topic.partitions
    )
    request = parts.AlterPartitionRequest(
        broker_id=body.broker_id, broker_epoch=body.broker_epoch, partitions=wanted
    )
    answer = await call.answer(request, parts.AlterPartitionResponse)
    if isinstance(answer, ApiError):
        return AlterPartitionResponse(error_code=_code(answer))
    left = iter(answer.results)
    return AlterPartitionResponse(
        topics=tuple(
            AlterPartitionResponse.TopicData(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    _unknown(part) if topic_id is None else _altered(next(left), named=named)
                    for part in topic.partitions
                ),
            )
            for topic, topic_id in zip(body.topics, ids, strict=True)
        )
    )


def _topic_id(topic: AlterPartitionRequest.TopicData, call: Call) -> bytes | None:
    found = call.image.topics.topic_named(topic.topic_name)
    return None if found is None else found.topic_id


def _alteration(
    topic_id: bytes, part: AlterPartitionRequest.PartitionData, version: int
) -> parts.PartitionAlteration:
    if version >= _EPOCHS_FROM:
        isr = tuple(
            parts.IsrMember(
                broker_id=each.broker_id,
                broker_epoch=None if each.broker_epoch == _UNKNOWN_EPOCH else each.broker_epoch,
            )
            for each in part.new_isr_with_epochs
        )
    else:
        isr = tuple(parts.IsrMember(broker_id=each) for each in part.new_isr)
    return parts.PartitionAlteration(
        topic_id=topic_id,
        partition=part.partition_index,
        leader_epoch=part.leader_epoch,
        partition_epoch=part.partition_epoch,
        isr=isr,
        leader_recovery_state=part.leader_recovery_state,
    )


def _unknown(part: AlterPartitionRequest.PartitionData) -> AlterPartitionResponse.PartitionData:
    return AlterPartitionResponse.PartitionData(
        partition_index=part.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def _altered(result: parts.AlteredPartition, *, named: bool) -> AlterPartitionResponse.PartitionData:
    if result.error:
        code = _BEFORE_TOPIC_IDS.get(result.error, result.error) if named else result.error
        return AlterPartitionResponse.PartitionData(partition_index=result.partition, error_code=code)
    return AlterPartitionResponse.PartitionData(
        partition_index=result.partition,
        leader_id=-1 if result.leader is None else result.leader,
        leader_epoch=result.leader_epoch,
        isr=result.isr,
        leader_recovery_state=result.leader_recovery_state,
        partition_epoch=result.partition_epoch,
    )


# ---- directories


@answers("AssignReplicasToDirs", on_cluster(Op.CLUSTER_ACTION), by=AskedBy.NODES)
async def assign_replicas_to_dirs(
    body: AssignReplicasToDirsRequest, call: Call
) -> AssignReplicasToDirsResponse:
    request = parts.AssignReplicasToDirsRequest(
        broker_id=body.broker_id,
        broker_epoch=body.broker_epoch,
        assignments=tuple(
            parts.ReplicaAssignment(
                directory_id=directory.id, topic_id=topic.topic_id, partition=part.partition_index
            )
            for directory in body.directories
            for topic in directory.topics
            for part in topic.partitions
        ),
    )
    answer = await call.answer(request, parts.AssignReplicasToDirsResponse)
    if isinstance(answer, ApiError):
        return AssignReplicasToDirsResponse(error_code=_code(answer))
    left = iter(answer.results)
    types = AssignReplicasToDirsResponse
    return types(
        directories=tuple(
            types.DirectoryData(
                id=directory.id,
                topics=tuple(
                    types.TopicData(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            types.PartitionData(
                                partition_index=part.partition_index, error_code=next(left).error
                            )
                            for part in topic.partitions
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in body.directories
        )
    )
