"""Which changes of its ISR a partition's leader may make (KIP-497, KIP-841, KIP-903; S4.10).

Every refusal leaves the partition unchanged; the order of the checks is Kafka's, so that a leader first
learns what it can act on: whether it or this controller is newer.
"""

from __future__ import annotations

from metaquorum.controller.partitions.partition_change import Rules, Target, build_change, is_recovering
from metaquorum.controller.result import ControllerResult, epoch_refusal
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import RECOVERED, RECOVERING, MetadataImage, PartitionInfo
from metaquorum.metadata.meanings import merge_change
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.requests.partitions import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrMember,
    PartitionAlteration,
)

Refusal = tuple[ErrorCode, str]


def decide_alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, rules: Rules
) -> ControllerResult:
    """One result per partition; all accepted changes are one batch."""
    stale = epoch_refusal(image.brokers, request.broker_id, request.broker_epoch)
    if stale is not None:
        return ControllerResult(response=stale, depends_on_broker=request.broker_id)
    records: list[Record] = []
    results: list[AlteredPartition] = []
    seen: set[tuple[bytes, int]] = set()
    for wanted in request.partitions:
        key = (wanted.topic_id, wanted.partition)
        partition = image.topics.partition(*key)
        refusal = _refusal(image, request.broker_id, wanted, partition, rules, repeated=key in seen)
        if refusal is not None or partition is None:
            code, message = refusal or (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
            results.append(_refused(wanted, code, message))
        else:
            seen.add(key)
            results.append(_altered(partition, wanted, request.broker_id, rules, records))
    return ControllerResult(response=AlterPartitionResponse(results=tuple(results)), records=tuple(records))


def _altered(
    partition: PartitionInfo, wanted: PartitionAlteration, sender: int, rules: Rules, records: list[Record]
) -> AlteredPartition:
    isr = tuple([member.broker_id for member in wanted.isr])
    if set(isr) == set(partition.isr):
        isr = partition.isr  # the same members in another order are no change
    target = Target(isr=isr, recovery_state=wanted.leader_recovery_state)
    change = build_change(partition, target, rules)
    after = partition
    if change is not None:
        records.append(change)
        after = merge_change(partition, change, offset=-1)
    if after.leader != sender:
        # It ended a reassignment and the sender is not in the target: an error that comes with a record.
        text = (
            f"the change completed a reassignment, and broker {after.leader} now leads: refresh the metadata"
        )
        return _refused(wanted, ErrorCode.NEW_LEADER_ELECTED, text)
    return AlteredPartition(
        topic_id=wanted.topic_id,
        partition=wanted.partition,
        error=ErrorCode.NONE,
        leader=after.leader,
        leader_epoch=after.leader_epoch,
        partition_epoch=after.partition_epoch,
        isr=after.isr,
        leader_recovery_state=after.leader_recovery_state,
    )


def _refused(wanted: PartitionAlteration, code: ErrorCode, message: str) -> AlteredPartition:
    return AlteredPartition(topic_id=wanted.topic_id, partition=wanted.partition, error=code, message=message)


def _refusal(
    image: MetadataImage,
    sender: int,
    wanted: PartitionAlteration,
    partition: PartitionInfo | None,
    rules: Rules,
    *,
    repeated: bool,
) -> Refusal | None:
    if image.topics.topic(wanted.topic_id) is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, (
            f"there is no topic with the id {wanted.topic_id.hex()}: stop its replica"
        )
    if partition is None:
        text = f"the topic has no partition {wanted.partition}: refresh the metadata"
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text
    if repeated:
        return ErrorCode.INVALID_REQUEST, "the partition is named twice in one request: name it once"
    return (
        _epochs_refusal(sender, wanted, partition)
        or _members_refusal(wanted, partition)
        or _recovery_refusal(wanted, partition)
        or _ineligible(wanted.isr, partition, rules)
    )


def _epochs_refusal(sender: int, wanted: PartitionAlteration, partition: PartitionInfo) -> Refusal | None:
    for name, theirs, ours in (
        ("leader", wanted.leader_epoch, partition.leader_epoch),
        ("partition", wanted.partition_epoch, partition.partition_epoch),
    ):
        if theirs > ours:
            text = (
                f"the {name} epoch {theirs} is newer than {ours}, the newest that this controller knows: "
                "find the active controller"
            )
            return ErrorCode.NOT_CONTROLLER, text
    if wanted.leader_epoch < partition.leader_epoch:
        text = (
            f"the leader epoch is {partition.leader_epoch}, not {wanted.leader_epoch}: refresh the metadata"
        )
        return ErrorCode.FENCED_LEADER_EPOCH, text
    if sender != partition.leader:
        text = f"broker {partition.leader} leads this partition, not broker {sender}: refresh the metadata"
        return ErrorCode.INVALID_REQUEST, text
    if wanted.partition_epoch < partition.partition_epoch:
        text = (
            f"the partition epoch is {partition.partition_epoch}, not {wanted.partition_epoch}: the "
            "partition has changed; refresh the metadata"
        )
        return ErrorCode.INVALID_UPDATE_VERSION, text
    return None


def _members_refusal(wanted: PartitionAlteration, partition: PartitionInfo) -> Refusal | None:
    isr = [member.broker_id for member in wanted.isr]
    if not isr:
        return ErrorCode.INVALID_REQUEST, "the new ISR is empty: it must contain at least the leader"
    if len(set(isr)) != len(isr):
        return ErrorCode.INVALID_REQUEST, f"the new ISR {isr} names a broker twice: name each broker once"
    outside = [broker_id for broker_id in isr if broker_id not in partition.replicas]
    if outside:
        text = f"broker {outside[0]} of the new ISR holds no replica of this partition: leave it out"
        return ErrorCode.INVALID_REQUEST, text
    if partition.leader not in isr:
        text = (
            f"the new ISR {isr} does not contain the leader {partition.leader}: the leader is always in sync"
        )
        return ErrorCode.INVALID_REQUEST, text
    return None


def _recovery_refusal(wanted: PartitionAlteration, partition: PartitionInfo) -> Refusal | None:
    state = wanted.leader_recovery_state
    if state not in {RECOVERED, RECOVERING}:
        return ErrorCode.INVALID_REQUEST, f"{state} is not a leader recovery state: send 0 or 1"
    if state == RECOVERING and len(wanted.isr) > 1:
        text = (
            "the leader is recovering from an unclean election: no replica can join its ISR before it has "
            "recovered"
        )
        return ErrorCode.INVALID_REQUEST, text
    if state == RECOVERING and not is_recovering(partition):
        text = "the leader has already recovered: only an unclean election returns it to recovering"
        return ErrorCode.INVALID_REQUEST, text
    return None


def _ineligible(isr: tuple[IsrMember, ...], partition: PartitionInfo, rules: Rules) -> Refusal | None:
    """Which members may not be in sync: earlier reports of a broker that is leaving or was replaced no longer
    count."""
    for member in isr:
        registration = rules.brokers.get(member.broker_id)
        reason = None
        if registration is None:
            reason = "is not registered"
        elif registration.in_controlled_shutdown:
            reason = "is shutting down"
        elif registration.fenced or not rules.may_lead(member.broker_id):
            reason = "is fenced"
        elif member.broker_epoch is not None and member.broker_epoch != registration.epoch:
            reason = f"has epoch {registration.epoch}, not {member.broker_epoch}: it was restarted"
        else:
            directory = partition.directory_of(member.broker_id)
            # One that is not reported is accepted: Kafka's brokers never report that of a replica which a
            # reassignment adds. Ours fetch only after their report.
            if directory is not None and not rules.accepts(member.broker_id, directory):
                reason = "has its replica in an offline directory"
        if reason is not None:
            text = f"broker {member.broker_id} of the new ISR {reason}: leave it out"
            return ErrorCode.INELIGIBLE_REPLICA, text
    return None
