"""The sections of the report that list what happened: incidents, changes since the last report, partitions,
failovers, elections, violations, damage."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec
import numpy as np

from metaquorum.metadata.inspect.causes.table import is_orderly, word_of
from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet, Trouble, histogram, quantiles
from metaquorum.pipeline.audit.findings import AuditFinding, seconds_text
from metaquorum.pipeline.report import charts
from metaquorum.pipeline.report.charts import StateRow, TimeScale, figure
from metaquorum.pipeline.report.clusters import NameCells, named
from metaquorum.pipeline.report.html import (
    cluster_name,
    code,
    key,
    left_out,
    moment,
    number,
    path,
    period,
    seconds,
    section,
    table,
    tag,
    text,
    utc,
)
from metaquorum.pipeline.tables import (
    BROKER_OUT,
    DIRECTORY_LOST,
    FAILOVER_BOUNDS_MS,
    LEADER_CHANGED,
    QUORUM_SILENT,
)

MAX_STRIPS = 40
MAX_PARTITIONS = 25
MAX_ELECTIONS = 25
MAX_ROWS = 40
"""Rows of the tables of violations and damage."""


def marks_of(cluster: ClusterFacts) -> list[tuple[str, float, float]]:
    """The times in which a cluster was unobserved or switched off."""
    marks = [(charts.OFF, float(at.start_ms), float(at.end_ms)) for at in cluster.offs]
    return [*marks, *((charts.UNSEEN, float(at.start_ms), float(at.end_ms)) for at in cluster.silences)]


def marks_key(shown: Iterable[ClusterFacts]) -> str:
    """The legend of the marks that are drawn; empty if there are none."""
    kinds = {kind for one in shown for kind, _, _ in marks_of(one)}
    words = {
        charts.UNSEEN: "unobserved: nothing was written, the quorum was down",
        charts.OFF: "off: the last broker had shut down cleanly",
    }
    return key([(kind, said) for kind, said in words.items() if kind in kinds]) if kinds else ""


def partitions(fleet: Fleet) -> str:
    """Partitions by their time without a leader, longest first."""

    def weight(
        entry: tuple[str, tuple[str, str, int], Trouble],
    ) -> tuple[int, int, str, tuple[str, str, int]]:
        return -entry[2].leaderless_ms, -entry[2].under_min_isr_ms, entry[0], entry[1]

    listed = [(one.cluster, where, hurt) for one in fleet.clusters for where, hurt in one.trouble.items()]
    worst = sorted(listed, key=weight)[:MAX_PARTITIONS]
    name = named(fleet)
    rows = [
        (
            code(f"{topic}/{index}"),
            name(cluster),
            seconds(hurt.leaderless_ms / 1000),
            seconds(hurt.under_min_isr_ms / 1000),
            number(hurt.unclean),
            period(hurt.longest_from_ms, hurt.longest_to_ms) if hurt.longest_ms else text("–"),
            text("leaderless" if hurt.leaderless_open else "led"),
        )
        for cluster, (topic, _, index), hurt in worst
    ]
    heads = (
        *("Partition", "Cluster", "Leaderless", "Under min ISR", "Unclean elections"),
        *("Longest outage", "At the end"),
    )
    more = left_out(
        len(rows), len(listed), "affected partitions", "the table partition_states has all of them."
    )
    return section(
        "partitions", "Worst partitions", table("Longest without a leader first", heads, rows), more
    )


def failovers(fleet: Fleet) -> str:
    """How long leaders were missing, and why."""
    durations = [values for one in fleet.clusters for values in one.failover_ms]
    joined = np.concatenate(durations) if durations else np.empty(0, dtype=np.int64)
    causes: Counter[str] = Counter()
    for cluster in fleet.clusters:
        causes.update(cluster.failover_causes)
    numbers = quantiles(joined)
    if numbers is None and not causes:
        return section("failovers", "Failovers", '<p class="note">No leader had to be replaced.</p>')
    words = ", ".join(f"{word_of(cause)} {count:,}" for cause, count in causes.most_common())
    waiting = sum(one.failovers_open for one in fleet.clusters)
    lost = sum(one.failovers_lost for one in fleet.clusters)
    intro = f"{sum(causes.values()):,} leaders had to be replaced. Causes: {words}."
    if waiting:
        intro += f" {waiting:,} were not replaced by the end."
    if lost:
        intro += f" The end of {lost:,} is not known: the cluster was off, or records are missing."
    if numbers is not None and len(fleet.clusters) == 1:
        p50, p95, longest = (seconds_text(value / 1000) for value in numbers)
        intro += f" Median {p50}, 95th percentile {p95}, longest {longest}."
    labels = ["at once", *(f"≤ {_bound(bound)}" for bound in FAILOVER_BOUNDS_MS[1:]), "longer"]
    chart = charts.columns("How long failovers took", list(zip(labels, histogram(joined), strict=True)))
    caption = "Number of leaders replaced, by time without a leader"
    parts = [f"<p>{escape(intro)}</p>", figure(caption, chart)]
    if len(fleet.clusters) > 1:
        parts.append(_failovers_of_each(fleet))
    return section("failovers", "Failovers", *parts)


def _failovers_of_each(fleet: Fleet) -> str:
    """Failovers by cluster: the clusters differ too much for quantiles of all."""
    name = named(fleet)
    listed = [(one, quantiles(one.durations())) for one in fleet.clusters if one.failover_causes]
    listed.sort(key=lambda at: (-(at[1] or (0, 0, -1))[2], at[0].cluster))
    rows = [
        (
            name(cluster.cluster),
            number(cluster.failover_causes.total()),
            number(cluster.failovers_open),
            number(cluster.failovers_lost),
            *(seconds(None if numbers is None else numbers[at] / 1000) for at in range(3)),
            text(", ".join(word_of(cause) for cause, _ in cluster.failover_causes.most_common())),
        )
        for cluster, numbers in listed[:MAX_ROWS]
    ]
    heads = ("Cluster", "Failovers", "Not yet replaced", "End not seen", "Median", "p95", "Longest", "Causes")
    more = left_out(len(rows), len(listed), "clusters", "the table failovers has all of them.")
    return table("Longest failover first", heads, rows, wide=7) + more


def _bound(bound_ms: int) -> str:
    return f"{bound_ms} ms" if bound_ms < 1000 else seconds_text(bound_ms / 1000).replace(".0 s", " s")


def quorum(fleet: Fleet, scale: TimeScale) -> str:
    """Epochs of the quorum over time, and the latest ones."""
    ordered = sorted(fleet.clusters, key=lambda one: (-len(one.elections), one.cluster))
    shown = ordered[:MAX_STRIPS]
    strips = []
    for cluster in shown:
        times = [row["from_time"] for row in cluster.elections if row["from_time"] is not None]
        skipped = sum(row["skipped_epochs"] or 0 for row in cluster.elections)
        description = (
            f"{cluster.cluster}: {len(cluster.elections)} epochs, {skipped} elections without a winner"
        )
        strips.append((cluster_name(cluster.cluster), description, times, marks_of(cluster)))
    parts = [
        figure(
            "First record of each leader epoch, one row per cluster",
            charts.ticks("Quorum elections", scale, strips),
        ),
        marks_key(shown),
        left_out(len(shown), len(ordered), "clusters", "those with the fewest elections are left out."),
    ]
    listed = [row for one in fleet.clusters for row in one.elections]
    listed.sort(key=lambda row: (-(row["from_time"] or 0), row["cluster"]))
    name = named(fleet)
    rows = [
        (
            moment(row["from_time"]),
            name(row["cluster"]),
            number(row["epoch"]),
            number(row["leader_id"], None if row["leader_id"] is None else str(row["leader_id"])),
            number(row["skipped_epochs"]),
            number(row["from_offset"]),
        )
        for row in listed[:MAX_ELECTIONS]
    ]
    heads = ("Time", "Cluster", "Epoch", "Leader", "Lost elections before", "Offset")
    parts.append(table("Latest elections", heads, rows))
    parts.append(left_out(len(rows), len(listed), "elections", "the table quorum_epochs has all of them."))
    return section("quorum", "Quorum elections", *parts)


def violations(fleet: Fleet) -> str:
    """Broken invariants and refused records, by rule."""
    listed = [
        (one.cluster, severity, rule, row)
        for one in fleet.clusters
        for (severity, rule), row in one.violations.items()
    ]
    listed.sort(key=lambda at: (at[1], -at[3]["count"], at[0]))
    name = named(fleet)
    rows = [
        (
            tag(severity),
            text(rule),
            name(cluster),
            number(row["count"]),
            number(row["open"]),
            code(row["where"]),
            moment(row["from_time"]),
            text(row["found"]),
        )
        for cluster, severity, rule, row in listed[:MAX_ROWS]
    ]
    heads = ("Severity", "Rule", "Cluster", "Times", "Ongoing", "First at", "Since", "Found")
    more = left_out(len(rows), len(listed), "rules", "the table violations has all of them.")
    return section("violations", "Violations", table("Broken invariants", heads, rows, wide=7), more)


def damage(fleet: Fleet) -> str:
    """Bytes that could not be read."""
    listed = [row for one in fleet.clusters for row in one.damage]
    listed.sort(key=lambda row: (row["cluster"], row["file"], row["position"] or 0))
    name = named(fleet)
    rows = [
        (
            name(row["cluster"]),
            path(row["file"]),
            text(row["kind"]),
            number(row["position"]),
            number(row["offset"]),
            text(row["reason"]),
        )
        for row in listed[:MAX_ROWS]
    ]
    heads = ("Cluster", "File", "Kind", "Byte", "Offset", "Reason")
    more = left_out(len(rows), len(listed), "damaged places", "the table damage has all of them.")
    intro = (
        '<p class="soft">Unreadable or untrusted data is excluded from everything above.</p>' if rows else ""
    )
    return section("damage", "Damage", intro, table("Damaged places", heads, rows, wide=5), more)


MAX_INCIDENTS = 30
MAX_TIMELINES = 6
MAX_CHANGES = 25
MAX_REMEMBERED = 5_000
"""Findings that a page stores, the most severe first."""
_KINDS = (BROKER_OUT, DIRECTORY_LOST, LEADER_CHANGED, QUORUM_SILENT)
_ORDERLY, _BAD = "controlled_shutdown", "fenced"
"""Classes of the page's style."""
_MEMORY = re.compile(r'<script type="application/json" id="seen">(.*?)</script>', re.DOTALL)
_Key = tuple[str, str, str, int | None]


