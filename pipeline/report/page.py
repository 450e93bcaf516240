"""The report page: its sections, their order, and what is left out for a large fleet.

The page is one text that loads nothing.
"""

from __future__ import annotations

from collections import Counter
from html import escape

from metaquorum.pipeline.audit.facts import BrokerPeriod, ClusterFacts, Fleet
from metaquorum.pipeline.audit.findings import AuditFinding, seconds_text
from metaquorum.pipeline.report import charts, details
from metaquorum.pipeline.report.charts import StateRow, TimeScale, figure
from metaquorum.pipeline.report.clusters import by_trouble, named, one_by_one, overview
from metaquorum.pipeline.report.html import (
    CSS,
    SCRIPT,
    Cell,
    cluster_name,
    code,
    key,
    left_out,
    number,
    path,
    period,
    section,
    short,
    table,
    tag,
    text,
    tile,
    utc,
)

MAX_FINDINGS = 40
MAX_HEAT = 40
MAX_TIMELINES = 6
MAX_BROKERS = 24

_SECTIONS = (
    ("availability", "Availability"),
    ("clusters", "Clusters"),
    ("findings", "Findings"),
    ("incidents", "Incidents"),
    ("brokers", "Brokers"),
    ("churn", "Leadership and ISR"),
    ("partitions", "Worst partitions"),
    ("failovers", "Failovers"),
    ("quorum", "Quorum"),
    ("violations", "Violations"),
    ("damage", "Damage"),
    ("each", "Cluster by cluster"),
)
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(
    fleet: Fleet, findings: list[AuditFinding], *, title: str, tables: str, previous: str | None = None
) -> str:
    """The whole page. The same facts give the same text. `previous`: an earlier page about the same tables,
    for the section on changes."""
    scale = TimeScale(fleet.start_ms, fleet.end_ms)
    fleet.counted = _by_severity(findings)
    before, now = details.remembered(previous or ""), details.seen(fleet, findings)
    sections = _SECTIONS if before is None else (("changes", "Since the last report"), *_SECTIONS)
    parts = (
        "" if before is None else details.changes(before, now, named(fleet)),
        _availability(fleet, scale),
        overview(fleet, findings),
        _findings(findings, fleet),
        details.incidents(fleet),
        _brokers(fleet, scale),
        _churn(fleet, scale),
        details.partitions(fleet),
        details.failovers(fleet),
        details.quorum(fleet, scale),
        details.violations(fleet),
        details.damage(fleet),
        one_by_one(fleet, findings),
    )
    links = "".join(f'<a href="#{anchor}">{words}</a>' for anchor, words in sections)
    period = f"{utc(fleet.start_ms, 'minutes')} to {utc(fleet.end_ms, 'minutes')} UTC" if fleet.end_ms else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><link rel=icon href=data:,><style>{CSS}</style></head>"
        '<body><a class="skip" href="#findings">Skip to the findings</a>'
        f'<header><h1>{escape(title)}</h1><p class="soft">{period} ({_span(fleet)})</p>'
        f'<nav aria-label="Sections">{links}</nav>{_tiles(fleet, findings)}</header>'
        f"<main>{''.join(parts)}</main><footer><p>{_footer(fleet, tables)}</p></footer>"
        f"{details.memory(now)}<script>{SCRIPT}</script></body></html>\n"
    )


def _by_severity(listed: list[AuditFinding]) -> dict[str, tuple[int, int]]:
    counted = Counter((one.cluster, one.severity) for one in listed)
    return {one.cluster: (counted[one.cluster, "error"], counted[one.cluster, "warning"]) for one in listed}


def _span(fleet: Fleet) -> str:
    return seconds_text((fleet.end_ms - fleet.start_ms) / 1000)


def _footer(fleet: Fleet, tables: str) -> str:
    words = [
        f"Made by metaquorum from the tables in <code>{escape(tables)}</code>.",
        "All times are UTC, as the logs have them.",
        "A partition is leaderless while it has no leader, and under min ISR while it has fewer in-sync "
        "replicas",
        "than min.insync.replicas; states that are ongoing at the end count up to the log's last record.",
    ]
    if fleet.missing:
        words.append(f"Missing tables: {escape(', '.join(fleet.missing))}.")
    if fleet.troubled_left_out:
        words.append(
            f"{fleet.troubled_left_out} partition states are only in the totals, to limit the page size."
        )
    return " ".join(words)


