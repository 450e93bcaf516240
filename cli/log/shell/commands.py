"""`metaquorum log shell`, and the commands typed there: they move through the log, show the state here, or
tell of the past."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Iterable, Iterator

import click

from metaquorum.cli.errors import EXIT_FAILED, as_failure, print_problem
from metaquorum.cli.log.input.live import REFRESH, LiveCommand
from metaquorum.cli.log.input.options import PATH, POINT, Complaints, past_corruption_option, unknown_lines
from metaquorum.cli.log.input.source import open_path
from metaquorum.cli.log.shell.session import ShellCommand, ShellError, ShellSession
from metaquorum.cli.log.time_text import (
    bounded,
    change_line,
    fields_text,
    limit_lines,
    record_line,
    record_text,
    step_head,
    value_text,
)
from metaquorum.cli.log.why import explanation_lines
from metaquorum.cli.text.output import secrets_option, utc_text
from metaquorum.lines import printable
from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.checks.predicate import PredicateError, Verdict, compile_predicate
from metaquorum.metadata.inspect.checks.predicate_names import Subject
from metaquorum.metadata.inspect.entities.diff import ChangeCause, all_touched, changes_between, diff_points
from metaquorum.metadata.inspect.entities.history import Span, history
from metaquorum.metadata.inspect.entities.targets import EntityTarget, parse_target
from metaquorum.metadata.inspect.entities.views import (
    EVERYTHING,
    Fields,
    Wanted,
    aliases,
    entities_below,
    entities_of,
)
from metaquorum.metadata.inspect.log.entities import is_below
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event import at_least
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.timeline.story import Seen, events
from metaquorum.metadata.inspect.walk.states import FoundState, WalkStep, settle, state_at, steps
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.metadata.text.cause_text import brief_text
from metaquorum.platforms import line_editor

StepTest = Callable[[WalkStep], bool]


def at(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints where the session is, or moves to a place."""
    if len(arguments) > 1:
        raise ShellError("at needs one position; write at 4321, at 2026-11-21T03:07:57Z, at start, or at end")
    if arguments:
        found = session.cursor.seek(session.point(arguments[0]))
        yield from found.notes
        yield from limit_lines(found)
    yield where(session)


