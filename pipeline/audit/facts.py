"""Facts about every cluster of a fleet, gathered in one pass over each table.

Owns the numbers that audits and the report share: sizes, spans of time, states of brokers, failovers,
elections, and per-partition time without a leader or under the minimum of replicas in sync. Memory is bounded
by brokers, troubled partitions, failovers and buckets, not by rows. Judges nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.tables import FAILOVER_BOUNDS_MS, OFF, UNOBSERVED

from .source import NO_TIME, TableSource, Times, time_column

Floats = npt.NDArray[np.float64]

MIN_ISR = "min.insync.replicas"
BUCKETS = 120
"""Pieces into which the time of the fleet is cut for everything that is drawn over time."""
MAX_TROUBLED = 100_000
"""Partitions of a cluster whose time in trouble is kept; the rest is counted in `troubled_left_out`."""


@dataclass(slots=True)
class Session:
    """A broker in one state. `to_ms` None: still so."""

    broker: int
    state: str
    from_ms: int
    to_ms: int | None
    from_offset: int
    began_by: str | None


class Span(NamedTuple):
    """A stretch of time; `offset` is where it ended, `is_open` that it lasts."""

    start_ms: int
    end_ms: int
    offset: int
    is_open: bool = False


@dataclass(slots=True)
class Trouble:
    """What one partition went through; times in ms."""

    leaderless_ms: int = 0
    leaderless_open: bool = False
    under_min_isr_ms: int = 0
    unclean: int = 0


@dataclass(slots=True)
class ClusterFacts:
    """One cluster. `start_ms` and `end_ms` span the log; sums in seconds are as `availability` has them."""

    cluster: str
    start_ms: int = 0
    end_ms: int = 0
    nodes: int = 0
    records: int = 0
    bytes: int = 0
    partitions: int = 0
    topics: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    sessions: dict[int, list[Session]] = field(default_factory=lambda: defaultdict(list))
    racks: dict[int, str | None] = field(default_factory=dict)
    elections: list[dict[str, Any]] = field(default_factory=list)
    failover_ms: list[npt.NDArray[np.int64]] = field(default_factory=list)
    failovers_open: int = 0
    failover_causes: Counter[str] = field(default_factory=Counter)
    trouble: dict[tuple[str, str, int], Trouble] = field(default_factory=lambda: defaultdict(Trouble))
    violations: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    damage: list[dict[str, Any]] = field(default_factory=list)
    directories_lost: list[dict[str, Any]] = field(default_factory=list)
    silences: list[Span] = field(default_factory=list)
    """When nobody wrote, with the offset that ended it."""
    offs: list[Span] = field(default_factory=list)
    """When the last broker had stopped in order."""

    def judged(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        """The parts of a span in which somebody had to serve, and it is known whether anybody did."""
        for out in sorted([*self.silences, *self.offs]):
            if out.start_ms > start_ms:
                yield start_ms, min(out.start_ms, end_ms)
            start_ms = max(start_ms, out.end_ms)
            if start_ms >= end_ms:
                return
        yield start_ms, end_ms

    @property
    def ends_off(self) -> bool:
        """Whether the log ends after its last broker stopped in order."""
        return any(at.is_open for at in self.offs)

    @property
    def brokers(self) -> int:
        """Brokers that were registered at some time."""
        return len(self.sessions)

    @property
    def availability(self) -> float | None:
        """Share of partition time with a leader; None where no partition was seen."""
        total = self.sums["partition_seconds"]
        return None if total <= 0 else max(0.0, 1 - self.sums["leaderless_seconds"] / total)

    def durations(self) -> npt.NDArray[np.int64]:
        """Durations of all failovers that ended, in ms."""
        return np.concatenate(self.failover_ms) if self.failover_ms else np.empty(0, dtype=np.int64)

    def fences(self) -> list[Session]:
        """Sessions that began because a broker that ran was fenced, in the order of time."""
        found = []
        for listed in self.sessions.values():
            for before, now in pairwise(listed):
                if now.state == "fenced" and before.state == "active":
                    found.append(now)
        return sorted(found, key=lambda at: (at.from_ms, at.broker))


@dataclass(slots=True)
class Fleet:
    """All clusters, and what is drawn over time: arrays (clusters, BUCKETS)."""

    clusters: list[ClusterFacts]
    start_ms: int
    end_ms: int
    leader_changes: Floats = field(init=False)
    isr_changes: Floats = field(init=False)
    leaderless: Floats = field(init=False)
    """Partitions without a leader, on average over a bucket."""
    under_min_isr: Floats = field(init=False)
    missing: tuple[str, ...] = ()
    troubled_left_out: int = 0

    def __post_init__(self) -> None:
        shape = (len(self.clusters), BUCKETS)
        self.leader_changes, self.isr_changes = np.zeros(shape), np.zeros(shape)
        self.leaderless, self.under_min_isr = np.zeros(shape), np.zeros(shape)

    @property
    def bucket_ms(self) -> float:
        return max(1.0, (self.end_ms - self.start_ms) / BUCKETS)


def gather(source: TableSource) -> Fleet:
    """Everything, table by table. Raises OSError and pyarrow's errors for files that cannot be read."""
    clusters: dict[str, ClusterFacts] = {}

    def facts(name: str) -> ClusterFacts:
        return clusters.setdefault(name, ClusterFacts(name))

    _small_tables(source, facts)
    for one in clusters.values():
        _span(one)
    ordered = sorted(clusters.values(), key=lambda at: at.cluster)
    known = [one for one in ordered if one.end_ms]
    start = min((one.start_ms for one in known), default=0)
    end = max((one.end_ms for one in known), default=0)
    fleet = Fleet(ordered, start, end)
    _partitions(source, fleet)
    _failovers(source, clusters)
    needed = ("quorum_epochs", "broker_sessions", "partition_states", "availability")
    fleet.missing = tuple(name for name in needed if name not in source.present)
    return fleet


