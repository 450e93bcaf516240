"""Findings: what in a fleet deserves a person's attention, by named rules with limits.

Owns the rules and their order. Every rule takes the facts of one cluster and yields findings; a finding says
what, where, since when, how much, and with which other command to look closer. Reads no tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.tables import FENCE_STORM_BROKERS, FENCE_STORM_WINDOW_MS

from .facts import ClusterFacts, Fleet, Session, quantiles

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on something is a finding."""

    flaps: int = 3
    flap_window_ms: int = 600_000
    slow_failover_ms: int = 30_000
    elections: int = 5
    election_window_ms: int = 3_600_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`subject` is an entity path; `count` how many (`text` says of what), `seconds` how long in all."""

    severity: str
    kind: str
    cluster: str
    subject: str
    time_ms: int | None
    offset: int | None
    count: int
    seconds: float | None
    text: str


Rule = Callable[[ClusterFacts, Limits], Iterator[Finding]]


def _finding(
    one: ClusterFacts,
    severity: str,
    kind: str,
    subject: str,
    text: str,
    *,
    count: int = 1,
    seconds: float | None = None,
    time_ms: int | None = None,
    offset: int | None = None,
) -> Finding:
    return Finding(
        severity=severity,
        kind=kind,
        cluster=one.cluster,
        subject=subject,
        time_ms=time_ms,
        offset=offset,
        count=count,
        seconds=seconds,
        text=text,
    )


def violations(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Broken invariants and refused records, one finding a rule. A warning that is no more is info: a correct
    cluster passes through such states."""
    for (severity, rule), row in sorted(one.violations.items()):
        is_past = severity == WARNING and not row["open"]
        still = ", no more so" if is_past else f", {row['open']} still so" if row["open"] else ""
        text = f"{rule}: {row['found']}{still}"
        place = {"time_ms": row["from_time"], "offset": row["from_offset"]}
        level = INFO if is_past else severity
        yield _finding(one, level, "violation", row["where"], text, count=row["count"], **place)


_DAMAGE_SEVERITY = {
    "superseded": INFO,
    "unknown": WARNING,
    "tail": WARNING,
    "missing": WARNING,
    "shared-id": WARNING,
}


