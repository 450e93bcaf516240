"""Facts about every cluster of a fleet, as values.

The numbers that audits and the report share: sizes, time spans, states of brokers, failovers, elections, and
each partition's time without a leader or below min ISR.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from metaquorum.pipeline.tables import FAILOVER_BOUNDS_MS

INCIDENT_GAP_MS = 60_000
T = TypeVar("T")
PartitionName = tuple[str, str, int]
"""Topic, topic id, index."""


class Incident(NamedTuple):
    """One period of trouble. `worst`: the partition with the most of it, `worst_ms`. `total_ms`:
    the sum over all partitions."""

    start_ms: int
    end_ms: int
    offset: int
    is_open: bool
    sections: int
    partitions: int
    open_partitions: int
    worst: PartitionName
    worst_ms: int
    total_ms: int

    @property
    def until_ms(self) -> int | None:
        """The end; None if ongoing."""
        return None if self.is_open else self.end_ms

    @property
    def subject(self) -> str:
        """The entity path of the worst partition."""
        return f"topic/{self.worst[0]}/{self.worst[2]}"


class Sections:
    """Sections of trouble of partitions."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._numbers: dict[PartitionName, int] = {}

    def add(
        self,
        partition: PartitionName,
        start_ms: int,
        end_ms: int,
        offset: int,
        *,
        lasted_ms: int | None = None,
        is_open: bool = False,
    ) -> None:
        """`lasted_ms`: how much of the span counts, if not all of it."""
        number = self._numbers.setdefault(partition, len(self._numbers))
        lasted = end_ms - start_ms if lasted_ms is None else lasted_ms
        self._rows.extend((start_ms, end_ms, lasted, offset, number, is_open))

    def longer_than(self, limit_ms: int) -> Sections:
        """Only the sections that lasted longer."""
        longer = Sections()
        longer._numbers = self._numbers
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)
        longer._rows = array("q", rows[rows[:, 2] > limit_ms].tobytes())
        return longer

    def begun_within(self, start_ms: int, end_ms: int) -> int:
        """The number of sections that began in that time, both ends included."""
        starts = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)[:, 0]
        return int(np.count_nonzero((starts >= start_ms) & (starts <= end_ms)))

    def incidents(self) -> Iterator[Incident]:
        """The incidents, by time."""
        if not self._rows:
            return
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)
        rows = rows[np.lexsort((rows[:, 3], rows[:, 0]))]
        names = list(self._numbers)
        until = np.maximum.accumulate(rows[:, 1])
        begins = np.flatnonzero(rows[1:, 0] > until[:-1] + INCIDENT_GAP_MS) + 1
        for part in np.split(rows, begins):
            numbers, places = np.unique(part[:, 4], return_inverse=True)
            lasted = np.zeros(len(numbers), dtype=np.int64)
            np.add.at(lasted, places, part[:, 2])
            worst = min(range(len(numbers)), key=lambda at: (-lasted[at], names[numbers[at]]))
            still = part[part[:, 5] > 0, 4]
            yield Incident(
                start_ms=int(part[0, 0]),
                end_ms=int(part[:, 1].max()),
                offset=int(part[0, 3]),
                is_open=len(still) > 0,
                sections=len(part),
                partitions=len(numbers),
                open_partitions=len(np.unique(still)),
                worst=names[numbers[worst]],
                worst_ms=int(lasted[worst]),
                total_ms=int(lasted.sum()),
            )


