"""`metaquorum log-dirs`: brokers' log directories as the brokers themselves describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import click

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.errors import EXIT_FAILED, Failure, one_line
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import LogDirDescription, MarkLogDirOfflineRequest, ReplicaDescription
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.data_client.connections import LinkError
from metaquorum.runtime.data_client.log_dirs import BrokerDirectories, describe_log_dirs, mark_log_dir_offline
from metaquorum.storage.errors import StorageError
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

_DIRECTORIES = ("BROKER", "DIRECTORY", "ID", "STATE", "REPLICAS", "LEADERS", "SIZE", "USABLE", "TOTAL")
_REPLICAS = ("BROKER", "DIRECTORY", "REPLICA", "ROLE", "SIZE", "START", "HIGH WATERMARK", "END", "LAG")


@click.group("log-dirs")
def log_dirs() -> None:
    """Describe brokers' log directories; take one offline."""


@log_dirs.command()
@client_options
@click.option(
    "--broker",
    "brokers",
    type=click.IntRange(min=0),
    multiple=True,
    help="Show only this broker; may be repeated.",
)
@click.option("--topic", "topics", multiple=True, help="List the replicas of this topic; may be repeated.")
@click.option("--replicas", is_flag=True, help="List the replicas of all topics.")
@table_options
def describe(
    options: ClientOptions, brokers: tuple[int, ...], topics: tuple[str, ...], replicas: bool, as_json: bool
) -> int:
    """Show the log directories of all brokers: state, sizes, replicas and leaders.

    Sizes are in bytes. For an offline directory, the replicas are those that the metadata log places there,
    if the broker knows its id. Exit code 1 if a broker does not answer.
    """
    with options.open() as cluster:
        addresses = _addresses(cluster.brokers(), brokers)
        found = cluster.describe_topics(topics) if topics else []
    for name in topics:
        if name not in {each.info.name for each in found}:
            raise Failure(f"topic {name} does not exist; see: metaquorum topics list")
    ids = tuple(each.info.topic_id for each in found) if topics else None
    answers = asyncio.run(
        describe_log_dirs(addresses, ids, timeout_ms=options.timeout_ms, tls=options.tls.material())
    )
    if as_json:
        echo_json([_as_json(each) for each in answers])
    else:
        echo_table(_DIRECTORIES, [_row(each.broker_id, one) for each in answers for one in each.directories])
        if topics or replicas:
            click.echo()
            echo_table(_REPLICAS, _replica_rows(answers))
        for each, one in _offline(answers):
            click.echo(
                f"broker {each.broker_id}: {one.path} is offline: {one.message or one.error.name}", err=True
            )
    silent = [each for each in answers if each.problem]
    for each in silent:
        click.echo(f"metaquorum: broker {each.broker_id} did not answer: {each.problem}", err=True)
    return EXIT_FAILED if silent else 0


def _addresses(registered: Sequence[Any], wanted: tuple[int, ...]) -> dict[int, Address]:
    """Where the brokers listen, all or the wanted ones. Raises Failure for one that is not registered."""
    found = {
        each.broker_id: (at.host, at.port) for each in registered if (at := each.grpc_endpoint) is not None
    }
    for broker_id in wanted:
        if broker_id not in found:
            raise Failure(f"broker {broker_id} is not registered; see: metaquorum brokers list")
    return {broker_id: found[broker_id] for broker_id in wanted} if wanted else found


def _offline(answers: Sequence[BrokerDirectories]) -> Iterator[tuple[BrokerDirectories, LogDirDescription]]:
    for each in answers:
        for one in each.directories:
            if one.error is not ErrorCode.NONE:
                yield each, one


def _row(broker_id: int, directory: LogDirDescription) -> tuple[object, ...]:
    return (
        broker_id,
        directory.path,
        _id_text(directory.directory_id),
        "online" if directory.error is ErrorCode.NONE else "offline",
        *_held(directory),
        _size(directory),
        _known(directory.usable_bytes),
        _known(directory.total_bytes),
    )