# -- incidents -----------------------------------------------------------------------------------------


def incidents(fleet: Fleet) -> str:
    """The worst incidents, and all incidents of the most troubled clusters over time."""
    listed = [row for one in fleet.clusters for row in one.incidents]
    if not listed:
        return section("incidents", "Incidents", '<p class="note">Nothing went wrong.</p>')
    listed.sort(key=lambda row: (-row["partitions"], -_lasted_ms(row), row["from_time"] or 0, row["cluster"]))
    name = named(fleet)
    rows = [
        (
            text(row["what"]),
            code(row["who"]),
            name(row["cluster"]),
            text(row["cause"] or "–"),
            period(row["from_time"], row["to_time"]),
            number(row["partitions"]),
            number(row["leaderless"]),
            number(row["leaderless_ms"], _longest(row["leaderless_ms"])),
        )
        for row in listed[:MAX_INCIDENTS]
    ]
    heads = ("What", "Subject", "Cluster", "Cause", "When", "Partitions", "Leaderless", "Longest")
    counted = Counter(row["cause"] or row["what"] for row in listed)
    words = ", ".join(f"{count} {cause}" for cause, count in counted.most_common())
    parts = [
        f'<p class="soft">{escape(words)}.</p>',
        *_timelines(fleet),
        table("Most affected partitions first; metaquorum log why --rules explains the causes", heads, rows),
        left_out(len(rows), len(listed), "incidents", "the table incidents has all of them."),
    ]
    return section("incidents", "Incidents", *parts)


