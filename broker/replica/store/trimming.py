"""What is removed from the start of a log: old segments, and what is below a start that was requested.

Owns the order of steps on the disk: what is deleted never comes back. Decides nothing about when.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.broker.replica.disk_work import EnforceRetention, TrimTo
from metaquorum.broker.replica.store.parts import Opened, StoredReplica
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.errors import CorruptLogError


def enforce_retention(opened: Opened, replica: StoredReplica, work: EnforceRetention) -> bool:
    """Returns whether segments were removed because they were too old or too many. Raises DiskError."""
    log, settings = replica.log, replica.settings
    log.producers.expire(work.wall_ms - opened.options.producer_id_expiration_ms)
    # A log keeps nothing below its start, whatever its policy.
    went = bool(log.delete_segments_before(log.log_start_offset))
    if not settings.deletes:
        return went
    try:
        return went | log.enforce_retention(
            retention_bytes=settings.retention_bytes,
            retention_ms=settings.retention_ms,
            below_offset=work.below_offset,
            wall_ms=work.wall_ms,
        )
    except CorruptLogError as error:
        opened.on_warning(f"{error}; the files of this replica are kept")
        return False


def trim_replicas(opened: Opened, works: Iterable[TrimTo]) -> list[StoredReplica]:
    """Returns those that now start later. If no segment begins at a new start, the directory's file names it
    before it is reported. Raises DiskError."""
    starts: dict[PartitionKey, tuple[StoredReplica, int]] = {}
    for work in works:
        replica = opened.replica(work.key, work.incarnation)
        if replica is not None:
            start = min(work.start_offset, replica.log.end_offset)
            if start > replica.log.log_start_offset:
                starts[work.key] = (replica, max(start, starts.get(work.key, (replica, 0))[1]))
    if not starts:
        return []
    changed = [((one.topic, one.key[1]), one.log, start) for one, start in starts.values()]
    opened.log_starts.change(opened.disk, opened.path, changed)
    for replica, start in starts.values():
        replica.log.delete_segments_before(start)
        replica.log.start_at(start)
    return [replica for replica, _ in starts.values()]
