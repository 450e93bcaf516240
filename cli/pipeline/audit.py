"""`metaquorum pipeline audit` and `report`: what in the tables deserves attention, as text or as a page.

Exit codes of `audit`: 0 nothing at or above `--fail-on`, 11 something is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from metaquorum.cli.errors import print_problem
from metaquorum.cli.pipeline.commands import FilePath, Place
from metaquorum.cli.text.output import echo_json, echo_table, table_options, utc_text
from metaquorum.metadata.extras import missing_module
from metaquorum.pipeline.audit.facts import ClusterFacts, Fleet, quantiles
from metaquorum.pipeline.audit.findings import (
    RULES,
    SEVERITIES,
    AuditFinding,
    AuditLimits,
    findings,
    seconds_text,
)
from metaquorum.pipeline.audit.gather import TablesError, TableSource, gather
from metaquorum.pipeline.report.page import page
from metaquorum.storage.disk.interface import STAGED_SUFFIX

EXIT_FINDINGS = 11
NEVER = "never"


def load_fleet(tables: str) -> Fleet:
    """The facts from the tables in a folder. Raises ClickException with one line if they cannot be read."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise click.ClickException(missing_module(error) or f"pyarrow cannot be imported: {error}") from error
    try:
        return gather(TableSource(tables))
    except TablesError as error:
        raise click.ClickException(str(error)) from error
    except (OSError, ValueError) as error:  # pyarrow's errors are of these two types
        raise click.ClickException(f"{tables} cannot be read: {error}; run the ingest again") from error


@click.command()
@click.argument("tables", type=Place())
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(tuple(RULES)),
    metavar="KIND",
    multiple=True,
    help=f"Only these findings: {', '.join(RULES)}.",
)
@click.option("--cluster", "clusters", metavar="ID", multiple=True, help="Only these clusters (cluster ids).")
@click.option(
    "--fail-on",
    type=click.Choice((*SEVERITIES, NEVER)),
    default="warning",
    show_default=True,
    help="Exit with code 11 for findings of this severity or above.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Maximum number of findings to print.",
)
@click.option(
    "--flaps",
    metavar="N",
    type=click.IntRange(min=2),
    default=3,
    show_default=True,
    help="Number of fences that make a burst.",
)
@click.option(
    "--flap-window",
    metavar="SECONDS",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="Window in seconds.",
)
@click.option(
    "--slow-failover",
    metavar="SECONDS",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="Seconds after which a failover is slow.",
)
@table_options
def audit(
    tables: str,
    kinds: tuple[str, ...],
    clusters: tuple[str, ...],
    fail_on: str,
    limit: int,
    flaps: int,
    flap_window: int,
    slow_failover: int,
    as_json: bool,
) -> int:
    """Print findings from TABLES, the directory that `pipeline ingest` wrote."""
    fleet = load_fleet(tables)
    unknown = set(clusters) - {one.cluster for one in fleet.clusters}
    if unknown:
        raise click.ClickException(
            f"there is no cluster {sorted(unknown)[0]} in {tables}; leave out --cluster to see all"
        )
    limits = AuditLimits(
        flaps=flaps, flap_window_ms=flap_window * 1000, slow_failover_ms=slow_failover * 1000
    )
    listed = findings(fleet, limits, frozenset(kinds))
    chosen = [one for one in fleet.clusters if not clusters or one.cluster in clusters]
    listed = [one for one in listed if not clusters or one.cluster in clusters]
    for name in fleet.missing:
        print_problem(f"there is no table {name}: its findings are missing")
    if as_json:
        echo_json({**summary(chosen), "findings": listed})
    else:
        _print(chosen, listed, limit)
    return EXIT_FINDINGS if _fails(listed, fail_on) else 0


def _fails(findings: list[AuditFinding], fail_on: str) -> bool:
    if fail_on == NEVER:
        return False
    worst = SEVERITIES.index(fail_on)
    return any(SEVERITIES.index(one.severity) <= worst for one in findings)


def summary(clusters: list[ClusterFacts]) -> dict[str, Any]:
    """The fleet in numbers, and the failovers of every cluster. Durations in ms."""
    return {
        "clusters": len(clusters),
        "brokers": sum(one.brokers for one in clusters),
        "partitions": sum(one.partitions for one in clusters),
        "records": sum(one.records for one in clusters),
        "leaderlessPartitionSeconds": round(sum(one.sums["leaderless_seconds"] for one in clusters), 3),
        "underMinIsrPartitionSeconds": round(sum(one.sums["under_min_isr_seconds"] for one in clusters), 3),
        "uncleanElections": sum(one.sums["unclean_elections"] for one in clusters),
        "failovers": [
            {"cluster": one.cluster, **failover_numbers(one)} for one in clusters if one.failover_causes
        ],
    }


