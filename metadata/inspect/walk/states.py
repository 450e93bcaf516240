"""The state at any place of a log, and the walk from one place to another, batch by batch.

Where to begin: the nearest whole snapshot. Memory is that of an image: batches are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.inspect.log.clock import clock_of, on_clock
from metaquorum.metadata.inspect.log.coverage import (
    TRANSACTION,
    Coverage,
    ShownAs,
    behind_batch,
    inside_batch,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point, parse_point, utc_text
from metaquorum.metadata.inspect.log.quorum import quorum_at
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.metadata.inspect.walk.log_replay import LogReplay, Notes, OnProblem
from metaquorum.metadata.inspect.walk.steps import SHOWN_PROBLEMS, FoundState, LogPart, Passed, WalkStep
from metaquorum.metadata.replay import ReplayState

__all__ = [
    "END",
    "SHOWN_PROBLEMS",
    "FoundState",
    "LogPart",
    "OnProblem",
    "Passed",
    "Point",
    "WalkStep",
    "earliest",
    "inside_transaction",
    "known_state",
    "nothing_known",
    "parse_point",
    "quorum_state_at",
    "settle",
    "state_at",
    "states_along",
    "steps",
    "steps_about",
    "steps_alone",
    "steps_from",
    "with_quorum",
]


def state_at(
    log: MetadataLog,
    point: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
    coverage: Coverage | None = None,
) -> FoundState:
    """The state at `point`: the newest whole snapshot that is not past it, plus the batches after it.

    A batch is applied whole or not at all, so the state may end slightly before an offset inside a batch. If
    records are missing (a corrupt batch, a gap between segments), the state is the one before them and
    `stopped` says why; with `past_corruption`, replay continues after them. Raises InspectError if the place
    is outside the log and its snapshots.
    """
    if log.is_checkpoint:
        return _checkpoint(log, point, on_problem)
    place, shown = settle(log, point)
    walk = _begin(log, place, Notes(on_problem, coverage), past_corruption)
    walk.run_to(place)
    found = walk.finish(place)
    found.shown = inside_transaction(found.state) or shown
    return found


def states_along(log: MetadataLog, start: FoundState, offsets: Iterable[int]) -> Iterator[FoundState]:
    """The states at ascending offsets, replayed in one pass from an earlier state of the same log, which is
    not changed. Continues past missing records, which the states then list. Raises InspectError for an
    offset past the log's end."""
    begun = FoundState(state=start.state, snapshot=start.snapshot, quorum=start.quorum)
    walk = LogReplay(log, begun, Notes(None), past_corruption=True)
    for offset in offsets:
        walk.run_to(Point(offset=offset))
        reached = walk.finish(Point(offset=offset))
        coverage = Coverage(list(reached.coverage))
        yield replace(reached, problems=list(reached.problems), coverage=coverage)


def quorum_state_at(
    log: MetadataLog,
    point: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool,
) -> FoundState:
    """As `state_at`, for questions about the quorum alone. An election needs no state before it, so a place
    before a trimmed log's oldest snapshot also has an answer, with an empty image."""
    settled, shown = (point, None) if log.is_checkpoint else settle(log, point)
    offset = settled.offset
    if settled.time_ms is not None and log.start_offset and not log.is_checkpoint:
        offset = clock_of(log).place(settled.time_ms)[0].offset
    known = known_from(log)
    if settled.is_end and known is None:
        offset = log.end_offset
    is_before = offset is not None and log.start_offset <= offset and (known is None or offset < known)
    if offset is not None and is_before and offset <= log.end_offset:
        state = nothing_known(offset)
        state.shown = shown
    else:
        state = state_at(log, point, on_problem, past_corruption=past_corruption)
    return with_quorum(log, state)


def with_quorum(log: MetadataLog, state: FoundState) -> FoundState:
    """`state` with the newest election below it: the snapshot that the state started from
    has none, the log may."""
    knows_voters = state.snapshot is not None or state.quorum.has_leader or log.start_offset == 0
    state.quorum = quorum_at(log, state.end_offset, state.quorum if knows_voters else None)
    return state