def _longest(value_ms: int | None) -> str | None:
    return None if value_ms is None else seconds_text(value_ms / 1000)


def _lasted_ms(row: dict[str, Any]) -> int:
    return max(0, (row["to_time"] or 0) - (row["from_time"] or 0))


def _timelines(fleet: Fleet) -> list[str]:
    def weight(cluster: ClusterFacts) -> tuple[int, int, str]:
        return -sum(row["partitions"] for row in cluster.incidents), -len(cluster.incidents), cluster.cluster

    ordered = sorted((one for one in fleet.clusters if one.incidents), key=weight)
    parts = [key(((_ORDERLY, "a clean shutdown, or another leader"), (_BAD, "anything else")))]
    for cluster in ordered[:MAX_TIMELINES]:
        scale = TimeScale(cluster.start_ms, cluster.end_ms)
        drawn = charts.states(
            f"Incidents of {cluster.cluster}", scale, [_row(cluster, kind) for kind in _KINDS]
        )
        when = f"{utc(scale.start_ms, 'minutes')} to {utc(scale.end_ms, 'minutes')}"
        parts.append(
            figure(f"{cluster_name(cluster.cluster)}: {len(cluster.incidents)} incidents, {when}", drawn)
        )
    more = "those whose incidents affected fewer partitions are left out."
    return [*parts, left_out(min(len(ordered), MAX_TIMELINES), len(ordered), "clusters", more)]


