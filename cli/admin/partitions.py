"""`metaquorum partitions`: elects leaders, adds partitions, plans, starts and cancels moves of replicas."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from metaquorum.cli.admin.topics import parse_assignment, report_topics
from metaquorum.cli.cluster import ClusterOptions, OpenCluster, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure, print_problem
from metaquorum.cli.given import GivenPath
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.clients.admin.cluster import ClusterBroker, elect_leaders, list_brokers
from metaquorum.clients.admin.replicas import alter_reassignments, list_moves, ongoing_moves
from metaquorum.clients.admin.topics import create_partitions, look_up_topics
from metaquorum.config.files import read_small_file
from metaquorum.controller.partitions.plans import Assignment, PlanError, PlanSize, drain, plan_size, spread
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.partitions import (
    ElectionResult,
    OngoingReassignment,
    ReassignmentResult,
    TopicGrowth,
    WantedReplicas,
)
from metaquorum.metadata.settings.keys import MAX_INT, whole_number

PLAN_VERSION = 1
MAX_PLAN_BYTES = 256 * 1024 * 1024
PLAN_FILE = GivenPath(exists=True, dir_okay=False, path_type=Path)
ANY = "any"
"""Instead of a directory: the broker chooses."""


class WantedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of a partition on one broker, and the log directory to which it should move."""

    topic: str
    partition: int
    broker_id: int
    path: str


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]
    where: str


def plan_json(planned: Assignment) -> dict[str, Any]:
    """A plan in Kafka's format."""
    return {
        "version": PLAN_VERSION,
        "partitions": [
            {"topic": topic, "partition": at, "replicas": list(held)}
            for (topic, at), held in sorted(planned.items())
        ],
    }


def read_plan(path: Path) -> Assignment:
    """The replicas that a file asks for. Its directories must be "any". Raises Failure."""
    planned: Assignment = {}
    for entry in _entries(path):
        if any(one != ANY for one in entry.log_dirs):
            text = (
                f'{entry.where}: log_dirs can only be "any" here; to move replicas between the directories '
            )
            raise Failure(text + "of their brokers: metaquorum log-dirs move --plan")
        planned[entry.topic, entry.partition] = entry.replicas
    return planned


def read_places(path: Path) -> list[WantedPlace]:
    """The directories that a file asks for, in its order, without those that are "any". Raises Failure."""
    partitions = [
        WantedPlace(topic=entry.topic, partition=entry.partition, broker_id=broker_id, path=directory)
        for entry in _entries(path)
        for broker_id, directory in zip(entry.replicas, entry.log_dirs, strict=False)
        if directory != ANY
    ]
    if not partitions:
        text = f'{path} names no log directory: give each replica one, as "log_dirs": ["/disk-1", "any"]'
        raise Failure(text)
    return partitions


def _entries(path: Path) -> list[_Entry]:
    try:
        content = json.loads(read_small_file(path, MAX_PLAN_BYTES).decode("utf-8"))
    except UnicodeDecodeError:
        raise Failure(f"{path} is not UTF-8 text: check that it is the right file") from None
    except (ValueError, RecursionError) as error:
        text = f"{path} is not JSON ({error}): write a plan as `metaquorum partitions plan` does"
        raise Failure(text) from None
    if not isinstance(content, dict) or content.get("version") != PLAN_VERSION:
        raise Failure(f'{path} is not a plan: it must be an object with "version": {PLAN_VERSION}')
    partitions = content.get("partitions")
    if not isinstance(partitions, list) or not partitions:
        raise Failure(f'{path} names no partitions: give a list of them as "partitions"')
    entries = [_entry(each, f"{path}, partition entry {number}") for number, each in enumerate(partitions)]
    seen: set[tuple[str, int]] = set()
    for entry in entries:
        if (name := (entry.topic, entry.partition)) in seen:
            raise Failure(f"{path} names partition {name[0]}-{name[1]} twice: name it once")
        seen.add(name)
    return entries


def _entry(entry: Any, where: str) -> _Entry:
    problem = f'{where}: write {{"topic": "name", "partition": 0, "replicas": [1, 2]}}'
    if not isinstance(entry, dict):
        raise Failure(problem)
    topic, index, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    if (
        not isinstance(topic, str)
        or not isinstance(index, int)
        or not _is_index(index)
        or not isinstance(replicas, list)
    ):
        raise Failure(problem)
    if not all(map(_is_index, replicas)):
        raise Failure(problem)
    return _Entry(
        topic=topic,
        partition=index,
        replicas=tuple(replicas),
        log_dirs=_log_dirs(entry.get("log_dirs"), len(replicas), where),
        where=where,
    )


