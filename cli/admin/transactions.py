"""`metaquorum transactions`: as coordinators and leaders report them, and aborting a hanging one (KIP-664).

Also `metaquorum producer-ids`: allocates blocks of producer ids, as brokers do.
"""

from __future__ import annotations

import time
from typing import Any

import click

from metaquorum.cli.admin.topics import TOPIC, places_text
from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.cluster import ClusterOptions, OpenCluster, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure, print_problem
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options, utc_text
from metaquorum.clients.admin.groups import partitions_of
from metaquorum.clients.admin.partition_logs import TopicPartition
from metaquorum.clients.admin.topics import list_topics
from metaquorum.clients.admin.transactions import (
    STATES,
    DescribedTransaction,
    PartitionProducer,
    abort_transaction,
    describe_producers,
    describe_transaction,
    find_hanging,
    list_transactions,
)
from metaquorum.clients.quorum.admin import allocate_producer_ids
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest

_MAX_TIMEOUT_MIN = 15
"""The default of `transaction.max.timeout.ms`, in minutes."""
_PRODUCER_COLUMNS = ("PRODUCER", "EPOCH", "COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP", "OPEN-FROM")

broker_option = click.option(
    "--broker",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Query the replicas on this broker, instead of the leaders.",
)
topic_option = click.option("--topic", metavar="NAME", required=True, help="The topic.")
partition_option = click.option(
    "--partition", metavar="N", type=click.IntRange(min=0), required=True, help="A partition of --topic."
)


@click.group()
def transactions() -> None:
    """List and describe transactions; abort hanging ones."""


@transactions.command("list")
@cluster_options
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    metavar="STATE",
    multiple=True,
    help=f"Only transactions in this state; may be repeated: {', '.join(STATES)}.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    metavar="ID",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only transactions of this producer; may be repeated.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=click.IntRange(min=0),
    default=None,
    metavar="MS",
    help="Only transactions that have been running for longer.",
)
@table_options
def list_(
    options: ClusterOptions,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    as_json: bool,
) -> None:
    """List the transactional ids that the coordinators know."""
    with options.open() as cluster:
        listed = cluster.call(
            lambda client: list_transactions(
                client,
                states=states,
                producer_ids=producer_ids,
                longer_than_ms=-1 if longer_than_ms is None else longer_than_ms,
            )
        )
    if as_json:
        echo_json(
            [
                {
                    "transactionalId": transaction.transactional_id,
                    "coordinator": transaction.coordinator,
                    "producerId": transaction.producer_id,
                    "state": transaction.state,
                }
                for transaction in listed
            ]
        )
        return
    rows = [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in listed]
    echo_table(("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER", "STATE"), rows)


@transactions.command()
@cluster_options
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL-ID...")
@table_options
def describe(options: ClusterOptions, names: tuple[str, ...], as_json: bool) -> int:
    """Show transactions as their coordinators know them. With producer, state, start and partitions."""
    with options.open() as cluster:
        looks = {
            name: cluster.call(lambda client, name=name: describe_transaction(client, name))  # type: ignore[misc]
            for name in dict.fromkeys(names)
        }
    described = [each for each in looks.values() if each is not None]
    now_ms = _now_ms()
    if as_json:
        echo_json([_transaction_json(each, now_ms) for each in described])
    elif described:
        columns = ("TRANSACTIONAL-ID", "PRODUCER", "EPOCH", "STATE", "TIMEOUT-MS", "STARTED", "PARTITIONS")
        echo_table(columns, [_transaction_row(each) for each in described])
    missing = [name for name, each in looks.items() if each is None]
    for name in missing:
        text = f"TRANSACTIONAL_ID_NOT_FOUND: {name}; see: metaquorum transactions list"
        print_problem(text)
    return EXIT_FAILED if missing else 0


def _transaction_row(transaction: DescribedTransaction) -> tuple[object, ...]:
    started = (
        None
        if transaction.started_ms is None or not transaction.is_open
        else utc_text(transaction.started_ms)
    )
    return (
        *(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.state,
            transaction.timeout_ms,
        ),
        *(started, places_text(transaction.places) or None),
    )


def _transaction_json(transaction: DescribedTransaction, now_ms: int) -> dict[str, Any]:
    return {
        "transactionalId": transaction.transactional_id,
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.producer_epoch,
        "state": transaction.state,
        "timeoutMs": transaction.timeout_ms,
        "startTimeMs": transaction.started_ms,
        "durationMs": max(0, now_ms - transaction.started_ms)
        if transaction.is_open and transaction.started_ms
        else None,
        "partitions": [{"topic": topic, "partition": index} for topic, index in transaction.places],
    }


@transactions.command("describe-producers")
@cluster_options
@topic_option
@partition_option
@broker_option
@table_options
def describe_producers_(
    options: ClusterOptions, topic: str, partition: int, broker: int | None, as_json: bool
) -> None:
    """Show the producers that a partition's leader knows. OPEN-FROM is where an open transaction begins."""
    with options.open() as cluster:
        producers = cluster.call(
            lambda client: describe_producers(client, [(topic, partition)], broker=broker)
        )
    if as_json:
        echo_json([_producer_json(each) for each in producers])
    else:
        echo_table(_PRODUCER_COLUMNS, [_producer_row(each) for each in producers])