def refresh(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Fetches what a running quorum committed since. The session keeps its place."""
    if arguments:
        raise ShellError("refresh takes no arguments")
    if session.refresh is None:
        raise ShellError(
            "refresh is only for --bootstrap: files are always read up to date; at end goes to their end"
        )
    yield session.refresh()


def where(session: ShellSession) -> str:
    """The place and the state there, in one line."""
    cursor = session.cursor
    image, quorum = cursor.image, cursor.quorum
    leader = (
        f"controller {quorum.leader_id} leads epoch {quorum.epoch}" if quorum.is_known else "leader unknown"
    )
    time = utc_text(cursor.time_ms) if cursor.time_ms >= 0 else "before the first record"
    transaction = "" if cursor.found.state.transaction is None else "  inside a metadata transaction"
    holds = (
        count(len(image.brokers), "broker"),
        count(len(image.topics), "topic"),
        count(image.topics.partition_count, "partition"),
    )
    return f"offset {cursor.offset}  {time}  {leader}  {'  '.join(holds)}{transaction}"


def forward(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Moves behind the next batch that has content, or that is about an entity."""
    count, wanted, what = _asked(session, arguments)
    for _ in range(count):
        idle = 0
        while (step := session.cursor.next()) is not None and not wanted(step):
            idle += 1
        if idle:
            yield f"({what} passed: {idle})"
        if step is None:
            yield f"the log ends at offset {session.cursor.offset}"
            return
        yield from step_lines(step)


def single(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Moves one batch forward, whatever its content."""
    for _ in range(_count(arguments)):
        step = session.cursor.next()
        if step is None:
            yield f"the log ends at offset {session.cursor.offset}"
            return
        yield from step_lines(step)


def backward(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Moves before the last batch that has content, or that is about an entity."""
    count, wanted, what = _asked(session, arguments)
    for _ in range(count):
        idle = 0
        while (step := session.cursor.previous()) is not None and not wanted(step):
            idle += 1
        if idle:
            yield f"({what} passed: {idle})"
        if step is None:
            yield f"the log begins at offset {session.cursor.offset}"
            return
        yield "taken back: " + next(lines := step_lines(step))
        yield from lines


def until(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Moves behind the first batch after which an expression is true."""
    if not arguments:
        raise ShellError("until needs an expression, such as: until leaderless() > 0")
    try:
        predicate = compile_predicate(arguments[0])

        def holds(step: WalkStep) -> bool:
            place = Subject(image=step.after, quorum=step.quorum_after)
            return predicate.verdict(place) is Verdict.TRUE

        step = session.cursor.search(holds)
    except PredicateError as error:
        raise ShellError(str(error)) from None
    if step is None:
        raise ShellError(
            f"it is never true after offset {session.cursor.offset}; to search from the start, write at "
            "start first"
        )
    yield from step_lines(step)


def step_lines(step: WalkStep) -> Iterator[str]:
    """A batch: its head, its records, what they changed, and their problems."""
    yield step_head(step)
    yield from bounded((record_line(one) for one in step.records), "records (records shows them)")
    changes = changes_between(step.before, step.after, quorums=(step.quorum_before, step.quorum_after))
    yield from bounded((f"  {change_line(one)}" for one in changes), "changes (diff shows them)")
    yield from (f"  ! {problem}" for problem in step.problems)


def says_something(step: WalkStep) -> bool:
    """False for a batch of NoOpRecords, of which an idle controller writes two per second."""
    return not all(isinstance(one.record, NoOpRecord) for one in step.records)


def about(entity: str) -> StepTest:
    """A predicate: whether a batch has a record about an entity or a part of it."""

    def wanted(step: WalkStep) -> bool:
        return any(is_below(name, entity) for path, _ in all_touched(step) for name in aliases(path))

    return wanted


def _asked(session: ShellSession, arguments: list[str]) -> tuple[int, StepTest, str]:
    """The number of moves, the batches to stop at, and a name for the others."""
    entities = [one for one in arguments if not _is_count(one)]
    if len(entities) > 1:
        raise ShellError("give one entity, such as: next topic/orders/7")
    count = _count([one for one in arguments if _is_count(one)])
    if entities:
        entity = session.named(entities[0])
        return count, about(entity), f"batches not about {entity}"
    return count, says_something, "idle batches"


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _count(arguments: list[str]) -> int:
    if not arguments:
        return 1
    if len(arguments) > 1 or not _is_count(arguments[0]):
        raise ShellError(f"{' '.join(arguments)!r} is not a number of batches; write next, or next 5")
    return int(arguments[0])


_MOVING = (
    ShellCommand(
        name="at",
        usage="at [OFFSET|OFFSET+|TIME|start|end|+N|-N]",
        help=(
            "print the current position; go to the state before an offset, after its record (4321+), or "
            "at a time"
        ),
        handler=at,
    ),
    ShellCommand(
        name="next",
        usage="next [N] [ENTITY]",
        help="go to after the next batch that changes something (or is about ENTITY), and show it",
        handler=forward,
        paths=True,
    ),
    ShellCommand(
        name="step", usage="step [N]", help="go to after the next batch, even an idle one", handler=single
    ),
    ShellCommand(
        name="prev",
        usage="prev [N] [ENTITY]",
        help="go back to before the last batch that changed something (or is about ENTITY)",
        handler=backward,
        paths=True,
    ),
    ShellCommand(
        name="refresh",
        usage="refresh",
        help="with --bootstrap: fetch newly committed records; at end goes to them",
        handler=refresh,
    ),
    ShellCommand(
        name="until",
        usage="until EXPRESSION",
        help="continue until a Python expression about the state is true: until leaderless() > 0",
        handler=until,
        raw=True,
    ),
)


def ls(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Lists names below a path, with a slash for those that have something below them."""
    path = session.path(_one(arguments, "ls [PATH]"))
    places = session.places
    for name in places.children(path):
        inner = f"{path}/{name}" if path else name
        yield f"{name}/" if places.children(inner) else name


def cd(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Changes to a path; without one, to the root."""
    text = _one(arguments, "cd [PATH]")
    path = "" if text is None else session.path(text)
    if path and not session.places.children(path):
        raise ShellError(f"{path} has nothing below it; use cat {path}")
    session.here = path
    return iter(())


def pwd(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints the current path."""
    yield f"/{session.here}"


def cat(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints one entity field by field, or the value of one field."""
    text = _one(arguments, "cat PATH")
    places = session.places
    try:
        path = session.path(text)
    except ShellError:
        path, _, name = session.named(text or "").rpartition("/")
        fields = places.fields(path)
        if fields is None or name not in fields:
            raise
        yield value_text(fields[name])
        return
    fields = places.fields(path)
    if fields is not None:
        width = max((len(name) for name in fields), default=0)
        yield from (f"{name.ljust(width)}  {value_text(value)}" for name, value in fields.items())
    elif path in ("", "config"):
        raise ShellError(f"/{path} is a directory; use ls {path} or tree {path}")
    for name in places.children(path):
        inner = places.fields(f"{path}/{name}")
        if inner is not None:
            yield f"{name}: {fields_text(inner)}"


def tree(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Prints every entity at and below a path, one per line."""
    path = session.path(_one(arguments, "tree [PATH]"))
    for entity, fields in _below(session, path):
        yield f"{entity}: {fields_text(fields)}"


def find(session: ShellSession, arguments: list[str]) -> Iterator[str]:
    """Finds entities by name and by the values of their fields."""
    if not arguments:
        raise ShellError("find needs a pattern, such as: find orders, find 'topic/*/0', find topic leader=-1")
    conditions = [one for one in arguments if "=" in one and "/" not in one.partition("=")[0]]
    patterns = [one.lstrip("/") for one in arguments if one not in conditions]
    wanted = [_condition(one) for one in conditions]
    for entity in entities_of(session.cursor.image, session.cursor.quorum):
        if all(_matches(entity, pattern) for pattern in patterns):
            fields = session.places.fields(entity) or {}
            if all(name in fields and value_text(fields[name]) == value for name, value in wanted):
                shown = {name: fields[name] for name, _ in wanted}
                yield f"{entity}  {fields_text(shown)}".rstrip()


def _condition(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _matches(entity: str, pattern: str) -> bool:
    """A pattern with wildcards matches the whole path, a plain text any part of it."""
    if any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatchcase(entity, pattern)
    return pattern in entity


def _below(session: ShellSession, path: str) -> Iterator[tuple[str, Fields]]:
    image, quorum = session.cursor.image, session.cursor.quorum
    wanted = Wanted(path) if path else EVERYTHING
    for entity, fields in entities_below(image, wanted, quorum):
        if not path or entity == path or entity.startswith(path + "/"):
            yield entity, fields


def _one(arguments: list[str], usage: str) -> str | None:
    if len(arguments) > 1:
        raise ShellError(f"{' '.join(arguments)!r} is one argument too many; write {usage}")
    return arguments[0] if arguments else None


_SHOWING = (
    ShellCommand(
        name="ls", usage="ls [PATH]", help="list what is below a path of the state", handler=ls, paths=True
    ),
    ShellCommand(
        name="cd", usage="cd [PATH]", help="go to a path; .. is one up, / the root", handler=cd, paths=True
    ),
    ShellCommand(name="pwd", usage="pwd", help="print the current path", handler=pwd),
    ShellCommand(
        name="cat", usage="cat PATH", help="show an entity, or one field of it", handler=cat, paths=True
    ),
    ShellCommand(
        name="tree",
        usage="tree [PATH]",
        help="show every entity at and below a path",
        handler=tree,
        paths=True,
    ),
    ShellCommand(
        name="find",
        usage="find PATTERN... [FIELD=VALUE]...",
        help="entities by name ('topic/*/0') and by field: find topic leader=-1",
        handler=find,
        paths=True,
    ),
)


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


_PAST = (
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

COMMANDS = (*_MOVING, *_SHOWING, *_PAST)


HISTORY_MAX = 1000
"""Lines that the editor remembers, in memory only."""


def run_lines(session: ShellSession, lines: Iterable[str]) -> int:
    """Runs commands one after another, without a prompt. Returns 1 if any failed."""
    code = 0
    for line in lines:
        if not _run(session, line):
            code = EXIT_FAILED
        if session.ended:
            break
    return code


def run_interactive(session: ShellSession) -> int:
    """Prompts for commands until exit or Ctrl-D. Ctrl-C ends a command, not the shell."""
    _Editor(session).install()
    while not session.ended:
        try:
            line = input(session.prompt)
        except EOFError:
            click.echo()
            break
        except KeyboardInterrupt:
            click.echo("^C")
            continue
        try:
            _run(session, line)
        except KeyboardInterrupt:
            click.echo("\ninterrupted; this is still offset " + str(session.cursor.offset))
    return 0


def _run(session: ShellSession, line: str) -> bool:
    """Runs one command. False: it failed, after one line with the reason."""
    try:
        for answer in session.execute(line):
            click.echo(printable(answer))
    except ShellError as error:
        print_problem(error)
        return False
    except BrokenPipeError:
        raise
    except Exception as error:
        failure = as_failure(error)
        if failure is None:
            raise
        print_problem(failure.format_message())
        return False
    return True


class _Editor:
    """Completion in the standard line editor, if there is one."""

    def __init__(self, session: ShellSession) -> None:
        self._session = session
        self._completions: list[str] = []

    def install(self) -> None:
        self._readline = readline = line_editor()
        if readline is None:
            return  # lines can still be typed
        readline.set_completer(self._complete)
        readline.set_completer_delims(" \t")
        readline.set_history_length(HISTORY_MAX)
        readline.parse_and_bind("set show-all-if-ambiguous on")

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            line = self._readline.get_line_buffer()[: self._readline.get_endidx()]
            try:
                self._completions = self._session.complete(line, word)
            except Exception:  # an error in completion must not end the line being typed
                self._completions = []
        return self._completions[state] if state < len(self._completions) else None


def is_interactive() -> bool:
    """Whether standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@click.command("shell", cls=LiveCommand)
@click.argument("path", type=PATH)
@click.option(
    "--at",
    "point",
    type=POINT,
    default=None,
    help="Start at this offset, after this record (4321+), or at this time. Default: the end.",
)
@click.option(
    "--command",
    "-c",
    "lines",
    metavar="COMMAND",
    multiple=True,
    help="Run this command instead of prompting; may be repeated.",
)
@past_corruption_option
@secrets_option
def shell(path: str, point: Point | None, lines: tuple[str, ...], past_corruption: bool) -> int:
    """Step through a log with commands. `help` lists them: at, next, prev, until, ls, cat, find, diff, why...

    Without a terminal, reads commands from standard input, one per line.
    """
    session = ShellSession(
        open_path(path),
        COMMANDS,
        Complaints(),
        point=point or END,
        past_corruption=past_corruption,
        refresh=click.get_current_context().meta.get(REFRESH),
    )
    if lines:
        return run_lines(session, lines)
    if not is_interactive():
        return run_lines(session, sys.stdin)
    click.echo(f"{session.log.name}\n{where(session)}\nhelp lists the commands, Ctrl-D ends")
    return run_interactive(session)