def _log_dirs(given: Any, count: int, where: str) -> tuple[str, ...]:
    if given is None:
        return (ANY,) * count
    if not isinstance(given, list) or len(given) != count:
        raise Failure(f'{where}: log_dirs has to be a list with a directory, or "any", for each replica')
    for one in given:
        if not isinstance(one, str) or not (one == ANY or one.startswith("/")):
            raise Failure(f'{where}: {one!r} in log_dirs is neither an absolute path nor "any"')
    return tuple(given)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


COLUMNS = ("PARTITION", "REPLICAS", "ADDING", "REMOVING", "ISR", "WAITING FOR")


@click.command()
@cluster_options
@click.option("--plan", "path", type=PLAN_FILE, required=True, help="JSON, as `partitions plan` prints it.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would move and what would be refused, without moving anything.",
)
@click.option("--keep-factor", is_flag=True, help="Refuse moves that change a replication factor.")
@json_option
def reassign(options: ClusterOptions, path: Path, dry_run: bool, keep_factor: bool, as_json: bool) -> int:
    """Move replicas according to a plan. Replaces ongoing reassignments of the same partitions."""
    planned = read_plan(path)
    wanted = [WantedReplicas(topic=name, partition=at, replicas=held) for (name, at), held in planned.items()]
    with options.open() as cluster:
        current = _current(cluster, sorted({name for name, _ in planned}))
        if dry_run:
            brokers = {one.broker_id for one in cluster.call(list_brokers)}
            results = foreseen(wanted, current, brokers, keeps_factor=keep_factor)
        else:
            results = cluster.call(
                lambda client: alter_reassignments(client, wanted, keeps_factor=keep_factor)
            )
    taken = {(one.topic, one.partition) for one in results if one.error is ErrorCode.NONE}
    size = plan_size(current, {name: held for name, held in planned.items() if name in taken})
    done = "would be reassigned" if dry_run else "is being reassigned"
    same = {name for name, held in planned.items() if current.get(name) == held}
    return _report_moves(results, done, size, as_json, same)


@click.command()
@cluster_options
@click.option(
    "--cancel",
    "names",
    metavar="TOPIC-PARTITION",
    multiple=True,
    help="Cancel the reassignment of this partition; may be repeated.",
)
@click.option("--cancel-all", is_flag=True, help="Cancel every ongoing reassignment.")
@table_options
def reassignments(options: ClusterOptions, names: tuple[str, ...], cancel_all: bool, as_json: bool) -> int:
    """List ongoing reassignments, or cancel some. Shows what each is waiting for."""
    if names and cancel_all:
        raise click.UsageError("give either --cancel-all, or --cancel for each partition")
    with options.open() as cluster:
        ongoing = _ongoing(cluster)
        if not names and not cancel_all:
            _show(ongoing, as_json)
            return 0
        chosen = [_named(one) for one in names] or [(one.topic, one.partition) for one in ongoing]
        wanted = tuple([WantedReplicas(topic=name, partition=at, replicas=None) for name, at in chosen])
        results = cluster.call(lambda client: alter_reassignments(client, wanted))
    return _report_moves(results, "is no longer being reassigned", None, as_json)


@click.command()
@cluster_options
@click.option(
    "--drain",
    "broker_id",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Move all replicas off this broker.",
)
@click.option("--spread", "evenly", is_flag=True, help="Spread replicas evenly over all brokers.")
@click.option(
    "--topic", "topics", metavar="NAME", multiple=True, help="Only partitions of this topic. Default: all."
)
def plan(options: ClusterOptions, broker_id: int | None, evenly: bool, topics: tuple[str, ...]) -> None:
    """Print a plan for `partitions reassign`. Prints its size to standard error."""
    if evenly == (broker_id is not None):
        raise click.UsageError("give either --drain BROKER or --spread")
    with options.open() as cluster:
        current = _current(cluster, topics)
        brokers = cluster.call(list_brokers)
    for name in set(topics).difference(topic for topic, _ in current):
        raise Failure(f"topic {name} does not exist; see: metaquorum topics list")
    if broker_id is not None and not _is_known(broker_id, brokers, current):
        raise Failure(
            f"broker {broker_id} is not registered and has no replicas; see: metaquorum brokers list"
        )
    racks = {one.broker_id: one.rack for one in brokers if not one.fenced}
    try:
        planned = spread(current, racks) if broker_id is None else drain(current, racks, broker_id)
    except PlanError as error:
        raise Failure(str(error)) from error
    click.echo(json.dumps(plan_json(planned), indent=2))
    click.echo(size_text(plan_size(current, planned)), err=True)