def bursts(events: list[T], least: int, window_ms: int, time_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Runs of at least `least` events. In a run, any `least` neighbors are within the window."""
    burst: list[T] = []
    for event in events:
        burst.append(event)
        if len(burst) >= least and time_of(event) - time_of(burst[-least]) <= window_ms:
            continue
        if len(burst) > least:
            yield burst[:-1]
            burst = burst[-least + 1 :]
        elif len(burst) == least:
            burst = burst[1:]
    if len(burst) >= least:
        yield burst


Floats = npt.NDArray[np.float64]

BUCKETS = 120
"""The number of equal parts of the fleet's time span, for everything drawn over time."""
MAX_TROUBLED = 100_000
"""Partitions of a cluster whose trouble is kept; the rest are counted in `troubled_left_out`."""

MAX_ASKED = 1_000
"""Pairs of a cluster to keep in `asked`; one more holds the rest."""


@dataclass(slots=True)
class BrokerPeriod:
    """A broker in one state. `to_ms` None: ongoing."""

    broker: int
    state: str
    from_ms: int
    to_ms: int | None
    from_offset: int
    began_by: str | None


class TimeSpan(NamedTuple):
    """A section of time. `offset`: where it ended. `is_open`: it is ongoing."""

    start_ms: int
    end_ms: int
    offset: int
    is_open: bool = False


@dataclass(slots=True)
class Trouble:
    """The trouble of one partition; times in ms."""

    leaderless_ms: int = 0
    leaderless_open: bool = False
    under_min_isr_ms: int = 0
    unclean: int = 0
    longest_ms: int = 0
    longest_from_ms: int | None = None
    longest_to_ms: int | None = None
    """End of the longest time without a leader; None: ongoing."""


@dataclass(slots=True)
class ClusterFacts:
    """One cluster. `start_ms` and `end_ms` span the log. Sums in seconds are those of `availability`."""

    cluster: str
    start_ms: int = 0
    end_ms: int = 0
    nodes: int = 0
    records: int = 0
    partitions: int = 0
    topics: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    sessions: dict[int, list[BrokerPeriod]] = field(default_factory=lambda: defaultdict(list))
    racks: dict[int, str | None] = field(default_factory=dict)
    elections: list[dict[str, Any]] = field(default_factory=list)
    failover_ms: list[npt.NDArray[np.int64]] = field(default_factory=list)
    failovers_open: int = 0
    failovers_lost: int = 0
    """Failovers whose end is not known: the cluster was off or its records are missing."""
    failover_causes: Counter[str] = field(default_factory=Counter)
    slow: Sections = field(default_factory=Sections)
    """Failovers that took time and ended."""
    trouble: dict[PartitionName, Trouble] = field(default_factory=lambda: defaultdict(Trouble))
    leaderless: Sections = field(default_factory=Sections)
    under_min_isr: Sections = field(default_factory=Sections)
    """Only while there was a leader: without one, the missing replicas are not a separate trouble."""
    unclean: Sections = field(default_factory=Sections)
    violations: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    damage: list[dict[str, Any]] = field(default_factory=list)
    directories_lost: list[dict[str, Any]] = field(default_factory=list)
    directories_found: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table `incidents`, by offset."""
    voters: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table `voter_sets`, by offset."""
    asked: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """(principal, request) -> number of batches, and the last of them."""
    silences: list[TimeSpan] = field(default_factory=list)
    """Times in which the quorum wrote nothing, with the offset that ended them."""
    offs: list[TimeSpan] = field(default_factory=list)
    """Times after the last broker had shut down cleanly."""

    def judged(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        """The parts of a span in which brokers had to serve and it is known whether they did."""
        for out in sorted([*self.silences, *self.offs]):
            if out.start_ms > start_ms:
                yield start_ms, min(out.start_ms, end_ms)
            start_ms = max(start_ms, out.end_ms)
            if start_ms >= end_ms:
                return
        yield start_ms, end_ms

    @property
    def ends_off(self) -> bool:
        """Whether the log ends after its last broker shut down cleanly."""
        return any(at.is_open for at in self.offs)

    @property
    def brokers(self) -> int:
        """The number of brokers that were ever registered."""
        return len(self.sessions)

    @property
    def availability(self) -> float | None:
        """Share of partition time with a leader; None without partitions."""
        total = self.sums["partition_seconds"]
        return None if total <= 0 else max(0.0, 1 - self.sums["leaderless_seconds"] / total)

    def durations(self) -> npt.NDArray[np.int64]:
        """Durations in ms of all failovers that ended."""
        return np.concatenate(self.failover_ms) if self.failover_ms else np.empty(0, dtype=np.int64)

    def fences(self) -> list[BrokerPeriod]:
        """Sessions that began because a running broker was fenced, by time. Excludes brokers that shut down
        cleanly, as when the cluster is switched off."""
        fences = []
        for listed in self.sessions.values():
            for before, now in pairwise(listed):
                was_off = any(at.start_ms <= now.from_ms <= at.end_ms for at in self.offs)
                if now.state == "fenced" and before.state == "active" and not was_off:
                    fences.append(now)
        return sorted(fences, key=lambda at: (at.from_ms, at.broker))


@dataclass(slots=True)
class Fleet:
    """All clusters, and the values drawn over time: arrays (clusters, BUCKETS)."""

    clusters: list[ClusterFacts]
    start_ms: int
    end_ms: int
    leader_changes: Floats = field(init=False)
    isr_changes: Floats = field(init=False)
    leaderless: Floats = field(init=False)
    """The average number of partitions without a leader per bucket."""
    under_min_isr: Floats = field(init=False)
    missing: tuple[str, ...] = ()
    troubled_left_out: int = 0
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Findings of severity error and warning, by cluster."""

    def __post_init__(self) -> None:
        shape = (len(self.clusters), BUCKETS)
        self.leader_changes, self.isr_changes = np.zeros(shape), np.zeros(shape)
        self.leaderless, self.under_min_isr = np.zeros(shape), np.zeros(shape)

    @property
    def bucket_ms(self) -> float:
        return max(1.0, (self.end_ms - self.start_ms) / BUCKETS)


def quantiles(values: npt.NDArray[np.int64]) -> tuple[float, float, float] | None:
    """Median, 95th percentile and maximum, linear between neighbors; None without values."""
    if not len(values):
        return None
    p50, p95, longest = np.quantile(values, (0.5, 0.95, 1.0)).tolist()
    return p50, p95, longest


def histogram(values: npt.NDArray[np.int64]) -> list[int]:
    """The number of durations up to each of FAILOVER_BOUNDS_MS (inclusive), then of the rest."""
    places = np.searchsorted(np.array(FAILOVER_BOUNDS_MS), values, side="left")
    counted: list[int] = np.bincount(places, minlength=len(FAILOVER_BOUNDS_MS) + 1).tolist()
    return counted
