"""What a broker asks the active controller for itself, as bodies of Kafka's protocol, and the answers as
values (KIP-631, KIP-497, KIP-858, KIP-730, KIP-590).

The counterpart of `listeners.forwarded.nodes`. Kafka's messages lack some of what our nodes say to each
other: where the request has our mark, a tagged field that Kafka passes over, our controller's answer has the
rest in tagged fields. From a controller of Kafka's they are absent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests import partitions as parts
from metaquorum.metadata.requests import settings
from metaquorum.wire import messages as wire

Tags = tuple[tuple[int, bytes], ...]
Part = TypeVar("Part")

MARK = 0x6D80
"""The tagged field of a request that asks for those of the answer; it is empty."""
_MIN_ISR, _SESSION_TIMEOUT, _REASON, _OFFSET = MARK + 1, MARK + 2, MARK + 3, MARK + 4
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
REASON_MAX_BYTES = 500

_SAYS_LEVEL_0 = 4
"""From this version of BrokerRegistration on, a controller understands features that begin at level 0;
before, they are left out (KAFKA-17492)."""
UNKNOWN_EPOCH = -1

_REASONS = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "allow this broker's principal ClusterAction on the cluster, or add it to super.users of the"
        " controllers"
    ),
    ErrorCode.NOT_CONTROLLER: "it is not the active controller",
    ErrorCode.INCONSISTENT_CLUSTER_ID: (
        "it belongs to another cluster than the directories of this broker: check controller.quorum.voters"
        " and log.dirs"
    ),
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "another process has this broker's id, and is alive",
    ErrorCode.UNSUPPORTED_VERSION: (
        "this release does not support a level that the cluster's features have: use a newer one, or see"
        " metaquorum features describe"
    ),
}
"""What to do about the codes whose answers have no text."""


class NodeForm(NamedTuple):
    """A kind of request: the API and the versions of Kafka 3.7 to 4.1, the body in a version, and the value
    of an answer without an error of the whole, with the session timeout that counts if it has none."""

    api: str
    lowest: int
    highest: int
    body: Callable[[Any, int], Any]
    answer: Callable[[Any, int], Any]


# ---- registration and heartbeats


def listeners_of(kinds: Any, endpoints: Iterable[Any]) -> tuple[Any, ...]:
    """The listeners of a node's registration; `kinds`: the request's class."""
    return tuple(
        kinds.Listener(name=at.name, host=at.host, port=at.port, security_protocol=at.security_protocol)
        for at in endpoints
    )


def features_of(kinds: Any, features: Iterable[Any]) -> tuple[Any, ...]:
    """The levels that a node supports, as its registration says them."""
    return tuple(
        kinds.Feature(
            name=feature.name,
            min_supported_version=feature.min_supported_version,
            max_supported_version=feature.max_supported_version,
        )
        for feature in features
    )


def _registration(request: core.RegisterBrokerRequest, version: int) -> wire.BrokerRegistrationRequest:
    kinds, epoch = wire.BrokerRegistrationRequest, request.previous_broker_epoch
    return kinds(
        broker_id=request.broker_id,
        cluster_id=request.cluster_id,
        incarnation_id=request.incarnation_id,
        listeners=listeners_of(kinds, request.endpoints),
        features=features_of(
            kinds,
            (at for at in request.features if version >= _SAYS_LEVEL_0 or at.min_supported_version > 0),
        ),
        rack=request.rack,
        log_dirs=request.directories,
        previous_broker_epoch=UNKNOWN_EPOCH if epoch is None else epoch,
        unknown_tags=((MARK, b""),),
    )


def _registered(
    body: wire.BrokerRegistrationResponse, session_timeout_ms: int
) -> core.RegisterBrokerResponse:
    return core.RegisterBrokerResponse(
        broker_epoch=body.broker_epoch, session_timeout_ms=_session_timeout_ms(body, session_timeout_ms)
    )


def _heartbeat(request: core.BrokerHeartbeatRequest, version: int) -> wire.BrokerHeartbeatRequest:
    return wire.BrokerHeartbeatRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        current_metadata_offset=request.applied_offset - 1,  # Kafka's is that of the last record applied
        want_fence=request.want_fence,
        want_shut_down=request.want_shutdown,
        offline_log_dirs=request.offline_directories,
        unknown_tags=((MARK, b""), (_MIN_ISR, _INT32.pack(request.min_insync_replicas))),
    )


def _beaten(body: wire.BrokerHeartbeatResponse, session_timeout_ms: int) -> core.BrokerHeartbeatResponse:
    return core.BrokerHeartbeatResponse(
        is_caught_up=body.is_caught_up,
        is_fenced=body.is_fenced,
        should_shut_down=body.should_shut_down,
        in_controlled_shutdown=False,  # no broker reads it
        session_timeout_ms=_session_timeout_ms(body, session_timeout_ms),
    )


def _session_timeout_ms(body: Any, otherwise: int) -> int:
    found = _tagged(body, _SESSION_TIMEOUT, _INT32)
    return otherwise if found is None else found


# ---- producer ids


def _producer_ids(
    request: settings.AllocateProducerIdsRequest, version: int
) -> wire.AllocateProducerIdsRequest:
    return wire.AllocateProducerIdsRequest(broker_id=request.broker_id, broker_epoch=request.broker_epoch)


def _allocated(
    body: wire.AllocateProducerIdsResponse, session_timeout_ms: int
) -> settings.AllocateProducerIdsResponse:
    return settings.AllocateProducerIdsResponse(first_id=body.producer_id_start, count=body.producer_id_len)


# ---- ISRs


def _alterations(request: parts.AlterPartitionRequest, version: int) -> wire.AlterPartitionRequest:
    kinds = wire.AlterPartitionRequest
    return kinds(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        topics=tuple(
            kinds.TopicData(
                topic_id=topic_id,
                partitions=tuple(
                    kinds.PartitionData(
                        partition_index=alteration.partition,
                        leader_epoch=alteration.leader_epoch,
                        partition_epoch=alteration.partition_epoch,
                        new_isr_with_epochs=tuple(
                            kinds.BrokerState(broker_id=one.broker_id, broker_epoch=_epoch(one))
                            for one in alteration.isr
                        ),
                        leader_recovery_state=alteration.leader_recovery_state,
                    )
                    for alteration in partitions
                ),
            )
            for topic_id, partitions in _grouped(request.partitions, "topic_id")
        ),
    )


def _epoch(member: parts.IsrMember) -> int:
    return UNKNOWN_EPOCH if member.broker_epoch is None else member.broker_epoch


def _altered(body: wire.AlterPartitionResponse, session_timeout_ms: int) -> parts.AlterPartitionResponse:
    return parts.AlterPartitionResponse(
        results=tuple(
            _altered_partition(topic.topic_id, each) for topic in body.topics for each in topic.partitions
        )
    )


def _altered_partition(
    topic_id: bytes, part: wire.AlterPartitionResponse.PartitionData
) -> parts.AlteredPartition:
    code = ErrorCode.of(part.error_code)
    if code:
        return parts.AlteredPartition(topic_id=topic_id, partition=part.partition_index, error=code)
    return parts.AlteredPartition(
        topic_id=topic_id,
        partition=part.partition_index,
        error=code,
        leader=None if part.leader_id < 0 else part.leader_id,
        leader_epoch=part.leader_epoch,
        partition_epoch=part.partition_epoch,
        isr=part.isr,
        leader_recovery_state=part.leader_recovery_state,
    )


# ---- directories


def _assignments(
    request: parts.AssignReplicasToDirsRequest, version: int
) -> wire.AssignReplicasToDirsRequest:
    kinds = wire.AssignReplicasToDirsRequest
    return kinds(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        directories=tuple(
            kinds.DirectoryData(
                id=directory_id,
                topics=tuple(
                    kinds.TopicData(
                        topic_id=topic_id,
                        partitions=tuple(
                            kinds.PartitionData(partition_index=each.partition) for each in here
                        ),
                    )
                    for topic_id, here in _grouped(assigned, "topic_id")
                ),
            )
            for directory_id, assigned in _grouped(request.assignments, "directory_id")
        ),
    )


def _assigned(
    body: wire.AssignReplicasToDirsResponse, session_timeout_ms: int
) -> parts.AssignReplicasToDirsResponse:
    return parts.AssignReplicasToDirsResponse(
        results=tuple(
            parts.AssignmentResult(
                directory_id=directory.id,
                topic_id=topic.topic_id,
                partition=part.partition_index,
                error=ErrorCode.of(part.error_code),
            )
            for directory in body.directories
            for topic in directory.topics
            for part in topic.partitions
        )
    )


FORMS: dict[type, NodeForm] = {
    core.RegisterBrokerRequest: NodeForm("BrokerRegistration", 2, 4, _registration, _registered),
    core.BrokerHeartbeatRequest: NodeForm("BrokerHeartbeat", 1, 1, _heartbeat, _beaten),
    parts.AlterPartitionRequest: NodeForm("AlterPartition", 3, 3, _alterations, _altered),
    parts.AssignReplicasToDirsRequest: NodeForm("AssignReplicasToDirs", 0, 0, _assignments, _assigned),
    settings.AllocateProducerIdsRequest: NodeForm("AllocateProducerIds", 0, 0, _producer_ids, _allocated),
}


def answer_of(form: NodeForm, body: Any, session_timeout_ms: int) -> Any:
    """The value of a response, or the refusal of the whole request."""
    if body.error_code:
        return refusal_of(body)
    return form.answer(body, session_timeout_ms)


def refusal_of(body: Any) -> ApiError:
    """The error of a response as a whole, with the controller's text if it is one of ours."""
    code = ErrorCode.of(body.error_code)
    text = dict(body.unknown_tags).get(_REASON, b"").decode(errors="replace")
    return ApiError(code, text or _REASONS.get(code, f"the controller answers {code.name}"))