def _row(cluster: ClusterFacts, kind: str) -> StateRow:
    rows = [row for row in cluster.incidents if row["what"] == kind and row["from_time"] is not None]
    spans = [
        (
            _ORDERLY if is_orderly(row["cause"]) or kind == LEADER_CHANGED else _BAD,
            float(row["from_time"]),
            float(row["to_time"] if row["to_time"] is not None else max(cluster.end_ms, row["from_time"])),
        )
        for row in rows
    ]
    who = Counter(row["who"] for row in rows).most_common(5)
    shares = ", ".join(f"{count} of {name}" for name, count in who) or "none"
    return kind, f"{kind}: {len(rows)} ({shares})", spans


# -- what changed --------------------------------------------------------------------------------------


class PageMemory(msgspec.Struct, kw_only=True):
    """What a page stores: when its logs ended, records by cluster, and findings as (cluster, kind, subject,
    from, to, severity, text)."""

    end_ms: int
    clusters: dict[str, int]
    findings: list[tuple[str, str, str, int | None, int | None, str, str]]


def seen(fleet: Fleet, findings: Sequence[AuditFinding]) -> PageMemory:
    """What this page stores."""
    return PageMemory(
        end_ms=fleet.end_ms,
        clusters={one.cluster: one.records for one in fleet.clusters},
        findings=[
            (one.cluster, one.kind, one.subject, one.time_ms, one.end_ms, one.severity, one.text)
            for one in findings[:MAX_REMEMBERED]
        ],
    )


def remembered(page: str) -> PageMemory | None:
    """What an earlier page stores; None for another text, or another release's page."""
    match = _MEMORY.search(page)
    try:
        return None if match is None else msgspec.json.decode(match[1], type=PageMemory)
    except msgspec.DecodeError:
        return None


def memory(now: PageMemory) -> str:
    """The part of a page that `remembered` reads. Its content cannot end the element."""
    data = json.dumps(msgspec.to_builtins(now), separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="seen">{data}</script>'


def changes(before: PageMemory, now: PageMemory, name: NameCells) -> str:
    """New findings, ended findings, and clusters that are new or gone."""
    old: dict[_Key, Any] = {at[:4]: at for at in before.findings}
    new: dict[_Key, Any] = {at[:4]: at for at in now.findings}
    begun = [at for place, at in new.items() if place not in old]
    over = [
        at
        for place, at in ((place, new.get(place, at)) for place, at in old.items() if at[4] is None)
        if place not in new or at[4] is not None
    ]
    words = [
        f"The last report ended at {utc(before.end_ms, 'minutes')}; "
        f"{sum(now.clusters.values()) - sum(before.clusters.values()):,} more records are in this one.",
        *_named("New clusters", now.clusters.keys() - before.clusters.keys()),
        *_named("Removed clusters", before.clusters.keys() - now.clusters.keys()),
    ]
    parts = [f"<p>{escape(' '.join(words))}</p>"]
    for caption, listed in (("New findings", begun), ("Ended findings", over)):
        rows = [
            (tag(severity), text(kind), name(cluster), code(subject), period(start, end), text(said))
            for cluster, kind, subject, start, end, severity, said in listed[:MAX_CHANGES]
        ]
        if not rows:
            parts.append(f'<p class="note">{caption}: none.</p>')
            continue
        heads = ("Severity", "Kind", "Cluster", "Subject", "When", "What")
        parts.append(table(f"{caption}: {len(listed)}", heads, rows, wide=5))
        parts.append(left_out(len(rows), len(listed), caption.lower(), "the findings below have the rest."))
    return section("changes", "Since the last report", *parts)


def _named(what: str, clusters: set[str]) -> list[str]:
    listed = sorted(clusters)
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return [f"{what}: {', '.join(cluster_name(at) for at in listed[:10])}{more}."] if listed else []
