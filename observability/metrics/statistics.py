"""Counts of one process: its loop, its replica of the metadata log, requests, traffic and syncs.

The counts follow Kafka's raft-metrics (commit and election latency, rates). They read Raft's state from
outside, after each step: the core counts nothing. Call everything except `FlushStatistics` on the loop's
thread only.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

LATENCY_BOUNDS_MS = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0),
)
"""Upper bounds of the buckets of all latencies, in ms."""

WINDOW_MS = 30_000
"""The length of a span: averages, maxima and rates cover the current and the last one, as in Kafka."""

ERRORS_MAX = 1_000
"""The most pairs of request and error code that are counted separately; there are far fewer."""


class Histogram:
    """Counts of values by bucket, and their sum. `bounds`: inclusive upper bounds, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_MS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class _Span:
    begun_ms: int
    total: float = 0.0
    count: int = 0
    maximum: float = float("nan")


class Window:
    """Values of the last 30 to 60 s: average, maximum, and sum per second. Times are monotonic ms."""

    __slots__ = ("_now", "_past")

    def __init__(self, now_ms: int) -> None:
        self._past: _Span | None = None
        self._now = _Span(now_ms)

    def note(self, value: float, now_ms: int) -> None:
        self._turn(now_ms)
        span = self._now
        span.total += value
        span.count += 1
        span.maximum = value if span.count == 1 else max(span.maximum, value)

    def average(self, now_ms: int) -> float:
        """NaN when nothing was noted."""
        spans = self._spans(now_ms)
        count = sum(span.count for span in spans)
        return sum(span.total for span in spans) / count if count else float("nan")

    def maximum(self, now_ms: int) -> float:
        """NaN when nothing was noted."""
        return max((span.maximum for span in self._spans(now_ms) if span.count), default=float("nan"))

    def per_second(self, now_ms: int) -> float:
        """The sum of the values per second; the window counts as at least one second long."""
        spans = self._spans(now_ms)
        return sum(span.total for span in spans) / max(1.0, (now_ms - spans[0].begun_ms) / 1000)

    def _spans(self, now_ms: int) -> list[_Span]:
        self._turn(now_ms)
        return [self._now] if self._past is None else [self._past, self._now]

    def _turn(self, now_ms: int) -> None:
        age_ms = now_ms - self._now.begun_ms
        if age_ms < WINDOW_MS:
            return
        if age_ms < 2 * WINDOW_MS:
            self._past, self._now = self._now, _Span(self._now.begun_ms + WINDOW_MS)
        else:
            # No values for longer than a span: the last one was empty, and earlier ones are too old.
            self._past, self._now = _Span(now_ms - WINDOW_MS), _Span(now_ms)


@dataclass(slots=True)
class RequestStatistics:
    """Time from the arrival of requests to their responses, by the request's name in Kafka (Produce,
    FetchConsumer, FetchFollower, BrokerHeartbeat ...), and numbers of responses by error code."""

    times_ms: dict[str, Histogram] = field(default_factory=dict)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    abandoned: dict[str, int] = field(default_factory=dict)
    """Requests whose caller disconnected, or that timed out, before there was a response."""

    def observe(self, request: str, elapsed_ms: float, error: str | None = None) -> None:
        """Counts one response. `error`: the name of its code; None for a success."""
        histogram = self.times_ms.get(request)
        if histogram is None:
            histogram = self.times_ms[request] = Histogram()
        histogram.observe(elapsed_ms)
        if error is not None:
            self.fail(request, error)

    def fail(self, request: str, error: str) -> None:
        """Counts an error in a response."""
        key = (request, error)
        if key in self.errors or len(self.errors) < ERRORS_MAX:
            self.errors[key] = self.errors.get(key, 0) + 1

    def abandon(self, request: str) -> None:
        self.abandoned[request] = self.abandoned.get(request, 0) + 1


@dataclass(slots=True)
class TrafficStatistics:
    """Records that a broker received from producers and sent to others, according to its responses."""

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    """Bytes sent to consumers."""
    replication_bytes_out: int = 0
    failed_produces: int = 0
    failed_fetches: int = 0
    """Number of partitions in requests whose response had an error."""


@dataclass(slots=True)
class FlushStatistics:
    """Durations of syncs to disk, by log directory; `metadata` is the metadata log. Thread-safe."""

    times_ms: dict[str, Histogram] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, directory: str, elapsed_ms: float) -> None:
        """Counts one sync of `directory` (a path)."""
        with self._mutex:
            histogram = self.times_ms.get(directory)
            if histogram is None:
                histogram = self.times_ms[directory] = Histogram()
            histogram.observe(elapsed_ms)

    def disk_call(self, directory: str, operation: str, seconds: float) -> None:
        """Called after every call to the disk of `directory`; counts syncs only."""
        if operation == "sync":
            self.observe(directory, seconds * 1000)


COMMITS_MAX = 4_096
"""The most own appends tracked until their commit; beyond it, the oldest are dropped."""

ELECTING = frozenset({"prospective", "candidate"})
METADATA = "metadata"
"""The name of the metadata log among the synced directories."""


class LoopStatistics(msgspec.Struct):
    """Counts since the loop started. Times in ms."""

    events: int = 0
    steps: int = 0
    syncs: int = 0
    gaps: int = 0
    longest_gap_ms: int = 0
    refused: int = 0


