"""The sections of the report about whole clusters: an overview, and details of the most troubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from html import escape
from textwrap import shorten
from typing import Any
from zlib import crc32

from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet, quantiles
from metaquorum.pipeline.audit.findings import AuditFinding, seconds_text
from metaquorum.pipeline.report.html import (
    Cell,
    code,
    left_out,
    moment,
    name,
    number,
    path,
    period,
    seconds,
    section,
    short,
    table,
    tag,
    text,
    tile,
    utc,
    words,
)

MAX_CLUSTERS = 60
MAX_DETAILED = 20
MAX_FINDINGS = 8
"""Findings of one cluster to show; also the most changes of its voters."""
MAX_ASKED = 12
MAX_WHAT = 90
"""Characters of a finding in the overview."""
_ABOUT = 3
"""Entities to name per batch."""
NameCells = Callable[[str], Cell]


def by_trouble(fleet: Fleet) -> list[ClusterFacts]:
    """The clusters with most errors first, then those with most warnings, then by time without leaders."""

    def badness(cluster: ClusterFacts) -> tuple[int, int, float, str]:
        sums = cluster.sums
        lost = sums["leaderless_seconds"] + sums["under_min_isr_seconds"] / 10
        errors, warnings = fleet.counted.get(cluster.cluster, (0, 0))
        return -errors, -warnings, -lost, cluster.cluster

    return sorted(fleet.clusters, key=badness)


def _anchor(cluster: str) -> str:
    """The anchor of a cluster, the same in every report."""
    return f"cluster-{crc32(cluster.encode()):08x}"


def named(fleet: Fleet) -> NameCells:
    """Cells with clusters' names, linked to their details."""
    detailed = {one.cluster for one in by_trouble(fleet)[:MAX_DETAILED]}
    return lambda cluster: name(cluster, _anchor(cluster) if cluster in detailed else "")


def overview(fleet: Fleet, findings: list[AuditFinding]) -> str:
    """One row per cluster."""
    ordered = by_trouble(fleet)
    errors, warnings = _counted(findings, "error"), _counted(findings, "warning")
    worst: dict[str, AuditFinding] = {}
    for at in findings:
        worst.setdefault(at.cluster, at)
    named_cell = named(fleet)
    rows = []
    for cluster in ordered[:MAX_CLUSTERS]:
        numbers = quantiles(cluster.durations())
        share = cluster.availability
        rows.append(
            (
                named_cell(cluster.cluster),
                number(errors[cluster.cluster]),
                number(warnings[cluster.cluster]),
                text(_what(cluster, worst.get(cluster.cluster))),
                number(cluster.brokers),
                number(cluster.partitions),
                number(share, None if share is None else f"{100 * share:.3f} %"),
                seconds(cluster.sums["leaderless_seconds"]),
                seconds(cluster.sums["under_min_isr_seconds"]),
                number(int(cluster.sums["unclean_elections"])),
                number(int(cluster.sums["fences"])),
                seconds(None if numbers is None else numbers[2] / 1000),
            )
        )
    heads = (
        *("Cluster", "Errors", "Warn", "What is wrong", "Brokers", "Parts", "With leader"),
        *("Leaderless", "Under min", "Unclean", "Fences", "Longest"),
    )
    more = left_out(len(rows), len(ordered), "clusters", "those with the fewest problems are left out.")
    caption = "Most errors and warnings first; longest is of failovers"
    return section("clusters", "Clusters", table(caption, heads, rows, wide=3), more)


def _what(cluster: ClusterFacts, worst: AuditFinding | None) -> str:
    """The most severe finding of a cluster, damage, and the time for which it was not observed."""
    said = []
    if worst is not None and worst.severity != "info":
        said.append(f"{worst.kind}: {shorten(worst.text, MAX_WHAT, placeholder=' …')}")
    damaged = len({row["file"] for row in cluster.damage})
    if damaged and (worst is None or worst.kind != "damage"):
        said.append(f"damage in {_many(damaged, 'file')}")
    for column, what in (("off_seconds", "off"), ("unobserved_seconds", "unobserved")):
        if cluster.sums[column]:
            said.append(f"{what} for {seconds_text(cluster.sums[column])}")
    return "; ".join(said) or "–"


def _counted(findings: list[AuditFinding], severity: str) -> Counter[str]:
    return Counter(one.cluster for one in findings if one.severity == severity)


