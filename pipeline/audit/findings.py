"""Findings: what in a fleet deserves attention, by named rules with limits.

Each rule takes the facts of one cluster and yields findings: what, where, since when, how much, and which
other command to use for a closer look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet, Incident, bursts, quantiles
from metaquorum.pipeline.logs.merged import SHARED_ID
from metaquorum.pipeline.tables import FENCE_STORM_BROKERS, FENCE_STORM_WINDOW_MS

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)
_REGISTERED = "REGISTER_BROKER_RECORD"


class AuditLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits from which on something is a finding."""

    flaps: int = 3
    flap_window_ms: int = 600_000
    slow_failover_ms: int = 30_000
    elections: int = 5
    election_window_ms: int = 3_600_000


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One incident. `subject`: an entity path (of several, the worst) or a file. `time_ms`, `end_ms`: its
    start and end, None if ongoing. `count`: how many (`text` says of what). `seconds`: the total duration."""

    severity: str
    kind: str
    cluster: str
    subject: str
    time_ms: int | None
    end_ms: int | None
    offset: int | None
    count: int
    seconds: float | None
    text: str


Rule = Callable[[ClusterFacts, AuditLimits], Iterator[AuditFinding]]


def _finding(  # noqa: PLR0913
    cluster: ClusterFacts,
    severity: str,
    kind: str,
    subject: str,
    text: str,
    *,
    count: int = 1,
    seconds: float | None = None,
    time_ms: int | None,
    end_ms: int | None,
    offset: int | None = None,
) -> AuditFinding:
    return AuditFinding(
        severity=severity,
        kind=kind,
        cluster=cluster.cluster,
        subject=subject,
        time_ms=time_ms,
        end_ms=end_ms,
        offset=offset,
        count=count,
        seconds=seconds,
        text=text,
    )


def violations(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Broken invariants and refused records, one finding per rule. A warning that has ended is info: a
    correct cluster passes through such states."""
    for (severity, rule), row in sorted(cluster.violations.items()):
        is_past = severity == WARNING and not row["open"]
        still = ", no longer" if is_past else f", {row['open']} ongoing" if row["open"] else ""
        text = f"{rule}: {row['found']}{still}"
        end = None if row["open"] else row["to_time"]
        place = {"time_ms": row["from_time"], "end_ms": end, "offset": row["from_offset"]}
        level = INFO if is_past else severity
        yield _finding(cluster, level, "violation", row["where"], text, count=row["count"], **place)


_DAMAGE_SEVERITY = {
    "superseded": INFO,
    "unknown": WARNING,
    "tail": WARNING,
    "missing": WARNING,
    "shared-id": WARNING,
}


