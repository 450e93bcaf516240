"""The records that a new active controller writes before it serves: the end of an interrupted transaction,
and a cluster's first records, as Kafka 3.7 writes them.

Owns which records these are. Does not know when they are written: `steps` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.controller.features import LEVEL_TRANSACTIONS, LEVEL_ZK_MIGRATION_STATE
from metaquorum.controller.partitions.eligible import safety_records
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION, ELR_VERSION
from metaquorum.metadata.image import METADATA_VERSION
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    Record,
    ZkMigrationStateRecord,
)
from metaquorum.metadata.replay import OpenTransaction, ReplayState, replay_records

TRANSACTION_NAME = "Bootstrap records"


def first_records(bootstrap: Sequence[Record]) -> tuple[Record, ...]:
    """The first batch of a cluster: the formatted records, in one transaction if the level supports those.

    Without a formatted metadata.version the default level is finalized first.
    """
    levels = [
        record.feature_level
        for record in bootstrap
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION
    ]
    records: list[Record] = list(bootstrap)
    if not levels:
        records.insert(0, FeatureLevelRecord(name=METADATA_VERSION, feature_level=DEFAULT_METADATA_VERSION))
    level = levels[-1] if levels else DEFAULT_METADATA_VERSION
    says_migration = any(isinstance(record, ZkMigrationStateRecord) for record in records)
    if level >= LEVEL_ZK_MIGRATION_STATE and not says_migration:
        records.append(ZkMigrationStateRecord(zk_migration_state=0))
    if any(isinstance(each, FeatureLevelRecord) and each.name == ELR_VERSION for each in records):
        records += _missing_safety_records(records)
    if level >= LEVEL_TRANSACTIONS:
        return (BeginTransactionRecord(name=TRANSACTION_NAME), *records, EndTransactionRecord())
    return tuple(records)


def _missing_safety_records(records: Sequence[Record]) -> list[Record]:
    """Eligible leader replicas require a min.insync.replicas of the cluster (KIP-966)."""
    image = replay_records(
        ReplayState(), base_offset=0, epoch=0, timestamp_ms=0, records=list(records)
    ).newest
    return safety_records(image)


def abort_record(transaction: OpenTransaction) -> Record:
    """Ends a transaction that an earlier active controller left open."""
    name = transaction.name or "unnamed"
    return AbortTransactionRecord(
        reason=f"the controller that began '{name}' at offset {transaction.begin_offset} did not end it"
    )
