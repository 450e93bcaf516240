"""`metaquorum groups`: consumer groups, their offsets and their lag, and resets of offsets."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from metaquorum.cli.admin.topics import TOPIC, Topics, places_text
from metaquorum.cli.cluster import ClusterOptions, OpenCluster, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure, print_problem
from metaquorum.cli.given import GivenPath
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.clients.admin.groups import (
    Aim,
    Committed,
    DescribedMember,
    Goal,
    GroupDescription,
    Planned,
    commit_offsets,
    committed_offsets,
    delete_group,
    delete_offsets,
    describe_group,
    list_groups,
    partitions_of,
    plan_reset,
)
from metaquorum.clients.admin.partition_logs import (
    ADMIN_CLIENT,
    LATEST,
    TopicPartition,
    discard_record,
    log_offsets,
)
from metaquorum.config.files import read_small_file
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.inspect.log.points import parse_span_ms, parse_time_ms
from metaquorum.wire.stored import DECODED_TOPICS

_LAST_OFFSET, _LAST_PARTITION = 2**63 - 1, 2**31 - 1
_MAX_FILE_BYTES = 256 * 1024 * 1024


def _parsed(parse: Callable[[str], int]) -> Callable[..., int | None]:
    def convert(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


_GOALS = (
    click.option("--to-earliest", "earliest", is_flag=True, help="To the start of each log."),
    click.option("--to-latest", "latest", is_flag=True, help="To the end of each log."),
    click.option("--to-current", "current", is_flag=True, help="To the committed offset; for --export."),
    click.option(
        "--to-offset",
        "offset",
        metavar="OFFSET",
        type=click.IntRange(0, _LAST_OFFSET),
        help="To this offset.",
    ),
    click.option(
        "--to-datetime",
        "time_ms",
        callback=_parsed(parse_time_ms),
        metavar="TIME",
        help="To the first record at or after this time (ISO 8601, UTC, or ms since 1970).",
    ),
    click.option(
        "--by-duration",
        "span_ms",
        callback=_parsed(parse_span_ms),
        metavar="12h",
        help="To the first record that is at most this old (12h, 90min or PT1H30M).",
    ),
    click.option("--shift-by", "shift", type=int, metavar="N", help="By N records; back if N is negative."),
    click.option(
        "--from-file",
        "file",
        type=GivenPath(path_type=Path, exists=True, dir_okay=False),
        help="To the offsets in this file, as --export prints them: topic,partition,offset.",
    ),
)


def _goal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_GOALS):
        command = option(command)
    return command


@click.command()
@cluster_options
@click.argument("group", metavar="GROUP")
@_goal_options
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    metavar="NAME[:0,1]",
    help="This topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Every partition with a committed offset of the group.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets. The default.")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--export", is_flag=True, help="Print the new offsets as a file for --from-file.")
@table_options
def reset(
    options: ClusterOptions,
    group: str,
    topics: Topics,
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    as_json: bool,
    **goals: Any,
) -> int:
    """Reset the offsets of a group. Without --execute, only shows the new offsets. The group must not have
    members."""
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other")
    if export and as_json:
        raise click.UsageError("--export and --json exclude each other")
    goal = _goal(group, goals)
    if (goal.aim is not Aim.GIVEN) != (bool(topics) + all_topics == 1) or (topics and all_topics):
        raise click.UsageError("give either --topic or --all-topics, and neither with --from-file")
    with options.open() as cluster:
        plan = _plan(cluster, group, goal, topics)
        problems = [f"{_name(each)}: {each.note}" for each in plan if each.new is None]
        commits = execute and not problems
        if commits:
            problems = _execute(cluster, group, plan)
    _print_plan(group, plan, executed=commits, export=export, as_json=as_json)
    for problem in problems:
        print_problem(problem)
    if not commits and not export and not as_json:
        advice = "name partitions with --topic" if problems else "add --execute to commit these offsets"
        print_problem(f"nothing was changed: {advice}")
    return EXIT_FAILED if problems else 0


def _goal(group: str, goals: dict[str, Any]) -> Goal:
    given = [name for name, value in goals.items() if value is not None and value is not False]
    if len(given) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(option_names())}")
    (name,), value = given, goals[given[0]]
    match name:
        case "earliest" | "latest" | "current":
            return Goal(aim=Aim[name.upper()])
        case "offset" | "shift":
            return Goal(aim=Aim[name.upper()], value=value)
        case "time_ms":
            return Goal(aim=Aim.TIME, value=value)
        case "span_ms":
            return Goal(aim=Aim.TIME, value=max(0, time.time_ns() // 1_000_000 - value))
        case _:
            return Goal(aim=Aim.GIVEN, given=read_offsets(value, group))


def option_names() -> list[str]:
    """The options of which one must be given: the new position."""
    return sorted({aim.value for aim in Aim} | {"--by-duration"})


def read_offsets(path: Path, group: str) -> dict[TopicPartition, int]:
    """The offsets in a file of `topic,partition,offset` lines, or `group,topic,partition,offset` as Kafka's
    tool exports several groups. Raises Failure, which names the line."""
    offsets: dict[TopicPartition, int] = {}
    text = read_small_file(path, _MAX_FILE_BYTES).decode("utf-8")
    reader = csv.reader(text.splitlines(keepends=True))
    try:
        for row in filter(None, reader):
            place, offset = _offset(row, group)
            if place in offsets:
                raise ValueError(f"{place[0]}-{place[1]} is listed twice; remove one line")
            offsets[place] = offset
    except (csv.Error, ValueError) as error:
        raise Failure(f"{path}, line {max(1, reader.line_num)}: {error}") from None
    if not offsets:
        raise Failure(f"{path} has no offsets; write lines of topic,partition,offset")
    return offsets


def _offset(row: Sequence[str], group: str) -> tuple[TopicPartition, int]:
    cells = [cell.strip() for cell in row]
    if len(cells) == 4:
        if cells[0] != group:
            raise ValueError(f"{cells[0]!r} is not the group {group}")
        cells = cells[1:]
    whole = len(cells) == 3 and all(cell.isascii() and cell.isdigit() for cell in cells[1:])
    if not whole or not cells[0] or int(cells[1]) > _LAST_PARTITION or int(cells[2]) > _LAST_OFFSET:
        raise ValueError(f"expected topic,partition,offset, found {','.join(row)!r}")
    return (cells[0], int(cells[1])), int(cells[2])


def _plan(cluster: OpenCluster, group: str, goal: Goal, topics: Topics) -> list[Planned]:
    description = cluster.call(lambda client: describe_group(client, group))
    if description is not None and description.is_active:
        raise Failure(
            f"NON_EMPTY_GROUP: group {group} is {description.state}, and its members commit offsets; stop "
            "them, then reset"
        )
    committed: dict[TopicPartition, Committed] = cluster.call(lambda client: committed_offsets(client, group))
    wanted = topics or [(topic, (index,)) for topic, index in goal.given or committed]
    places, missing = cluster.call(lambda client: partitions_of(client, wanted))
    if missing:
        raise Failure(f"{missing[0]}{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}")
    if not places:
        raise Failure(f"group {group} has no committed offsets; name topics with --topic")
    return cluster.call(lambda client: plan_reset(client, goal, places, committed))


def _execute(cluster: OpenCluster, group: str, plan: Sequence[Planned]) -> list[str]:
    wanted = {each.partition: each.new for each in plan if each.new is not None}
    codes = cluster.call(lambda client: commit_offsets(client, group, wanted))
    return [f"{code.name}: {topic}-{index}" for (topic, index), code in codes.items() if code]


def _name(planned: Planned) -> str:
    return f"{planned.partition[0]}-{planned.partition[1]}"


def _print_plan(group: str, plan: Sequence[Planned], *, executed: bool, export: bool, as_json: bool) -> None:
    if as_json:
        offsets = [
            {
                "topic": planned.partition[0],
                "partition": planned.partition[1],
                "committedOffset": planned.committed,
                "newOffset": planned.new,
                "note": planned.note or None,
            }
            for planned in plan
        ]
        echo_json({"groupId": group, "executed": executed, "offsets": offsets})
    elif export:
        for row in plan:
            if row.new is not None:
                click.echo(f"{row.partition[0]},{row.partition[1]},{row.new}")
    else:
        rows = [(*each.partition, each.committed, each.new, each.note) for each in plan]
        echo_table(("TOPIC", "PARTITION", "COMMITTED", "NEW", "NOTE"), rows)


Deleted = tuple[str, TopicPartition | None, ErrorCode]
"""A group, a partition (None: the whole group), and the error of its deletion."""

_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
_WHY = {
    ErrorCode.NON_EMPTY_GROUP: "the group has members: stop them first",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist; see: metaquorum groups list",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member of the group subscribes to the topic: stop it first",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the partition does not exist",
}


@click.group()
def groups() -> None:
    """Describe consumer groups and their lag; change offsets."""


groups.add_command(reset)


@groups.command("list")
@cluster_options
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES),
    metavar="STATE",
    multiple=True,
    help=f"Only groups in this state; may be repeated: {', '.join(_STATES)}.",
)
@click.option("--type", "kind", type=click.Choice(["classic", "consumer"]), help="Only groups of this kind.")
@table_options
def list_(options: ClusterOptions, states: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """List the groups."""
    with options.open() as cluster:
        listed = cluster.call(list_groups)
    listed = [
        each
        for each in listed
        if (not states or each.state in states) and (kind is None or each.kind == kind)
    ]
    if as_json:
        echo_json(
            [
                {
                    "groupId": group.group_id,
                    "type": group.kind or None,
                    "protocolType": group.protocol_type,
                    "state": group.state or None,
                    "coordinator": group.coordinator,
                }
                for group in listed
            ]
        )
        return
    rows = [
        (each.group_id, each.kind or None, each.protocol_type or None, each.state or None, each.coordinator)
        for each in listed
    ]
    echo_table(("GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"), rows)


class _Look(msgspec.Struct, frozen=True):
    """A group, its committed offsets, and the end offsets of the logs."""

    group: GroupDescription
    committed: Mapping[TopicPartition, Committed]
    ends: Mapping[TopicPartition, int | ErrorCode]

    def lag(self, partition: TopicPartition) -> int | None:
        end, committed = self.ends.get(partition), self.committed.get(partition)
        if isinstance(end, ErrorCode) or end is None or committed is None:
            return None
        return end - committed.offset

    def end(self, partition: TopicPartition) -> int | None:
        found = self.ends.get(partition)
        return None if isinstance(found, ErrorCode) else found


@groups.command()
@cluster_options
@click.argument("names", nargs=-1, metavar="GROUP...")
@click.option("--all", "everything", is_flag=True, help="Describe every group.")
@table_options
def describe(options: ClusterOptions, names: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Show members, committed offsets and lag of groups. LAG counts the records from the committed offset to
    the END of the log."""
    if everything == bool(names):
        raise click.UsageError("give either GROUP... or --all")
    with options.open() as cluster:
        wanted = [each.group_id for each in cluster.call(list_groups)] if everything else names
        looks = {name: _look(cluster, name) for name in dict.fromkeys(wanted)}
    described = [look for look in looks.values() if look is not None]
    if as_json:
        echo_json([_json(look) for look in described])
    else:
        for at, look in enumerate(described):
            click.echo("\n" * bool(at) + _heading(look.group))
            _print(look)
    missing = [name for name, look in looks.items() if look is None and not everything]
    for name in missing:
        print_problem(f"there is no group {name}; see: metaquorum groups list")
    return EXIT_FAILED if missing else 0


