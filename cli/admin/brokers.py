"""`metaquorum brokers`: the brokers of a cluster, and which key (a host name) has which broker id (S0.15)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.cluster import ClusterOptions, cluster_options, controllers_option
from metaquorum.cli.errors import Failure, print_problem
from metaquorum.cli.text.output import confirm, echo_json, echo_table, json_option, table_options
from metaquorum.cli.text.quorum import COLUMNS, Broker, broker_json, broker_row, describe_text
from metaquorum.clients.admin.cluster import list_brokers, unregister_broker
from metaquorum.clients.admin.topics import DescribedTopic, list_topics
from metaquorum.clients.quorum.admin import bind_broker_id, list_broker_ids, unbind_broker_id
from metaquorum.rpc.messages.tables import BindingView, BrokerIdListing
from metaquorum.storage.uuids import uuid_to_text

BINDING_COLUMNS = ("KEY", "BROKER", "STATE", "CURRENT", "GARBAGE")
KEY = click.STRING
BROKER_ID = click.IntRange(min=0)


@click.command()
@client_options
@table_options
def bindings(options: ClientOptions, as_json: bool) -> None:
    """List the key of each broker id, and missing ids.

    Missing ids are in replica lists, but no broker has them.
    """
    with options.open() as cluster:
        bound = cluster.call(list_broker_ids)
    if as_json:
        echo_json(listing_json(bound))
        return
    echo_table(BINDING_COLUMNS, [_row(each) for each in bound.bindings])
    if bound.missing_ids:
        click.echo(f"missing ids: {', '.join(map(str, bound.missing_ids))}")
    for claim in bound.claims:
        click.echo(f"id {claim.broker_id} is allocated ({claim.source.value}) but not registered yet")


@click.command()
@client_options
@click.argument("key", type=KEY)
@click.argument("broker_id", type=BROKER_ID)
@click.option("--yes", is_flag=True, help="Do not ask before replacing a running broker's binding.")
@json_option
def bind(options: ClientOptions, key: str, broker_id: int, yes: bool, as_json: bool) -> None:
    """Bind KEY to BROKER_ID, instead of the id's other keys. A broker that starts with this key and no id
    gets that id."""
    with options.open() as cluster:
        if not yes:
            _ask_about_running(cluster.call(list_broker_ids).bindings, key, broker_id)
        cluster.call(lambda client: bind_broker_id(client, key, broker_id))
    if as_json:
        echo_json({"key": key, "brokerId": broker_id, "bound": True})
    else:
        click.echo(f"{key} is bound to broker id {broker_id}")


def _ask_about_running(bindings: Iterable[BindingView], key: str, broker_id: int) -> None:
    """Raises Failure if the binding would replace one of a running broker, and the answer is no."""
    replaced = [
        each
        for each in bindings
        if each.state == "running" and (each.key == key) is not (each.broker_id == broker_id)
    ]
    if replaced:
        said = " and ".join(
            f"the binding of {each.key} to running broker {each.broker_id}" for each in replaced
        )
        confirm(f"Bind {key} to broker id {broker_id}? This replaces {said}")


@click.command()
@client_options
@click.argument("key", type=KEY)
@json_option
def unbind(options: ClientOptions, key: str, as_json: bool) -> None:
    """Remove the binding of KEY to a broker id."""
    with options.open() as cluster:
        cluster.call(lambda client: unbind_broker_id(client, key))
    if as_json:
        echo_json({"key": key, "bound": False})
    else:
        click.echo(f"{key} is no longer bound")


def listing_json(listing: BrokerIdListing) -> dict[str, Any]:
    return {
        "offset": listing.offset,
        "bindings": [
            {
                "key": binding.key,
                "brokerId": binding.broker_id,
                "version": binding.version,
                "state": binding.state,
                "current": binding.current,
                "garbage": binding.garbage,
            }
            for binding in listing.bindings
        ],
        "missingIds": list(listing.missing_ids),
        "claims": [
            {
                "brokerId": claim.broker_id,
                "requestId": uuid_to_text(claim.request_id),
                "source": claim.source.value,
            }
            for claim in listing.claims
        ],
        "nextId": listing.next_id,
    }


def _row(binding: BindingView) -> tuple[object, ...]:
    return binding.key, binding.broker_id, binding.state, binding.current, binding.garbage


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
    rows = _brokers(options, controllers)
    if as_json:
        echo_json([broker_json(broker) for broker in rows])
    else:
        echo_table(COLUMNS, [broker_row(broker) for broker in rows])


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
    described = next((broker for broker in all_of_them if broker.broker_id == broker_id), None)
    if described is None:
        raise Failure(f"broker {broker_id} is not registered; see: metaquorum brokers list")
    if as_json:
        echo_json(broker_json(described))
    else:
        click.echo(describe_text(described))


def _brokers(options: ClusterOptions, controllers: ClientOptions | None) -> Sequence[Broker]:
    """Registrations if controllers are asked, otherwise what brokers report of each other."""
    if controllers is not None:
        with controllers.open() as quorum:
            return quorum.brokers()
    if options.controllers is not None:
        raise Failure(
            f"{options.controllers} speaks Kafka's protocol, in which controllers list no brokers: ask a"
            " broker with --bootstrap, or a controller's gRPC listener"
        )
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
            print_problem(left_behind_text(left, broker_id))
        cluster.call(lambda client: unregister_broker(client, broker_id))
    if as_json:
        echo_json({"id": broker_id, "unregistered": True, "leftBehind": left_behind_json(left)})
    else:
        click.echo(f"broker {broker_id} is unregistered")


NAMED_MAX = 5


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions, as `topic-index`, that have a replica on the broker. `alone`:
    those with no other replica."""

    replicas: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


def left_behind(topics: Sequence[DescribedTopic], broker_id: int) -> LeftBehind:
    """The partitions of `topics` with a replica on the broker."""
    left = [
        (f"{topic.name}-{partition.index}", len(partition.replicas) == 1)
        for topic in topics
        for partition in topic.partitions
        if broker_id in partition.replicas
    ]
    return LeftBehind(
        replicas=tuple(name for name, _ in left), alone=tuple(name for name, alone in left if alone)
    )


def left_behind_json(left: LeftBehind) -> dict[str, Any]:
    """The total counts, and the names of the first few."""
    return {
        "underReplicated": len(left.replicas),
        "withoutAnotherReplica": len(left.alone),
        "partitions": list(left.replicas[:NAMED_MAX]),
    }


def left_behind_text(left: LeftBehind, broker_id: int) -> str:
    """One line: how many, which, and what to do."""
    count = len(left.replicas)
    stay = "1 replica stays" if count == 1 else f"{count} replicas stay"
    lonely = ""
    if left.alone:
        lonely = f"; the only replica of {_named(left.alone)}"
    return (
        f"{stay} assigned to broker {broker_id} and under-replicated: {_named(left.replicas)}{lonely}; move"
        f" them to other brokers: metaquorum partitions plan --drain {broker_id}, then partitions reassign"
    )


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