def damage(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Bytes that could not be read or trusted, one finding a file and kind."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in one.damage:
        grouped[row["kind"], row["file"]].append(row)
    for (kind, file), rows in sorted(grouped.items()):
        first = min(rows, key=lambda row: (row["position"] or 0, row["offset"] or 0))
        text = f"{kind} at byte {first['position']}: {first['reason']}"
        severity = _DAMAGE_SEVERITY.get(kind, ERROR)
        yield _finding(one, severity, "damage", file, text, count=len(rows), offset=first["offset"])


def unclean_elections(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Leaders that were not in sync: acknowledged records may be lost."""
    hurt = {key: at.unclean for key, at in one.trouble.items() if at.unclean}
    if hurt:
        (topic, _, index), _ = max(hurt.items(), key=lambda at: (at[1], at[0]))
        text = f"{sum(hurt.values())} elections of a broker that was not in sync, on {_partitions(len(hurt))}"
        yield _finding(
            one, ERROR, "unclean-election", f"topic/{topic}/{index}", text, count=sum(hurt.values())
        )


def leaderless(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Partitions that nobody could write or read; an error while some still are."""
    hurt = {key: at for key, at in one.trouble.items() if at.leaderless_ms or at.leaderless_open}
    if not hurt:
        return
    (topic, _, index), worst = max(hurt.items(), key=lambda at: (at[1].leaderless_ms, at[0]))
    still = sum(at.leaderless_open for at in hurt.values())
    total = sum(at.leaderless_ms for at in hurt.values()) / 1000
    text = f"{_partitions(len(hurt))}, worst {seconds_text(worst.leaderless_ms / 1000)}"
    if still:
        text += f"; {still} at the end of the log"
    severity = ERROR if still else WARNING
    where = f"topic/{topic}/{index}"
    yield _finding(one, severity, "leaderless", where, text, count=len(hurt), seconds=total)


def under_min_isr(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Partitions with fewer replicas in sync than min.insync.replicas: acks=all was refused."""
    hurt = {key: at for key, at in one.trouble.items() if at.under_min_isr_ms}
    if hurt:
        (topic, _, index), worst = max(hurt.items(), key=lambda at: (at[1].under_min_isr_ms, at[0]))
        total = sum(at.under_min_isr_ms for at in hurt.values()) / 1000
        text = f"{_partitions(len(hurt))}, worst {seconds_text(worst.under_min_isr_ms / 1000)}"
        count = len(hurt)
        yield _finding(
            one, WARNING, "under-min-isr", f"topic/{topic}/{index}", text, count=count, seconds=total
        )


def flapping(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Brokers that ran and were fenced `flaps` times or more within the window."""
    by_broker: dict[int, list[Session]] = defaultdict(list)
    for session in one.fences():
        by_broker[session.broker].append(session)
    for broker, fences in sorted(by_broker.items()):
        bursts = list(_bursts(fences, limits.flaps, limits.flap_window_ms))
        if not bursts:
            continue
        worst = max(bursts, key=len)
        span = (worst[-1].from_ms - worst[0].from_ms) / 1000
        text = f"fenced {len(worst)} times within {seconds_text(span)}"
        text += f", {len(bursts)} such bursts" if len(bursts) > 1 else ""
        yield _finding(
            one,
            WARNING,
            "flapping-broker",
            f"broker/{broker}",
            text,
            count=len(fences),
            time_ms=worst[0].from_ms,
            offset=worst[0].from_offset,
        )


def _bursts(fences: list[Session], least: int, window_ms: int) -> Iterator[list[Session]]:
    """Runs of at least `least` fences, each run as long as every `least` neighbours fit into the window."""
    burst: list[Session] = []
    for fence in fences:
        burst.append(fence)
        if len(burst) >= least and fence.from_ms - burst[-least].from_ms <= window_ms:
            continue
        if len(burst) > least:
            yield burst[:-1]
            burst = burst[-least + 1 :] if least > 1 else [fence]
        elif len(burst) == least:
            burst = burst[1:]
    if len(burst) >= least:
        yield burst


def fence_storms(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Several different brokers that were fenced within a minute: one finding a storm."""
    storm: list[Session] = []
    for fence in one.fences():
        if storm and fence.from_ms - storm[-1].from_ms > FENCE_STORM_WINDOW_MS:
            yield from _storm(one, storm)
            storm = []
        storm.append(fence)
    yield from _storm(one, storm)


def _storm(one: ClusterFacts, fences: list[Session]) -> Iterator[Finding]:
    """A storm, if so many different brokers were fenced within one window of this run."""
    most: set[int] = set()
    for at, first in enumerate(fences):
        window = {
            other.broker for other in fences[at:] if other.from_ms - first.from_ms <= FENCE_STORM_WINDOW_MS
        }
        most = max(most, window, key=len)
    if len(most) < FENCE_STORM_BROKERS:
        return
    racks = {str(one.racks.get(broker)) for broker in most}
    span = (fences[-1].from_ms - fences[0].from_ms) / 1000
    listed = ", ".join(str(broker) for broker in sorted(most)[:10]) + (" ..." if len(most) > 10 else "")
    text = f"{len(most)} of {one.brokers} brokers within {seconds_text(span)}: {listed}"
    text += f" (all in {racks.pop()})" if len(racks) == 1 else ""
    yield _finding(
        one,
        WARNING,
        "fence-storm",
        "broker",
        text,
        count=len(most),
        time_ms=fences[0].from_ms,
        offset=fences[0].from_offset,
    )


def slow_failovers(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Leaders that were replaced later than the limit."""
    durations = one.durations()
    slow = durations[durations > limits.slow_failover_ms]
    numbers = quantiles(durations)
    if len(slow) and numbers is not None:
        p50, p95, longest = (seconds_text(value / 1000) for value in numbers)
        text = f"{len(slow)} of {len(durations)} took over {seconds_text(limits.slow_failover_ms / 1000)}"
        text += f"; half up to {p50}, 95 % up to {p95}, longest {longest}"
        yield _finding(one, WARNING, "slow-failover", "topic", text, count=len(slow))


def quorum_silent(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Stretches in which nobody wrote, one finding each: the quorum was down, and brokers may have been."""
    for silence in one.silences:
        seconds = (silence.end_ms - silence.start_ms) / 1000
        off = any(at.start_ms <= silence.start_ms and at.end_ms >= silence.end_ms for at in one.offs)
        text = f"nobody wrote for {seconds_text(seconds)}, until offset {silence.offset}"
        text += "; the brokers had been stopped before" if off else "; whether brokers served is not known"
        yield _finding(
            one,
            INFO if off else WARNING,
            "quorum-silent",
            "quorum",
            text,
            seconds=seconds,
            time_ms=silence.start_ms,
            offset=silence.offset,
        )


def unstable_quorum(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Many elections of the quorum in a short time."""
    times = [row["from_time"] for row in one.elections if row["from_time"] is not None]
    worst, since = 0, None
    low = 0
    for high, time_ms in enumerate(times):
        while time_ms - times[low] > limits.election_window_ms:
            low += 1
        if high - low + 1 > worst:
            worst, since = high - low + 1, times[low]
    if worst >= limits.elections:
        text = f"{worst} elections within {seconds_text(limits.election_window_ms / 1000)}"
        yield _finding(
            one, WARNING, "unstable-quorum", "quorum", text, count=len(one.elections), time_ms=since
        )


def lost_directories(one: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Log directories that went offline."""
    by_broker: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in one.directories_lost:
        # A broker that was unregistered has no session from there on: its directories were not lost.
        if any(session.from_offset == row["offset"] for session in one.sessions[row["broker_id"]]):
            by_broker[row["broker_id"]].append(row)
    for broker, rows in sorted(by_broker.items()):
        replicas = sum(row["replicas"] or 0 for row in rows)
        text = f"lost a log directory {len(rows)} times, with {replicas} replicas in all"
        yield _finding(
            one,
            WARNING,
            "lost-directory",
            f"broker/{broker}",
            text,
            count=len(rows),
            time_ms=rows[0]["time"],
            offset=rows[0]["offset"],
        )


RULES: dict[str, Rule] = {
    "violation": violations,
    "damage": damage,
    "unclean-election": unclean_elections,
    "leaderless": leaderless,
    "under-min-isr": under_min_isr,
    "flapping-broker": flapping,
    "fence-storm": fence_storms,
    "lost-directory": lost_directories,
    "slow-failover": slow_failovers,
    "unstable-quorum": unstable_quorum,
    "quorum-silent": quorum_silent,
}
"""Every rule by the kind of its findings, in the order in which they matter."""


def findings(fleet: Fleet, limits: Limits, kinds: frozenset[str] = frozenset()) -> list[Finding]:
    """All findings, the most severe first, then by kind, then the longest. `kinds`: only these, if any."""
    found = [
        finding
        for one in fleet.clusters
        for kind, rule in RULES.items()
        if not kinds or kind in kinds
        for finding in rule(one, limits)
    ]
    order = {kind: at for at, kind in enumerate(RULES)}
    return sorted(
        found,
        key=lambda at: (
            SEVERITIES.index(at.severity),
            order[at.kind],
            -(at.seconds or 0),
            -at.count,
            at.cluster,
            at.subject,
        ),
    )


def seconds_text(seconds: float) -> str:
    """ "0.4 s", "38 s", "12 min", "3.5 h", "2.1 days"."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    for limit, unit, digits in ((120, 1, 0), (7200, 60, 0), (172_800, 3600, 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {({1: 's', 60: 'min', 3600: 'h'})[unit]}"
    return f"{seconds / 86_400:.1f} days"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
