"""The log directory of each replica, as reported by brokers (KIP-858 AssignReplicasToDirs, S3.9).

A directory that its broker has not registered as online is offline: the record that places a replica there
also takes it out of leadership and ISR.
"""

from __future__ import annotations

from metaquorum.controller.partitions.partition_change import Rules, Target, build_change
from metaquorum.controller.result import ControllerResult, epoch_refusal
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import LOST, MIGRATING, NO_LEADER, UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.image.directories import damaged_in, is_mark
from metaquorum.metadata.meanings import merge_change
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.requests.partitions import (
    AssignmentResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    ReplicaAssignment,
)
from metaquorum.storage.uuids import UUID_BYTES

Refusal = tuple[ErrorCode, str]


def decide_assign_replicas(
    image: MetadataImage, request: AssignReplicasToDirsRequest, rules: Rules, *, records_max: int
) -> ControllerResult:
    """One result per replica; all changes are one batch."""
    if image.features.metadata_version < LEVEL_DIRECTORIES:
        text = "the log cannot record directories at this metadata.version: raise it to 3.7-IV2"
        return ControllerResult(response=ApiError(ErrorCode.UNSUPPORTED_VERSION, text))
    broker_id = request.broker_id
    stale = epoch_refusal(image.brokers, broker_id, request.broker_epoch)
    if stale is not None:
        return ControllerResult(response=stale, depends_on_broker=broker_id)
    if len(request.assignments) > records_max:
        text = f"{len(request.assignments)} replicas exceed the {records_max} allowed: send fewer"
        return ControllerResult(response=ApiError(ErrorCode.POLICY_VIOLATION, text), depends_on_image=False)
    records: list[Record] = []
    results: list[AssignmentResult] = []
    seen: set[tuple[bytes, int]] = set()
    for wanted in request.assignments:
        key = (wanted.topic_id, wanted.partition)
        refusal = _refusal(image, broker_id, wanted, repeated=key in seen)
        if refusal is None:
            seen.add(key)
            refusal = _assign(image, broker_id, wanted, rules, records)
        code, message = refusal or (ErrorCode.NONE, None)
        results.append(
            AssignmentResult(
                directory_id=wanted.directory_id,
                topic_id=wanted.topic_id,
                partition=wanted.partition,
                error=code,
                message=message,
            )
        )
    response = AssignReplicasToDirsResponse(results=tuple(results))
    return ControllerResult(response=response, records=tuple(records))


def _assign(
    image: MetadataImage, broker_id: int, wanted: ReplicaAssignment, rules: Rules, records: list[Record]
) -> Refusal | None:
    """One replica whose request is valid. Data in a directory that is gone did not move with it: the replica
    is no longer in sync, and no eligible leader (KIP-966). If no other replica has what was acknowledged, the
    log keeps naming the old directory: led from the new one, the partition would start over empty, and only
    an unclean election may do that."""
    partition = image.topics.partition(wanted.topic_id, wanted.partition)
    if partition is None:
        return None
    directory = wanted.directory_id
    before = partition.directory_of(broker_id)
    # A replica that was damaged there and came back has its data; one that is reported as damaged, or to be
    # given up, starts nowhere yet.
    gone = (
        before is not None
        and before not in {directory, damaged_in(directory)}
        and not is_mark(image.brokers.get(broker_id), directory)
        and not directory_online(image.brokers, broker_id, before)
    )
    # A LOST replica never held anything: its first directory failed before the log named it (S3.6).
    emptied = gone and before != LOST
    online = directory not in rules.failing and directory_online(image.brokers, broker_id, directory)
    stays = online and not emptied
    target = Target(
        isr=None if stays else tuple([replica for replica in partition.isr if replica != broker_id]),
        directories={broker_id: directory},
        unclean_shutdown=frozenset([broker_id]) if gone else frozenset(),
        emptied=broker_id if emptied else None,
    )
    change = build_change(partition, target, rules)
    if change is None:
        return None
    if emptied and _counts_on(merge_change(partition, change, offset=-1), broker_id):
        text = (
            f"broker {broker_id} was the last in-sync replica, and its directory is lost: restore that "
            "directory, or accept the loss with an unclean election"
        )
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, text
    records.append(change)
    return None


def _counts_on(partition: PartitionInfo, broker_id: int) -> bool:
    """Whether the partition waits for this broker's replica and no other."""
    if partition.leader != NO_LEADER:
        return False
    waits_for = {*partition.isr, *partition.elr} or set(partition.last_known_elr)
    return waits_for <= {broker_id}


def _refusal(
    image: MetadataImage, broker_id: int, wanted: ReplicaAssignment, *, repeated: bool
) -> Refusal | None:
    if len(wanted.directory_id) != UUID_BYTES or wanted.directory_id in {MIGRATING, UNASSIGNED}:
        text = f"directory id {wanted.directory_id.hex()} is reserved: send the id of a formatted directory"
        return ErrorCode.INVALID_REQUEST, text
    if image.topics.topic(wanted.topic_id) is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {wanted.topic_id.hex()}"
    partition = image.topics.partition(wanted.topic_id, wanted.partition)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has no partition {wanted.partition}"
    if broker_id not in partition.replicas:
        text = f"broker {broker_id} holds no replica of this partition: refresh the metadata"
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, text
    if repeated:
        return ErrorCode.INVALID_REQUEST, "the replica is named twice in one request: name it once"
    return None