def _tiles(fleet: Fleet, findings: list[AuditFinding]) -> str:
    clusters = fleet.clusters
    sums: Counter[str] = Counter()
    for cluster in clusters:
        sums.update(cluster.sums)
    errors = sum(one.severity == "error" for one in findings)
    broken = sum(
        row["open" if severity == "warning" else "count"]
        for one in clusters
        for (severity, _), row in one.violations.items()
    )
    damaged = len({(one.cluster, row["file"]) for one in clusters for row in one.damage})
    unclean = int(sums["unclean_elections"])
    listed = (
        tile(short(len(clusters)), "clusters"),
        tile(short(sum(one.brokers for one in clusters)), "brokers"),
        tile(short(sum(one.partitions for one in clusters)), "partitions"),
        tile(short(sum(one.records for one in clusters)), "records"),
        _worst_tile(clusters),
        tile(seconds_text(sums["under_min_isr_seconds"]), "of partition time under min ISR"),
        tile(str(unclean), "unclean elections", "bad" if unclean else ""),
        tile(str(errors), "findings of severity error", "bad" if errors else ""),
        tile(str(broken), "broken invariants", "bad" if broken else ""),
        tile(str(damaged), "damaged files", "warn" if damaged else ""),
    )
    return f'<div class="tiles">{"".join(listed)}</div>'


def _worst_tile(clusters: list[ClusterFacts]) -> str:
    """The worst availability of a cluster: the clusters differ too much for an average."""
    seen = [(one.availability, one.cluster) for one in clusters if one.availability is not None]
    if not seen:
        return tile("–", "of partition time with a leader")
    share, cluster = min(seen)
    which = f" in {cluster_name(cluster)}, the worst cluster" if len(clusters) > 1 else ""
    return tile(f"{100 * share:.3f} %", f"of partition time with a leader{which}")


# -- findings ----------------------------------------------------------------------------------------


def _findings(findings: list[AuditFinding], fleet: Fleet) -> str:
    shown = _spread_over_kinds(findings, MAX_FINDINGS)
    name = named(fleet)
    counted = Counter(one.kind for one in findings)
    words = ", ".join(f"{count} {kind}" for kind, count in counted.most_common())
    rows = [
        (
            tag(finding.severity),
            Cell(f'<span class="id">{escape(finding.kind)}</span>'),
            name(finding.cluster),
            path(finding.subject, 1) if finding.kind == "damage" else code(finding.subject),
            period(finding.time_ms, finding.end_ms),
            number(finding.count),
            number(finding.seconds, None if finding.seconds is None else seconds_text(finding.seconds)),
            text(finding.text),
        )
        for finding in shown
    ]
    heads = ("Severity", "Finding", "Cluster", "Subject", "When", "Count", "In all", "What")
    intro = f'<p class="soft">{escape(words)}.</p>' if findings else ""
    more = left_out(
        len(shown), len(findings), "findings", "metaquorum pipeline audit --json prints all of them."
    )
    return section("findings", "Findings", intro, table("The most severe first", heads, rows, wide=7), more)


