"""`metaquorum log-dirs`: log directories, as the brokers describe them, and marking one offline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from posixpath import normpath
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from metaquorum.cli.admin.partitions import PLAN_FILE, read_places
from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.cluster import ClusterOptions, OpenCluster, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure, print_problem
from metaquorum.cli.given import FiniteRange
from metaquorum.cli.text.output import confirm, echo_json, echo_table, json_option, table_options
from metaquorum.clients.admin.cluster import list_brokers
from metaquorum.clients.admin.replicas import (
    BrokerDirectories,
    Directory,
    alter_replica_log_dirs,
    describe_log_dirs,
)
from metaquorum.clients.admin.topics import DescribedTopic, list_topics
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.quorum.nodes import mark_log_dir_offline
from metaquorum.clients.search import ClientError
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import MarkLogDirOfflineRequest
from metaquorum.storage.errors import StorageError
from metaquorum.storage.uuids import ZERO_UUID, uuid_from_text, uuid_to_text

POLL_S = 0.5
PROGRESS_S = 5.0


class State(StrEnum):
    WOULD_MOVE = "wouldMove"
    MOVING = "moving"
    MOVED = "moved"
    STAYS = "stays"
    ENDED = "ended"
    REFUSED = "refused"


_GOOD = frozenset({State.WOULD_MOVE, State.MOVING, State.MOVED, State.STAYS})


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. `before`: its directory when the command began. `future`: the directory of a copy that was
    under way then. `lag`: the number of offsets by which the copy is behind."""

    topic: str
    partition: int
    before: str
    size: int
    future: str | None
    state: State
    lag: int | None = None
    error: ErrorCode = ErrorCode.NONE

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas of one topic to move to one directory of their broker."""

    broker_id: int
    path: str
    topic: str
    partitions: tuple[int, ...]


class _Prepared(msgspec.Struct, kw_only=True):
    """A job that was checked, with its directory and the progress of its replicas."""

    job: Job
    target: Directory
    moving: list[Moving]


@click.command()
@cluster_options
@click.argument("topic", required=False)
@click.argument("partitions", metavar="[PARTITION...]", nargs=-1, type=click.IntRange(0, 2**31 - 1))
@click.option(
    "--broker",
    "broker_id",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Broker that holds the replicas.",
)
@click.option("--to", "path", metavar="DIR", help="The broker's log directory to move to.")
@click.option(
    "--plan",
    type=PLAN_FILE,
    help="Instead of the options above: JSON of Kafka's reassignment tool, with log_dirs for the replicas.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=FiniteRange(min=0.1),
    help="Wait for the replicas to arrive, at most this many seconds. Default: do not wait.",
)
@click.option("--dry-run", is_flag=True, help="Check, and show what would move. Change nothing.")
@json_option
def move(
    options: ClusterOptions,
    topic: str | None,
    partitions: tuple[int, ...],
    broker_id: int | None,
    path: str | None,
    plan: Path | None,
    wait_s: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Move replicas to another log directory of their broker.

    A copy follows each replica and takes its place when it has caught up. --to with a replica's present
    directory cancels its move. Exit code 1 if a replica was refused, or has not arrived within --wait.
    """
    jobs = _jobs(topic, partitions, broker_id, path, plan)
    with options.open() as cluster:
        refuse_unless_live([each.broker_id for each in jobs], cluster.call(KafkaClient.brokers))
        prepared = [_prepared(cluster, each) for each in jobs]
        if not dry_run:
            for job in prepared:
                job.moving = _ask(cluster, job.job.broker_id, job.target.log_dir, job.moving)
            if wait_s is not None:
                _watch_all(cluster, prepared, wait_s, quiet=as_json)
    answers = [_moves_json(each.job.broker_id, each.target.log_dir, each.moving) for each in prepared]
    if as_json:
        echo_json(answers if plan is not None else answers[0])
    else:
        for job in prepared:
            _show(job.job.broker_id, job.target, job.moving)
    states = {one.state for each in prepared for one in each.moving}
    late = wait_s is not None and State.MOVING in states
    return EXIT_FAILED if late or not states <= _GOOD else 0


