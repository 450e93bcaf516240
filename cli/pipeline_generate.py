"""`metaquorum pipeline generate`: writes a synthetic fleet of metadata logs with known truth.

Owns options, progress and the summary; what a fleet is lies in `pipeline.fleet`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.output import echo_json, echo_table, table_options
from cli.pipeline_paths import FilePath
from pipeline.fleet.plan import KINDS, FleetPlan

_SHOWN = 20


@click.command()
@click.option("--out", type=FilePath(), required=True, help="New directory: clusters/ and truth/.")
@click.option("--clusters", type=int, default=4, show_default=True, help="Clusters of the fleet.")
@click.option(
    "--records", type=int, default=100_000, show_default=True, help="Records of all clusters together."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same numbers give the same bytes.")
@click.option("--brokers", type=int, help="Brokers a cluster (default: by the records, 4 to 30).")
@click.option("--partitions", type=int, help="Partitions a cluster (default: by the records, up to 4000).")
@click.option(
    "--nodes",
    type=int,
    default=1,
    show_default=True,
    help="Controllers a cluster whose logs are written; all but the first are a few batches behind.",
)
@click.option(
    "--incident",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Only these incidents (may be repeated; default: all).",
)
@click.option(
    "--damaged-every",
    type=int,
    default=4,
    show_default=True,
    help="Every so manieth cluster's log ends in damaged bytes; 0: none.",
)
@click.option("--snapshots", type=int, default=2, show_default=True, help="Checkpoints of each log.")
@click.option(
    "--segment-bytes",
    type=click.IntRange(min=10_000),
    default=8 << 20,
    show_default=True,
    help="Segment size.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes (default: one a processor).")
@table_options
def generate(out: Path, kinds: tuple[str, ...], jobs: int | None, as_json: bool, **numbers: Any) -> int:
    """Write a synthetic fleet: logs in Kafka's format below OUT/clusters, what is true below OUT/truth."""
    from pipeline.fleet.files import write_fleet

    try:
        plan = FleetPlan(**numbers, kinds=kinds or KINDS)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    columns = (TextColumn("writing clusters"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("clusters", total=plan.clusters)
        try:
            fleet = write_fleet(
                plan, out, jobs=jobs or os.cpu_count() or 1, on_cluster=lambda _: progress.advance(task)
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
                one["name"],
                one["cluster_id"],
                one["records"],
                one["bytes"],
                one["brokers"],
                one["partitions"],
                sum(one["incidents"].values()),
                one["damage"],
            )
            for one in clusters[:_SHOWN]
        ],
    )
    if len(clusters) > _SHOWN:
        click.echo(f"... and {len(clusters) - _SHOWN} more; all are in {out / 'truth' / 'fleet.json'}")
    click.echo(f"{fleet['records']} records, {fleet['bytes']} bytes of log in {len(clusters)} clusters")
    click.echo(f"next: metaquorum pipeline ingest {out / 'clusters'} --out TABLES")