def _small_tables(source: TableSource, facts: Any) -> None:
    counts = source.row_counts("records")
    for row in source.rows("files", ("cluster", "node_id", "file", "bytes", "end_offset", "used")):
        one = facts(row["cluster"])
        one.nodes += 1
        one.bytes += row["bytes"] or 0
        # Without the records themselves (they may be kept elsewhere) the end of the log is the best guess.
        one.records = counts.get(row["cluster"], 0) if counts else max(one.records, row["end_offset"] or 0)
    epochs = ("cluster", "epoch", "leader_id", "from_offset", "from_time", "to_time", "skipped_epochs")
    for row in source.rows("quorum_epochs", epochs):
        facts(row["cluster"]).elections.append(row)
    sessions = ("cluster", "broker_id", "rack", "state", "from_time", "to_time", "from_offset", "began_by")
    for row in source.rows("broker_sessions", sessions):
        one = facts(row["cluster"])
        session = Session(
            broker=row["broker_id"],
            state=row["state"],
            from_ms=row["from_time"] or 0,
            to_ms=row["to_time"],
            from_offset=row["from_offset"],
            began_by=row["began_by"],
        )
        one.sessions[row["broker_id"]].append(session)
        one.racks[row["broker_id"]] = row["rack"]
    for row in source.rows("topics", ("cluster", "partitions", "to_offset")):
        if row["to_offset"] is None:
            one = facts(row["cluster"])
            one.topics += 1
            one.partitions += row["partitions"] or 0
    _coverage(source, facts)
    _availability(source, facts)
    _violations(source, facts)
    for row in source.rows("damage", ("cluster", "node_id", "file", "position", "offset", "kind", "reason")):
        facts(row["cluster"]).damage.append(row)
    events = ("cluster", "time", "offset", "broker_id", "directory_id", "event", "replicas")
    for row in source.rows("log_dir_events", events):
        if row["event"] == "offline":
            facts(row["cluster"]).directories_lost.append(row)


def _coverage(source: TableSource, facts: Any) -> None:
    ends: dict[str, int] = {}
    rows = list(source.rows("coverage", ("cluster", "state", "from_time", "to_time", "to_offset")))
    for row in rows:
        ends[row["cluster"]] = max(ends.get(row["cluster"], 0), row["to_offset"])
    for row in rows:
        if row["state"] in (UNOBSERVED, OFF) and row["from_time"] is not None and row["to_time"] is not None:
            one = facts(row["cluster"])
            is_open = row["state"] == OFF and row["to_offset"] == ends[row["cluster"]]
            span = Span(row["from_time"], row["to_time"], row["to_offset"], is_open)
            (one.silences if row["state"] == UNOBSERVED else one.offs).append(span)