def damage(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Bytes that could not be read or trusted, one finding per file and kind, with the
    time of the record before."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in cluster.damage:
        grouped[row["kind"], row["file"]].append(row)
    for (kind, file), rows in sorted(grouped.items()):
        first = min(rows, key=lambda row: (row["position"] or 0, row["offset"] or 0))
        where = "" if kind == SHARED_ID else f" at byte {first['position']}"
        text = f"{kind}{where}: {first['reason']}"
        severity = _DAMAGE_SEVERITY.get(kind, ERROR)
        place = {"time_ms": first.get("time"), "end_ms": None, "offset": first["offset"]}
        yield _finding(cluster, severity, "damage", file, text, count=len(rows), **place)


def _incident(
    cluster: ClusterFacts,
    severity: str,
    kind: str,
    incident: Incident,
    text: str,
    *,
    count: int | None = None,
) -> AuditFinding:
    return _finding(
        cluster,
        severity,
        kind,
        incident.subject,
        text,
        count=incident.partitions if count is None else count,
        seconds=incident.total_ms / 1000,
        time_ms=incident.start_ms,
        end_ms=incident.until_ms,
        offset=incident.offset,
    )


def _longest(incident: Incident) -> str:
    how = "for" if incident.partitions == 1 else "the longest for"
    return f"{_partitions(incident.partitions)}, {how} {seconds_text(incident.worst_ms / 1000)}"


def unclean_elections(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Elected leaders that were not in sync: acknowledged records may be lost."""
    for at in cluster.unclean.incidents():
        many = "1 election" if at.sections == 1 else f"{at.sections} elections"
        text = f"{many} of a broker that was not in sync, in {_partitions(at.partitions)}"
        found = _incident(cluster, ERROR, "unclean-election", at, text, count=at.sections)
        yield msgspec.structs.replace(found, seconds=None)


def leaderless(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Partitions without a leader, one finding per outage; an error while any of them still has none."""
    slow = cluster.slow.longer_than(limits.slow_failover_ms)
    for incident in cluster.leaderless.incidents():
        text = _longest(incident)
        late = slow.begun_within(incident.start_ms, incident.end_ms)
        if late:
            text += f"; {_replaced(late)} only after more than {_limit(limits)}"
        if incident.is_open:
            text += f"; {incident.open_partitions} at the end of the log"
        yield _incident(cluster, ERROR if incident.is_open else WARNING, "leaderless", incident, text)


def _replaced(leaders: int) -> str:
    return "1 leader was replaced" if leaders == 1 else f"{leaders} leaders were replaced"


def _limit(limits: AuditLimits) -> str:
    return seconds_text(limits.slow_failover_ms / 1000)


def under_min_isr(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Partitions with fewer replicas in sync than min.insync.replicas: acks=all was refused."""
    for at in cluster.under_min_isr.incidents():
        still = f"; {at.open_partitions} at the end of the log" if at.is_open else ""
        yield _incident(cluster, WARNING, "under-min-isr", at, _longest(at) + still)


def flapping(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Running brokers that were fenced at least `flaps` times within the window."""
    by_broker: dict[int, list[BrokerPeriod]] = defaultdict(list)
    for session in cluster.fences():
        by_broker[session.broker].append(session)
    for broker, fences in sorted(by_broker.items()):
        for burst in bursts(fences, limits.flaps, limits.flap_window_ms, _fence_ms):
            span = (burst[-1].from_ms - burst[0].from_ms) / 1000
            text = f"fenced {len(burst)} times within {seconds_text(span)}"
            count = len(burst)
            yield _finding(
                cluster, WARNING, "flapping-broker", f"broker/{broker}", text, count=count, **_back(burst)
            )


def _back(fences: list[BrokerPeriod]) -> dict[str, int | None]:
    """The time from the first fence until the last broker was back."""
    ends = [fence.to_ms for fence in fences]
    end = None if None in ends else max(at for at in ends if at is not None)
    return {"time_ms": fences[0].from_ms, "end_ms": end, "offset": fences[0].from_offset}


def _fence_ms(fence: BrokerPeriod) -> int:
    return fence.from_ms


def fence_storms(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Several different brokers that were fenced within a minute, one finding per storm. A broker that was
    replaced by its next process was restarted and does not count."""
    storm: list[BrokerPeriod] = []
    for fence in cluster.fences():
        if fence.began_by == _REGISTERED:
            continue
        if storm and fence.from_ms - storm[-1].from_ms > FENCE_STORM_WINDOW_MS:
            yield from _storm(cluster, storm)
            storm = []
        storm.append(fence)
    yield from _storm(cluster, storm)


def _storm(cluster: ClusterFacts, fences: list[BrokerPeriod]) -> Iterator[AuditFinding]:
    """A storm, if enough different brokers were fenced within one window of this run."""
    most: set[int] = set()
    for at, first in enumerate(fences):
        window = {
            other.broker for other in fences[at:] if other.from_ms - first.from_ms <= FENCE_STORM_WINDOW_MS
        }
        most = max(most, window, key=len)
    if len(most) < FENCE_STORM_BROKERS:
        return
    racks = {cluster.racks.get(broker) for broker in most}
    span = (fences[-1].from_ms - fences[0].from_ms) / 1000
    listed = ", ".join(str(broker) for broker in sorted(most)[:10]) + (" ..." if len(most) > 10 else "")
    text = f"{len(most)} of {cluster.brokers} brokers within {seconds_text(span)}: {listed}"
    rack = racks.pop() if len(racks) == 1 else None
    text += f" (all in rack {rack})" if rack else ""
    yield _finding(
        cluster,
        WARNING,
        "fence-storm",
        f"broker/{fences[0].broker}",
        text,
        count=len(most),
        **_back(fences),
    )


def slow_failovers(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Leaders that were replaced later than the limit. Says if the outage is
    reported by `leaderless`, too."""
    numbers = quantiles(cluster.durations())
    for incident in cluster.slow.longer_than(limits.slow_failover_ms).incidents():
        text = f"{_replaced(incident.sections)} only after more than {_limit(limits)}, the last after "
        text += seconds_text(incident.worst_ms / 1000)
        if numbers is not None:
            median = seconds_text(numbers[0] / 1000)
            text += f"; the median of all {len(cluster.durations())} failovers is {median}"
        yield _incident(cluster, WARNING, "slow-failover", incident, text)


def quorum_silent(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Times in which the quorum wrote nothing, one finding each: it was down, and brokers may have been."""
    for silence in cluster.silences:
        seconds = (silence.end_ms - silence.start_ms) / 1000
        off = any(at.start_ms <= silence.start_ms and at.end_ms >= silence.end_ms for at in cluster.offs)
        text = f"nothing was written for {seconds_text(seconds)}, until offset {silence.offset}"
        text += (
            "; the brokers had been stopped before" if off else "; whether brokers served clients is unknown"
        )
        yield _finding(
            cluster,
            INFO if off else WARNING,
            "quorum-silent",
            "quorum",
            text,
            seconds=seconds,
            time_ms=silence.start_ms,
            end_ms=silence.end_ms,
            offset=silence.offset,
        )


def unstable_quorum(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Many elections of the quorum in a short time, one finding per burst."""
    held = [row for row in cluster.elections if row["from_time"] is not None]
    for burst in bursts(held, limits.elections, limits.election_window_ms, _election_ms):
        first, last = burst[0], burst[-1]
        span = seconds_text((last["from_time"] - first["from_time"]) / 1000)
        yield _finding(
            cluster,
            WARNING,
            "unstable-quorum",
            "quorum",
            f"{len(burst)} elections within {span}",
            count=len(burst),
            time_ms=first["from_time"],
            end_ms=last["from_time"],
            offset=first["from_offset"],
        )


def _election_ms(row: dict[str, Any]) -> int:
    return int(row["from_time"])


def lost_directories(cluster: ClusterFacts, limits: AuditLimits) -> Iterator[AuditFinding]:
    """Log directories that went offline, one finding for those that a broker lost at once."""
    lost: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in cluster.directories_lost:
        # An unregistered broker has no session that starts here: its directories were not lost.
        if any(session.from_offset == row["offset"] for session in cluster.sessions[row["broker_id"]]):
            lost[row["offset"], row["broker_id"]].append(row)
    for (offset, broker), rows in sorted(lost.items()):
        replicas = sum(row["replicas"] or 0 for row in rows)
        directories = ", ".join(str(row["directory_id"]) for row in rows)
        what = "log directory" if len(rows) == 1 else f"{len(rows)} log directories:"
        text = f"lost {what} {directories}, with {replicas} replicas"
        # The directory or a new disk is back, or the broker is gone for good.
        back = (
            at["time"]
            for at in cluster.directories_found
            if at["broker_id"] == broker and at["offset"] > offset
        )
        end = next(back, cluster.sessions[broker][-1].to_ms)
        place = {"time_ms": rows[0]["time"], "end_ms": end, "offset": offset}
        yield _finding(cluster, WARNING, "lost-directory", f"broker/{broker}", text, count=len(rows), **place)


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
"""Every rule by the kind of its findings, in order of importance."""


def findings(fleet: Fleet, limits: AuditLimits, kinds: frozenset[str] = frozenset()) -> list[AuditFinding]:
    """All findings, the most severe first, then by kind, then the longest. `kinds`: only these, if any."""
    findings = [
        finding
        for one in fleet.clusters
        for kind, rule in RULES.items()
        if not kinds or kind in kinds
        for finding in rule(one, limits)
    ]
    findings = _once(findings)
    order = {kind: at for at, kind in enumerate(RULES)}
    return sorted(
        findings,
        key=lambda finding: (
            SEVERITIES.index(finding.severity),
            order[finding.kind],
            -(finding.seconds or 0),
            -finding.count,
            finding.cluster,
            finding.subject,
        ),
    )


def _once(all_findings: list[AuditFinding]) -> list[AuditFinding]:
    """Leaves out slow failovers of an outage that `leaderless` reports."""
    outages: dict[str, list[AuditFinding]] = defaultdict(list)
    for finding in all_findings:
        if finding.kind == "leaderless":
            outages[finding.cluster].append(finding)

    def is_part(slow: AuditFinding) -> bool:
        start = slow.time_ms or 0
        return any(
            (at.time_ms or 0) <= start and (at.end_ms is None or start <= at.end_ms)
            for at in outages[slow.cluster]
        )

    return [one for one in all_findings if one.kind != "slow-failover" or not is_part(one)]


def seconds_text(seconds: float) -> str:
    """ "40 ms", "0.4 s", "38 s", "12 min", "3.5 h", "2.1 days"."""
    if 0.0005 <= seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.0005 else "0 s"
    for limit, unit, digits in ((120, 1, 0), (7200, 60, 0), (172_800, 3600, 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {({1: 's', 60: 'min', 3600: 'h'})[unit]}"
    return f"{seconds / 86_400:.1f} days"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