def _producer_row(producer: PartitionProducer) -> tuple[object, ...]:
    epoch = None if producer.coordinator_epoch < 0 else producer.coordinator_epoch
    last = None if producer.last_timestamp_ms < 0 else utc_text(producer.last_timestamp_ms)
    return producer.producer_id, producer.epoch, epoch, producer.last_sequence, last, producer.open_from


def _producer_json(producer: PartitionProducer) -> dict[str, Any]:
    return {
        "topic": producer.partition[0],
        "partition": producer.partition[1],
        "producerId": producer.producer_id,
        "producerEpoch": producer.epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "lastSequence": producer.last_sequence,
        "lastTimestampMs": producer.last_timestamp_ms,
        "currentTransactionStartOffset": producer.open_from,
    }


@transactions.command("find-hanging")
@cluster_options
@broker_option
@click.option("--topic", type=TOPIC, metavar="NAME[:0,1]", help="Only this topic, or some of its partitions.")
@click.option(
    "--max-transaction-timeout",
    "max_timeout_min",
    type=click.IntRange(min=0),
    default=_MAX_TIMEOUT_MIN,
    show_default=True,
    metavar="MINUTES",
    help="Longest timeout of a transaction. Only transactions idle for longer can be hanging.",
)
@table_options
def find_hanging_(
    options: ClusterOptions,
    broker: int | None,
    topic: tuple[str, tuple[int, ...] | None] | None,
    max_timeout_min: int,
    as_json: bool,
) -> None:
    """Find transactions that no coordinator will end. Default: all partitions."""
    with options.open() as cluster:
        places = _places(cluster, topic, broker)
        since_ms = _now_ms() - max_timeout_min * 60_000
        hanging = cluster.call(
            lambda client: find_hanging(client, places, broker=broker, silent_since_ms=since_ms)
        )
    if as_json:
        echo_json([_producer_json(each) for each in hanging])
        return
    if hanging:
        rows = [(*each.partition, *_producer_row(each)) for each in hanging]
        echo_table(("TOPIC", "PARTITION", *_PRODUCER_COLUMNS), rows)
    else:
        partitions = "1 partition" if len(places) == 1 else f"{len(places)} partitions"
        click.echo(f"no transaction hangs in {partitions}")


def _places(
    cluster: OpenCluster, topic: tuple[str, tuple[int, ...] | None] | None, broker: int | None
) -> list[TopicPartition]:
    if topic is not None:
        places, missing = cluster.call(lambda client: partitions_of(client, [topic]))
        if missing:
            raise Failure(missing[0])
        if topic[1] is not None:
            return places
    found = cluster.call(list_topics)
    return [
        (each.name, part.index)
        for each in found
        for part in each.partitions
        if (topic is None or each.name == topic[0]) and (broker is None or broker in part.replicas)
    ]


@transactions.command()
@cluster_options
@topic_option
@partition_option
@click.option(
    "--start-offset",
    metavar="OFFSET",
    type=click.IntRange(min=0),
    help="First offset of the transaction: OPEN-FROM in find-hanging.",
)
@click.option(
    "--producer-id",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Producer id, instead of --start-offset, for brokers before 3.0.",
)
@click.option("--producer-epoch", metavar="N", type=click.IntRange(0, 2**15 - 1), help="With --producer-id.")
@click.option("--coordinator-epoch", metavar="N", type=click.IntRange(min=-1), help="With --producer-id.")
@json_option
def abort(
    options: ClusterOptions,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    as_json: bool,
) -> None:
    """Abort a hanging transaction in a partition. Do not abort one whose producer may continue: its other
    partitions would be committed."""
    numbers = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (None in numbers) or (start_offset is not None and numbers != (None,) * 3):
        raise click.UsageError(
            "give either --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch"
        )
    partition_name = topic, partition
    with options.open() as cluster:
        if start_offset is not None:
            numbers = _opened_at(cluster, partition_name, start_offset)
        cluster.call(
            lambda client: abort_transaction(
                client,
                partition_name,
                producer_id=numbers[0] or 0,
                producer_epoch=numbers[1] or 0,
                coordinator_epoch=numbers[2] or 0,
            )
        )
    if as_json:
        echo_json({"topic": topic, "partition": partition, "producerId": numbers[0], "aborted": True})
    else:
        click.echo(f"{topic}-{partition}: the transaction of producer {numbers[0]} is aborted")


def _opened_at(cluster: OpenCluster, partition: TopicPartition, start_offset: int) -> tuple[int, int, int]:
    for each in cluster.call(lambda client: describe_producers(client, [partition])):
        if each.open_from == start_offset:
            return each.producer_id, each.epoch, each.coordinator_epoch
    raise Failure(
        f"no open transaction begins at offset {start_offset} of {partition[0]}-{partition[1]}; see: "
        f"metaquorum transactions describe-producers --topic {partition[0]} --partition {partition[1]}"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