class RaftView(Protocol):
    """The part of RaftCore that these counts read."""

    @property
    def role(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def leader_id(self) -> int | None: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def high_watermark(self) -> int: ...


@dataclass(slots=True)
class SnapshotStatistics:
    """Snapshots of the metadata log."""

    generated_bytes: int = 0
    """Size of the newest written one; until one is written, of the newest loaded one."""
    generated_ms: int = 0
    loads: int = 0
    """Number of snapshots that became this node's image, including the one it started from."""
    rejected: int = 0


@dataclass(slots=True, kw_only=True)
class Elections:
    """Elections seen by this node."""

    leaders_seen: int = 0
    """Number of new leaders, including this node itself."""
    begun_ns: int | None = None
    newest: tuple[int, int] | None = None
    """(epoch, leader) of the newest one that was counted."""
    by_ms: Histogram = field(default_factory=Histogram)


class NodeStatistics:
    """The counts of one process. `now_ms` is the monotonic time of the loop's clock."""

    def __init__(self, now_ms: int) -> None:
        self.started_ms = now_ms
        self.queue_ms = Histogram()
        self.processing_ms = Histogram()
        self.busy_ms = Window(now_ms)
        self.flushes = FlushStatistics()
        self.requests = RequestStatistics()
        self.traffic = TrafficStatistics()
        self.snapshots = SnapshotStatistics(generated_ms=now_ms)
        self.elections = Elections()
        self.commit_ms = Histogram()
        self.commit_window = Window(now_ms)
        self.election_window = Window(now_ms)
        self.fetched = Window(now_ms)
        self.appended = Window(now_ms)
        self.fetched_records = 0
        self.appended_records = 0
        self.load_errors = 0
        """Number of failures to read or replay committed metadata, and of damaged snapshots."""
        self.apply_errors = 0
        """Number of images that this node failed to apply."""
        self._raft: RaftView | None = None
        self._commits: deque[tuple[int, int]] = deque(maxlen=COMMITS_MAX)
        self._arrivals: deque[int] = deque()

    def watch(self, raft: RaftView) -> None:
        """Sets the Raft core whose log these counts are about."""
        self._raft = raft

    # ---- called by the driver, on the loop's thread

    def queued(self) -> None:
        """An event entered the inbox."""
        self._arrivals.append(time.monotonic_ns())

    def handled(self, begun_ns: int) -> None:
        """An event was handled, from `begun_ns` until now. It counts as the oldest one: where events let
        others pass, the mean of the waits is right, and a single one may be another's."""
        self.processing_ms.observe((time.monotonic_ns() - begun_ns) / 1e6)
        if self._arrivals:
            self.queue_ms.observe((begun_ns - self._arrivals.popleft()) / 1e6)

    def appended_batch(self, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Records were appended to the metadata log: a leader's own, or those that a follower fetched."""
        count = end_offset - base_offset
        if self._raft is not None and self._raft.is_leader:
            self.appended_records += count
            self.appended.note(count, now_ms)
            self._commits.append((end_offset, time.monotonic_ns()))
        else:
            self.fetched_records += count
            self.fetched.note(count, now_ms)

    def stepped(self, begun_ns: int, now_ms: int) -> None:
        """A step of the loop has ended."""
        now_ns = time.monotonic_ns()
        self.busy_ms.note((now_ns - begun_ns) / 1e6, now_ms)
        raft = self._raft
        if raft is None:
            return
        self._note_commits(raft, now_ns, now_ms)
        self._note_election(raft, begun_ns, now_ns, now_ms)

    def snapshot_written(self, size_bytes: int, now_ms: int) -> None:
        self.snapshots.generated_bytes = size_bytes
        self.snapshots.generated_ms = now_ms

    def snapshot_loaded(self, size_bytes: int) -> None:
        """A snapshot became this node's image."""
        self.snapshots.loads += 1
        if self.snapshots.generated_ms == self.started_ms:
            self.snapshots.generated_bytes = size_bytes

    def snapshot_rejected(self) -> None:
        self.snapshots.rejected += 1
        self.load_errors += 1

    # ---- parts

    def _note_commits(self, raft: RaftView, now_ns: int, now_ms: int) -> None:
        commits = self._commits
        if not commits:
            return
        if not raft.is_leader:
            commits.clear()  # the next leader decides whether they are committed
            return
        high_watermark = raft.high_watermark
        while commits and commits[0][0] <= high_watermark:
            took_ms = (now_ns - commits.popleft()[1]) / 1e6
            self.commit_ms.observe(took_ms)
            self.commit_window.note(took_ms, now_ms)

    def _note_election(self, raft: RaftView, step_ns: int, now_ns: int, now_ms: int) -> None:
        elections = self.elections
        leader_id = raft.leader_id
        if leader_id is None:
            if elections.begun_ns is None and raft.role in ELECTING:
                elections.begun_ns = now_ns
            return
        now = (raft.epoch, leader_id)
        if elections.begun_ns is None and raft.is_leader and now != elections.newest:
            elections.begun_ns = step_ns  # the only voter starts and wins an election in one step
        if elections.begun_ns is not None:
            took_ms = (now_ns - elections.begun_ns) / 1e6
            elections.begun_ns = None
            elections.by_ms.observe(took_ms)
            self.election_window.note(took_ms, now_ms)
        if now != elections.newest:
            elections.newest = now
            elections.leaders_seen += 1

    def idle_ratio(self, now_ms: int) -> float:
        """The fraction of time in which the loop took no step, 0 to 1."""
        return min(1.0, max(0.0, 1.0 - self.busy_ms.per_second(now_ms) / 1000))
