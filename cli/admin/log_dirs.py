"""`metaquorum log-dirs`: log directories, as the brokers describe them, and marking one offline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from metaquorum.cli.admin.log_dir_moves import move, refuse_unless_live
from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure, print_problem
from metaquorum.cli.text.output import confirm, echo_json, echo_table, json_option, table_options
from metaquorum.clients.admin.cluster import list_brokers
from metaquorum.clients.admin.replicas import BrokerDirectories, Directory, describe_log_dirs
from metaquorum.clients.admin.topics import DescribedTopic, list_topics
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.quorum.broker_status import mark_log_dir_offline
from metaquorum.clients.search import ClientError
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import MarkLogDirOfflineRequest
from metaquorum.storage.errors import StorageError
from metaquorum.storage.uuids import ZERO_UUID, uuid_from_text, uuid_to_text

_DIRECTORIES = ("BROKER", "DIRECTORY", "ID", "STATE", "REPLICAS", "LEADERS", "SIZE", "USABLE", "TOTAL")
_REPLICAS = ("BROKER", "DIRECTORY", "REPLICA", "ROLE", "SIZE", "START", "HIGH WATERMARK", "END", "LAG")


@click.group("log-dirs")
def log_dirs() -> None:
    """Describe brokers' log directories; move replicas between them."""


log_dirs.add_command(move)


@log_dirs.command()
@cluster_options
@click.option(
    "--broker",
    "brokers",
    metavar="ID",
    type=click.IntRange(min=0),
    multiple=True,
    help="Show only this broker; may be repeated.",
)
@click.option(
    "--topic",
    "names",
    metavar="NAME",
    multiple=True,
    help="List the replicas of this topic; may be repeated.",
)
@click.option("--replicas", is_flag=True, help="List the replicas of all topics.")
@table_options
def describe(
    options: ClusterOptions, brokers: tuple[int, ...], names: tuple[str, ...], replicas: bool, as_json: bool
) -> int:
    """Show the log directories of all brokers.

    Sizes are in bytes. For an offline directory, the replicas are those that the metadata log places there,
    if the broker knows its id. The role `future` marks a copy that is being moved there, and its
    lag behind the replica. Exit code 1 if a broker does not answer, or is not live.
    """

    async def ask(client: KafkaClient) -> tuple[list[DescribedTopic], tuple[BrokerDirectories, ...]]:
        topics_here = await list_topics(client)
        for name in names:
            if name not in {each.name for each in topics_here}:
                raise Failure(f"topic {name} does not exist; see: metaquorum topics list")
        live = await client.brokers()
        refuse_unless_live(brokers, live)
        chosen = {
            each.name: tuple(part.index for part in each.partitions)
            for each in topics_here
            if each.name in names
        }
        answers = await describe_log_dirs(client, brokers or live, chosen if names else None)
        if not brokers:
            answers += await _not_live(client, live, topics_here, names)
        return topics_here, answers

    with options.open() as cluster:
        topics, answers = cluster.call(ask)
    known_topics = _Topics.of(topics)
    if as_json:
        echo_json([_as_json(each, known_topics) for each in answers])
    else:
        rows = [_row(each.broker_id, one, known_topics) for each in answers for one in each.directories]
        echo_table(_DIRECTORIES, rows)
        if names or replicas:
            click.echo()
            echo_table(_REPLICAS, list(_replica_rows(answers, known_topics)))
        for silent_broker, directory in _offline(answers):
            reason = directory.error_message or ErrorCode.of(directory.error_code).name
            click.echo(
                f"broker {silent_broker.broker_id}: {directory.log_dir} is offline: {reason}", err=True
            )
    silent = [each for each in answers if each.problem]
    for silent_broker in silent:
        print_problem(f"broker {silent_broker.broker_id} did not answer: {silent_broker.problem}")
    return EXIT_FAILED if silent else 0


async def _not_live(
    client: KafkaClient, live: Iterable[int], topics: Sequence[DescribedTopic], names: Sequence[str]
) -> tuple[BrokerDirectories, ...]:
    """The brokers that hold replicas of the topics `names`, or without names all registered ones, and that
    cannot be asked. Brokers before KIP-1073 list no fenced ones: those are known by their replicas alone."""
    parts = [part for each in topics if not names or each.name in names for part in each.partitions]
    known = {broker_id for part in parts for broker_id in part.replicas}
    if not names:
        known |= {each.broker_id for each in await list_brokers(client)}
    why = "it is not live; see: metaquorum brokers list"
    return tuple(BrokerDirectories(broker_id=each, problem=why) for each in sorted(known - {*live}))


class _Topics(NamedTuple):
    """What the cluster knows of topics and a directory does not: ids and leaders."""

    ids: Mapping[str, bytes | None]
    leaders: Mapping[tuple[str, int], int]

    @classmethod
    def of(cls, topics: Sequence[DescribedTopic]) -> _Topics:
        return cls(
            {each.name: each.topic_id for each in topics},
            {(each.name, part.index): part.leader for each in topics for part in each.partitions},
        )


class _Replica(NamedTuple):
    topic: str
    partition: int
    role: str
    size: int
    start: int
    high_watermark: int
    end: int
    lag: int