def settle(log: MetadataLog, point: Point, *, first: bool = False) -> tuple[Point, ShownAs | None]:
    """A place as it can be shown, at the end of a batch, and what to report if that is not what was
    requested. A time stays a time unless the log's clock jumps (see `clock`): then it becomes the offset
    after the last batch that is not later or, with `first`, before the first one that is not earlier.

    Raises InspectError for `N+` if the log has no record N, and for a time before a clock that jumps.
    """
    if not log.is_checkpoint and point.time_ms is not None:
        return _settle_time(log, point, point.time_ms, first)
    if log.is_checkpoint or point.offset is None:
        return point, None
    if point.after:
        return Point(offset=_behind_transaction(log, behind_batch(log, point))), None
    shown = inside_batch(log, point)
    return (point if shown is None else Point(offset=shown.offset)), shown


def _settle_time(log: MetadataLog, point: Point, time_ms: int, first: bool) -> tuple[Point, ShownAs | None]:
    clock = clock_of(log)
    if clock.is_steady or clock.first_ms is None:
        return point, None
    if time_ms < clock.first_ms and not first:
        raise InspectError(
            f"{log.name} begins at {utc_text(clock.first_ms)}, after {utc_text(time_ms)}; give a later time,"
            f" or an offset from {log.start_offset} on"
        )
    return clock.place(time_ms, first=first)


def inside_transaction(state: ReplayState) -> ShownAs | None:
    """What is shown for a state inside a metadata transaction; None for any other state."""
    if state.transaction is None:
        return None
    first = state.transaction.begin_offset
    return ShownAs(asked=state.end_offset, offset=first, atomic=TRANSACTION, first=first)


def _behind_transaction(log: MetadataLog, end_offset: int) -> int:
    """`end_offset` or, if a transaction is open there, the end of the transaction, so that
    its effect is visible."""
    known = known_from(log)
    if known is None or end_offset < known:
        return end_offset  # the state is unknown there
    found = state_at(log, Point(offset=end_offset), past_corruption=True)
    if found.state.transaction is None:
        return end_offset
    for step in steps_from(log, found, past_corruption=True):
        end_offset = step.next_offset
        if step.state_after.transaction is None:
            break
    return end_offset


def steps(
    log: MetadataLog,
    start: Point | None = None,
    end: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
) -> Iterator[WalkStep]:
    """Every batch from `start` to `end` with the images before and after it.

    `start` None is the earliest place that the log and its snapshots reach. A batch that contains `start` is
    the first one; one that contains `end` is left out. A checkpoint yields its own batches, with its own
    offsets. Stops at missing records as `state_at` does, after calling `on_problem`. Raises InspectError as
    `state_at` does.
    """
    notes = Notes(on_problem, None)
    if log.is_checkpoint:
        walk = LogReplay(log, FoundState(state=ReplayState()), notes, past_corruption)
        yield from (step for step in walk.steps(end) if isinstance(step, WalkStep))
        return
    start = earliest(log) if start is None else settle(log, start)[0]
    end = settle(log, end)[0]
    walk = _begin(log, start, notes, past_corruption)
    walk.run_to(start)
    walk.finish(start)
    yield from (step for step in walk.steps(end) if isinstance(step, WalkStep))


def steps_about(
    log: MetadataLog,
    state: FoundState,
    batch_filter: BatchFilter | None,
    end: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
    coverage: Coverage | None = None,
) -> Iterator[WalkStep | Passed]:
    """As `steps_from`, but batches that `batch_filter` does not need are applied in columns, many at a time.
    The next step after them has the state after them as its `before`."""
    start = FoundState(state=state.state, snapshot=state.snapshot, quorum=state.quorum)
    yield from LogReplay(log, start, Notes(on_problem, coverage), past_corruption).steps(end, batch_filter)


def steps_from(
    log: MetadataLog,
    state: FoundState,
    end: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
) -> Iterator[WalkStep]:
    """As `steps`, from a known state of the same log; `state` is not changed."""
    for step in steps_about(log, state, None, end, on_problem, past_corruption=past_corruption):
        if isinstance(step, WalkStep):
            yield step


def known_state(log: MetadataLog, offset: int) -> FoundState:
    """The state in the snapshot that ends at `offset`, with its time as the log's clock has it."""
    found = state_at(log, Point(offset=offset), past_corruption=True)
    found.state = ReplayState(on_clock(log, found.image), found.state.transaction)
    return found


def nothing_known(offset: int) -> FoundState:
    """A place without a known state: what follows depends on its own records alone."""
    image = MetadataImage().with_provenance(Provenance(offset, -1, -1))
    return FoundState(state=ReplayState(image))


