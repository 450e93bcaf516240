"""`metaquorum topics`: creates, lists, describes and deletes topics, as `kafka-topics` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, print_problem
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.cli.text.settings import pairs, remark
from metaquorum.clients.admin.topics import (
    DescribedPartition,
    DescribedTopic,
    create_topics,
    delete_topics,
    describe_topics,
    list_topics,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.requests.common import NewTopic, TopicResult
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text


@click.group()
def topics() -> None:
    """Create, list, describe and delete topics."""


@topics.command()
@cluster_options
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of partitions. Default: the controllers' default.",
)
@click.option(
    "--replication-factor",
    metavar="N",
    type=click.IntRange(min=1),
    help="Replicas per partition. Default: the controllers' default.",
)
@click.option(
    "--replica-assignment", metavar="0:1,1:2", help="Brokers of each partition, preferred leader first."
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Configuration key to set; may be repeated.",
)
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def create(
    options: ClusterOptions,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    validate_only: bool,
    as_json: bool,
) -> int:
    """Create topics."""
    assignments = None
    if replica_assignment is not None:
        if partitions is not None or replication_factor is not None:
            raise click.UsageError(
                "--replica-assignment already sets the partitions and the replication factor; leave out "
                "the other options"
            )
        assignments = parse_assignment(replica_assignment)
    wanted = tuple(
        NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignments=assignments,
            configs=config_values(configs),
        )
        for name in names
    )
    with options.open() as cluster:
        results = cluster.call(lambda client: create_topics(client, wanted, validate_only=validate_only))
    return report_topics(results, "can be created" if validate_only else "created", as_json)


def config_values(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (key, value) of each KEY=VALUE. Raises UsageError."""
    values = pairs(texts, "value of a configuration key")
    names = [name for name, _ in values]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"--config {name} is given twice; give it once")
    return tuple(values)


def parse_assignment(text: str) -> tuple[tuple[int, ...], ...]:
    """Parses `0:1,1:2`: partition 0 on brokers 0 and 1, partition 1 on brokers 1 and 2. Raises UsageError."""
    try:
        lists = tuple(tuple(int(node) for node in part.split(":")) for part in text.split(","))
    except ValueError:
        lists = ()
    if not lists or any(node < 0 for nodes in lists for node in nodes):
        raise click.UsageError(
            f"{text!r} is not an assignment; write broker ids as 0:1,1:2, one list per partition"
        )
    return lists


@topics.command()
@cluster_options
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def delete(options: ClusterOptions, names: tuple[str, ...], as_json: bool) -> int:
    """Delete topics with all their partitions."""
    with options.open() as cluster:
        results = cluster.call(lambda client: delete_topics(client, names))
    return report_topics(results, "deleted", as_json)


def report_topics(results: tuple[TopicResult, ...], done: str, as_json: bool) -> int:
    """One line per topic, refusals on standard error. Returns the exit code."""
    refused = [result for result in results if result.error != ErrorCode.NONE]
    for result in results:
        # A topic that was only validated has no id.
        topic_id = uuid_to_text(result.topic_id) if result.topic_id not in {None, ZERO_UUID} else None
        if as_json:
            echo_json(
                {
                    "name": result.name,
                    "topicId": topic_id,
                    "error": result.error.name,
                    "message": result.message,
                    "partitions": result.partitions,
                    "replicationFactor": result.replication_factor,
                    "configs": dict(result.configs),
                    "note": result.note,
                }
            )
        elif result.error == ErrorCode.NONE:
            click.echo(f"{result.name}: {done}" + _with(result.configs))
            remark(result.name or "", result.note)
    if not as_json:
        for result in refused:
            print_problem(f"{result.name}: {result.error.name}: {result.message or 'refused'}")
    return EXIT_FAILED if refused else 0


def _with(configs: tuple[tuple[str, str], ...]) -> str:
    return ", with " + ", ".join(f"{name}={value}" for name, value in configs) if configs else ""


@topics.command("list")
@cluster_options
@table_options
def list_(options: ClusterOptions, as_json: bool) -> None:
    """List the topics."""
    with options.open() as cluster:
        found = cluster.call(list_topics)
    rows = [(topic.name, topic_id_text(topic), len(topic.partitions)) for topic in found]
    if as_json:
        echo_json(
            [{"name": name, "topicId": topic_id, "partitionCount": count} for name, topic_id, count in rows]
        )
    else:
        echo_table(("NAME", "TOPIC ID", "PARTITIONS"), rows)


