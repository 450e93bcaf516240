"""Metrics at one moment, where a process takes them from, and the values that both roles share."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from metaquorum.observability.metrics import catalogue as names
from metaquorum.observability.metrics.catalogue import Metric
from metaquorum.observability.metrics.statistics import METADATA, Histogram, NodeStatistics
from metaquorum.raft.core import RaftCore

Value = float | Histogram


@dataclass(slots=True)
class Family:
    """One metric with its samples: (values of the metric's labels, in order; value)."""

    metric: Metric
    samples: list[tuple[tuple[str, ...], Value]] = field(default_factory=list)


class Source(Protocol):
    """A source of metrics. `prepare` may wait and may take several turns of the loop; `families` must be
    fast, since all its values are of one moment. `now_ms` is monotonic, `wall_ms` Unix time."""

    async def prepare(self) -> None: ...

    def families(self, now_ms: int, wall_ms: int) -> Iterable[Family]: ...


def one(metric: Metric, value: Value | None) -> Family:
    """A metric without labels. None, which means unknown, becomes -1 as in Kafka."""
    return Family(metric, [((), -1.0 if value is None else value)])


def labelled(metric: Metric, values: Mapping[str, Value]) -> Family:
    """A metric with one label; `values` are by the label's value."""
    return Family(metric, [((key,), value) for key, value in values.items()])


def quorum_state(raft: RaftCore) -> str:
    """Kafka's name of the state: a follower that is not a voter is an observer; a voter that knows no leader
    and has granted its vote is `voted`."""
    if raft.is_observer and raft.role == "follower":
        return "observer"
    if raft.role == "unattached" and raft.voted_id is not None:
        return "voted"
    return raft.role


def quorum_families(
    raft: RaftCore, controllers: Container[int], stats: NodeStatistics, now_ms: int
) -> Iterable[Family]:
    """Kafka's raft-metrics, and metaquorum's own histograms of the same times. `controllers` has the ids with
    a known address."""
    own = quorum_state(raft)
    states = {state: float(state == own) for state in names.STATES}
    yield labelled(names.CURRENT_STATE, states)
    yield one(names.CURRENT_LEADER, raft.leader_id)
    yield one(names.CURRENT_VOTE, raft.voted_id)
    yield one(names.CURRENT_EPOCH, raft.epoch)
    yield one(names.HIGH_WATERMARK, raft.high_watermark)
    yield one(names.LOG_END_OFFSET, raft.log_end_offset)
    lost = [loss.known_offset - loss.common_offset for loss in raft.losses]
    yield one(names.LOST_RECORDS, max(lost, default=0))
    yield one(names.LOG_END_EPOCH, raft.epochs.last_epoch if raft.log_end_offset else -1)
    yield one(names.UNKNOWN_VOTERS, sum(node_id not in controllers for node_id in raft.voters))
    yield one(names.COMMIT_AVG, stats.commit_window.average(now_ms))
    yield one(names.COMMIT_MAX, stats.commit_window.maximum(now_ms))
    yield one(names.ELECTION_AVG, stats.election_window.average(now_ms))
    yield one(names.ELECTION_MAX, stats.election_window.maximum(now_ms))
    yield one(names.FETCH_RATE, stats.fetched.per_second(now_ms))
    yield one(names.APPEND_RATE, stats.appended.per_second(now_ms))
    yield one(names.IDLE_RATIO, stats.idle_ratio(now_ms))
    yield one(names.COMMIT_TIME, stats.commit_ms)
    yield one(names.ELECTION_TIME, stats.elections.by_ms)
    yield one(names.FETCHED_RECORDS, stats.fetched_records)
    yield one(names.APPENDED_RECORDS, stats.appended_records)


def image_families(metadata_version: int, stats: NodeStatistics, now_ms: int) -> Iterable[Family]:
    """Kafka's MetadataLoader and SnapshotEmitter metrics."""
    yield one(names.METADATA_VERSION, metadata_version)
    yield one(names.LOAD_SNAPSHOTS, stats.snapshots.loads)
    yield one(names.SNAPSHOT_BYTES, stats.snapshots.generated_bytes)
    yield one(names.SNAPSHOT_AGE, now_ms - stats.snapshots.generated_ms)


def work_families(stats: NodeStatistics) -> Iterable[Family]:
    """Requests by name, and syncs by directory; `metadata` is the first."""
    yield labelled(names.REQUEST_TIME, dict(sorted(stats.requests.times_ms.items())))
    yield Family(names.REQUEST_ERRORS, [(key, count) for key, count in sorted(stats.requests.errors.items())])
    flushes = stats.flushes.times_ms
    ordered = sorted(flushes, key=lambda directory: (directory != METADATA, directory))
    yield labelled(names.FLUSH_TIME, {directory: flushes[directory] for directory in ordered})


def applied_age_ms(timestamp_ms: int, wall_ms: int) -> int:
    """The age of the last applied record in ms; -1 if none is applied, 0 if the clock went back."""
    return -1 if timestamp_ms < 0 else max(0, wall_ms - timestamp_ms)