def _jobs(
    topic: str | None,
    partitions: tuple[int, ...],
    broker_id: int | None,
    path: str | None,
    plan: Path | None,
) -> list[Job]:
    """The moves that the arguments or the plan ask for. Raises UsageError and Failure."""
    if plan is None:
        if topic is None or not partitions or broker_id is None or path is None:
            raise click.UsageError("give TOPIC, PARTITION, --broker and --to; or --plan")
        indexes = tuple(dict.fromkeys(partitions))
        return [Job(broker_id=broker_id, path=path, topic=topic, partitions=indexes)]
    if not (topic is None and broker_id is None and path is None):
        raise click.UsageError(
            "--plan names replicas and directories: leave out TOPIC, PARTITION, --broker and --to"
        )
    jobs: dict[tuple[int, str, str], list[int]] = {}
    for one in read_places(plan):
        jobs.setdefault((one.broker_id, normpath(one.path), one.topic), []).append(one.partition)
    return [
        Job(broker_id=broker, path=directory, topic=name, partitions=tuple(indexes))
        for (broker, directory, name), indexes in jobs.items()
    ]


def _prepared(cluster: OpenCluster, job: Job) -> _Prepared:
    """Checks a job. No move starts before all jobs are checked. Raises Failure."""
    answer = _described(cluster, job.broker_id, job.topic, job.partitions)
    if answer.problem:
        raise Failure(f"broker {job.broker_id} did not answer: {answer.problem}")
    target = _target(answer, job.path)
    moving = [_planned(answer, job.topic, each, target.log_dir) for each in job.partitions]
    return _Prepared(job=job, target=target, moving=moving)


def _watch_all(cluster: OpenCluster, prepared: Sequence[_Prepared], wait_s: float, *, quiet: bool) -> None:
    """Watches one job after the other, while all replicas move at the same time."""
    until_s = time.monotonic() + wait_s
    for each in prepared:
        broker_id, target = each.job.broker_id, each.target.log_dir
        each.moving = _watch(cluster, broker_id, target, each.moving, until_s, quiet=quiet)


def refuse_unless_live(broker_ids: Iterable[int], live: Iterable[int]) -> None:
    """Raises Failure for a broker that is not live."""
    for broker_id in broker_ids:
        if broker_id not in live:
            raise Failure(f"broker {broker_id} is not live; see: metaquorum brokers list")


def _target(answer: BrokerDirectories, path: str) -> Directory:
    matching = [each for each in answer.directories if normpath(each.log_dir) == normpath(path)]
    if not matching:
        known = ", ".join(each.log_dir for each in answer.directories)
        raise Failure(f"broker {answer.broker_id} has no log directory {path}; it has: {known}")
    if matching[0].error_code:
        reason = matching[0].error_message or ErrorCode.of(matching[0].error_code).name
        raise Failure(f"{path} of broker {answer.broker_id} is offline: {reason}")
    return matching[0]


class _Place(msgspec.Struct, frozen=True):
    path: str
    size: int
    lag: int


def _places(answer: BrokerDirectories, topic: str, partition: int, *, future: bool) -> dict[str, _Place]:
    """By path: the directory of the replica, or of its future copy."""
    return {
        directory.log_dir: _Place(directory.log_dir, part.partition_size, part.offset_lag)
        for directory in answer.directories
        for each in directory.topics
        if each.name == topic
        for part in each.partitions
        if part.partition_index == partition and part.is_future_key == future
    }


def _planned(answer: BrokerDirectories, topic: str, partition: int, target: str) -> Moving:
    """The move of one replica. Raises Failure if there is no replica to move."""
    here = _places(answer, topic, partition, future=False)
    if not here:
        raise Failure(
            f"broker {answer.broker_id} holds no replica of {topic}-{partition} in a directory that is "
            f"online; see: metaquorum topics describe {topic}"
        )
    current = next(iter(here.values()))
    return Moving(
        topic=topic,
        partition=partition,
        before=current.path,
        size=current.size,
        future=next(iter(_places(answer, topic, partition, future=True)), None),
        state=State.STAYS if current.path == target else State.WOULD_MOVE,
    )