def _look(cluster: OpenCluster, name: str) -> _Look | None:
    group = cluster.call(lambda client: describe_group(client, name))
    committed = cluster.call(lambda client: committed_offsets(client, name))
    if group is None and not committed:
        return None
    group = group or GroupDescription(
        group_id=name, kind="", protocol_type="", state="Dead", assignor="", members=()
    )
    places = {*committed, *(place for each in group.members for place in each.partitions or ())}
    ends = cluster.call(lambda client: log_offsets(client, dict.fromkeys(sorted(places), LATEST)))
    return _Look(group, committed, ends)


def group_rows(options: ClusterOptions) -> list[dict[str, Any]]:
    """Every group of a cluster: a row for each partition that it reads, or one for a group without. Raises
    Failure and ApiError."""
    rows: list[dict[str, Any]] = []
    with options.open() as cluster:
        for listed in cluster.call(list_groups):
            look = _look(cluster, listed.group_id)
            if look is None:
                continue
            owners, own = _owners(look.group), {"group": look.group.group_id, "state": look.group.state}
            for partition in sorted(look.ends):
                owner, committed = owners.get(partition), look.committed.get(partition)
                rows.append(
                    {
                        **own,
                        "topic": partition[0],
                        "partition": partition[1],
                        "committed": None if committed is None else committed.offset,
                        "end": look.end(partition),
                        "lag": look.lag(partition),
                        "member": None if owner is None else owner.client_id,
                        "host": None if owner is None else owner.host,
                    }
                )
            if not look.ends:
                rows.append(own)
    return rows