@topics.command()
@cluster_options
@click.argument("names", nargs=-1, metavar="[NAME...]")
@json_option
def describe(options: ClusterOptions, names: tuple[str, ...], as_json: bool) -> int:
    """Show the partitions of topics, by default of all. With leader, replicas, ISR and offline replicas."""
    with options.open() as cluster:
        described = cluster.call(lambda client: describe_topics(client, names))
    if as_json:
        echo_json([describe_json(topic) for topic in described])
    else:
        for topic in described:
            click.echo(describe_text(topic))
    missing = [name for name in names if name not in {topic.name for topic in described}]
    for name in missing:
        print_problem(f"topic {name} does not exist; see: metaquorum topics list")
    return EXIT_FAILED if missing else 0


def replication_factor(topic: DescribedTopic) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0


def topic_id_text(topic: DescribedTopic) -> str | None:
    return None if topic.topic_id is None else uuid_to_text(topic.topic_id)


def describe_text(topic: DescribedTopic) -> str:
    """One line for the topic and one per partition, as Kafka prints them, with
    offline replicas at the end."""
    configs = ",".join(f"{key}={value}" for key, value in topic.configs.items())
    lines = [
        f"Topic: {topic.name}\tTopicId: {topic_id_text(topic)}"
        f"\tPartitionCount: {len(topic.partitions)}\tReplicationFactor: {replication_factor(topic)}"
        f"\tConfigs: {configs}"
    ]
    lines += [_partition_text(topic.name, partition) for partition in _by_index(topic)]
    return "\n".join(lines)


def _partition_text(name: str, partition: DescribedPartition) -> str:
    leader = "none" if partition.leader == NO_LEADER else str(partition.leader)
    parts = [
        f"Topic: {name}",
        f"Partition: {partition.index}",
        f"Leader: {leader}",
        f"Replicas: {_ids(partition.replicas)}",
        f"Isr: {_ids(partition.isr)}",
    ]
    if partition.adding or partition.removing:
        parts += [
            f"Adding Replicas: {_ids(partition.adding)}",
            f"Removing Replicas: {_ids(partition.removing)}",
        ]
    if partition.elr:
        parts.append(f"Elr: {_ids(partition.elr)}")
    if partition.last_known_elr:
        parts.append(f"LastKnownElr: {_ids(partition.last_known_elr)}")
    if partition.offline:
        parts.append(f"Offline: {_ids(partition.offline)}")
    return "\t" + "\t".join(parts)


def describe_json(topic: DescribedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topicId": topic_id_text(topic),
        "partitionCount": len(topic.partitions),
        "replicationFactor": replication_factor(topic),
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": partition.index,
                "leader": None if partition.leader == NO_LEADER else partition.leader,
                "leaderEpoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "eligibleLeaderReplicas": list(partition.elr),
                "lastKnownElr": list(partition.last_known_elr),
                "addingReplicas": list(partition.adding),
                "removingReplicas": list(partition.removing),
                "offlineReplicas": list(partition.offline),
            }
            for partition in _by_index(topic)
        ],
    }


def _by_index(topic: DescribedTopic) -> list[DescribedPartition]:
    """Brokers answer them in the order of their hash tables."""
    return sorted(topic.partitions, key=lambda partition: partition.index)


def _ids(nodes: tuple[int, ...] | list[int]) -> str:
    return ",".join(str(node) for node in nodes)


Topics = tuple[tuple[str, tuple[int, ...] | None], ...]


class TopicPartitions(click.ParamType):  # type: ignore[type-arg]
    """A topic name, with its partitions or None for all."""

    name = "topic"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...] | None]:
        topic, colon, listed = value.partition(":")
        indexes = [whole_number(one, MAX_INT) for one in listed.split(",")]
        numbers = [one for one in indexes if one is not None]
        if not topic or (colon and len(numbers) < len(indexes)):
            self.fail(f"{value!r} is not a topic with partitions; write orders or orders:0,1", param, ctx)
        return topic, tuple(sorted(numbers)) if colon else None


TOPIC = TopicPartitions()


def places_text(places: Iterable[tuple[str, int]]) -> str:
    """`orders-0, orders-1`."""
    return ", ".join(f"{topic}-{index}" for topic, index in places)