def _replicas_of(broker_id: int, directory: Directory, topics: _Topics) -> list[_Replica]:
    """The replicas in a directory, sorted by topic and partition."""

    def role(name: str, part: Any) -> str:
        if directory.error_code:
            return "offline"
        if part.is_future_key:
            return "future"
        return "leader" if topics.leaders.get((name, part.partition_index)) == broker_id else "follower"

    return sorted(
        _Replica(
            topic=topic.name,
            partition=part.partition_index,
            role=role(topic.name, part),
            size=part.partition_size,
            start=part.start_offset,
            high_watermark=part.high_watermark,
            end=part.end_offset,
            lag=part.offset_lag,
        )
        for topic in (*directory.topics, *directory.offline_topics)
        for part in topic.partitions
    )


def _offline(answers: Sequence[BrokerDirectories]) -> Iterator[tuple[BrokerDirectories, Directory]]:
    for each in answers:
        for one in each.directories:
            if one.error_code:
                yield each, one


def _row(broker_id: int, directory: Directory, topics: _Topics) -> tuple[object, ...]:
    replicas = _replicas_of(broker_id, directory, topics)
    # Without the directory's id, the replicas of an offline directory are unknown; their sizes always are.
    is_described = not directory.error_code or directory.directory_id != ZERO_UUID
    return (
        broker_id,
        directory.log_dir,
        _id_text(directory.directory_id),
        "offline" if directory.error_code else "online",
        sum(each.role != "future" for each in replicas) if is_described else None,
        sum(each.role == "leader" for each in replicas) if is_described else None,
        None if directory.error_code else sum(each.size for each in replicas),
        _known(directory.usable_bytes),
        _known(directory.total_bytes),
    )


def _replica_rows(answers: Sequence[BrokerDirectories], topics: _Topics) -> Iterator[tuple[object, ...]]:
    for answer in answers:
        for directory in answer.directories:
            for replica in _replicas_of(answer.broker_id, directory, topics):
                yield (
                    answer.broker_id,
                    directory.log_dir,
                    f"{replica.topic}-{replica.partition}",
                    replica.role,
                    *map(
                        _known,
                        (replica.size, replica.start, replica.high_watermark, replica.end, replica.lag),
                    ),
                )


def _id_text(any_id: bytes | None) -> str | None:
    return None if any_id in (None, ZERO_UUID) else uuid_to_text(any_id)


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _as_json(answer: BrokerDirectories, topics: _Topics) -> dict[str, Any]:
    return {
        "brokerId": answer.broker_id,
        "problem": answer.problem or None,
        "directories": [
            {
                "path": directory.log_dir,
                "directoryId": _id_text(directory.directory_id),
                "online": not directory.error_code,
                "error": ErrorCode.of(directory.error_code).name,
                "message": directory.error_message,
                "totalBytes": _known(directory.total_bytes),
                "usableBytes": _known(directory.usable_bytes),
                "replicas": [
                    {
                        "topic": replica.topic,
                        "topicId": _id_text(topics.ids.get(replica.topic)),
                        "partition": replica.partition,
                        "role": replica.role,
                        "leads": replica.role == "leader",
                        "sizeBytes": _known(replica.size),
                        "startOffset": _known(replica.start),
                        "highWatermark": _known(replica.high_watermark),
                        "endOffset": _known(replica.end),
                        "lag": _known(replica.lag),
                    }
                    for replica in _replicas_of(answer.broker_id, directory, topics)
                ],
            }
            for directory in answer.directories
        ],
    }


@log_dirs.command("mark-offline")
@client_options
@click.option(
    "--broker",
    "broker_id",
    metavar="ID",
    type=click.IntRange(min=0),
    required=True,
    help="Broker that owns the directory.",
)
@click.argument("directory", metavar="PATH|ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def mark_offline(options: ClientOptions, broker_id: int, directory: str, yes: bool, as_json: bool) -> None:
    """Take a broker's log directory offline, as if it had failed.

    Other brokers take over its leaderships at once. The directory comes back online when the broker restarts
    and can use it. A broker stops when its last directory goes offline.
    """
    request = _which(directory)
    with options.open() as cluster:
        found = [each for each in cluster.brokers() if each.broker_id == broker_id]
    endpoint = found[0].grpc_endpoint if found else None
    if endpoint is None:
        raise Failure(
            f"broker {broker_id} has no gRPC listener, or is not registered; see: metaquorum brokers list"
        )
    if not yes:
        confirm(
            f"Take {directory} of broker {broker_id} offline? Its replicas stay offline until the broker "
            "restarts"
        )
    try:
        answer = asyncio.run(
            mark_log_dir_offline(
                (endpoint.host, endpoint.port),
                request,
                timeout_ms=options.timeout_ms,
                tls=options.tls.material(),
            )
        )
    except ClientError as error:
        raise Failure(
            f"broker {broker_id} did not answer ({one_line(error)}); see the outcome with: metaquorum "
            "log-dirs describe"
        ) from error
    if as_json:
        echo_json(
            {
                "brokerId": broker_id,
                "directoryId": _id_text(answer.directory_id),
                "wasOffline": answer.was_offline,
            }
        )
    else:
        done = "was already offline" if answer.was_offline else "is now offline"
        click.echo(f"broker {broker_id}: {directory} {done}")


def _which(directory: str) -> MarkLogDirOfflineRequest:
    """The request for a path (with a slash) or a directory id (without one). Raises Failure."""
    if "/" in directory:
        return MarkLogDirOfflineRequest(path=directory)
    try:
        return MarkLogDirOfflineRequest(directory_id=uuid_from_text(directory))
    except (ValueError, StorageError) as error:
        raise Failure(
            f"{directory!r} is neither a directory id nor a path with a slash; take either from: "
            "metaquorum log-dirs describe"
        ) from error