def _heading(group: GroupDescription) -> str:
    count = len(group.members)
    kind = ", ".join(each for each in (group.kind, group.assignor) if each)
    members = "no members" if not count else "1 member" if count == 1 else f"{count} members"
    return f"group {group.group_id}: {group.state}, {members}{f' ({kind})' if kind else ''}"


def _owners(group: GroupDescription) -> dict[TopicPartition, DescribedMember]:
    return {place: each for each in group.members for place in each.partitions or ()}


def _print(look: _Look) -> None:
    owners = _owners(look.group)
    rows: list[Sequence[object]] = []
    for place in sorted(look.ends):
        owner, committed = owners.get(place), look.committed.get(place)
        offset = None if committed is None else committed.offset
        rows.append((*place, offset, look.end(place), look.lag(place), *_member_cells(owner)))
    for member in look.group.members:
        if not member.partitions:
            rows.append((None, None, None, None, None, *_member_cells(member)))
    if rows:
        columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST")
        echo_table(columns, rows)


def _member_cells(member: DescribedMember | None) -> tuple[str | None, str | None, str | None]:
    if member is None:
        return None, None, None
    return member.instance_id or member.member_id, member.client_id, member.host


def _json(look: _Look) -> dict[str, Any]:
    group, owners = look.group, _owners(look.group)
    partitions = []
    for partition in sorted(look.ends):
        committed, owner, end = look.committed.get(partition), owners.get(partition), look.ends[partition]
        partitions.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "committedOffset": None if committed is None else committed.offset,
                "metadata": None if committed is None else committed.metadata,
                "endOffset": look.end(partition),
                "lag": look.lag(partition),
                "memberId": None if owner is None else owner.member_id,
                "error": end.name if isinstance(end, ErrorCode) else None,
            }
        )
    return {
        "groupId": group.group_id,
        "state": group.state,
        "type": group.kind or None,
        "protocolType": group.protocol_type,
        "assignor": group.assignor,
        "members": [_member_json(each) for each in group.members],
        "partitions": partitions,
    }