# ---- what our nodes add


def is_marked(body: Any) -> bool:
    """Whether a request asks for what Kafka's answer lacks."""
    return any(number == MARK for number, _ in body.unknown_tags)


def min_insync_replicas_of(body: wire.BrokerHeartbeatRequest) -> int:
    """min.insync.replicas of the file of the broker that sends a heartbeat; 0 if it does not say it."""
    return _tagged(body, _MIN_ISR, _INT32) or 0


def answer_tags(request: Any, answer: Any) -> Tags:
    """What the answer to a request needs beside Kafka's fields: the session timeout, or why it is refused."""
    if not is_marked(request):
        return ()
    if isinstance(answer, ApiError):
        return ((_REASON, answer.message.encode()[:REASON_MAX_BYTES]),)
    return ((_SESSION_TIMEOUT, _INT32.pack(answer.session_timeout_ms)),)


def offset_tags(request: wire.EnvelopeRequest, offset: int) -> Tags:
    """Below which offset everything was committed when an Envelope was answered."""
    return ((_OFFSET, _INT64.pack(offset)),) if is_marked(request) else ()


def offset_of(body: wire.EnvelopeResponse) -> int:
    """That offset; 0 if the controller does not say it."""
    return _tagged(body, _OFFSET, _INT64) or 0


def _tagged(body: Any, number: int, form: struct.Struct) -> int | None:
    data = dict(body.unknown_tags).get(number)
    if data is None or len(data) != form.size:
        return None
    (value,) = form.unpack(data)
    return int(value)


def _grouped(entries: Iterable[Part], field: str) -> Iterable[tuple[Any, list[Part]]]:
    groups: dict[Any, list[Part]] = {}
    for each in entries:
        groups.setdefault(getattr(each, field), []).append(each)
    return groups.items()
