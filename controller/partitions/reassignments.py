"""Decisions about moving replicas: start, replace, cancel (KIP-455, S4.17, S4.18)."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.controller.partitions.partition_change import Election, Rules, Target, build_change
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.records.types import PartitionChangeRecord, Record
from metaquorum.metadata.requests.partitions import (
    AlterReassignmentsRequest,
    AlterReassignmentsResponse,
    ReassignmentResult,
    WantedReplicas,
)

Refusal = tuple[ErrorCode, str]


def decide_reassignments(
    image: MetadataImage, request: AlterReassignmentsRequest, rules: Rules, *, records_max: int
) -> ControllerResult:
    """One result per partition; all accepted changes are one batch."""
    if len(request.wanted) > records_max:
        return refuse_reassignments(request, records_max)
    records: list[Record] = []
    results: list[ReassignmentResult] = []
    seen: set[tuple[str, int]] = set()
    for wanted in request.wanted:
        key = (wanted.topic, wanted.partition)
        if key in seen:
            text = f"partition {wanted.topic}-{wanted.partition} is named twice in one request: name it once"
            decided: PartitionChangeRecord | Refusal | None = (ErrorCode.INVALID_REQUEST, text)
        else:
            decided = _decide(image, wanted, rules, request.allow_replication_factor_change)
        seen.add(key)
        code, message = decided if isinstance(decided, tuple) else (ErrorCode.NONE, None)
        results.append(
            ReassignmentResult(topic=wanted.topic, partition=wanted.partition, error=code, message=message)
        )
        if isinstance(decided, PartitionChangeRecord):
            records.append(decided)
    response = AlterReassignmentsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else tuple(records))


def refuse_reassignments(request: AlterReassignmentsRequest, records_max: int) -> ControllerResult:
    """A request that one batch cannot hold is refused as a whole."""
    text = (
        f"the request would write more than {records_max} records or 8 MiB, which is what one batch holds: "
        "split it into several requests"
    )
    results = tuple(
        [
            ReassignmentResult(
                topic=move.topic, partition=move.partition, error=ErrorCode.POLICY_VIOLATION, message=text
            )
            for move in request.wanted
        ]
    )
    return ControllerResult(response=AlterReassignmentsResponse(results=results), depends_on_image=False)


def _decide(
    image: MetadataImage, wanted: WantedReplicas, rules: Rules, may_change_factor: bool
) -> PartitionChangeRecord | Refusal | None:
    info = image.topics.topic_named(wanted.topic)
    partition = None if info is None else image.topics.partition(info.topic_id, wanted.partition)
    if partition is None:
        what = f"topic {wanted.topic}" if info is None else f"partition {wanted.topic}-{wanted.partition}"
        text = f"there is no {what}: list the topics to see which exist"
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text
    name = f"{wanted.topic}-{wanted.partition}"
    if wanted.replicas is None:
        if not partition.adding and not partition.removing:
            text = f"there is no ongoing reassignment of {name}: there is nothing to cancel"
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, text
        return _towards(partition, original_replicas(partition), rules, name)
    refusal = _refusal(image, wanted.replicas, partition, name, may_change_factor)
    return refusal or _towards(partition, wanted.replicas, rules, name)


def original_replicas(partition: PartitionInfo) -> tuple[int, ...]:
    """The replicas without those that are being added: what a cancelled reassignment returns to."""
    return tuple([replica for replica in partition.replicas if replica not in partition.adding])


def _refusal(
    image: MetadataImage, target: Sequence[int], partition: PartitionInfo, name: str, may_change_factor: bool
) -> Refusal | None:
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if not target:
        return code, f"the replica list of {name} is empty: name at least one broker"
    for replica in target:
        if replica not in image.brokers:
            return code, f"the replica list of {name} names broker {replica}, which is not registered"
    if len(set(target)) != len(target):
        return code, f"the replica list of {name} names a broker twice: name each broker once"
    factor = len(original_replicas(partition))
    if not may_change_factor and len(target) != factor:
        text = (
            f"{name} has replication factor {factor}, but {len(target)} replicas are given: give the same "
            "number, or allow the factor to change"
        )
        return ErrorCode.INVALID_REPLICATION_FACTOR, text
    return None


def _towards(
    partition: PartitionInfo, target: tuple[int, ...], rules: Rules, name: str
) -> PartitionChangeRecord | Refusal | None:
    """The change that moves the partition to `target`, from its state before any reassignment.

    Replicas that an earlier reassignment was adding and that the target does not name leave at once: they
    were never needed. If no other replica is in sync that would lose data.
    """
    original = original_replicas(partition)
    adding = tuple(sorted(set(target) - set(original)))
    removing = tuple(sorted(set(original) - set(target)))
    replicas = (*target, *removing)
    isr = tuple([member for member in partition.isr if member in replicas])
    moved = Target(replicas=replicas, isr=isr, adding=adding, removing=removing)
    if isr or not partition.isr:
        return build_change(partition, moved, rules)
    if not rules.unclean_allowed(partition.topic_id):
        text = (
            f"the only in-sync replicas of {name} would be removed: wait until another one is in sync, or "
            "set unclean.leader.election.enable on the topic and lose the records that only they have"
        )
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
    if not any(rules.accepts(replica, partition.directory_of(replica) or UNASSIGNED) for replica in replicas):
        text = f"none of the new replicas of {name} is running: first start one of {list(replicas)}"
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
    return build_change(partition, moved, rules, Election.UNCLEAN)
