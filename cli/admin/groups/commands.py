"""`metaquorum groups`: consumer groups, their offsets and their lag.

Owns listing, description and deletion, and the computation of lag. Does not reset offsets (`reset` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from metaquorum.cli.admin.groups.places import TOPIC, Topics, places_text
from metaquorum.cli.admin.groups.reset import reset
from metaquorum.cli.cluster import ClusterOptions, OpenCluster, cluster_options
from metaquorum.cli.errors import EXIT_FAILED, Failure
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.kafka.admin.groups import (
    Committed,
    DescribedMember,
    GroupDescription,
    committed_offsets,
    delete_group,
    delete_offsets,
    describe_group,
    list_groups,
)
from metaquorum.runtime.kafka.admin.log_ends import LATEST, Place, log_offsets
from metaquorum.runtime.kafka.admin.resets import partitions_of

Deleted = tuple[str, Place | None, ErrorCode]
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
        found = cluster.call(list_groups)
    found = [
        each for each in found if (not states or each.state in states) and (kind is None or each.kind == kind)
    ]
    if as_json:
        echo_json(
            [
                {
                    "groupId": each.group_id,
                    "type": each.kind or None,
                    "protocolType": each.protocol_type,
                    "state": each.state or None,
                    "coordinator": each.coordinator,
                }
                for each in found
            ]
        )
        return
    rows = [
        (each.group_id, each.kind or None, each.protocol_type or None, each.state or None, each.coordinator)
        for each in found
    ]
    echo_table(("GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"), rows)


class _Look(msgspec.Struct, frozen=True):
    """A group, its committed offsets, and the end offsets of the logs."""

    group: GroupDescription
    committed: Mapping[Place, Committed]
    ends: Mapping[Place, int | ErrorCode]

    def lag(self, place: Place) -> int | None:
        end, committed = self.ends.get(place), self.committed.get(place)
        if isinstance(end, ErrorCode) or end is None or committed is None:
            return None
        return end - committed.offset

    def end(self, place: Place) -> int | None:
        found = self.ends.get(place)
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
    found = [look for look in looks.values() if look is not None]
    if as_json:
        echo_json([_json(look) for look in found])
    else:
        for at, look in enumerate(found):
            click.echo("\n" * bool(at) + _heading(look.group))
            _print(look)
    missing = [name for name, look in looks.items() if look is None and not everything]
    for name in missing:
        click.echo(f"metaquorum: there is no group {name}; see: metaquorum groups list", err=True)
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


def _heading(group: GroupDescription) -> str:
    count = len(group.members)
    kind = ", ".join(each for each in (group.kind, group.assignor) if each)
    members = "no members" if not count else "1 member" if count == 1 else f"{count} members"
    return f"group {group.group_id}: {group.state}, {members}{f' ({kind})' if kind else ''}"


def _owners(group: GroupDescription) -> dict[Place, DescribedMember]:
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
    for place in sorted(look.ends):
        committed, owner, end = look.committed.get(place), owners.get(place), look.ends[place]
        partitions.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committedOffset": None if committed is None else committed.offset,
                "metadata": None if committed is None else committed.metadata,
                "endOffset": look.end(place),
                "lag": look.lag(place),
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
                    "topic": None if place is None else place[0],
                    "partition": None if place is None else place[1],
                    "error": code.name,
                }
                for name, place, code in results
            ]
        )
    for name, place, code in results:
        what = f"group {name}" if place is None else f"group {name}, {places_text([place])}"
        if code:
            why = _WHY.get(code, "refused")
            click.echo(f"metaquorum: {code.name}: {what}: {why}", err=True)
        elif not as_json:
            click.echo(f"{what}: deleted")
    return EXIT_FAILED if any(code for _, _, code in results) else 0
