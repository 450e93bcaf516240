"""The life of an entity as rows: what it was from one place of the log to another.

Owns the intervals. A row holds from the batch that made it so (for a metadata transaction, from its end on)
to the batch that made it different. Knows no terminal. Memory is that of an image and of the open rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from metadata.inspect.concern import Concern
from metadata.inspect.diff import Cause, all_touched
from metadata.inspect.log import InspectError, MetadataLog
from metadata.inspect.points import END, Point
from metadata.inspect.states import FoundState, OnProblem, Passed, Step, earliest, state_at, steps_about
from metadata.inspect.views import EVERYTHING, Fields, Wanted, entities_below, fields_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One row: an entity's fields from `from_offset` (inclusive) to `to_offset` (exclusive).

    Offsets are those of whole batches; times are Unix ms. `cause` is the last record of the batch that made
    it so, None where the log begins with it (in a snapshot); `ended_by` that of the batch that ended it.
    `to_offset` and `to_ms` are None while it still holds.
    """

    entity: str
    fields: Fields
    from_offset: int
    from_ms: int
    cause: Cause | None
    to_offset: int | None = None
    to_ms: int | None = None
    ended_by: Cause | None = None


@dataclass(slots=True)
class Future:
    """Counts `records` of a type or version that is not known here, as rows are made."""

    records: int = 0


def history(
    log: MetadataLog,
    wanted: Wanted = EVERYTHING,
    start: Point | None = None,
    end: Point = END,
    on_problem: OnProblem | None = None,
    future: Future | None = None,
    *,
    past_corruption: bool = False,
) -> Iterator[Span]:
    """The rows of every wanted entity, in the order in which they ended; those that still hold come last.

    `future` counts records from the future, which changed nothing. Only what is visible counts: records
    inside an open metadata transaction make no row. Raises InspectError for a checkpoint, which is one state,
    and as `steps` does.
    """
    if log.is_checkpoint:
        raise InspectError(f"{log.path} is one state, not a history; give the directory of its log")
    found = state_at(
        log, earliest(log) if start is None else start, on_problem, past_corruption=past_corruption
    )
    follower = _Follower(wanted, found)
    for step in steps_about(log, found, concern_of(wanted), end, on_problem, past_corruption=past_corruption):
        if isinstance(step, Passed):
            continue
        if future is not None:
            future.records += step.unknown
        yield from follower.step(step)
    yield from follower.open.values()


def concern_of(wanted: Wanted) -> Concern:
    """The batches that can hold a record about what is wanted."""
    kind, _, rest = (wanted.path or "topic").partition("/")
    if kind != "topic":
        return Concern(topics=frozenset())
    return Concern(topics=frozenset({rest.partition("/")[0]}) if rest else None)


class _Follower:
    """Knows the rows that are open; begins with those that hold in a state."""

    def __init__(self, wanted: Wanted, found: FoundState) -> None:
        self._wanted = wanted
        self._waiting: dict[str, Cause] = {}
        provenance = found.image.provenance
        self.open: dict[str, Span] = {
            path: Span(
                entity=path,
                fields=fields,
                from_offset=provenance.offset,
                from_ms=provenance.timestamp_ms,
                cause=None,
            )
            for path, fields in entities_below(found.image, wanted, found.quorum)
        }

    def step(self, step: Step) -> Iterator[Span]:
        """Rows that the batch ended."""
        for path, decoded in all_touched(step):
            if self._wanted.has(path):
                self._waiting[path] = Cause.of(step, decoded)
        if step.state_after.transaction is not None or not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for path, cause in waiting.items():
            ended = self._turn(step, path, cause)
            if ended is not None:
                yield ended

    def _turn(self, step: Step, path: str, cause: Cause) -> Span | None:
        now = self._wanted.cut(path, fields_of(step.after, path, step.quorum_after))
        old = self.open.get(path)
        if now == (None if old is None else old.fields):
            return None
        if now is None:
            self.open.pop(path, None)
        else:
            self.open[path] = Span(
                entity=path, fields=now, from_offset=step.offset, from_ms=step.time_ms, cause=cause
            )
        if old is None or old.from_offset == step.offset:
            return None  # it never held: the walk begins with the batch that changed it
        return replace(old, to_offset=step.offset, to_ms=step.time_ms, ended_by=cause)
