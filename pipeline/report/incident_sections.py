"""The sections of the report about what happened: incidents, and changes since the last report."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import msgspec

from metaquorum.metadata.inspect.causes.table import is_orderly
from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet
from metaquorum.pipeline.audit.findings import AuditFinding, seconds_text
from metaquorum.pipeline.report import charts
from metaquorum.pipeline.report.charts import StateRow, TimeScale, figure
from metaquorum.pipeline.report.clusters import NameCells, named
from metaquorum.pipeline.report.html import (
    cluster_name,
    code,
    key,
    left_out,
    number,
    period,
    section,
    table,
    tag,
    text,
    utc,
)
from metaquorum.pipeline.tables import BROKER_OUT, DIRECTORY_LOST, LEADER_CHANGED, QUORUM_SILENT

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
    def weight(one: ClusterFacts) -> tuple[int, int, str]:
        return -sum(row["partitions"] for row in one.incidents), -len(one.incidents), one.cluster

    ordered = sorted((one for one in fleet.clusters if one.incidents), key=weight)
    parts = [key(((_ORDERLY, "a clean shutdown, or another leader"), (_BAD, "anything else")))]
    for one in ordered[:MAX_TIMELINES]:
        scale = TimeScale(one.start_ms, one.end_ms)
        drawn = charts.states(f"Incidents of {one.cluster}", scale, [_row(one, kind) for kind in _KINDS])
        when = f"{utc(scale.start_ms, 'minutes')} to {utc(scale.end_ms, 'minutes')}"
        parts.append(figure(f"{cluster_name(one.cluster)}: {len(one.incidents)} incidents, {when}", drawn))
    more = "those whose incidents affected fewer partitions are left out."
    return [*parts, left_out(min(len(ordered), MAX_TIMELINES), len(ordered), "clusters", more)]


def _row(one: ClusterFacts, kind: str) -> StateRow:
    rows = [row for row in one.incidents if row["what"] == kind and row["from_time"] is not None]
    spans = [
        (
            _ORDERLY if is_orderly(row["cause"]) or kind == LEADER_CHANGED else _BAD,
            float(row["from_time"]),
            float(row["to_time"] if row["to_time"] is not None else max(one.end_ms, row["from_time"])),
        )
        for row in rows
    ]
    who = Counter(row["who"] for row in rows).most_common(5)
    told = ", ".join(f"{count} of {name}" for name, count in who) or "none"
    return kind, f"{kind}: {len(rows)} ({told})", spans


# -- what changed --------------------------------------------------------------------------------------


class PageMemory(msgspec.Struct, kw_only=True):
    """What a page stores: when its logs ended, records by cluster, and findings as (cluster, kind, subject,
    from, to, severity, text)."""

    end_ms: int
    clusters: dict[str, int]
    findings: list[tuple[str, str, str, int | None, int | None, str, str]]


def seen(fleet: Fleet, found: Sequence[AuditFinding]) -> PageMemory:
    """What this page stores."""
    return PageMemory(
        end_ms=fleet.end_ms,
        clusters={one.cluster: one.records for one in fleet.clusters},
        findings=[
            (one.cluster, one.kind, one.subject, one.time_ms, one.end_ms, one.severity, one.text)
            for one in found[:MAX_REMEMBERED]
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