def _member_json(member: DescribedMember) -> dict[str, Any]:
    assigned = member.partitions
    return {
        "memberId": member.member_id,
        "instanceId": member.instance_id,
        "clientId": member.client_id,
        "host": member.host,
        "epoch": member.epoch,
        "partitions": None
        if assigned is None
        else [{"topic": topic, "partition": index} for topic, index in assigned],
    }


@groups.command()
@cluster_options
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--offsets", is_flag=True, help="Delete only the offsets of --topic; members may stay.")
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    metavar="NAME[:0,1]",
    help="With --offsets: the topic, or some of its partitions; may be repeated.",
)
@json_option
def delete(
    options: ClusterOptions,
    names: tuple[str, ...],
    offsets: bool,
    topics: Topics,
    as_json: bool,
) -> int:
    """Delete groups that have no members, or some of their offsets."""
    if offsets != bool(topics):
        raise click.UsageError("--offsets and --topic go together")
    with options.open() as cluster:
        results: list[Deleted] = []
        for name in dict.fromkeys(names):
            results += _delete_offsets(cluster, name, topics) if offsets else _delete_group(cluster, name)
    return _report(results, as_json)


def _delete_group(cluster: OpenCluster, name: str) -> list[Deleted]:
    return [(name, None, cluster.call(lambda client: delete_group(client, name)))]


def _delete_offsets(cluster: OpenCluster, name: str, topics: Topics) -> list[Deleted]:
    places, missing = cluster.call(lambda client: partitions_of(client, topics))
    if missing:
        raise Failure(missing[0])
    try:
        codes = cluster.call(lambda client: delete_offsets(client, name, places))
    except ApiError as error:
        return [(name, None, error.code)]
    return [(name, place, code) for place, code in codes.items()]


def _report(results: Sequence[Deleted], as_json: bool) -> int:
    if as_json:
        echo_json(
            [
                {
                    "groupId": name,
                    "topic": None if partition is None else partition[0],
                    "partition": None if partition is None else partition[1],
                    "error": code.name,
                }
                for name, partition, code in results
            ]
        )
    for name, partition, code in results:
        what = f"group {name}" if partition is None else f"group {name}, {places_text([partition])}"
        if code:
            why = _WHY.get(code, "refused")
            print_problem(f"{code.name}: {what}: {why}")
        elif not as_json:
            click.echo(f"{what}: deleted")
    return EXIT_FAILED if any(code for _, _, code in results) else 0


@groups.command()
@cluster_options
@click.option("--topic", required=True, type=click.Choice(sorted(DECODED_TOPICS)), help="The internal topic.")
@click.option("--partition", required=True, type=click.IntRange(min=0), metavar="N", help="Its partition.")
@click.option(
    "--offset",
    required=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="The record, as the log names it.",
)
@click.option("--readable", is_flag=True, help="Also a record that this release can read.")
def discard(options: ClusterOptions, topic: str, partition: int, offset: int, readable: bool) -> None:
    """Delete a record that its coordinator cannot read.

    An ERROR in its broker's log names it. Writes a deletion of the record's key. Needs Read and Write on the
    internal topic.
    """
    with options.open(ADMIN_CLIENT) as cluster:
        cluster.call(
            lambda client: discard_record(
                client, topic, partition, offset, readable=readable, now_ms=time.time_ns() // 1_000_000
            )
        )
    click.echo(f"Deleted the key of {topic}-{partition} offset {offset}.")