def _availability(source: TableSource, facts: Any) -> None:
    numbers = (
        *("observed_seconds", "unobserved_seconds", "off_seconds"),
        *("partition_seconds", "leaderless_seconds", "under_min_isr_seconds"),
        *("leader_changes", "unclean_elections", "isr_shrinks", "isr_expands", "fences", "fence_storms"),
        *("failovers", "failovers_open"),
    )
    for row in source.rows("availability", ("cluster", "scope", *numbers)):
        if row["scope"] == "cluster":
            sums = facts(row["cluster"]).sums
            for name in numbers:
                sums[name] += row[name] or 0


def _violations(source: TableSource, facts: Any) -> None:
    columns = ("cluster", "rule", "severity", "where", "found", "from_offset", "from_time", "to_offset")
    for row in source.rows("violations", columns):
        grouped = facts(row["cluster"]).violations
        key = (row["severity"], row["rule"])
        known = grouped.get(key)
        if known is None:
            grouped[key] = {**row, "count": 1, "open": int(row["to_offset"] is None)}
            continue
        known["count"] += 1
        known["open"] += row["to_offset"] is None
        if row["from_offset"] < known["from_offset"]:
            known.update({name: row[name] for name in ("where", "found", "from_offset", "from_time")})


def _span(one: ClusterFacts) -> None:
    """Sorts, and finds when the log begins and ends."""
    for listed in one.sessions.values():
        listed.sort(key=lambda at: at.from_offset)
    one.elections.sort(key=lambda row: row["from_offset"])
    one.directories_lost.sort(key=lambda row: row["offset"])
    moments = [row[name] for row in one.elections for name in ("from_time", "to_time") if row[name]]
    for listed in one.sessions.values():
        moments += [at for session in listed for at in (session.from_ms, session.to_ms) if at]
    if not moments:
        return
    one.start_ms = min(moments)
    spans = ("observed_seconds", "unobserved_seconds", "off_seconds")
    seen_ms = sum(round(one.sums[name] * 1000) for name in spans)
    one.end_ms = max(one.start_ms + seen_ms, *moments) if seen_ms else max(moments)


# -- partitions ----------------------------------------------------------------------------------------


def _min_isr(source: TableSource) -> dict[str, dict[str, list[tuple[int, int | None, int]]]]:
    """cluster -> topic ("" for the brokers' default) -> (from offset, to offset, value)."""
    found: dict[str, dict[str, list[tuple[int, int | None, int]]]] = defaultdict(lambda: defaultdict(list))
    columns = ("cluster", "resource_type", "resource", "name", "value", "from_offset", "to_offset")
    for row in source.rows("configs", columns):
        if row["name"] != MIN_ISR or not str(row["value"]).isdigit():
            continue
        is_default = row["resource_type"] == "broker" and row["resource"] in ("", "<default>")
        if row["resource_type"] == "topic" or is_default:
            topic = "" if is_default else row["resource"]
            found[row["cluster"]][topic].append((row["from_offset"], row["to_offset"], int(row["value"])))
    return found


def _value_at(listed: Iterable[tuple[int, int | None, int]], offset: int) -> int | None:
    for low, high, value in listed:
        if low <= offset and (high is None or offset < high):
            return value
    return None


def _partitions(source: TableSource, fleet: Fleet) -> None:
    import pyarrow.compute as pc

    numbers = {one.cluster: at for at, one in enumerate(fleet.clusters)}
    min_isr = _min_isr(source)
    highest = max(
        (value for topics in min_isr.values() for at in topics.values() for *_, value in at), default=1
    )
    for cluster, batch in source.batches("partition_states", ("from_time", "changed")):
        number = numbers[cluster]
        buckets = _bucket(fleet, time_column(batch, "from_time"))
        changed = pc.cast(batch.column("changed"), "string")
        for name, into in (("leader", fleet.leader_changes), ("isr", fleet.isr_changes)):
            hit = pc.fill_null(pc.match_substring_regex(changed, f"(^|,){name}(,|$)"), False)
            mask = hit.to_numpy(zero_copy_only=False) & (buckets >= 0)
            into[number] += np.bincount(buckets[mask], minlength=BUCKETS)
    few = pc.list_value_length(pc.field("isr")) < highest
    where = (pc.field("leader") < 0) | pc.field("unclean") | few
    columns = (
        "topic",
        "partition",
        "leader",
        "isr",
        "replicas",
        "unclean",
        "from_offset",
        "from_time",
        "to_time",
    )
    for row in source.rows("partition_states", ("cluster", "topic_id", *columns), where):
        _troubled(fleet, numbers[row["cluster"]], row, min_isr[row["cluster"]])