def _spread_over_kinds(findings: list[AuditFinding], limit: int) -> list[AuditFinding]:
    """At most `limit` findings in their order. Of a long list, every kind gets a share."""
    if len(findings) <= limit:
        return findings
    share = max(3, limit // max(1, len({one.kind for one in findings})))
    taken: Counter[str] = Counter()
    chosen = []
    for position, finding in enumerate(findings):
        taken[finding.kind] += 1
        if taken[finding.kind] <= share:
            chosen.append(position)
    rest = [at for at in range(len(findings)) if at not in set(chosen)][: max(0, limit - len(chosen))]
    return [findings[at] for at in sorted([*chosen, *rest])][:limit]


# -- over time -----------------------------------------------------------------------------------------


def _brokers(fleet: Fleet, scale: TimeScale) -> str:
    def trouble(cluster: ClusterFacts) -> tuple[int, str]:
        return -len(cluster.fences()), cluster.cluster

    ordered = sorted((one for one in fleet.clusters if one.brokers), key=trouble)
    parts = [
        key((("active", "running"), ("controlled_shutdown", "controlled shutdown"), ("fenced", "fenced"))),
    ]
    for cluster in ordered[:MAX_TIMELINES]:
        own = scale if len(ordered) == 1 else TimeScale(cluster.start_ms, cluster.end_ms)
        fences = Counter(session.broker for session in cluster.fences())
        brokers = sorted(cluster.sessions, key=lambda broker: (-fences[broker], broker))[:MAX_BROKERS]
        rows = [_broker_row(cluster, broker, fences[broker]) for broker in sorted(brokers)]
        when = f"{utc(own.start_ms, 'minutes')} to {utc(own.end_ms, 'minutes')}"
        many = "1 broker" if cluster.brokers == 1 else f"{cluster.brokers} brokers"
        caption = f"{cluster.cluster}: {many}, {sum(fences.values())} fences of a running broker"
        drawn = charts.states(f"Broker states of {cluster.cluster}", own, rows, details.marks_of(cluster))
        parts.append(figure(f"{caption}, {when}", drawn))
        parts.append(
            left_out(len(brokers), cluster.brokers, "brokers", "those with the fewest fences are left out.")
        )
    parts.insert(1, details.marks_key(ordered[:MAX_TIMELINES]))
    more = "those with the fewest fences are left out."
    parts.append(left_out(min(MAX_TIMELINES, len(ordered)), len(ordered), "clusters", more))
    if not ordered:
        parts = ['<p class="note">No broker ever registered.</p>']
    return section("brokers", "Broker states over time", *parts)


def _broker_row(cluster: ClusterFacts, broker: int, fences: int) -> StateRow:
    spans = [
        (session.state, float(session.from_ms), float(session.to_ms or max(cluster.end_ms, session.from_ms)))
        for session in cluster.sessions[broker]
    ]
    down = _down_ms(cluster.sessions[broker], cluster.end_ms) / 1000
    rack = cluster.racks.get(broker)
    description = (
        f"broker {broker} ({rack or 'no rack'}): fenced {fences} times, {seconds_text(down)} not running"
    )
    return f"broker {broker}", description, spans


def _down_ms(sessions: list[BrokerPeriod], end_ms: int) -> int:
    return sum(max(0, (at.to_ms or end_ms) - at.from_ms) for at in sessions if at.state != "active")


def _churn(fleet: Fleet, scale: TimeScale) -> str:
    chart = charts.bars(
        "Changes of leaders and ISRs over time",
        scale,
        (
            ("s1", "leader changes", fleet.leader_changes.sum(axis=0)),
            ("s2", "ISR changes", fleet.isr_changes.sum(axis=0)),
        ),
        "",
    )
    caption = f"All clusters together, one bar per {seconds_text(fleet.bucket_ms / 1000)}"
    return section("churn", "Leadership and ISR churn", figure(caption, chart))


def _marks_of_all(fleet: Fleet) -> list[tuple[str, float, float]]:
    """Marks of a chart of sums: only in a fleet of one cluster is its unobserved time that of the whole."""
    return details.marks_of(fleet.clusters[0]) if len(fleet.clusters) == 1 else []


def _availability(fleet: Fleet, scale: TimeScale) -> str:
    chart = charts.bars(
        "Partitions without a leader or under min ISR over time",
        scale,
        (
            ("s1", "without leader", fleet.leaderless.sum(axis=0)),
            ("s2", "under min ISR", fleet.under_min_isr.sum(axis=0)),
        ),
        " partitions",
        _marks_of_all(fleet),
    )
    parts = [figure("Average number of partitions in each bar, all clusters together", chart)]
    if len(fleet.clusters) > 1:
        numbers = {one.cluster: at for at, one in enumerate(fleet.clusters)}
        shown = by_trouble(fleet)[:MAX_HEAT]
        rows = []
        for cluster in shown:
            values = fleet.leaderless[numbers[cluster.cluster]]
            lost = seconds_text(cluster.sums["leaderless_seconds"])
            said = f"{cluster.cluster}: {lost} leaderless"
            span = (float(cluster.start_ms), float(cluster.end_ms))
            rows.append((cluster_name(cluster.cluster), said, values, details.marks_of(cluster), span))
        heat = charts.heat("Partitions without a leader, by cluster", scale, rows)
        parts.insert(0, figure("Partitions without a leader, one row per cluster; darker is more", heat))
        parts.insert(1, key((("heat0", "every partition had a leader"), ("heat", "many had none"))))
        parts.insert(2, details.marks_key(shown))
        more = "those with the fewest problems are left out."
        parts.append(left_out(len(rows), len(fleet.clusters), "clusters", more))
    return section("availability", "Availability", *parts)
