"""`metaquorum local`: runs a whole cluster of processes on this machine, to try things out."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

import click

from metaquorum.cli.errors import EXIT_FAILED, Failure
from metaquorum.cli.given import FiniteRange, GivenPath
from metaquorum.cli.layout import DEFAULT_DIRECTORY, MANIFEST, Layout, create, grow, open_layout
from metaquorum.cli.local.forks import node_starter
from metaquorum.cli.text.output import echo_json, echo_table, table_options
from metaquorum.metadata.extras import is_installed
from metaquorum.node.local_nodes import free_ports
from metaquorum.platforms import check_nodes_run_here

IN_MEMORY, AS_PROCESSES = "--in-memory", "--processes"
DIRECTORY = click.option(
    "--directory",
    "-d",
    type=GivenPath(readable=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Directory of the cluster.",
)


@click.group()
def local() -> None:
    """Run a whole cluster on this machine."""
    check_nodes_run_here()


@local.command()
@DIRECTORY
@click.option(
    "--controllers",
    metavar="N",
    type=click.IntRange(1, 9),
    help="Number of controllers. Default for a new cluster: 3.",
)
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(0, 50),
    help="Number of brokers. Default for a new cluster: 3.",
)
@click.option(
    "--combined",
    metavar="N",
    type=click.IntRange(1, 9),
    help="Number of nodes that are both controller and broker, instead of separate nodes.",
)
@click.option("--cluster-id", metavar="ID", help="Cluster id. Default for a new cluster: random.")
@click.option("--free-ports", "any_port", is_flag=True, help="Use currently free ports for a new cluster.")
@click.option(
    "--in-memory",
    "owned",
    flag_value=IN_MEMORY,
    help="Run all nodes in this process, until Ctrl-C, with their data in memory and free ports; `metaquorum"
    " fault` breaks it.",
)
@click.option(
    "--processes",
    "owned",
    flag_value=AS_PROCESSES,
    help="Run each node in a process, until Ctrl-C, with free ports; `metaquorum fault` breaks it, too.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Show a live status. Ctrl-C stops, in order, what this command started.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=FiniteRange(min=1),
    default=60.0,
    show_default=True,
    help="Startup timeout in seconds.",
)
def up(
    directory: Path,
    controllers: int | None,
    brokers: int | None,
    combined: int | None,
    cluster_id: str | None,
    any_port: bool,
    owned: str | None,
    watch: bool,
    timeout: float,
) -> None:
    """Start the cluster in --directory, creating it if there is none. A larger --controllers than
    before adds controllers, which become voters."""
    if combined is not None and (controllers is not None or brokers is not None):
        raise click.UsageError(
            "--combined sets the number of all nodes: leave out --controllers and --brokers"
        )
    if owned is not None:
        if watch or cluster_id is not None:
            raise click.UsageError(f"{owned} has neither --watch nor --cluster-id")
        from metaquorum.cli.local.fault import serve_cluster

        voters = None if combined else controllers or 3
        members = combined or (3 if brokers is None else brokers)
        serve_cluster(directory, members, voters, timeout, as_processes=owned == AS_PROCESSES)
        return
    if watch and not is_installed("rich"):
        raise ModuleNotFoundError("the view needs rich", name="rich")  # before any node is started
    with contextlib.closing(node_starter()) as forks:
        from metaquorum.cli.local.cluster import LocalCluster, add_missing_voters

        layout = _layout(directory, controllers, brokers, combined, cluster_id, any_port)
        if controllers is not None and controllers > len(layout.controllers):
            layout = _grown(layout, controllers, timeout)
        with LocalCluster(layout, forks) as cluster:
            try:
                cluster.start_all()
                add_missing_voters(cluster, timeout)
                seconds = cluster.wait_ready(timeout)
            except BaseException:
                cluster.stop_started()
                raise
            names = ", ".join(node.name for node in layout.nodes)
            click.echo(f"up after {seconds:.1f} s in {layout.directory}: {names}")
            click.echo(f"controllers: {layout.bootstrap}")
            if layout.bootstrap_servers:
                click.echo(f"for Kafka's clients: bootstrap.servers={layout.bootstrap_servers}")
            click.echo(f"any moment in a browser: metaquorum console {shlex.quote(str(layout.directory))}")
            if watch:
                from metaquorum.cli.local.watch import watch as watch_cluster

                watch_cluster(cluster, live=sys.stdout.isatty())


def _layout(
    directory: Path,
    controllers: int | None,
    brokers: int | None,
    combined: int | None,
    cluster_id: str | None,
    any_port: bool,
) -> Layout:
    """The existing cluster, checked against the options, or a new one."""
    if (directory / MANIFEST).exists():
        layout = open_layout(directory)
        if cluster_id is not None and cluster_id != layout.cluster_id:
            raise Failure(
                f"{directory} holds cluster {layout.cluster_id}, not {cluster_id}; give another --directory"
            )
        both = layout.combined
        if (combined or both) and not (combined == both or combined is controllers is brokers is None):
            raise Failure(
                f"{directory} holds a cluster with {both} combined nodes; give another --directory, or only"
                f" --combined {both}"
                if both
                else f"{directory} holds a cluster without combined nodes; give another --directory"
            )
        if brokers is not None and brokers != len(layout.brokers):
            raise Failure(
                f"{directory} holds a cluster with {len(layout.brokers)} brokers, not {brokers};"
                " give another --directory"
            )
        if controllers is not None and controllers < len(layout.controllers):
            raise Failure(
                f"{directory} holds a cluster with {len(layout.controllers)} controllers, not {controllers};"
                " to have fewer voters, run: metaquorum quorum remove-voter ID"
            )
        return layout
    voters, members = controllers or 3, 3 if brokers is None else brokers
    ports = free_ports(combined or voters + members) if any_port else None
    return create(
        directory,
        cluster_id=cluster_id,
        controllers=voters,
        brokers=members,
        combined=combined or 0,
        ports=ports,
        dynamic_voters=True,
    )


def _grown(layout: Layout, controllers: int, timeout_s: float) -> Layout:
    """Starts the cluster before it grows: only a running quorum can say whether its voters can change."""
    from metaquorum.cli.local.cluster import LocalCluster

    with LocalCluster(layout) as cluster:
        try:
            cluster.start_all()
            cluster.wait_ready(timeout_s)
            if cluster.client.quorum().kraft_version == 0:
                raise Failure(
                    f"{layout.directory} holds a cluster with {len(layout.controllers)} static voters, not"
                    f" {controllers}; to add some, first run: metaquorum features upgrade kraft.version=1"
                )
        except BaseException:
            cluster.stop_started()
            raise
    return grow(layout, controllers)


@local.command()
@DIRECTORY
@table_options
def status(directory: Path, as_json: bool) -> int:
    """Show the processes of the cluster, and why any of them ended. Exit code 1 if a process is not running
    or committed records were lost."""
    from metaquorum.cli.local.cluster import LocalCluster

    layout = open_layout(directory)
    with LocalCluster(layout) as cluster:
        lost = cluster.lost_committed()
        rows = [
            {
                "node": node.name,
                "pid": cluster.processes.pid(node),
                "port": node.port,
                "kafkaPort": node.kafka_port or None,
                "metrics": node.metrics_url,
                "data": str(layout.data(node)),
                "ended": cluster.processes.ending(node),
            }
            for node in layout.nodes
        ]
    if as_json:
        lines = [str(loss) for loss in lost]
        echo_json(
            {
                "clusterId": layout.cluster_id,
                "bootstrap": layout.bootstrap,
                "bootstrapServers": layout.bootstrap_servers,
                "nodes": rows,
                "lostCommitted": lines,
            }
        )
    else:
        click.echo(f"cluster {layout.cluster_id}, controllers {layout.bootstrap}")
        if layout.bootstrap_servers:
            click.echo(f"for Kafka's clients: bootstrap.servers={layout.bootstrap_servers}")
        shown = [
            (row["node"], "running" if row["pid"] else "stopped", *list(row.values())[1:-1]) for row in rows
        ]
        echo_table(("NODE", "STATE", "PID", "PORT", "KAFKA", "METRICS", "DATA"), shown)
        for line in (*(f"{row['node']}: {row['ended']}" for row in rows if row["ended"]), *map(str, lost)):
            click.echo(line)
    return 0 if all(row["pid"] for row in rows) and not lost else EXIT_FAILED


@local.command()
@DIRECTORY
def down(directory: Path) -> int:
    """Stop the cluster in order. Brokers stop first, then standby controllers, then the active controller."""
    from metaquorum.cli.local.cluster import LocalCluster

    layout = open_layout(directory)
    with LocalCluster(layout) as cluster:
        outcomes = cluster.stop_all()
    for name, outcome in outcomes.items():
        click.echo(f"{name}: {outcome}")
    return EXIT_FAILED if "killed" in outcomes.values() else 0