def _bucket(fleet: Fleet, times: Times) -> npt.NDArray[np.int64]:
    """The bucket of each time, -1 where there is none."""
    found = ((times - fleet.start_ms) / fleet.bucket_ms).astype(np.int64)
    return np.where(times == NO_TIME, -1, np.clip(found, 0, BUCKETS - 1))


def _troubled(fleet: Fleet, number: int, row: dict[str, Any], configs: dict[str, Any]) -> None:
    one = fleet.clusters[number]
    offset = row["from_offset"]
    own = _value_at(configs.get(row["topic"], ()), offset)
    needed = own if own is not None else (_value_at(configs.get("", ()), offset) or 1)
    leaderless, short = row["leader"] < 0, len(row["isr"]) < min(needed, len(row["replicas"]))
    if not (leaderless or short or row["unclean"]) or row["from_time"] is None:
        return
    key = (row["topic"], row["topic_id"], row["partition"])
    if key not in one.trouble and len(one.trouble) >= MAX_TROUBLED:
        fleet.troubled_left_out += 1
        return
    trouble = one.trouble[key]
    end = row["to_time"] if row["to_time"] is not None else max(one.end_ms, row["from_time"])
    trouble.unclean += row["unclean"]
    trouble.leaderless_open |= leaderless and row["to_time"] is None and not one.ends_off
    for start, stop in one.judged(row["from_time"], end):
        if leaderless:
            trouble.leaderless_ms += stop - start
            _spread(fleet, fleet.leaderless[number], start, stop)
        if short:
            trouble.under_min_isr_ms += stop - start
            _spread(fleet, fleet.under_min_isr[number], start, stop)


def _spread(fleet: Fleet, into: Floats, start_ms: int, end_ms: int) -> None:
    """Adds a span's share of each bucket."""
    width = fleet.bucket_ms
    low, high = (start_ms - fleet.start_ms) / width, (end_ms - fleet.start_ms) / width
    first, last = int(np.clip(low, 0, BUCKETS - 1)), int(np.clip(high, 0, BUCKETS - 1))
    if first == last:
        into[first] += high - low
        return
    into[first] += first + 1 - low
    into[first + 1 : last] += 1
    into[last] += high - last


# -- failovers -----------------------------------------------------------------------------------------


def _failovers(source: TableSource, clusters: dict[str, ClusterFacts]) -> None:
    import pyarrow.compute as pc

    for cluster, batch in source.batches("failovers", ("duration_ms", "cause")):
        one = clusters[cluster]
        ended = pc.drop_null(batch.column("duration_ms"))
        one.failover_ms.append(ended.to_numpy(zero_copy_only=False).astype(np.int64))
        one.failovers_open += batch.column("duration_ms").null_count
        for cause in pc.value_counts(pc.cast(batch.column("cause"), "string")).to_pylist():
            one.failover_causes[str(cause["values"])] += cause["counts"]


def quantiles(values: npt.NDArray[np.int64]) -> tuple[float, float, float] | None:
    """Median, 95th percentile and maximum, linear between neighbours; None for no value."""
    if not len(values):
        return None
    p50, p95, longest = np.quantile(values, (0.5, 0.95, 1.0)).tolist()
    return p50, p95, longest


def histogram(values: npt.NDArray[np.int64]) -> list[int]:
    """How many lasted up to each of FAILOVER_BOUNDS_MS (inclusive), then the rest."""
    places = np.searchsorted(np.array(FAILOVER_BOUNDS_MS), values, side="left")
    counted: list[int] = np.bincount(places, minlength=len(FAILOVER_BOUNDS_MS) + 1).tolist()
    return counted
