"""The shell's commands that move through the log: at, next, step, prev, until."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from metaquorum.cli.log.shell.session import ShellCommand, ShellError, ShellSession
from metaquorum.cli.log.shell.text import bounded, change_line, limit_lines, record_line, step_head
from metaquorum.cli.text.output import utc_text
from metaquorum.metadata.inspect.checks.predicate import PredicateError, Verdict, compile_predicate
from metaquorum.metadata.inspect.checks.predicate_names import Subject
from metaquorum.metadata.inspect.entities.diff import all_touched, changes_between
from metaquorum.metadata.inspect.entities.views import aliases
from metaquorum.metadata.inspect.log.entities import is_below
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.walk.states import WalkStep
from metaquorum.metadata.records.types import NoOpRecord

Wanted = Callable[[WalkStep], bool]


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


def about(entity: str) -> Wanted:
    """A predicate: whether a batch has a record about an entity or a part of it."""

    def wanted(step: WalkStep) -> bool:
        return any(is_below(name, entity) for path, _ in all_touched(step) for name in aliases(path))

    return wanted


def _asked(session: ShellSession, arguments: list[str]) -> tuple[int, Wanted, str]:
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


COMMANDS = (
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
