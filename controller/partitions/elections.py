"""Elections on request: preferred leaders, and unclean ones where no replica in sync is alive (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from metaquorum.controller.partitions.column_elections import electable
from metaquorum.controller.partitions.partition_change import Election, Rules, Target, build_change
from metaquorum.controller.partitions.partitions import rows_without_preferred_leader
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionInfo
from metaquorum.metadata.meanings import merge_change
from metaquorum.metadata.records.types import PartitionChangeRecord, Record
from metaquorum.metadata.requests.partitions import ElectionResult, ElectLeadersRequest, ElectLeadersResponse

ELECTIONS_PER_REQUEST_MAX = 1_000
"""Elections in one request over all partitions; the caller sends it again for the rest. As many as in a batch
of the balancer: each is computed on its own, and heartbeats wait meanwhile."""
REFUSALS_REPORTED_MAX = 1_000
"""Refusals that a request over all partitions reports; no one reads more."""


def decide_elections(
    image: MetadataImage, request: ElectLeadersRequest, rules: Rules, *, records_max: int
) -> ControllerResult:
    """One result per named partition, or per partition without the wanted leader.

    An unclean election takes a live replica that was not in sync if there is no other: its caller accepts the
    loss of data, whatever the topic's configuration.
    """
    if request.partitions is None:
        return _elect_everywhere(image, request.unclean, rules, min(records_max, ELECTIONS_PER_REQUEST_MAX))
    named = tuple(dict.fromkeys(request.partitions))
    if len(named) > records_max:
        text = f"{len(named)} elections exceed the {records_max} allowed at once: request fewer"
        return ControllerResult(response=ApiError(ErrorCode.POLICY_VIOLATION, text), depends_on_image=False)
    records: list[Record] = []
    results: list[ElectionResult] = []
    for topic, index in named:
        info = image.topics.topic_named(topic)
        partition = None if info is None else image.topics.partition(info.topic_id, index)
        if partition is None:
            text = (
                f"there is no topic {topic}: list the topics to see which exist"
                if info is None
                else f"topic {topic} has no partition {index}: describe the topic to see its partitions"
            )
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(ElectionResult(topic=topic, partition=index, error=code, message=text))
            continue
        result, change = _elect(topic, partition, request.unclean, rules)
        results.append(result)
        if change is not None:
            records.append(change)
    return ControllerResult(response=ElectLeadersResponse(results=tuple(results)), records=tuple(records))


def _elect_everywhere(
    image: MetadataImage, unclean: bool, rules: Rules, elections_max: int
) -> ControllerResult:
    topics = image.topics
    rows = topics.rows_without_leader() if unclean else rows_without_preferred_leader(topics)
    able = electable(image, rows, rules, unclean=unclean) if rows.size else np.zeros(0, dtype=bool)
    # The others are refused, whatever their number: only those that are reported are looked at.
    able[np.flatnonzero(~able)[:REFUSALS_REPORTED_MAX]] = True
    records: list[Record] = []
    results: list[ElectionResult] = []
    refused, more = 0, False
    for partition in _at(image, rows[able].tolist()):
        if len(records) == elections_max:
            more = True
            break
        info = topics.topic(partition.topic_id)
        result, change = _elect("" if info is None else info.name, partition, unclean, rules)
        if change is not None:
            records.append(change)
            results.append(result)
        elif refused < REFUSALS_REPORTED_MAX:
            refused += 1
            results.append(result)
    response = ElectLeadersResponse(results=tuple(results), more=more)
    return ControllerResult(response=response, records=tuple(records))


def _at(image: MetadataImage, rows: Iterable[int]) -> Iterable[PartitionInfo]:
    return (image.topics.at(row) for row in rows)


def _elect(
    topic: str, partition: PartitionInfo, unclean: bool, rules: Rules
) -> tuple[ElectionResult, PartitionChangeRecord | None]:
    if partition.leader != NO_LEADER and (unclean or partition.leader == partition.replicas[0]):
        led = f"broker {partition.leader} leads this partition"
        text = f"{led}: no election is needed" if unclean else f"{led}, as preferred: no election is needed"
        return _refused(topic, partition, ErrorCode.ELECTION_NOT_NEEDED, text), None
    election = Election.UNCLEAN if unclean else Election.PREFERRED
    change = build_change(partition, Target(), rules, election)
    if unclean and (change is None or change.leader is None):
        change = _recreated(partition, rules) or change
    if change is None or change.leader is None:
        if unclean:
            code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            text = f"no replica is online: start one of the brokers {_ids(partition.replicas)}"
        else:
            code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            text = (
                f"broker {partition.replicas[0]} is not in sync or not online: retry when it is in the ISR, "
                f"which is {_ids(partition.isr)}"
            )
        return _refused(topic, partition, code, text), None
    after = merge_change(partition, change, offset=-1)
    result = ElectionResult(topic=topic, partition=partition.index, error=ErrorCode.NONE, leader=after.leader)
    return result, change


def _recreated(partition: PartitionInfo, rules: Rules) -> PartitionChangeRecord | None:
    """The election of a replica that has nothing, because its directory is gone, if there is no other."""
    for replica in partition.replicas:
        directory = rules.recreated.get((partition.topic_id, partition.index, replica))
        if directory is not None and rules.accepts(replica, directory):
            target = Target(
                directories={replica: directory}, unclean_shutdown=frozenset([replica]), emptied=replica
            )
            return build_change(partition, target, rules, Election.UNCLEAN)
    return None


def _refused(topic: str, partition: PartitionInfo, code: ErrorCode, text: str) -> ElectionResult:
    leader = None if partition.leader == NO_LEADER else partition.leader
    return ElectionResult(topic=topic, partition=partition.index, error=code, message=text, leader=leader)


def _ids(brokers: tuple[int, ...]) -> str:
    return ", ".join(str(broker_id) for broker_id in brokers)