def _is_known(broker_id: int, brokers: Sequence[ClusterBroker], current: Assignment) -> bool:
    """True for a registered broker, and for an unregistered one that still has replicas to drain."""
    registered = any(one.broker_id == broker_id for one in brokers)
    return registered or any(broker_id in held for held in current.values())


def _current(cluster: OpenCluster, topics: Sequence[str]) -> Assignment:
    """The current replicas, without those that an ongoing reassignment removes."""
    found = cluster.call(lambda client: look_up_topics(client, topics or None))
    moves = cluster.call(ongoing_moves)
    current: Assignment = {}
    for topic in found:
        for each in topic.partitions:
            move = moves.get((topic.name, each.index))
            left = () if move is None else move.removing
            current[topic.name, each.index] = tuple([one for one in each.replicas if one not in left])
    return current


def _ongoing(cluster: OpenCluster) -> tuple[OngoingReassignment, ...]:
    """The ongoing reassignments, with what each waits for."""
    moves = cluster.call(list_moves)
    names = sorted({name for name, _ in moves})
    found = cluster.call(lambda client: look_up_topics(client, names)) if names else ()
    isr = {(topic.name, each.index): each.isr for topic in found for each in topic.partitions}
    return tuple(
        OngoingReassignment(
            topic=name,
            partition=index,
            replicas=move.replicas,
            adding=move.adding,
            removing=move.removing,
            isr=isr.get((name, index), ()),
        )
        for (name, index), move in moves.items()
    )


def foreseen(
    wanted: Sequence[WantedReplicas], current: Assignment, brokers: Collection[int], *, keeps_factor: bool
) -> tuple[ReassignmentResult, ...]:
    """For each partition of a plan, whether the cluster would refuse it. Kafka's protocol cannot validate a
    reassignment without starting it."""
    return tuple(
        ReassignmentResult(topic=each.topic, partition=each.partition, error=error, message=message)
        for each in wanted
        for error, message in [_problem(each, current, brokers, keeps_factor)]
    )


def _problem(
    wanted: WantedReplicas, current: Assignment, brokers: Collection[int], keeps_factor: bool
) -> tuple[ErrorCode, str | None]:
    held, target = current.get((wanted.topic, wanted.partition)), wanted.replicas or ()
    if held is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist; correct the plan"
    unknown = [str(one) for one in target if one not in brokers]
    if not target or len(set(target)) < len(target):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name each broker once, and at least one"
    if unknown:
        text = f"no broker is registered with the id {', '.join(unknown)}; correct the plan"
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
    if keeps_factor and len(target) != len(held):
        text = f"the replication factor would change from {len(held)} to {len(target)}"
        return ErrorCode.INVALID_REPLICATION_FACTOR, text
    return ErrorCode.NONE, None


def _named(text: str) -> tuple[str, int]:
    topic, _, index = text.rpartition("-")
    number = whole_number(index, MAX_INT)
    if not topic or number is None:
        raise click.UsageError(f"{text!r} is not a partition: write TOPIC-PARTITION, such as events-0")
    return topic, number


def size_text(size: PlanSize) -> str:
    """The size of a plan in one line."""
    if not size.partitions:
        return "nothing to move: the replicas are already in place"
    arriving = ", ".join(f"broker {one}: {count}" for one, count in size.arriving.items()) or "nowhere"
    return f"{size.partitions} partitions change, {size.replicas} replicas are copied (to {arriving})"


def _show(ongoing: tuple[OngoingReassignment, ...], as_json: bool) -> None:
    if as_json:
        echo_json(
            [
                {
                    "topic": move.topic,
                    "partition": move.partition,
                    "replicas": list(move.replicas),
                    "adding": list(move.adding),
                    "removing": list(move.removing),
                    "isr": list(move.isr),
                    "waitingFor": list(move.waiting_for),
                }
                for move in ongoing
            ]
        )
    elif ongoing:
        echo_table(COLUMNS, [_row(one) for one in ongoing])
    else:
        click.echo("there is no ongoing reassignment")


def _row(move: OngoingReassignment) -> tuple[object, ...]:
    lists = (move.replicas, move.adding, move.removing, move.isr, move.waiting_for)
    return f"{move.topic}-{move.partition}", *[",".join(map(str, each)) or "-" for each in lists]


