"""The sections of the report that list single things: partitions, failovers, elections, violations,
damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

import numpy as np

from metaquorum.metadata.inspect.causes.table import word_of
from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet, Trouble, histogram, quantiles
from metaquorum.pipeline.audit.findings import seconds_text
from metaquorum.pipeline.report import charts
from metaquorum.pipeline.report.charts import TimeScale, figure
from metaquorum.pipeline.report.clusters import named
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
)
from metaquorum.pipeline.tables import FAILOVER_BOUNDS_MS

MAX_STRIPS = 40
MAX_PARTITIONS = 25
MAX_ELECTIONS = 25
MAX_ROWS = 40
"""Rows of the tables of violations and damage."""


def marks_of(one: ClusterFacts) -> list[tuple[str, float, float]]:
    """The times in which a cluster was unobserved or switched off."""
    marks = [(charts.OFF, float(at.start_ms), float(at.end_ms)) for at in one.offs]
    return [*marks, *((charts.UNSEEN, float(at.start_ms), float(at.end_ms)) for at in one.silences)]


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

    def weight(at: tuple[str, tuple[str, str, int], Trouble]) -> tuple[int, int, str, tuple[str, str, int]]:
        return -at[2].leaderless_ms, -at[2].under_min_isr_ms, at[0], at[1]

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
    for one in fleet.clusters:
        causes.update(one.failover_causes)
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
            name(one.cluster),
            number(one.failover_causes.total()),
            number(one.failovers_open),
            number(one.failovers_lost),
            *(seconds(None if numbers is None else numbers[at] / 1000) for at in range(3)),
            text(", ".join(word_of(cause) for cause, _ in one.failover_causes.most_common())),
        )
        for one, numbers in listed[:MAX_ROWS]
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
    for one in shown:
        times = [row["from_time"] for row in one.elections if row["from_time"] is not None]
        skipped = sum(row["skipped_epochs"] or 0 for row in one.elections)
        told = f"{one.cluster}: {len(one.elections)} epochs, {skipped} elections without a winner"
        strips.append((cluster_name(one.cluster), told, times, marks_of(one)))
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
