"""`metaquorum log state|diff|history`: the state at a place of a log, between two places, and over time."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
import msgspec

from metaquorum.cli.errors import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_UNKNOWN_RECORDS,
    Failure,
    log_exit_code,
    print_problem,
)
from metaquorum.cli.log.input.live import LiveCommand, words_to_read
from metaquorum.cli.log.input.options import (
    ENTITY,
    PATH,
    POINT,
    TARGET,
    Complaints,
    clear_progress,
    limits_json,
    past_corruption_option,
    report_limits,
    report_unknown,
    suggestion_from,
)
from metaquorum.cli.log.input.select import entity_path
from metaquorum.cli.log.input.source import MetadataLog, ReadBatch, open_path
from metaquorum.cli.log.time_text import change_text, entity_tables, span_text
from metaquorum.cli.text.output import (
    json_line,
    json_option,
    secrets_option,
    shows_secrets,
    table_options,
    table_width,
    write_line,
)
from metaquorum.metadata.inspect.answers import change_json, span_json
from metaquorum.metadata.inspect.entities.diff import diff_logs, diff_points
from metaquorum.metadata.inspect.entities.history import history as rows_of
from metaquorum.metadata.inspect.entities.targets import EntityTarget, suggestion
from metaquorum.metadata.inspect.entities.views import NO_QUORUM, Wanted, entities_below, resolved
from metaquorum.metadata.inspect.log.coverage import Limits, behind_the_log
from metaquorum.metadata.inspect.log.log import require_one_cluster
from metaquorum.metadata.inspect.log.points import Point, parse_point
from metaquorum.metadata.inspect.walk.states import FoundState, quorum_state_at, state_at
from metaquorum.metadata.records.types import TopicRecord
from metaquorum.metadata.text.tree import image_branch, image_json, image_tree, render_tree, topics_json
from metaquorum.storage.uuids import uuid_from_text

UUID_TEXT_LENGTH = 22
_PIECE_CHARACTERS = 1 << 16
"""Characters of a long line to write at once."""
_BY_ALIAS = ("user", "client-id", "ip", "client-metrics", "group", "migration", "transaction")
"""Kinds of paths that have other names in the tree."""


def _format_option(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option("--format", "form", type=click.Choice(names), help="Output format.")


@click.command(cls=LiveCommand)
@click.argument("path", type=PATH)
@click.argument("entity", required=False, type=ENTITY)
@click.option(
    "--at",
    type=POINT,
    metavar="OFFSET|OFFSET+|TIME",
    help="Show the state before this offset, after this record (4321+), or at this time.",
)
@click.option("--below", type=ENTITY, hidden=True, help="The same as ENTITY.")
@secrets_option
@_format_option("tree", "table", "json")
@table_options
@past_corruption_option
def state(
    path: str,
    entity: str | None,
    at: Point | None,
    below: str | None,
    form: str | None,
    as_json: bool,
    past_corruption: bool,
) -> int:
    """Show the state that a log builds, or only ENTITY. Examples: broker/3, topic/orders/7, quorum.

    The state is the nearest snapshot plus the records after it. A record batch is atomic: a place inside a
    batch is shown as of its start, and a line says so. Exit code 1: something is damaged. 3: some records
    have a type or version that this release does not know.
    """
    log = open_path(path)
    try:
        find = quorum_state_at if (entity or below) == "quorum" else state_at
        found_state = find(log, at or Point(), Complaints(), past_corruption=past_corruption)
        note_behind(log, found_state)
    finally:
        clear_progress(log)
    for line in found_state.notes:
        print_problem(line)
    if not found_state.problems or _holds(found_state, Wanted(None)):  # else the damage says it all
        report_limits(found_state.coverage, (found_state.shown,))
    _show_state(found_state, entity or below, "json" if as_json else form or "tree", shows_secrets())
    report_unknown(found_state.unknown)
    return exit_code(found_state)


def _show_state(state: FoundState, entity: str | None, form: str, secrets: bool) -> None:
    path = None if entity is None else resolved(entity, state.image)
    if form == "table":
        quorum = state.quorum if path == "quorum" else NO_QUORUM
        rows = list(entities_below(state.image, Wanted(path), quorum))
        _require(bool(rows) or path is None or "/" not in path, entity, state)
        for line in entity_tables(rows, table_width()):
            click.echo(line)
        return
    if form == "json" and path in (None, "topic"):
        pieces = (
            image_json(state.image, json_line, secrets=secrets)
            if path is None
            else topics_json(state.image, json_line)
        )
        _echo_pieces(_with_limits(pieces, limits_json(state.coverage, (state.shown,))))
        return
    branch = _branch(state, path, secrets)
    if form == "json":
        limits = limits_json(state.coverage, (state.shown,))
        click.echo(json_line({**branch, **limits} if isinstance(branch, dict) else branch))
    else:
        prefix = "" if _is_alias(path) else path or ""
        click.echo(render_tree(branch, prefix=prefix) if isinstance(branch, dict) else json_line(branch))


def _echo_pieces(pieces: Iterable[str]) -> None:
    """Writes a long line in pieces, as they are made."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE_CHARACTERS:
            click.echo("".join(waiting), nl=False)
            waiting, size = [], 0
    click.echo("".join(waiting))