def _report_moves(
    results: tuple[ReassignmentResult, ...],
    done: str,
    size: PlanSize | None,
    as_json: bool,
    same: Collection[tuple[str, int]] = (),
) -> int:
    """One line per partition, refusals on standard error. `same`: partitions whose replicas stay."""
    refused = [one for one in results if one.error is not ErrorCode.NONE]
    if as_json:
        answer: dict[str, Any] = {
            "results": [
                {
                    "topic": result.topic,
                    "partition": result.partition,
                    "error": result.error.name,
                    "message": result.message,
                }
                for result in results
            ]
        }
        if size is not None:
            answer |= {"partitionsChanged": size.partitions, "replicasCopied": size.replicas}
        echo_json(answer)
        return EXIT_FAILED if refused else 0
    for result in results:
        name = f"{result.topic}-{result.partition}"
        if result.error is ErrorCode.NONE:
            click.echo(f"{name} {'stays as it is' if (result.topic, result.partition) in same else done}")
        else:
            print_problem(f"{name}: {result.error.name}: {result.message or 'refused'}")
    if not results:
        click.echo("there is no ongoing reassignment")
    elif size is not None and len(refused) < len(results):
        click.echo(size_text(size))
    return EXIT_FAILED if refused else 0


@click.group()
def partitions() -> None:
    """Elect leaders, add partitions, move replicas."""


for _command in (plan, reassign, reassignments):
    partitions.add_command(_command)


@partitions.command()
@cluster_options
@click.option(
    "--election",
    type=click.Choice(["preferred", "unclean"]),
    required=True,
    help=(
        "preferred: the first replica. unclean: any live replica, which loses records that only others have."
    ),
)
@click.option("--topic", metavar="NAME", help="The topic; all of its partitions unless --partition is given.")
@click.option(
    "--partition",
    "indexes",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="One partition of --topic.",
)
@click.option("--all", "everywhere", is_flag=True, help="Every partition that needs this election.")
@json_option
def elect(
    options: ClusterOptions,
    election: str,
    topic: str | None,
    indexes: tuple[int, ...],
    everywhere: bool,
    as_json: bool,
) -> int:
    """Elect leaders. Select the partitions of one topic, or all that need it."""
    if everywhere == (topic is not None):
        raise click.UsageError("give either --all, or --topic with or without --partition")
    if indexes and topic is None:
        raise click.UsageError("--partition needs --topic")
    with options.open() as cluster:
        chosen: list[tuple[str, int]] | None = None
        if topic is not None and indexes:
            chosen = [(topic, index) for index in indexes]
        elif topic is not None:
            found = cluster.call(lambda client: look_up_topics(client, [topic]))
            chosen = [(topic, each.index) for one in found for each in one.partitions] or [(topic, 0)]
        results = cluster.call(
            lambda client: elect_leaders(client, unclean=election == "unclean", partitions=chosen)
        )
    return _report(results, as_json)


def _report(results: tuple[ElectionResult, ...], as_json: bool) -> int:
    """One line per partition, refusals on standard error. Nothing to elect is not a failure."""
    failed = False
    if as_json:
        echo_json(
            [
                {
                    "topic": result.topic,
                    "partition": result.partition,
                    "leader": result.leader,
                    "error": result.error.name,
                    "message": result.message,
                }
                for result in results
            ]
        )
    for result in results:
        name = f"{result.topic}-{result.partition}"
        refused = result.error not in {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}
        failed = failed or refused
        if as_json:
            continue
        if refused:
            print_problem(f"{name}: {result.error.name}: {result.message or 'refused'}")
        elif result.error is ErrorCode.NONE:
            click.echo(f"{name}: leader {result.leader}")
        else:
            click.echo(f"{name}: {result.message}")
    if not results and not as_json:
        click.echo("nothing to do: no partition needs this election")
    return EXIT_FAILED if failed else 0


@partitions.command()
@cluster_options
@click.argument("topic")
@click.option(
    "--count", metavar="N", type=click.IntRange(min=1), required=True, help="New total number of partitions."
)
@click.option(
    "--replica-assignment",
    metavar="0:1,1:2",
    help="Brokers of each added partition, preferred leader first.",
)
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def add(
    options: ClusterOptions,
    topic: str,
    count: int,
    replica_assignment: str | None,
    validate_only: bool,
    as_json: bool,
) -> int:
    """Add partitions to TOPIC until it has --count."""
    assignments = None if replica_assignment is None else parse_assignment(replica_assignment)
    wanted = TopicGrowth(name=topic, count=count, assignments=assignments)
    with options.open() as cluster:
        results = cluster.call(
            lambda client: create_partitions(client, [wanted], validate_only=validate_only)
        )
    done = f"can have {count} partitions" if validate_only else f"has {count} partitions"
    return report_topics(results, done, as_json)
