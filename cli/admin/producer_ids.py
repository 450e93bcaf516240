"""`metaquorum producer-ids`: allocates blocks of producer ids, as brokers do.

Owns the lookup of the broker epoch. Does not know which producer uses an id; `transactions` shows that.
"""

from __future__ import annotations

import click

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.errors import Failure
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest
from metaquorum.runtime.client.ids import allocate_producer_ids


@click.group()
def producer_ids() -> None:
    """Allocate blocks of producer ids to brokers."""


@producer_ids.command()
@client_options
@click.argument("broker_id", type=click.IntRange(min=0))
@click.option(
    "--epoch", metavar="N", type=click.IntRange(min=0), help="The broker epoch. Default: the registered one."
)
@json_option
def allocate(options: ClientOptions, broker_id: int, epoch: int | None, as_json: bool) -> None:
    """Allocate the next block to BROKER_ID. No id is allocated twice."""
    with options.open() as cluster:
        if epoch is None:
            epoch = next((each.epoch for each in cluster.brokers() if each.broker_id == broker_id), None)
        if epoch is None:
            raise Failure(f"broker {broker_id} is not registered; see: metaquorum brokers list")
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        block = cluster.call(lambda client: allocate_producer_ids(client, request))
    if as_json:
        echo_json({"brokerId": broker_id, "firstProducerId": block.first_id, "count": block.count})
    else:
        last = block.first_id + block.count - 1
        click.echo(f"broker {broker_id} has the producer ids {block.first_id} to {last}")
