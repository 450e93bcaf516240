"""`metaquorum groups reset`: changes the offsets from which a group continues.

Owns the options, the file of offsets, and the output. Does not know how a goal becomes an offset: the rules
are in `runtime.kafka.admin.resets`.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from metaquorum.cli.admin.groups.places import TOPIC, Topics
from metaquorum.cli.cluster import ClusterOptions, OpenCluster, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure
from metaquorum.cli.text.output import echo_json, echo_table, table_options
from metaquorum.metadata.inspect.log.points import parse_span_ms, parse_time_ms
from metaquorum.runtime.kafka.admin.groups import Committed, commit_offsets, committed_offsets, describe_group
from metaquorum.runtime.kafka.admin.log_ends import Place
from metaquorum.runtime.kafka.admin.resets import Aim, Goal, Planned, partitions_of, plan_reset

_LAST_OFFSET, _LAST_PARTITION = 2**63 - 1, 2**31 - 1


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
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
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
    _print(group, plan, executed=commits, export=export, as_json=as_json)
    for problem in problems:
        click.echo(f"metaquorum: {problem}", err=True)
    if not commits and not export and not as_json:
        advice = "name partitions with --topic" if problems else "add --execute to commit these offsets"
        click.echo(f"metaquorum: nothing was changed: {advice}", err=True)
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


def read_offsets(path: Path, group: str) -> dict[Place, int]:
    """The offsets in a file of `topic,partition,offset` lines, or `group,topic,partition,offset` as Kafka's
    tool exports several groups. Raises Failure, which names the line."""
    found: dict[Place, int] = {}
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.reader(lines)
        try:
            for row in filter(None, reader):
                place, offset = _offset(row, group)
                if place in found:
                    raise ValueError(f"{place[0]}-{place[1]} is listed twice; remove one line")
                found[place] = offset
        except UnicodeDecodeError:
            raise
        except (csv.Error, ValueError) as error:
            raise Failure(f"{path}, line {max(1, reader.line_num)}: {error}") from None
    if not found:
        raise Failure(f"{path} has no offsets; write lines of topic,partition,offset")
    return found


def _offset(row: Sequence[str], group: str) -> tuple[Place, int]:
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
    committed: dict[Place, Committed] = cluster.call(lambda client: committed_offsets(client, group))
    wanted = topics or [(topic, (index,)) for topic, index in goal.given or committed]
    places, missing = cluster.call(lambda client: partitions_of(client, wanted))
    if missing:
        raise Failure(f"{missing[0]}{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}")
    if not places:
        raise Failure(f"group {group} has no committed offsets; name topics with --topic")
    return cluster.call(lambda client: plan_reset(client, goal, places, committed))


def _execute(cluster: OpenCluster, group: str, plan: Sequence[Planned]) -> list[str]:
    wanted = {each.place: each.new for each in plan if each.new is not None}
    codes = cluster.call(lambda client: commit_offsets(client, group, wanted))
    return [f"{code.name}: {topic}-{index}" for (topic, index), code in codes.items() if code]


def _name(each: Planned) -> str:
    return f"{each.place[0]}-{each.place[1]}"


def _print(group: str, plan: Sequence[Planned], *, executed: bool, export: bool, as_json: bool) -> None:
    if as_json:
        offsets = [
            {
                "topic": each.place[0],
                "partition": each.place[1],
                "committedOffset": each.committed,
                "newOffset": each.new,
                "note": each.note or None,
            }
            for each in plan
        ]
        echo_json({"groupId": group, "executed": executed, "offsets": offsets})
    elif export:
        for each in plan:
            if each.new is not None:
                click.echo(f"{each.place[0]},{each.place[1]},{each.new}")
    else:
        rows = [(*each.place, each.committed, each.new, each.note) for each in plan]
        echo_table(("TOPIC", "PARTITION", "COMMITTED", "NEW", "NOTE"), rows)
