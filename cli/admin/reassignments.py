"""`metaquorum partitions reassign|reassignments|plan`: move replicas, watch and cancel moves, plan them.

Plans are files in the JSON format of Kafka's reassignment tool, so that either tool reads the other's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from metaquorum.cli.client import ClientOptions, ClusterClient, client_options
from metaquorum.cli.errors import EXIT_FAILED, Failure
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.controller.partitions.plans import Assignment, PlanError, PlanSize, drain, plan_size, spread
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests.reassignments import (
    AlterReassignmentsRequest,
    OngoingReassignment,
    ReassignmentResult,
    WantedReplicas,
)
from metaquorum.runtime.client.reassignments import alter_reassignments, list_reassignments

COLUMNS = ("PARTITION", "REPLICAS", "ADDING", "REMOVING", "ISR", "WAITING FOR")
PLAN_VERSION = 1
PLAN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@client_options
@click.option("--plan", "path", type=PLAN_FILE, required=True, help="JSON, as `partitions plan` prints it.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would move and what would be refused, without moving anything.",
)
@click.option("--keep-factor", is_flag=True, help="Refuse moves that change a replication factor.")
@json_option
def reassign(options: ClientOptions, path: Path, dry_run: bool, keep_factor: bool, as_json: bool) -> int:
    """Move replicas as a plan says. Replaces ongoing reassignments of the same partitions."""
    planned = read_plan(path.read_text(encoding="utf-8"), str(path))
    request = AlterReassignmentsRequest(
        wanted=tuple(
            [WantedReplicas(topic=name, partition=at, replicas=held) for (name, at), held in planned.items()]
        ),
        allow_replication_factor_change=not keep_factor,
        validate_only=dry_run,
    )
    with options.open() as cluster:
        current = _current(cluster, sorted({name for name, _ in planned}))
        results = cluster.call(lambda client: alter_reassignments(client, request))
    size = plan_size(current, planned)
    done = "would be reassigned" if dry_run else "is being reassigned"
    return _report(results, done, size, as_json)


@click.command()
@client_options
@click.option(
    "--cancel",
    "names",
    metavar="TOPIC-PARTITION",
    multiple=True,
    help="Cancel the reassignment of this partition; may be repeated.",
)
@click.option("--cancel-all", is_flag=True, help="Cancel every ongoing reassignment.")
@table_options
def reassignments(options: ClientOptions, names: tuple[str, ...], cancel_all: bool, as_json: bool) -> int:
    """List ongoing reassignments and what they wait for, or cancel some."""
    if names and cancel_all:
        raise click.UsageError("give either --cancel-all, or --cancel for each partition")
    with options.open() as cluster:
        found = cluster.call(list_reassignments)
        if not names and not cancel_all:
            _show(found, as_json)
            return 0
        chosen = [_named(one) for one in names] or [(one.topic, one.partition) for one in found]
        wanted = tuple([WantedReplicas(topic=name, partition=at, replicas=None) for name, at in chosen])
        request = AlterReassignmentsRequest(wanted=wanted)
        results = cluster.call(lambda client: alter_reassignments(client, request)) if wanted else ()
    return _report(results, "is no longer being reassigned", None, as_json)


@click.command()
@client_options
@click.option("--drain", "broker_id", type=click.IntRange(min=0), help="Move all replicas off this broker.")
@click.option("--spread", "evenly", is_flag=True, help="Spread replicas evenly over all brokers.")
@click.option("--topic", "topics", multiple=True, help="Only partitions of this topic. Default: all.")
def plan(options: ClientOptions, broker_id: int | None, evenly: bool, topics: tuple[str, ...]) -> None:
    """Print a plan for `partitions reassign`, and its size on standard error."""
    if evenly == (broker_id is not None):
        raise click.UsageError("give either --drain BROKER or --spread")
    with options.open() as cluster:
        current = _current(cluster, topics)
        brokers = cluster.brokers()
    for name in set(topics).difference(topic for topic, _ in current):
        raise Failure(f"topic {name} does not exist; see: metaquorum topics list")
    if broker_id is not None and not _is_known(broker_id, brokers, current):
        raise Failure(f"broker {broker_id} is not registered and holds nothing; see: metaquorum brokers list")
    racks = {one.broker_id: one.rack for one in brokers if one.is_active}
    try:
        planned = spread(current, racks) if broker_id is None else drain(current, racks, broker_id)
    except PlanError as error:
        raise Failure(str(error)) from error
    click.echo(json.dumps(plan_json(planned), indent=2))
    click.echo(size_text(plan_size(current, planned)), err=True)


def _is_known(broker_id: int, brokers: Sequence[BrokerRegistration], current: Assignment) -> bool:
    """A broker that died for good and was unregistered is still drained."""
    registered = any(one.broker_id == broker_id for one in brokers)
    return registered or any(broker_id in held for held in current.values())


def _current(cluster: ClusterClient, topics: Any) -> Assignment:
    """Where replicas are, those that an unfinished move is taking away left out."""
    return {
        (topic.info.name, each.index): tuple([one for one in each.replicas if one not in each.removing])
        for topic in cluster.describe_topics(list(topics))
        for each in topic.partitions
    }


def plan_json(planned: Assignment) -> dict[str, Any]:
    """A plan in Kafka's format."""
    return {
        "version": PLAN_VERSION,
        "partitions": [
            {"topic": topic, "partition": at, "replicas": list(held)}
            for (topic, at), held in sorted(planned.items())
        ],
    }


