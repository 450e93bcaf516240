"""`metaquorum quorum`: the leader, the log ends of the nodes, leadership transfer and voter changes.

Owns description and transfer. Knows no voter changes: `cli.voters` plans and performs them.
"""

from __future__ import annotations

import time

import click

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.cluster import ClusterOptions, cluster_options, controllers_option
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.quorum import replication_json, replication_text, status_json, status_text
from metaquorum.cli.voters.commands import add_voter, remove_voter, replace_voter
from metaquorum.runtime.kafka.admin.cluster import describe_quorum


@click.group()
def quorum() -> None:
    """Describe the quorum; transfer leadership; change voters."""


for _command in (add_voter, remove_voter, replace_voter):
    quorum.add_command(_command)


@quorum.command()
@cluster_options
@controllers_option
@click.option("--replication", is_flag=True, help="Show every voter and observer instead of the summary.")
@click.option("--human-readable", is_flag=True, help="With --replication: show times as 'N ms ago'.")
@json_option
def describe(
    options: ClusterOptions,
    controllers: ClientOptions | None,
    replication: bool,
    human_readable: bool,
    as_json: bool,
) -> None:
    """Describe the quorum, as the active controller knows it."""
    if controllers is None:
        with options.open() as cluster:
            found = cluster.call(describe_quorum)
    else:
        with controllers.open() as quorum_client:
            found = quorum_client.quorum()
    now_ms = time.time_ns() // 1_000_000
    if as_json:
        echo_json(replication_json(found, now_ms) if replication else status_json(found, now_ms))
    elif replication:
        click.echo(replication_text(found, now_ms, human_readable))
        for loss in found.losses:
            click.echo(f"metaquorum: {loss}", err=True)
    else:
        click.echo(status_text(found, now_ms))


@quorum.command()
@client_options
@click.option(
    "--to",
    "target",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Voter to elect. Default: the most caught-up voter.",
)
@json_option
def transfer(options: ClientOptions, target: int | None, as_json: bool) -> None:
    """Transfer leadership to another voter. Waits until that voter leads."""
    with options.open() as cluster:
        before = cluster.quorum()
        cluster.transfer(target)
        after = cluster.wait_for_new_leader(before.leader_epoch)
    if as_json:
        echo_json({"from": before.leader_id, "to": after.leader_id, "leaderEpoch": after.leader_epoch})
    else:
        click.echo(
            f"controller {after.leader_id} leads in epoch {after.leader_epoch} (before: {before.leader_id})"
        )