def one_by_one(fleet: Fleet, findings: list[AuditFinding]) -> str:
    """Figures, findings, voters and audit trail, cluster by cluster. For a single cluster, the page has
    figures and findings further up."""
    ordered = by_trouble(fleet)
    shown = ordered[:MAX_DETAILED]
    alone = len(ordered) == 1
    parts = []
    for cluster in shown:
        own = [] if alone else [at for at in findings if at.cluster == cluster.cluster]
        parts.append(
            f'<article id="{_anchor(cluster.cluster)}"><h3>{escape(cluster.cluster)}</h3>'
            f'<p class="soft">{words(_facts(cluster))}</p>{"" if alone else _figures(cluster, own)}'
            f"{'' if alone else _findings(own)}{_voters(cluster)}{_asked(cluster)}</article>"
        )
    more = left_out(len(shown), len(ordered), "clusters", "those with the fewest problems are left out.")
    return section("each", "Cluster by cluster", *parts, more)


def _facts(cluster: ClusterFacts) -> str:
    said = []
    if cluster.end_ms:
        lasted = seconds_text((cluster.end_ms - cluster.start_ms) / 1000)
        said.append(f"{utc(cluster.start_ms, 'minutes')} to {utc(cluster.end_ms, 'minutes')} ({lasted}).")
    said.append(f"Logs of {_many(cluster.nodes, 'node')}, {_many(cluster.topics, 'topic')}.")
    if cluster.voters:
        last = cluster.voters[-1]
        listed = ", ".join(map(str, last["voters"]))
        version = "" if last["kraft_version"] is None else f", kraft.version {last['kraft_version']}"
        said.append(f"Voters: {listed}{version}.")
    return " ".join(said)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _figures(cluster: ClusterFacts, own: list[AuditFinding]) -> str:
    share, numbers, unclean = (
        cluster.availability,
        quantiles(cluster.durations()),
        cluster.sums["unclean_elections"],
    )
    errors, warnings = (_counted(own, severity)[cluster.cluster] for severity in ("error", "warning"))
    listed = (
        tile(str(cluster.brokers), "brokers"),
        tile(short(cluster.partitions), "partitions"),
        tile(short(cluster.records), "records"),
        tile("–" if share is None else f"{100 * share:.3f} %", "of time with a leader"),
        tile(seconds_text(cluster.sums["leaderless_seconds"]), "leaderless"),
        tile(seconds_text(cluster.sums["under_min_isr_seconds"]), "under min ISR"),
        tile(str(int(unclean)), "unclean elections", "bad" if unclean else ""),
        tile("–" if numbers is None else seconds_text(numbers[2] / 1000), "longest failover"),
        tile(str(errors), "errors", "bad" if errors else ""),
        tile(str(warnings), "warnings", "warn" if warnings else ""),
    )
    return f'<div class="tiles">{"".join(listed)}</div>'


def _findings(own: list[AuditFinding]) -> str:
    rows = [
        (
            tag(finding.severity),
            Cell(f'<span class="id">{escape(finding.kind)}</span>'),
            path(finding.subject, 1) if finding.kind == "damage" else code(finding.subject),
            period(finding.time_ms, finding.end_ms),
            text(finding.text),
        )
        for finding in own[:MAX_FINDINGS]
    ]
    heads = ("Severity", "Finding", "Subject", "When", "What")
    more = left_out(len(rows), len(own), "findings", "metaquorum pipeline audit prints all of them.")
    return table("Findings, most severe first", heads, rows, wide=4) + more


def _voters(cluster: ClusterFacts) -> str:
    changed = [row for row in cluster.voters if row["changed"] is not None]
    if not changed:
        return ""
    rows = [
        (moment(row["from_time"]), number(row["epoch"]), number(row["from_offset"]), text(row["changed"]))
        for row in reversed(changed[-MAX_FINDINGS:])
    ]
    heads = ("Time", "Epoch", "Offset", "What")
    more = left_out(len(rows), len(changed), "changes", "the table voter_sets has all of them.")
    return table("Voter changes, latest first", heads, rows, wide=3) + more


def _asked(cluster: ClusterFacts) -> str:
    """Which principal made which requests. Empty for logs without causes."""
    if not cluster.asked:
        return ""
    latest = sorted(cluster.asked.items(), key=lambda at: (-at[1]["offset"], at[0]))
    rows = [
        (
            text(who),
            text(what),
            number(row["times"]),
            moment(row["time"]),
            text(row["address"]),
            _about(row),
        )
        for (who, what), row in latest[:MAX_ASKED]
    ]
    heads = ("Who", "Asked for", "Batches", "Last", "From", "Last about")
    more = left_out(len(rows), len(latest), "rows", "the table audit_trail has every batch.")
    return table("Who changed what, latest first", heads, rows, wide=5) + more


def _about(row: dict[str, Any]) -> Cell:
    entities = row["entities"]
    more = f" and {len(entities) - _ABOUT} more" if len(entities) > _ABOUT else ""
    return text(f"{', '.join(entities[:_ABOUT])}{more}" if entities else None)
