"""`metaquorum brokers bindings|bind|unbind`: which key (a host name) has which broker id (S0.15).

Owns the table and the JSON of bindings. Knows no registrations; those are in `brokers`.
"""

from __future__ import annotations

from typing import Any

import click

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.runtime.api.broker_ids import BindingView, BrokerIdListing
from metaquorum.runtime.client.ids import bind_broker_id, list_broker_ids, unbind_broker_id
from metaquorum.storage.uuids import uuid_to_text

COLUMNS = ("KEY", "BROKER", "STATE", "CURRENT", "GARBAGE")
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
        found = cluster.call(list_broker_ids)
    if as_json:
        echo_json(listing_json(found))
        return
    echo_table(COLUMNS, [_row(each) for each in found.bindings])
    if found.missing_ids:
        click.echo(f"missing ids: {', '.join(map(str, found.missing_ids))}")
    for claim in found.claims:
        click.echo(f"id {claim.broker_id} is allocated ({claim.source.value}) but not registered yet")


@click.command()
@client_options
@click.argument("key", type=KEY)
@click.argument("broker_id", type=BROKER_ID)
@json_option
def bind(options: ClientOptions, key: str, broker_id: int, as_json: bool) -> None:
    """Bind KEY to BROKER_ID, instead of the id's other keys. A broker that starts with this key and no id
    gets that id."""
    with options.open() as cluster:
        cluster.call(lambda client: bind_broker_id(client, key, broker_id))
    if as_json:
        echo_json({"key": key, "brokerId": broker_id, "bound": True})
    else:
        click.echo(f"{key} is bound to broker id {broker_id}")


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


def listing_json(found: BrokerIdListing) -> dict[str, Any]:
    return {
        "offset": found.offset,
        "bindings": [
            {
                "key": each.key,
                "brokerId": each.broker_id,
                "version": each.version,
                "state": each.state,
                "current": each.current,
                "garbage": each.garbage,
            }
            for each in found.bindings
        ],
        "missingIds": list(found.missing_ids),
        "claims": [
            {
                "brokerId": each.broker_id,
                "requestId": uuid_to_text(each.request_id),
                "source": each.source.value,
            }
            for each in found.claims
        ],
        "nextId": found.next_id,
    }


def _row(binding: BindingView) -> tuple[object, ...]:
    return binding.key, binding.broker_id, binding.state, binding.current, binding.garbage