def failover_numbers(cluster: ClusterFacts) -> dict[str, Any]:
    """The number of failovers of a cluster by reason, and their percentiles in ms."""
    durations = cluster.durations()
    p50, p95, longest = quantiles(durations) or (None, None, None)
    return {
        "count": len(durations) + cluster.failovers_open,
        "open": cluster.failovers_open,
        "causes": dict(sorted(cluster.failover_causes.items())),
        "p50": p50,
        "p95": p95,
        "max": longest,
    }


def _print(clusters: list[ClusterFacts], findings: list[AuditFinding], limit: int) -> None:
    numbers = summary(clusters)
    click.echo(
        f"{numbers['clusters']} clusters, {numbers['brokers']} brokers, {numbers['partitions']} partitions, "
        f"{numbers['records']} records"
    )
    if not findings:
        click.echo("no findings")
        return
    columns = ("SEVERITY", "FINDING", "CLUSTER", "SUBJECT", "SINCE", "UNTIL", "COUNT", "SECONDS", "WHAT")
    echo_table(
        columns,
        [
            (
                finding.severity,
                finding.kind,
                finding.cluster,
                finding.subject,
                None if finding.time_ms is None else utc_text(finding.time_ms),
                "lasts" if finding.end_ms is None else utc_text(finding.end_ms),
                finding.count,
                None if finding.seconds is None else f"{finding.seconds:.1f}",
                finding.text,
            )
            for finding in findings[:limit]
        ],
    )
    if len(findings) > limit:
        click.echo(f"... and {len(findings) - limit} more; see them with --limit {len(findings)} or --json")
    _print_failovers(clusters)


_SHOWN_CLUSTERS = 20


def _print_failovers(clusters: list[ClusterFacts]) -> None:
    listed = [(one, failover_numbers(one)) for one in clusters if one.failover_causes]
    if not listed:
        return
    listed.sort(key=lambda at: (-(at[1]["max"] or 0), at[0].cluster))
    click.echo("\nHow long failovers took, slowest clusters first:")
    echo_table(
        ("CLUSTER", "FAILOVERS", "OPEN", "P50", "P95", "MAX", "CAUSES"),
        [
            (
                cluster.cluster,
                numbers["count"],
                numbers["open"],
                *(_duration(numbers[name]) for name in ("p50", "p95", "max")),
                ", ".join(f"{cause} {count}" for cause, count in numbers["causes"].items()),
            )
            for cluster, numbers in listed[:_SHOWN_CLUSTERS]
        ],
    )
    if len(listed) > _SHOWN_CLUSTERS:
        click.echo(f"... and {len(listed) - _SHOWN_CLUSTERS} more clusters; see them with --json")


def _duration(value_ms: float | None) -> str:
    return "-" if value_ms is None else seconds_text(value_ms / 1000)


@click.command()
@click.argument("tables", type=Place())
@click.option("--out", type=FilePath(dir_okay=False), required=True, help="The HTML file.")
@click.option(
    "--title", metavar="TEXT", default="Metadata quorum report", show_default=True, help="Title of the page."
)
def report(tables: str, out: Path, title: str) -> int:
    """Write an HTML report about TABLES, the directory that `pipeline ingest` wrote. The page needs no
    network. If --out is an earlier report, the new one begins with what changed since."""
    fleet = load_fleet(tables)
    try:
        previous = out.read_text(encoding="utf-8", errors="replace") if out.is_file() else None
        text = page(fleet, findings(fleet, AuditLimits()), title=title, tables=tables, previous=previous)
        replace_file(out, text)
    except OSError as error:
        raise click.ClickException(
            f"{out} cannot be written: {error.strerror}; choose another file"
        ) from error
    click.echo(f"{out}: {len(fleet.clusters)} clusters, {len(text.encode()) // 1024} KiB")
    return 0


def replace_file(out: Path, text: str) -> None:
    """Replaces a file at once: an interrupt or a full disk leaves the earlier report. Raises OSError."""
    if out.exists() and not out.is_file():  # a pipe, or a device
        out.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(out))
    staged = target.with_name(f"{target.name}{STAGED_SUFFIX}")
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(target)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