def steps_alone(
    log: MetadataLog, start: Point | None, end: Point, on_problem: OnProblem | None, coverage: Coverage
) -> tuple[FoundState, Iterator[WalkStep]]:
    """What records alone show, from the log's first one on, with no snapshot of the state before
    them: the state at `start` (None: at the first record) with only what the log has set, and the
    steps from there to `end`."""
    notes = Notes(on_problem, coverage)
    notes.is_alone = True
    walk = LogReplay(log, nothing_known(log.start_offset), notes, past_corruption=True)
    if start is not None:
        walk.run_to(start)
    found = FoundState(state=walk.engine.state(), quorum=walk.reached.quorum)
    return found, (step for step in walk.steps(end) if isinstance(step, WalkStep))


def earliest(log: MetadataLog) -> Point:
    """The first place whose state is known: 0, or the oldest snapshot that the log continues from."""
    known = known_from(log)
    return Point(offset=log.start_offset if known is None else known)


def _begin(log: MetadataLog, start: Point, notes: Notes, past_corruption: bool) -> LogReplay:
    """A walk that starts at the nearest snapshot before `start`, or at the log's beginning."""
    found = _nearest(log, start, notes)
    base = log.start_offset
    walk = LogReplay(log, found, notes, past_corruption)
    if walk.engine.end_offset >= base or start.offset == walk.engine.end_offset:
        return walk
    if not past_corruption:
        known_start = known_from(log)
        if known_start is not None:
            older = [at.offset for at in log.snapshots() if at.offset < (start.offset or 0)]
            hint = f"{known_start} or later" + (f", or {older[-1]}, where a snapshot ends" if older else "")
            raise InspectError(
                f"{log.name} begins at offset {base}, and its oldest complete snapshot ends at {known_start}:"
                f" no earlier state is known; give {hint} (for what the records alone say about earlier"
                " places: log timeline, log why, log dump)"
            )
        raise InspectError(
            f"{log.name} begins at offset {base}, and no snapshot beside it reaches that offset; give a "
            "directory that has one, use --past-corruption, or use what the records alone say (log "
            "timeline, log why, log dump)"
        )
    notes.add(f"{log.name} begins at offset {base}: nothing earlier is known")
    walk.begin_at(base)
    return walk


def _nearest(log: MetadataLog, point: Point, notes: Notes) -> FoundState:
    """The state of the newest whole snapshot between the log's start and the point, or the empty state."""
    base = log.start_offset
    snapshots = log.snapshots()
    limit = point.offset
    if limit is None and snapshots and not log.is_directory:
        limit = log.end_offset
    for position in reversed(snapshots):
        if limit is not None and position.offset > limit:
            continue
        if position.offset < base and position.offset != point.offset:
            break
        snapshot = log.snapshot(position)
        if point.time_ms is not None and snapshot.snapshot_timestamp_ms() > point.time_ms:
            continue
        loaded = _checkpoint(snapshot, END, None)
        if loaded.problems and (base == 0 or position != snapshots[0]):
            notes.add(f"{snapshot.path} is incomplete; starting earlier: {loaded.problems[0]}")
            continue
        for line in loaded.problems:
            notes.add(line)
        notes.unknown += loaded.unknown
        return FoundState(state=loaded.state, snapshot=loaded.snapshot, quorum=loaded.quorum)
    return FoundState(state=ReplayState())


def _checkpoint(log: MetadataLog, point: Point, on_problem: OnProblem | None) -> FoundState:
    """The state in a checkpoint file. The file name gives its place in the log."""
    if not point.is_end:
        raise InspectError(
            f"{log.path} is a single state, not a history; leave out --at, or give its directory"
        )
    notes = Notes(on_problem)
    walk = LogReplay(log, FoundState(state=ReplayState(), snapshot=log.path), notes, past_corruption=True)
    walk.run_to(END)
    state = walk.finish(END)
    position = log.snapshot_position()
    if position is not None:
        for broker_id in walk.engine.builder.brokers:
            walk.engine.builder.note_registration(broker_id, position.offset - 1)
        time_ms = -1 if walk.header is None else walk.header.last_contained_log_timestamp
        provenance = Provenance(position.offset, position.epoch, time_ms)
        state.state = ReplayState(walk.engine.state().image.with_provenance(provenance))
    state.quorum = state.quorum.without_leader()
    return state