def read_plan(text: str, where: str) -> Assignment:
    """The plan in a file of Kafka's format; directories of replicas must be "any". Raises Failure."""
    try:
        found = json.loads(text)
    except ValueError as error:
        text = f"{where} is not JSON ({error}): write a plan as `metaquorum partitions plan` does"
        raise Failure(text) from None
    if not isinstance(found, dict) or found.get("version") != PLAN_VERSION:
        raise Failure(f'{where} is not a plan: it must be an object with "version": {PLAN_VERSION}')
    partitions = found.get("partitions")
    if not isinstance(partitions, list) or not partitions:
        raise Failure(f'{where} names no partitions: give a list of them as "partitions"')
    planned: Assignment = {}
    for number, entry in enumerate(partitions):
        name, replicas = _entry(entry, f"{where}, partition entry {number}")
        if name in planned:
            raise Failure(f"{where} names partition {name[0]}-{name[1]} twice: name it once")
        planned[name] = replicas
    return planned


def _entry(entry: Any, where: str) -> tuple[tuple[str, int], tuple[int, ...]]:
    problem = f'{where}: write {{"topic": "name", "partition": 0, "replicas": [1, 2]}}'
    if not isinstance(entry, dict):
        raise Failure(problem)
    topic, at, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    if (
        not isinstance(topic, str)
        or not isinstance(at, int)
        or not _is_index(at)
        or not isinstance(replicas, list)
    ):
        raise Failure(problem)
    if not all(map(_is_index, replicas)):
        raise Failure(problem)
    if any(one != "any" for one in entry.get("log_dirs", [])):
        raise Failure(f'{where}: log_dirs can only be "any": brokers choose the directories')
    return (topic, at), tuple(replicas)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _named(text: str) -> tuple[str, int]:
    topic, _, index = text.rpartition("-")
    if not topic or not index.isascii() or not index.isdigit():
        raise click.UsageError(f"{text!r} is not a partition: write TOPIC-PARTITION, such as events-0")
    return topic, int(index)


def size_text(size: PlanSize) -> str:
    """How much a plan moves, in one line."""
    if not size.partitions:
        return "nothing to move: the replicas are already in place"
    arriving = ", ".join(f"broker {one}: {count}" for one, count in size.arriving.items()) or "nowhere"
    return f"{size.partitions} partitions change, {size.replicas} replicas are copied (to {arriving})"


def _show(found: tuple[OngoingReassignment, ...], as_json: bool) -> None:
    if as_json:
        echo_json(
            [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "replicas": list(one.replicas),
                    "adding": list(one.adding),
                    "removing": list(one.removing),
                    "isr": list(one.isr),
                    "waitingFor": list(one.waiting_for),
                }
                for one in found
            ]
        )
    elif found:
        echo_table(COLUMNS, [_row(one) for one in found])
    else:
        click.echo("there is no ongoing reassignment")


def _row(one: OngoingReassignment) -> tuple[object, ...]:
    lists = (one.replicas, one.adding, one.removing, one.isr, one.waiting_for)
    return f"{one.topic}-{one.partition}", *[",".join(map(str, each)) or "-" for each in lists]


def _report(results: tuple[ReassignmentResult, ...], done: str, size: PlanSize | None, as_json: bool) -> int:
    """One line a partition; refused ones on standard error."""
    refused = [one for one in results if one.error is not ErrorCode.NONE]
    if as_json:
        answer: dict[str, Any] = {
            "results": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "error": one.error.name,
                    "message": one.message,
                }
                for one in results
            ]
        }
        if size is not None:
            answer |= {"partitionsChanged": size.partitions, "replicasCopied": size.replicas}
        echo_json(answer)
        return EXIT_FAILED if refused else 0
    for one in results:
        name = f"{one.topic}-{one.partition}"
        if one.error is ErrorCode.NONE:
            click.echo(f"{name} {done}")
        else:
            click.echo(f"metaquorum: {name}: {one.error.name}: {one.message or 'refused'}", err=True)
    if not results:
        click.echo("there is no ongoing reassignment")
    elif size is not None:
        click.echo(size_text(size))
    return EXIT_FAILED if refused else 0