def _with_limits(pieces: Iterable[str], limits: dict[str, Any]) -> Iterator[str]:
    """The pieces of a JSON object with more keys at its end."""
    last = ""
    for piece in pieces:
        yield last
        last = piece
    more = json_line(limits)[1:-1]
    comma = "," if more and last != "{}" else ""
    yield f"{last[:-1]}{comma}{more}}}"


def _branch(state: FoundState, path: str | None, secrets: bool) -> Any:
    if path is None:
        return image_tree(state.image, secrets=secrets)
    if path == "quorum":
        _require(state.quorum.is_known, path, state)
        return state.quorum.tree()
    if _is_alias(path):
        rows = dict(entities_below(state.image, Wanted(path), state.quorum))
        _require(bool(rows) or "/" not in path, path, state)
        return rows
    try:
        return image_branch(state.image, path, secrets=secrets)
    except KeyError as error:
        raise _absent(path, state) from error


def _is_alias(path: str | None) -> bool:
    return path is not None and path.partition("/")[0] in _BY_ALIAS


def _require(there: bool, entity: str | None, state: FoundState) -> None:
    if not there:
        raise _absent(entity or "", state)


def _absent(entity: str, state: FoundState) -> Failure:
    return Failure(f"no {entity} in the state at offset {state.end_offset}{suggestion(entity, state.image)}")


class _Side(msgspec.Struct, frozen=True):
    """One side of a comparison."""

    log: MetadataLog
    point: Point


@click.command(cls=LiveCommand)
@click.argument("places", nargs=-1, required=True, metavar="[PATH] A B [ENTITY]")
@secrets_option
@json_option
@click.option("--across-clusters", is_flag=True, help="Allow a comparison of two different clusters.")
@past_corruption_option
def diff(places: tuple[str, ...], as_json: bool, across_clusters: bool, past_corruption: bool) -> int:
    """Show what differs between A and B, and which record changed it.

    With PATH, A and B are offsets (4321+ is after that record) or times in that log; `end` is its end.
    Without PATH, A and B are two logs: directories, nodes, segments or checkpoints, alone or as LOG@OFFSET,
    LOG@OFFSET+ or LOG@TIME. Exit code 0: no difference. 10: a difference.
    """
    old, new, entity = _sides(places)
    complain = Complaints()
    same = old.log.path == new.log.path and not old.log.is_checkpoint
    if not across_clusters:
        require_one_cluster((old.log, new.log))
    try:
        before = state_at(old.log, old.point, complain, past_corruption=past_corruption)
        after = state_at(new.log, new.point, complain, past_corruption=past_corruption)
        note_behind(old.log, before)
        note_behind(new.log, after)
        wanted = Wanted(None if entity is None else resolved(resolved(entity, before.image), after.image))
        if same:
            changes = diff_points(old.log, before, after, wanted, complain)
        else:
            changes = diff_logs(old.log, before, new.log, after, wanted, past_corruption=past_corruption)
    finally:
        clear_progress(old.log)
        clear_progress(new.log)
    for line in (*before.notes, *after.notes):
        print_problem(line)
    coverage, shown = before.coverage, (before.shown, after.shown)
    coverage.extend(after.coverage)
    if not changes:
        nowhere = entity is not None and not (_holds(before, wanted) or _holds(after, wanted))
        if not as_json:
            what = f": neither holds {entity}{suggestion(entity or '', after.image)}" if nowhere else ""
            click.echo(f"no difference between offset {before.end_offset} and {after.end_offset}{what}")
        elif nowhere:
            hint = suggestion(entity or "", after.image)
            print_problem(f"neither state holds {entity}{hint}")
    for change in changes:
        _echo_all([json_line({"kind": "change", **change_json(change)})] if as_json else change_text(change))
    report_limits(coverage, shown, json_lines=as_json)
    report_unknown(max(before.unknown, after.unknown))
    if complain.count:
        return EXIT_FAILED
    return EXIT_DIFFERENT if changes else max(exit_code(before), exit_code(after))


def _holds(state: FoundState, wanted: Wanted) -> bool:
    return next(iter(entities_below(state.image, wanted, state.quorum)), None) is not None


