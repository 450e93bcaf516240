"""Queries on producers of partitions: verification of transactions, and their state.

Owns the answers. Must not change a partition, apart from its guards of verification, which
`partition.verification` has.
"""

from __future__ import annotations

from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.broker.replica.requests.lookup import Find
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    ActiveProducer,
    BeginVerification,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionKey,
    VerificationBegun,
    VerificationGuard,
)


def begin_verification(find: Find, request: BeginVerification) -> VerificationBegun:
    """What coordinators must confirm before batches of transactions are sent to these partitions."""
    guards = []
    for asked in request.partitions:
        found = find(asked.key)
        if isinstance(found, Partition):
            guards.append(found.begin_verification(asked))
        else:
            guards.append(VerificationGuard(key=asked.key))
    return VerificationBegun(guards=tuple(guards))


def describe_producers(find: Find, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """The producers known to this broker's replicas, including followers (KIP-664)."""
    return DescribeProducersResponse(results=tuple([_described(find, key) for key in request.partitions]))


def _described(find: Find, key: PartitionKey) -> DescribedProducers:
    found = find(key)
    if not isinstance(found, Partition):
        return DescribedProducers(key=key, error=found.error, message=found.message)
    if found.role is ReplicaRole.IDLE:
        text = f"{found.topic}-{key[1]}: this broker has no replica of the partition: ask its leader"
        return DescribedProducers(key=key, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message=text)
    producers = [
        ActiveProducer(
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            last_sequence=each.batches[-1].last_sequence if each.batches else -1,
            last_timestamp_ms=each.seen_ms,
            coordinator_epoch=each.coordinator_epoch,
            open_from=each.open_from,
        )
        for each in found.producers.all()
    ]
    return DescribedProducers(key=key, producers=tuple(producers))
