"""Counts about one node's loop, its replica of the metadata log and the requests it serves.

Owns the counts and the rules by which they follow Kafka's raft-metrics (commit and election latency, rates).
Reads Raft's state from outside, after each step: the core counts nothing. Knows no text format.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from metaquorum.runtime.metrics.statistics import (
    FlushStatistics,
    Histogram,
    RequestStatistics,
    TrafficStatistics,
    Window,
)

COMMITS_MAX = 4_096
"""The most own appends tracked until their commit; beyond it, the oldest are dropped."""

ELECTING = frozenset({"prospective", "candidate"})
METADATA = "metadata"
"""The name of the metadata log among the synced directories."""


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
    """Snapshots of the metadata log. `generated_bytes` is the size of the newest written one; until one is
    written, of the newest loaded one."""

    generated_bytes: int = 0
    generated_ms: int = 0
    loads: int = 0
    """Number of snapshots that became this node's image, including the one it started from."""
    rejected: int = 0


@dataclass(slots=True, kw_only=True)
class Elections:
    """Elections seen by this node. `leaders_seen`: number of new leaders, including this node itself."""

    leaders_seen: int = 0
    begun_ns: int | None = None
    known: tuple[int, int] | None = None
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
        """The oldest event was handled, from `begun_ns` until now."""
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
        if elections.begun_ns is None and raft.is_leader and now != elections.known:
            elections.begun_ns = step_ns  # the only voter starts and wins an election in one step
        if elections.begun_ns is not None:
            took_ms = (now_ns - elections.begun_ns) / 1e6
            elections.begun_ns = None
            elections.by_ms.observe(took_ms)
            self.election_window.note(took_ms, now_ms)
        if now != elections.known:
            elections.known = now
            elections.leaders_seen += 1

    def idle_ratio(self, now_ms: int) -> float:
        """The fraction of time in which the loop took no step, 0 to 1."""
        return min(1.0, max(0.0, 1.0 - self.busy_ms.per_second(now_ms) / 1000))
