"""The shell's commands about the past: diff, why, history, records, timeline; and help and exit."""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.cli.log.input.options import unknown_lines
from metaquorum.cli.log.shell.moving import about
from metaquorum.cli.log.shell.session import ShellCommand, ShellError, ShellSession
from metaquorum.cli.log.shell.text import change_line, limit_lines, record_line, step_head
from metaquorum.cli.log.time_text import fields_text, record_text
from metaquorum.cli.log.why import explanation_lines
from metaquorum.cli.text.output import utc_text
from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.entities.diff import ChangeCause, diff_points
from metaquorum.metadata.inspect.entities.history import Span, history
from metaquorum.metadata.inspect.entities.targets import EntityTarget, parse_target
from metaquorum.metadata.inspect.entities.views import EVERYTHING, Wanted
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event import at_least
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.timeline.story import Seen, events
from metaquorum.metadata.inspect.walk.states import FoundState, WalkStep, settle, state_at, steps
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.text.cause_text import brief_text


def diff(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the differences between two places: the given ones, one and here, or before
    and after the last batch."""
    points, entity = _points_and_entity(session, arguments, "diff [A [B]] [ENTITY]")
    cursor = session.cursor
    here = cursor.found
    if not points:
        if cursor.last is None:
            raise ShellError("after next, diff shows what that batch changed; or name a position: diff 4321")
        old = FoundState(state=cursor.last.state_before, quorum=cursor.last.quorum_before)
        new = here
    else:
        old = _state(session, points[0])
        new = here if len(points) == 1 else _state(session, points[1])
    changes = diff_points(session.log, old, new, EVERYTHING if entity is None else Wanted(entity))
    yield from limit_lines(*(one for one in (old, new) if one is not here))
    differ = count(len(changes), "change") if changes else "no changes"
    yield f"from offset {old.end_offset} to {new.end_offset}: {differ}"
    yield from (change_line(change) for change in changes)


def _state(session: ShellSession, point: Point) -> FoundState:
    return state_at(session.log, point, past_corruption=session.past_corruption)


def _shown_as(session: ShellSession, points: list[Point]) -> Iterator[str]:
    """Lines about places that are shown as others."""
    yield from (shown.text for point in points if (shown := settle(session.log, point)[1]) is not None)


def show_history(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the states of an entity, or the values of one field, with their
    ranges in the log, up to here."""
    if len(arguments) != 1:
        raise ShellError("history needs one entity or field, such as: history topic/orders/7.leader")
    target = _target(session, arguments[0])
    wanted, end = Wanted(target.entity, target.field), Point(offset=session.cursor.offset)
    rows = history(session.log, wanted, None, end, past_corruption=session.past_corruption)
    any_row = False
    for span in rows:
        any_row = True
        yield _span_line(span)
    if not any_row:
        raise ShellError(f"there was no {target} before offset {session.cursor.offset}")


def _span_line(span: Span) -> str:
    until = "now" if span.to_offset is None else str(span.to_offset)
    cause = "" if span.cause is None else _caused(span.cause)
    since = utc_text(span.from_ms) if span.from_ms >= 0 else "the beginning"
    return f"{span.from_offset:>8} .. {until:<8}  {since}  {span.entity}  {fields_text(span.fields)}{cause}"


def _caused(cause: ChangeCause) -> str:
    return f"  (by {record_text(cause)})"


def why(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the records that put an entity, or one field of it, into its state here, with their causes."""
    if len(arguments) != 1:
        raise ShellError("why needs one entity or field, such as: why topic/orders/7.leader")
    target = _target(session, arguments[0])
    point = END if session.log.is_checkpoint else Point(offset=session.cursor.offset)
    found = explain(session.log, target, point, session.on_problem, past_corruption=session.past_corruption)
    yield from explanation_lines(found, found.links)
    yield from unknown_lines(found.unknown)


def _target(session: ShellSession, text: str) -> EntityTarget:
    """An entity named from here, and its field. Raises ShellError."""
    path = session.named(text)
    entity, dot, name = text.rpartition(".")
    if dot and "/" not in name and not session.places.fields(path):
        above = session.named(entity)
        if session.places.fields(above) is not None:
            path = f"{above}.{name}"
    try:
        return parse_target(path)
    except ValueError as error:
        raise ShellError(str(error)) from None


def records(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the records of the last batch, or those between two places."""
    points, entity = _points_and_entity(session, arguments, "records [A [B]] [ENTITY]")
    if not points and entity is None:
        if session.cursor.last is None:
            raise ShellError("after next, records shows that batch; or name a position: records 100 120")
        yield from _step_records(session.cursor.last, None)
        return
    start = points[0] if points else None
    end = points[1] if len(points) == 2 else Point(offset=session.cursor.offset)
    yield from _shown_as(session, points)
    for step in steps(session.log, start, end, past_corruption=session.past_corruption):
        yield from _step_records(step, entity)


def _step_records(step: WalkStep, entity: str | None) -> Iterator[str]:
    if entity is None or about(entity)(step):
        yield step_head(step)
        yield from (record_line(decoded) for decoded in step.records)
        yield from (f"  ! {problem}" for problem in step.problems)


def timeline(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the events from one place (default: the start) to another (default: here)."""
    severity = next((one for one in arguments if one in SEVERITIES), "info")
    rest = [one for one in arguments if one not in SEVERITIES]
    points, entity = _points_and_entity(session, rest, "timeline [A [B]] [ENTITY] [SEVERITY]")
    start = points[0] if points else None
    end = points[1] if len(points) == 2 else Point(offset=session.cursor.offset)
    seen = Seen()
    for event in events(
        session.log, session.on_problem, start=start, end=end, seen=seen, shown=at_least(severity)
    ):
        if entity is None or event.is_about(entity):
            asked = "" if event.asked is None else f"  ({brief_text(event.asked)})"
            yield f"{event.offset:>8}  {utc_text(event.time_ms)}  {event.kind:<24} {event.text}{asked}"
    yield from (shown.text for shown in seen.limits.shown)
    yield from (f"not covered: {one.line}" for one in seen.limits.coverage)
    yield from unknown_lines(seen.limits.unknown)


def show_help(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints help on all commands or on one."""
    for name in arguments:
        if name not in session.commands:
            raise ShellError(f"there is no command {name}; try help")
    names = arguments or list(session.commands)
    width = max(len(session.commands[name].usage) for name in names)
    for name in names:
        command = session.commands[name]
        yield f"{command.usage.ljust(width)}  {command.help}"
    if not arguments:
        yield ""
        yield "PATH and ENTITY are topic/orders/7, broker/3, config/topic/orders...; A and B are offsets,"
        yield "4321+ (after that record), times (2026-11-21T03:07:57Z), start, end, here, +N or -N. A place"
        yield "inside a batch is shown as of its start. Commands may be shortened to any prefix."


def leave(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Ends the session."""
    session.ended = True
    return iter(())


def _points_and_entity(
    session: ShellSession, arguments: list[str], usage: str
) -> tuple[list[Point], str | None]:
    """Up to two places, then at most one entity."""
    points: list[Point] = []
    rest = list(arguments)
    while rest and len(points) < 2 and session.is_point(rest[0]):
        points.append(session.point(rest.pop(0)))
    if len(rest) > 1:
        raise ShellError(f"{' '.join(rest)!r} is one argument too many; write {usage}")
    return points, session.named(rest[0]) if rest else None


COMMANDS = (
    ShellCommand(
        name="diff",
        usage="diff [A [B]] [ENTITY]",
        help="what the last batch changed; or the difference between A and here, or A and B",
        handler=diff,
        paths=True,
    ),
    ShellCommand(
        name="why",
        usage="why ENTITY[.FIELD]",
        help="the records behind its current state, and their causes",
        handler=why,
        paths=True,
    ),
    ShellCommand(
        name="history",
        usage="history ENTITY[.FIELD]",
        help="the states of an entity or of one field, with their offsets, up to here",
        handler=show_history,
        paths=True,
    ),
    ShellCommand(
        name="records",
        usage="records [A [B]] [ENTITY]",
        help="the records of the last batch, or those from A to B (or here)",
        handler=records,
        paths=True,
    ),
    ShellCommand(
        name="timeline",
        usage="timeline [A [B]] [ENTITY] [SEVERITY]",
        help="what happened up to here; SEVERITY is detail, info, warning or critical",
        handler=timeline,
        paths=True,
    ),
    ShellCommand(name="help", usage="help [COMMAND]", help="this list", handler=show_help),
    ShellCommand(name="exit", usage="exit", help="end the session (also quit, Ctrl-D)", handler=leave),
    ShellCommand(name="quit", usage="quit", help="the same", handler=leave),
)
