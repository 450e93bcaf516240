"""`metaquorum topics`: creates, lists, describes and deletes topics.

Owns the options, the syntax of replica assignments, and the exit code for several topics. Does not place
replicas; adding partitions is in `partitions`.
"""

from __future__ import annotations

import click

from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.errors import EXIT_FAILED
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.cli.text.setting_results import pairs, remark
from metaquorum.cli.text.topics import describe_json, describe_text, topic_id_text
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.common import NewTopic, TopicResult
from metaquorum.runtime.kafka.admin.topics import create_topics, delete_topics, describe_topics, list_topics
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
    found = pairs(texts, "value of a configuration key")
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"--config {name} is given twice; give it once")
    return tuple(found)


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
            click.echo(
                f"metaquorum: {result.name}: {result.error.name}: {result.message or 'refused'}", err=True
            )
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
        found = cluster.call(lambda client: describe_topics(client, names))
    if as_json:
        echo_json([describe_json(topic) for topic in found])
    else:
        for topic in found:
            click.echo(describe_text(topic))
    missing = [name for name in names if name not in {topic.name for topic in found}]
    for name in missing:
        click.echo(f"metaquorum: topic {name} does not exist; see: metaquorum topics list", err=True)
    return EXIT_FAILED if missing else 0
