"""`metaquorum pipeline generate`: writes a synthetic fleet of metadata logs with known truth."""

from __future__ import annotations

import io
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from metaquorum.cli.pipeline.commands import FilePath
from metaquorum.cli.text.output import echo_json, echo_table, table_options
from metaquorum.pipeline.fleet.plan import KINDS, FleetPlan

_SHOWN = 20


@click.command()
@click.option(
    "--out", type=FilePath(), required=True, help="New output directory; gets clusters/ and truth/."
)
@click.option("--clusters", metavar="N", type=int, default=4, show_default=True, help="Number of clusters.")
@click.option(
    "--records",
    metavar="N",
    type=int,
    default=100_000,
    show_default=True,
    help="Number of records over all clusters.",
)
@click.option(
    "--seed",
    metavar="N",
    type=int,
    default=0,
    show_default=True,
    help="Random seed; the same options give the same bytes.",
)
@click.option(
    "--brokers",
    metavar="N",
    type=int,
    help="Brokers per cluster. Default: 4 to 30, by the number of records.",
)
@click.option(
    "--partitions",
    metavar="N",
    type=int,
    help="Partitions per cluster. Default: up to 4000, by the number of records.",
)
@click.option(
    "--nodes",
    metavar="N",
    type=int,
    default=1,
    show_default=True,
    help="Controller logs per cluster; all but the first are a few batches behind.",
)
@click.option(
    "--incident",
    "kinds",
    type=click.Choice(KINDS),
    metavar="KIND",
    multiple=True,
    help=f"Only this incident; may be repeated. Default: all of {', '.join(KINDS)}.",
)
@click.option(
    "--damaged-every",
    metavar="N",
    type=int,
    default=4,
    show_default=True,
    help="Damage the tail of every Nth cluster's log; 0: none.",
)
@click.option("--snapshots", metavar="N", type=int, default=2, show_default=True, help="Snapshots per log.")
@click.option(
    "--segment-bytes",
    metavar="BYTES",
    type=click.IntRange(min=10_000),
    default=8 << 20,
    show_default=True,
    help="Segment size in bytes.",
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), help="Number of processes. Default: one per processor."
)
@table_options
def generate(out: Path, kinds: tuple[str, ...], jobs: int | None, as_json: bool, **numbers: Any) -> int:
    """Write a synthetic fleet: logs in Kafka's format to OUT/clusters, the expected facts to OUT/truth."""
    from metaquorum.pipeline.fleet.files import write_fleet

    try:
        plan = FleetPlan(**numbers, kinds=kinds or KINDS)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    shown = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with click.progressbar(
        length=plan.clusters, label="writing clusters", show_pos=True, file=shown
    ) as progress:
        try:
            fleet = write_fleet(
                plan, out, jobs=jobs or os.cpu_count() or 1, on_cluster=lambda _: progress.update(1)
            )
        except FileExistsError as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        echo_json(fleet)
        return 0
    _show(fleet, out)
    return 0


def _show(fleet: dict[str, Any], out: Path) -> None:
    clusters = fleet["clusters"]
    echo_table(
        ("CLUSTER", "ID", "RECORDS", "BYTES", "BROKERS", "PARTITIONS", "INCIDENTS", "DAMAGE"),
        [
            (
                cluster["name"],
                cluster["cluster_id"],
                cluster["records"],
                cluster["bytes"],
                cluster["brokers"],
                cluster["partitions"],
                sum(cluster["incidents"].values()),
                cluster["damage"],
            )
            for cluster in clusters[:_SHOWN]
        ],
    )
    if len(clusters) > _SHOWN:
        click.echo(f"... and {len(clusters) - _SHOWN} more; all are in {out / 'truth' / 'fleet.json'}")
    click.echo(f"{fleet['records']} records, {fleet['bytes']} bytes of log in {len(clusters)} clusters")
    click.echo(f"next: metaquorum pipeline ingest {shlex.quote(str(out / 'clusters'))} --out TABLES")
