"""`metaquorum log repair`: writes a new directory without the records or damage that make a log unusable."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
from msgspec.structs import replace

from metaquorum.cli.errors import EXIT_REMAINS, EXIT_UNKNOWN_RECORDS, Failure, print_problem
from metaquorum.cli.log.input.options import PATH, offsets_text
from metaquorum.cli.log.input.source import open_path
from metaquorum.cli.log.time_text import change_line
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.metadata.inspect.answers import change_json
from metaquorum.metadata.inspect.entities.diff import EntityChange, changes_between
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles, node_files
from metaquorum.metadata.inspect.repair.repair import RepairReport, RepairRequest, plan_repair, write_repair
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.walk.states import state_at

SHOWN_REMAINING = 10
SHOWN_DIFFERENCES = 50
"""Entities of the state diff to show as text; --json has them all."""


@click.command()
@click.argument("path", type=PATH)
@click.option("--to", "target", type=PATH, help="The new directory. It must be empty or not exist.")
@click.option(
    "--drop",
    "dropped",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="OFFSET",
    help="Remove the record at this offset; may be repeated.",
)
@click.option("--drop-failing", is_flag=True, help="Remove every record that cannot be applied.")
@click.option(
    "--past-corruption",
    is_flag=True,
    help="Continue past lost bytes, from a snapshot or with NoOpRecords in their place.",
)
@click.option(
    "--end-at",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Drop this offset and everything after it.",
)
@click.option("--cluster-id", metavar="ID", help="The cluster id, if meta.properties does not have it.")
@click.option("--dry-run", is_flag=True, help="Show what would change, without writing it.")
@json_option
def repair(
    path: str,
    target: str | None,
    dropped: tuple[int, ...],
    drop_failing: bool,
    past_corruption: bool,
    end_at: int | None,
    cluster_id: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Rewrite a log without a poison record or lost bytes. Can also cut it at an offset.

    PATH is a node's directory or the __cluster_metadata-0 in it, and stays unchanged. A NoOpRecord replaces
    each removed record, so every other record keeps its offset.
    """
    if not (dropped or drop_failing or past_corruption or end_at is not None):
        raise click.UsageError(
            "give a repair option: --drop OFFSET, --drop-failing, --past-corruption or --end-at OFFSET"
        )
    if target is None and not dry_run:
        raise click.UsageError("give --to DIRECTORY for the new log, or --dry-run")
    request = RepairRequest(
        drop=frozenset(dropped), drop_failing=drop_failing, past_corruption=past_corruption, end_at=end_at
    )
    source = with_cluster(node_files(open_path(path)), cluster_id, writes=not dry_run)
    if target is not None:
        refuse_inside(target, source.home, source.log.directory)
    if dry_run or target is None:
        report = plan_repair(source, request)
    else:
        report = write_repair(source, request, target)
    changes = state_changes(source, report)
    if as_json:
        echo_json(_json(report, changes, None if dry_run else target))
    else:
        _show(report, changes, None if dry_run else target)
    if report.remaining:
        return EXIT_REMAINS
    return EXIT_UNKNOWN_RECORDS if report.newer else 0


def with_cluster(source: NodeFiles, given: str | None, *, writes: bool) -> NodeFiles:
    """The node's files with the given cluster id. Raises Failure if the directory has another id or, for a
    repair that writes, if the new directory would have no complete identity."""
    identity = source.identity
    cluster_id = None if identity is None else identity.cluster_id
    if given is not None and cluster_id not in (None, given):
        raise Failure(f"{source.home} belongs to cluster {cluster_id}, not {given}; leave out --cluster-id")
    if identity is None or source.identity_problem is None:
        return source
    renamed = replace(identity, cluster_id=cluster_id or given)
    if writes and (renamed.cluster_id is None or renamed.node_id is None):
        what = (
            "give --cluster-id" if renamed.node_id is not None else "write it by hand, as on the other nodes"
        )
        raise Failure(f"{source.identity_problem}, and the new directory needs one: {what}")
    return replace(source, identity=renamed)


def refuse_inside(target: str, *sources: str) -> None:
    """Raises Failure if the new directory is, contains, or is in a source."""
    wanted = os.path.realpath(target)
    for source in sources:
        there = os.path.realpath(source)
        common = os.path.commonpath((wanted, there))
        if there in (wanted, common):
            raise Failure(f"{target} is inside {source}, which must not change; give a directory outside it")


def state_changes(source: NodeFiles, report: RepairReport) -> list[EntityChange]:
    """The changes from the state of the old log (its readable part) to that of the new one."""
    before = state_at(source.log, past_corruption=True)
    return changes_between(before.image, report.after)


def _show(report: RepairReport, changes: list[EntityChange], target: str | None) -> None:
    click.echo(f"changes: {report.changed}")
    for change in report.changes:
        last = change.end_offset - 1
        offsets = f"{change.offset}" if last <= change.offset else f"{change.offset}-{last}"
        click.echo(f"  {change.kind:<8}  {offsets:>12}  {change.text}")
    if report.changed > len(report.changes):
        click.echo(f"  ... and {report.changed - len(report.changes)} more")
    differ = "1 entity differs" if len(changes) == 1 else f"{len(changes) or 'no'} entities differ"
    click.echo(f"state at the end, old to new: {differ}")
    for entity in changes[:SHOWN_DIFFERENCES]:
        click.echo(f"  {change_line(entity)}")
    if len(changes) > SHOWN_DIFFERENCES:
        click.echo(f"  ... and {len(changes) - SHOWN_DIFFERENCES} more (--json has all)")
    for line in (*report.remaining[:SHOWN_REMAINING], *report.newer[:SHOWN_REMAINING], *report.notes):
        print_problem(line)
    if len(report.remaining) > SHOWN_REMAINING:
        more = count(len(report.remaining) - SHOWN_REMAINING, "more record")
        print_problem(f"{more} cannot be applied (--json names them); --drop-failing removes all of them")
    if len(report.newer) > SHOWN_REMAINING:
        print_problem(f"{count(len(report.newer) - SHOWN_REMAINING, 'more record')} of a newer release")
    end = f"{offsets_text(report.start_offset, report.end.offset)}, epoch {report.end.epoch}"
    snapshots = count(len(report.kept_snapshots), "snapshot")
    if target is None:
        click.echo(f"would write {end}, {snapshots}; nothing was written")
    else:
        click.echo(f"wrote {target}: {end}, {snapshots}")
        click.echo(
            "every controller needs this log: repair each controller's directory in the same way, or "
            f"create new ones with metaquorum log salvage {shlex.quote(str(target))}"
        )
        click.echo("remove __cluster_metadata-0 from every broker: it is the old log")


def _json(report: RepairReport, changes: list[EntityChange], target: str | None) -> dict[str, Any]:
    return {
        "target": target,
        "startOffset": report.start_offset,
        "endOffset": report.end.offset,
        "leaderEpoch": report.end.epoch,
        "changed": report.changed,
        "changes": [
            {"kind": one.kind, "offset": one.offset, "endOffset": one.end_offset, "text": one.text}
            for one in report.changes
        ],
        "snapshots": [{"offset": one.offset, "epoch": one.epoch} for one in report.kept_snapshots],
        "remaining": report.remaining,
        "newer": report.newer,
        "notes": report.notes,
        "state": [change_json(one) for one in changes],
    }