def _held(directory: LogDirDescription) -> tuple[int | None, int | None]:
    """Replicas and leaders; None: without its id no one can say what is in a directory."""
    if directory.directory_id is None:
        return None, None
    return len(directory.replicas), sum(each.leads for each in directory.replicas)


def _size(directory: LogDirDescription) -> int | None:
    """None: no one can say of a directory that is offline."""
    if directory.error is not ErrorCode.NONE:
        return None
    return sum(each.size_bytes for each in directory.replicas)


def _replica_rows(answers: Sequence[BrokerDirectories]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        (
            answer.broker_id,
            directory.path,
            f"{each.topic}-{each.key[1]}",
            _role(directory, each),
            _known(each.size_bytes),
            _known(each.start_offset),
            _known(each.high_watermark),
            _known(each.end_offset),
            _known(each.lag),
        )
        for answer in answers
        for directory in answer.directories
        for each in sorted(directory.replicas, key=lambda one: (one.topic, one.key[1]))
    ]
    return rows


def _role(directory: LogDirDescription, replica: ReplicaDescription) -> str:
    if directory.error is not ErrorCode.NONE:
        return "offline"
    return "leader" if replica.leads else "follower"


def _id_text(directory_id: bytes | None) -> str | None:
    return None if directory_id is None else uuid_to_text(directory_id)


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _as_json(answer: BrokerDirectories) -> dict[str, Any]:
    return {
        "brokerId": answer.broker_id,
        "problem": answer.problem or None,
        "directories": [
            {
                "path": each.path,
                "directoryId": _id_text(each.directory_id),
                "online": each.error is ErrorCode.NONE,
                "error": each.error.name,
                "message": each.message,
                "totalBytes": _known(each.total_bytes),
                "usableBytes": _known(each.usable_bytes),
                "replicas": [
                    {
                        "topic": one.topic,
                        "topicId": uuid_to_text(one.key[0]),
                        "partition": one.key[1],
                        "leads": one.leads,
                        "sizeBytes": _known(one.size_bytes),
                        "startOffset": _known(one.start_offset),
                        "highWatermark": _known(one.high_watermark),
                        "endOffset": _known(one.end_offset),
                        "lag": _known(one.lag),
                    }
                    for one in each.replicas
                ],
            }
            for each in answer.directories
        ],
    }


@log_dirs.command("mark-offline")
@client_options
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    required=True,
    help="Broker that owns the directory.",
)
@click.argument("directory", metavar="PATH|ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def mark_offline(options: ClientOptions, broker_id: int, directory: str, yes: bool, as_json: bool) -> None:
    """Take the log directory PATH|ID of a broker offline, as if it had failed.

    Other brokers take over its leaderships at once. The directory comes back when the broker restarts with
    the directory in good order. A broker stops when its last directory goes offline.
    """
    request = _which(directory)
    with options.open() as cluster:
        address = _addresses(cluster.brokers(), (broker_id,))[broker_id]
    if not yes:
        _confirm(
            f"Take {directory} of broker {broker_id} offline? Its replicas stay offline until the broker "
            "restarts"
        )
    try:
        answer = asyncio.run(
            mark_log_dir_offline(address, request, timeout_ms=options.timeout_ms, tls=options.tls.material())
        )
    except LinkError as error:
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


def _confirm(question: str) -> None:
    """Raises Failure unless the answer is yes; no input is no."""
    try:
        meant = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        meant = False
    if not meant:
        raise Failure("nothing was done; use --yes to skip the question")


def _which(directory: str) -> MarkLogDirOfflineRequest:
    """A path has a slash in it; an id has none. Raises Failure."""
    if "/" in directory:
        return MarkLogDirOfflineRequest(path=directory)
    try:
        return MarkLogDirOfflineRequest(directory_id=uuid_from_text(directory))
    except (ValueError, StorageError) as error:
        raise Failure(
            f"{directory!r} is neither a directory id nor a path with a slash; take either from: "
            "metaquorum log-dirs describe"
        ) from error