def _sides(places: tuple[str, ...]) -> tuple[_Side, _Side, str | None]:
    """A, B and the entity. Raises UsageError for ambiguous arguments."""
    if len(places) >= 3 and os.path.exists(places[0]) and not os.path.exists(places[1]):
        point = _point(places[1])
        if point is not None:
            other = _point(places[2])
            if other is None:
                raise click.UsageError(
                    f"{places[2]!r} is neither an offset nor a time; write B in the same form as A"
                )
            log = open_path(places[0])
            return _Side(log, point), _Side(log, other), _entity(places[3:])
    if len(places) < 2:
        raise click.UsageError("give PATH A B, or two logs to compare")
    return _side(places[0]), _side(places[1]), _entity(places[2:])


def _entity(rest: tuple[str, ...]) -> str | None:
    if len(rest) > 1:
        raise click.UsageError(f"{rest[1]!r} is one argument too many; give [PATH] A B [ENTITY]")
    try:
        return entity_path(rest[0]) if rest else None
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _point(text: str) -> Point | None:
    try:
        return parse_point(text)
    except ValueError:
        return None


def _side(text: str) -> _Side:
    """Parses `LOG`, `LOG@OFFSET` or `LOG@TIME`."""
    position = text.find("@")
    while not os.path.exists(text) and position > 0:
        point = _point(text[position + 1 :])
        if point is not None and os.path.exists(text[:position]):
            return _Side(open_path(text[:position]), point)
        position = text.find("@", position + 1)
    return _Side(open_path(text), Point())


def _echo_all(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


@click.command(cls=LiveCommand)
@click.argument("path", type=PATH)
@click.argument("target", metavar="[ENTITY[.FIELD]]", required=False, type=TARGET)
@click.option(
    "--from",
    "start",
    type=POINT,
    metavar="OFFSET|OFFSET+|TIME",
    help="Start with the state at this position.",
)
@click.option("--to", "end", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Stop at this position.")
@secrets_option
@json_option
@past_corruption_option
def history(
    path: str,
    target: EntityTarget | None,
    start: Point | None,
    end: Point | None,
    as_json: bool,
    past_corruption: bool,
) -> int:
    """Show the states of ENTITY over time. One row spans a state, from the batch that created it to
    the batch that changed it.

    ENTITY may be a branch (topic/orders, broker): every entity below it then has its own rows. With a field
    (topic/orders/7.leader, broker/3.fenced), only changes of that field begin a row. Rows are sorted by
    their end; current states come last.
    """
    log = open_path(path)
    complain = Complaints()
    wanted = Wanted() if target is None else Wanted(_named(log, target.entity), target.field)
    shown = 0
    limits = Limits()
    try:
        for span in rows_of(
            log, wanted, start, end or Point(), complain, limits, past_corruption=past_corruption
        ):
            clear_progress(log)
            write_line(json_line({"kind": "state", **span_json(span)}) if as_json else span_text(span))
            shown += 1
    finally:
        clear_progress(log)
    report_limits(limits.coverage, limits.shown, json_lines=as_json)
    if not shown and not complain.count and target is not None and not limits.coverage:
        if start is not None or end is not None:
            raise Failure(f"{log.name} has no row for {target} between --from and --to; give other positions")
        listing = f"; list what it holds with: metaquorum log state {shlex.join(words_to_read((path,)))}"
        hint = suggestion_from(log, target.entity) or listing
        raise Failure(f"{log.name} never holds {target}{hint}")
    report_unknown(limits.unknown)
    return log_exit_code(
        damaged=bool(complain.count), uncovered=bool(limits.coverage), unknown=bool(limits.unknown)
    )


def _named(log: MetadataLog, entity: str) -> str:
    """A topic given by its id, by its name from the records of the log."""
    kind, _, rest = entity.partition("/")
    topic_id, slash, index = rest.partition("/")
    if kind != "topic" or len(topic_id) != UUID_TEXT_LENGTH:
        return entity
    namer = log.namer()
    for item in log.items():
        if isinstance(item, ReadBatch):
            for decoded in item.records:
                if isinstance(decoded.record, TopicRecord):
                    namer.entities(decoded.record)
    try:
        name = namer.topic_name(uuid_from_text(topic_id))
    except ValueError:  # a topic whose name is as long as an id
        return entity
    return f"topic/{name}{slash}{index}"


def note_behind(log: MetadataLog, state: FoundState) -> None:
    """Notes what is lost between a log's end and a later snapshot, if the state comes from that."""
    if state.snapshot is not None and any(one.offset == state.end_offset for one in log.snapshots()):
        state.coverage.add(behind_the_log(log, Point(offset=state.end_offset)))


def exit_code(state: FoundState) -> int:
    """1 for damage or omissions, 3 for records that this release does not know, 0 otherwise."""
    if state.problems:
        return EXIT_FAILED
    return EXIT_UNKNOWN_RECORDS if state.unknown else 0
