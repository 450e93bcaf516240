"""Reports on a broker's replicas and directories: DescribeLogDirs, and figures for metrics.

Reads only, and does not keep counts. Takes time in proportion to the replicas; called for people and
scrapers, not for events.
"""

from __future__ import annotations

import msgspec

from metaquorum.broker.replica.controller_requests import Assignments, IsrChanges
from metaquorum.broker.replica.fetchers import Fetchers
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.broker.replica.placement.directories import Copy, Directory
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.broker.replica.requests.fetches import Fetches
from metaquorum.broker.replica.requests.partitioned import Produces
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirDescription,
    PartitionKey,
    ReplicaDescription,
)


def describe_log_dirs(
    placement: Placement, broker_id: int, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Every configured directory, good or bad, in the configuration's order."""
    wanted = None if request.topic_ids is None else frozenset(request.topic_ids)
    by_directory: dict[bytes, list[ReplicaDescription]] = {}
    for copy in placement.copies.all():
        if wanted is None or copy.key[0] in wanted:
            found = _describe_future(placement, copy) if copy.future else _describe(copy)
            by_directory.setdefault(copy.directory_id, []).append(found)
    for directory_id, keys in _placed_in_bad(placement, broker_id).items():
        by_directory[directory_id] = [
            _unreadable(placement, key) for key in keys if wanted is None or key[0] in wanted
        ]
    return DescribeLogDirsResponse(
        directories=tuple(
            [
                _directory(directory, by_directory.get(directory.directory_id or b"", []))
                for directory in placement.directories.all
            ]
        )
    )


def _directory(directory: Directory, replicas: list[ReplicaDescription]) -> LogDirDescription:
    bad = directory.problem is not None
    return LogDirDescription(
        path=directory.path,
        directory_id=directory.directory_id,
        error=ErrorCode.KAFKA_STORAGE_ERROR if bad else ErrorCode.NONE,
        message=directory.problem,
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
        replicas=tuple(sorted(replicas, key=lambda each: (each.topic, each.key[1]))),
    )


def _describe(copy: Copy) -> ReplicaDescription:
    partition, log = copy.partition, copy.log
    start = end = high_watermark = 0
    lag = 0
    if partition is not None:
        lag = partition.lag
        start, end, high_watermark = partition.start_offset, partition.end_offset, partition.high_watermark
    elif log is not None:
        start, end, high_watermark = log.start_offset, log.end_offset, log.high_watermark
    return ReplicaDescription(
        key=copy.key,
        topic=copy.topic,
        size_bytes=copy.size_bytes,
        start_offset=start,
        end_offset=end,
        high_watermark=high_watermark,
        lag=lag,
        future=False,
    )


def _describe_future(placement: Placement, copy: Copy) -> ReplicaDescription:
    """Its lag is behind the replica, not behind the leader."""
    end = placement.moves.end_of(copy)
    source = placement.running.get(copy.key)
    return ReplicaDescription(
        key=copy.key,
        topic=copy.topic,
        size_bytes=placement.moves.size_of(copy),
        start_offset=0 if copy.log is None else copy.log.start_offset,
        end_offset=end,
        high_watermark=-1,
        lag=-1 if source is None else max(0, source.end_offset - end),
        future=True,
    )


def _placed_in_bad(placement: Placement, broker_id: int) -> dict[bytes, list[PartitionKey]]:
    """The partitions that the metadata log places in bad directories of this broker."""
    by_directory: dict[bytes, list[PartitionKey]] = {}
    image = placement.image
    if image is None or not placement.directories.any_bad:
        return by_directory
    for key in placement.offline:
        info = image.topics.partition(*key)
        place = None if info is None else info.directory_of(broker_id)
        if place is not None and placement.directories.is_bad(place):
            by_directory.setdefault(place, []).append(key)
    return by_directory


def _unreadable(placement: Placement, key: PartitionKey) -> ReplicaDescription:
    topic = None if placement.image is None else placement.image.topics.topic(key[0])
    return ReplicaDescription(
        key=key,
        topic="" if topic is None else topic.name,
        size_bytes=-1,
        start_offset=-1,
        end_offset=-1,
        high_watermark=-1,
        lag=-1,
        future=False,
    )


def replica_status(
    placement: Placement,
    produces: Produces,
    fetches: Fetches,
    fetchers: Fetchers,
    isr: IsrChanges,
    assignments: Assignments,
) -> LocalReplicaStatus:
    """The figures of all these parts."""
    leaders = followers = under_replicated = under_min = at_min = max_lag = 0
    for partition in placement.running.values():
        if partition.role is ReplicaRole.LEADER:
            leaders += 1
            under_replicated += partition.is_under_replicated
            under_min += partition.is_under_min_isr
            at_min += partition.is_at_min_isr
        elif partition.role is ReplicaRole.FOLLOWER:
            followers += 1
            max_lag = max(max_lag, partition.lag)
    return LocalReplicaStatus(
        replicas=len(placement.running.keys() | placement.offline.keys()),
        leaders=leaders,
        followers=followers,
        offline=len(placement.offline),
        under_replicated=under_replicated,
        under_min_isr=under_min,
        at_min_isr=at_min,
        max_lag=max_lag,
        offline_directories=tuple(directory.path for directory in placement.directories.bad()),
        pending_reconciliations=len(placement),
        waiting_produces=len(produces),
        waiting_fetches=len(fetches),
        fetch_sessions=len(fetches.sessions),
        fetchers=len(fetchers),
        isr_shrinks=isr.shrinks,
        isr_expands=isr.expands,
        pending_isr_changes=len(isr),
        unassigned=len(assignments),
        replicated_bytes=fetchers.bytes,
    )


# A broker's replicas as it sees them at one moment: figures for metrics.


class LocalReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of this broker's replicas. `under_replicated`, `under_min_isr`: partitions that it leads with
    fewer in sync than replicas, or than `min.insync.replicas`; `at_min_isr`: with exactly that many.
    `offline`: replicas that the log places here and that cannot be served (S3.24). `unassigned`: placed here,
    but the log does not name the directory yet. `waiting_produces`, `waiting_fetches`: parked requests.
    `fetchers`: loops that fetch from other leaders; `max_lag`: the largest lag of a follower here, in
    offsets. `offline_directories`: paths."""

    replicas: int = 0
    leaders: int = 0
    followers: int = 0
    offline: int = 0
    unassigned: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    offline_directories: tuple[str, ...] = ()
    waiting_produces: int = 0
    waiting_fetches: int = 0
    fetch_sessions: int = 0
    fetchers: int = 0
    max_lag: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    pending_isr_changes: int = 0
    pending_reconciliations: int = 0
    replicated_bytes: int = 0
