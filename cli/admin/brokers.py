"""`metaquorum brokers`: the brokers of a cluster, and the broker ids of hosts.

Owns the choice between controllers and brokers as source, and the check before an unregistration. Knows no
rows or texts of a broker (`cli.text.brokers`); the id commands are `broker_ids`'.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from metaquorum.cli.admin.broker_ids import bind, bindings, unbind
from metaquorum.cli.client import ClientOptions
from metaquorum.cli.cluster import ClusterOptions, cluster_options, controllers_option
from metaquorum.cli.errors import Failure
from metaquorum.cli.text.brokers import COLUMNS, Broker, broker_json, broker_row, describe_text
from metaquorum.cli.text.left_behind import left_behind, left_behind_json, left_behind_text
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.runtime.kafka.admin.cluster import list_brokers, unregister_broker
from metaquorum.runtime.kafka.admin.topics import list_topics

BROKER_ID = click.IntRange(min=0)


@click.group()
def brokers() -> None:
    """List, describe and unregister brokers; bind broker ids."""


for _command in (bindings, bind, unbind):
    brokers.add_command(_command)


@brokers.command("list")
@cluster_options
@controllers_option
@table_options
def list_(options: ClusterOptions, controllers: ClientOptions | None, as_json: bool) -> None:
    """List the registered brokers and their states."""
    found = _brokers(options, controllers)
    if as_json:
        echo_json([broker_json(broker) for broker in found])
    else:
        echo_table(COLUMNS, [broker_row(broker) for broker in found])


@brokers.command()
@cluster_options
@controllers_option
@click.argument("broker_id", type=BROKER_ID)
@json_option
def describe(
    options: ClusterOptions, controllers: ClientOptions | None, broker_id: int, as_json: bool
) -> None:
    """Show everything known about the broker BROKER_ID."""
    all_of_them = _brokers(options, controllers)
    found = next((broker for broker in all_of_them if broker.broker_id == broker_id), None)
    if found is None:
        raise Failure(f"broker {broker_id} is not registered; see: metaquorum brokers list")
    if as_json:
        echo_json(broker_json(found))
    else:
        click.echo(describe_text(found))


def _brokers(options: ClusterOptions, controllers: ClientOptions | None) -> Sequence[Broker]:
    """Registrations if controllers are asked, otherwise what brokers report of each other."""
    if controllers is not None:
        with controllers.open() as quorum:
            return quorum.brokers()
    with options.open() as cluster:
        return cluster.call(list_brokers)


@brokers.command()
@cluster_options
@click.argument("broker_id", type=BROKER_ID)
@click.option(
    "--force",
    is_flag=True,
    help="Unregister the broker even if it is running; it then registers again.",
)
@json_option
def unregister(options: ClusterOptions, broker_id: int, force: bool, as_json: bool) -> None:
    """Unregister the broker BROKER_ID. Stop the broker first.

    Without --force, a running broker stays registered: it would lose its leaderships and register again.
    Replicas stay assigned to the broker until they are moved; the command counts and names them first.
    """
    with options.open() as cluster:
        known = next((each for each in cluster.call(list_brokers) if each.broker_id == broker_id), None)
        if known is not None and not known.fenced and not force:
            raise Failure(
                f"broker {broker_id} is running and would register again; stop it first, or use --force"
            )
        left = left_behind(cluster.call(list_topics), broker_id)
        if left.replicas:
            click.echo(f"metaquorum: {left_behind_text(left, broker_id)}", err=True)
        cluster.call(lambda client: unregister_broker(client, broker_id))
    if as_json:
        echo_json({"id": broker_id, "unregistered": True, "leftBehind": left_behind_json(left)})
    else:
        click.echo(f"broker {broker_id} is unregistered")
