"""Reads of a log directory's replicas.

Owns how damage is reported to a reader. Must not change the store or its logs: any thread may call this at
any time.

A read that names a replica or an incarnation that is not there, or no longer, finds nothing.
"""

from __future__ import annotations

from metaquorum.broker.replica.disk_work import FindOffset, OffsetFound, PartitionRead, ReadPartition
from metaquorum.broker.replica.store.parts import Opened
from metaquorum.storage.errors import CorruptLogError, OffsetOutOfRange
from metaquorum.storage.partition.pooled_log import FoundRecord


def read_partition(opened: Opened, work: ReadPartition) -> PartitionRead:
    """Whole batches, or a report that the bytes there are damaged. Raises DiskError."""
    replica = opened.replica(work.key, work.incarnation)
    if replica is None:
        return PartitionRead(token=work.token, data=None)
    try:
        data = replica.log.read_range(work.from_offset, work.to_offset, work.max_bytes)
    except OffsetOutOfRange:
        return PartitionRead(token=work.token, data=None)
    except CorruptLogError as error:
        opened.on_warning(str(error))
        return PartitionRead(token=work.token, data=None, problem=str(error))
    return PartitionRead(token=work.token, data=data)


def find_offset(opened: Opened, work: FindOffset) -> OffsetFound:
    """The first record that is not older, or a report that the bytes there are damaged. Raises DiskError."""
    replica = opened.replica(work.key, work.incarnation)
    problem: str | None = None
    found: FoundRecord | None = None
    try:
        if replica is not None:
            found = replica.log.find_offset(work.timestamp_ms, work.below_offset)
    except CorruptLogError as error:
        opened.on_warning(str(error))
        problem = str(error)
    if found is None:
        return OffsetFound(token=work.token, offset=None, timestamp_ms=-1, leader_epoch=-1, problem=problem)
    return OffsetFound(
        token=work.token,
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        leader_epoch=found.leader_epoch,
    )