def _ask(cluster: OpenCluster, broker_id: int, target: str, moving: Sequence[Moving]) -> list[Moving]:
    """Sends the request, also for replicas that stay: that cancels a move under way."""
    topic, indexes = moving[0].topic, tuple([each.partition for each in moving])
    errors = cluster.call(lambda client: alter_replica_log_dirs(client, broker_id, target, topic, indexes))
    asked = []
    for job in moving:
        error = errors.get(job.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        state = State.STAYS if job.state is State.STAYS else State.MOVING
        asked.append(replace(job, error=error, state=State.REFUSED if error else state))
    return asked


def _watch(
    cluster: OpenCluster, broker_id: int, target: str, moving: list[Moving], until_s: float, *, quiet: bool
) -> list[Moving]:
    """Waits until no replica moves, or until the time is up. A broker that
    restarts continues the moves."""
    said_s = time.monotonic()
    while True:
        under_way = tuple([each.partition for each in moving if each.state is State.MOVING])
        if not under_way:
            return moving
        answer = _described(cluster, broker_id, moving[0].topic, under_way)
        moving = [_seen(answer, target, each) if each.state is State.MOVING else each for each in moving]
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return moving
        if not quiet and time.monotonic() - said_s >= PROGRESS_S:
            said_s = time.monotonic()
            for job in moving:
                if job.state is State.MOVING:
                    click.echo(f"{job.name} is moving{_behind(job)}", err=True)
        if any(each.state is State.MOVING for each in moving):
            time.sleep(min(POLL_S, left_s))


def _described(
    cluster: OpenCluster, broker_id: int, topic: str, partitions: tuple[int, ...]
) -> BrokerDirectories:
    (answer,) = cluster.call(lambda client: describe_log_dirs(client, [broker_id], {topic: partitions}))
    return answer


def _seen(answer: BrokerDirectories, target: str, job: Moving) -> Moving:
    here = _places(answer, job.topic, job.partition, future=False)
    copy = _places(answer, job.topic, job.partition, future=True).get(target)
    if target in here:
        return replace(job, state=State.MOVED, lag=0)
    if copy is not None:
        return replace(job, lag=copy.lag if copy.lag >= 0 else None)
    # A broker that does not answer, or just started, may still have the copy.
    return replace(job, state=State.ENDED, lag=None) if here else job


def _behind(job: Moving) -> str:
    return "" if job.lag is None else f" (its copy is {job.lag} offsets behind)"


def _show(broker_id: int, target: Directory, moving: Sequence[Moving]) -> None:
    for job in moving:
        match job.state:
            case State.WOULD_MOVE:
                room = "" if target.usable_bytes < 0 else f", {target.usable_bytes} usable there"
                text = f"would move from {job.before} to {target.log_dir} ({job.size} bytes{room})"
            case State.MOVING:
                text = f"is moving from {job.before} to {target.log_dir}{_behind(job)}"
            case State.MOVED:
                text = f"is in {target.log_dir}"
            case State.STAYS:
                text = f"stays in {job.before}"
                if job.future is not None:
                    text += f", not moving to {job.future}"
            case State.ENDED:
                text = f"no longer moves to {target.log_dir}; see the log of broker {broker_id}"
            case State.REFUSED:
                text = f"broker {broker_id} refused: {job.error.name}"
        is_good = job.state in _GOOD
        click.echo(f"{job.name} {text}" if is_good else f"metaquorum: {job.name}: {text}", err=not is_good)


def _moves_json(broker_id: int, target: str, moving: Sequence[Moving]) -> dict[str, object]:
    return {
        "brokerId": broker_id,
        "to": target,
        "replicas": [
            {
                "topic": job.topic,
                "partition": job.partition,
                "from": job.before,
                "sizeBytes": job.size,
                "state": job.state.value,
                "lag": job.lag,
                "error": job.error.name,
            }
            for job in moving
        ],
    }


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
