"""The walk behind `why`: feeds a chain the batches up to the place in question.

Owns where a chain begins: at the newest snapshot from which the log holds everything asked for, such as one
without the topic. For the last few links it begins at the newest snapshot and moves further and further back
as long as that is not enough; failing that, at the log's beginning. At offset 0 the state is empty. In a
trimmed log, it is that of the oldest snapshot, and before that what records say on their own. Does not know
which records are links: `why` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.entities.targets import EntityTarget
from metaquorum.metadata.inspect.log.clock import clock_of, on_clock
from metaquorum.metadata.inspect.log.coverage import (
    MISSING,
    NOT_LOOKED_AT,
    Uncovered,
    before_the_state,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, damage_line
from metaquorum.metadata.inspect.log.points import END, Point, utc_text
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.inspect.walk.lost_ends import ends_behind
from metaquorum.metadata.inspect.walk.passage import decoded, place_of
from metaquorum.metadata.inspect.walk.states import OnProblem, nothing_known, settle, state_at
from metaquorum.metadata.inspect.why.explanation import MAX_LINKS, Explanation, is_change
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.types import LogPosition

ALONE = "from the records alone: earlier state and causes are unknown there"
"""What the links of a trimmed log lack before its oldest snapshot."""


def explain(
    log: MetadataLog,
    target: EntityTarget,
    point: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
    secrets: bool = False,
    last: int | None = None,
) -> Explanation:
    """The chain of records up to `point` that led to the state of `target` there. With `last`, at least that
    many of its newest links, if it has them; nothing before the snapshot at which the chain begins is read.

    Stops at missing records, after calling `on_problem`, unless `past_corruption`. With `secrets`, causes
    show the values of secret settings. Raises InspectError for a target without records, and for a place that
    the log does not reach.
    """
    point, shown = settle(log, point)
    base, known = log.start_offset, known_from(log)
    if point.offset is not None and point.offset < base:
        raise InspectError(f"{log.path} begins at offset {base}, after {point.offset}; give {base} or more")
    clock = None if log.is_checkpoint else partial(clock_of, log)
    for start in _starts(log, target, point, last, known):
        lines: list[str] = []
        found = state_at(log, Point(offset=start), lines.append, past_corruption=True)
        chain = Chain(target, found.image, secrets=secrets, clock=clock, is_middle=True)
        _Walk(log, point, lines.append, past_corruption, is_middle=True).feed(chain, start, None)
        if _is_enough(chain, last):
            chain.limits.place(shown)
            _tell_all(on_problem, lines)
            return chain.result()
    walk = _Walk(log, point, on_problem, past_corruption)
    if known == base:
        begun = None
        if not log.is_checkpoint:
            begun = state_at(log, Point(offset=base), on_problem, past_corruption=past_corruption)
        image = on_clock(log, begun.image) if base and begun is not None else None
        chain = Chain(target, image, secrets=secrets, clock=clock)
        if begun is not None and begun.quorum.voter_set:
            chain.learn_quorum(begun.quorum, begun.image.provenance)
    else:
        names = log.namer().names()
        chain = Chain(
            target, nothing_known(base).image, is_known=False, names=names, secrets=secrets, clock=clock
        )
        walk.feed(chain, base, known)
        if known is not None and not walk.is_over:
            found = state_at(log, Point(offset=known), past_corruption=True)
            chain.learn(on_clock(log, found.image))
            if found.quorum.voter_set:
                chain.learn_quorum(found.quorum, found.image.provenance)
    chain.limits.place(shown)
    if known is not None and not walk.is_over:
        walk.feed(chain, known, None)
    if known != base and not chain.is_whole(known) and not _reaches(chain, known, last):
        reached = Point(offset=chain.end_offset) if walk.is_over else point
        chain.limits.coverage.add(before_the_state(log, None, reached, ALONE))
    return chain.result()


def _tell_all(on_problem: OnProblem | None, lines: list[str]) -> None:
    if on_problem is not None:
        for line in lines:
            on_problem(line)


def _starts(
    log: MetadataLog, target: EntityTarget, point: Point, last: int | None, known: int | None
) -> Iterator[int]:
    """Ends of snapshots at which the chain may begin, newest first, each twice as far back."""
    kind, _, name = target.entity.partition("/")
    topic = name.partition("/")[0] if kind == "topic" else ""
    if known is None or log.is_checkpoint or kind == "quorum" or (last is None and not topic):
        return
    snapshots = [at for at in log.snapshots() if at.offset > known]
    step = 1
    while snapshots:
        at = snapshots[-1]
        if (last is None and _holds(log.snapshot(at), topic)) or not _is_usable(log, at, point):
            snapshots.pop()
            continue
        yield at.offset
        del snapshots[-step:]
        step *= 2


def _is_enough(chain: Chain, last: int | None) -> bool:
    """Whether a chain that begins in the middle of the log equals one from its beginning: in all links,
    or in the `last` ones."""
    links, has_begun = chain.so_far()
    if not chain.is_plain or not (has_begun or (last is not None and len(links) >= last)):
        return False
    newest = next(filter(is_change, reversed(links)), None)
    if newest is None or len(chain.unsure) > MAX_LINKS:
        return False
    asked = links if last is None else links[-last:]
    return not any(link.offset in chain.unsure for link in (*asked, newest))


def _reaches(chain: Chain, offset: int | None, last: int | None) -> bool:
    """Whether all of the `last` links are after an offset."""
    links, _ = chain.so_far()
    return last is not None and offset is not None and len(links) >= last and links[-last].offset >= offset


def _is_usable(log: MetadataLog, at: LogPosition, point: Point) -> bool:
    """Whether a snapshot ends before the place and the log continues from there."""
    if point.offset is not None and at.offset >= point.offset:
        return False
    if point.time_ms is not None and log.snapshot(at).snapshot_timestamp_ms() > point.time_ms:
        return False
    following = next(iter(log.runs(at.offset)), None)
    base = following.base_offset if isinstance(following, BatchRun) else None
    if isinstance(following, RecordBatch):
        base = following.header.base_offset
    return base == at.offset and log.is_whole(at)


def _holds(snapshot: MetadataLog, topic: str) -> bool:
    """Whether a snapshot may contain a topic of this name: its record has the name after its length."""
    name = topic.encode()
    wanted = bytes((len(name) + 1,)) + name if len(name) < 0x7F else name
    return any(
        isinstance(item, Damage) or item.header.compression or wanted in item.data
        for item in snapshot.batches()
    )


class _Walk:
    """Feeds a chain with the batches of a log, stretch by stretch."""

    def __init__(
        self,
        log: MetadataLog,
        point: Point,
        on_problem: OnProblem | None,
        past_corruption: bool,
        *,
        is_middle: bool = False,
    ) -> None:
        self._log = log
        self._point = point
        self._on_problem = on_problem
        self._past_corruption = past_corruption
        self._is_first = not is_middle
        self._gap: tuple[int, int] | None = None
        self.is_over = False

    def feed(self, chain: Chain, first: int, limit: int | None) -> None:
        """Feeds the batches from `first` up to `limit` (an offset), or up to the place in question. After
        lost records, batches are taken only for what they say on their own, up to the next snapshot."""
        self._stretch(chain, first, limit)
        while (gap := self._gap) is not None:
            begins, cure = gap
            chain.forget(begins)
            self._stretch(chain, begins, cure)
            if self._gap is None:
                found = state_at(self._log, Point(offset=cure), past_corruption=True)
                chain.learn(on_clock(self._log, found.image))
                if found.quorum.voter_set:
                    chain.learn_quorum(found.quorum, found.image.provenance)
                self._stretch(chain, cure, limit)

    def _stretch(self, chain: Chain, first: int, limit: int | None) -> None:
        self._gap = None
        for item in self._batches(chain, first, limit):
            self._is_first = False
            if not isinstance(item, ReadBatch):
                for error in chain.pass_over(item):
                    self._tell(f"skipped: {error}")
                continue
            header = item.batch.header
            records = [(decoded.offset, decoded.record) for decoded in item.records]
            chain.batch(header.leader_epoch, header.max_timestamp_ms, records)
        asked = self._point.offset
        self.is_over = self.is_over or (asked is not None and limit is not None and asked < limit)

    def _batches(
        self, chain: Chain, first: int, limit: int | None
    ) -> Iterator[ReadBatch | RecordBatch | Stretch]:
        """The batches from `first` on. Damage is reported, and ends them unless it may be passed."""
        log, point, expected, damaged = self._log, self._point, first, False
        end = point
        if limit is not None and point.time_ms is None:
            end = Point(offset=limit if point.offset is None else min(limit, point.offset))
        for item in decoded(log, first, end, chain.pieces, chain.is_passed):
            if isinstance(item, Damage):
                damaged = True
                if end.offset is None or item.offset < end.offset:
                    self._tell(damage_line(item))
                continue
            base_offset, next_offset, time_ms = place_of(item)
            if next_offset <= expected:
                continue
            if (limit is not None and base_offset >= limit) or (
                end.offset is not None and next_offset > end.offset
            ):
                return
            if point.time_ms is not None and not isinstance(item, Stretch) and time_ms > point.time_ms:
                self._past_time(time_ms)
                return
            cure = self._cure(base_offset, limit) if base_offset > expected else None
            if cure is not None:
                chain.limits.coverage.add(_missing(log, expected, base_offset, cure))
                chain.lose(partial(ends_behind, log, base_offset))
                self._gap = (base_offset, cure)
                return
            if base_offset > expected and not self._past_corruption:
                self._tell(
                    f"stopped at offset {expected}: the next readable batch is at offset {base_offset}; "
                    "continue past the gap with --past-corruption"
                )
                chain.limits.coverage.add(_not_looked_at(log, expected, base_offset, limit or point.offset))
                return
            if base_offset > expected:
                chain.limits.coverage.add(_missing(log, expected, base_offset))
                chain.lose(partial(ends_behind, log, base_offset))
            expected = next_offset
            yield item
        if limit is None and point.offset is not None and point.offset > expected and not damaged:
            raise InspectError(
                f"{log.path} ends at offset {expected}, before {point.offset}; give {expected} or less"
            )

    def _cure(self, offset: int, limit: int | None) -> int | None:
        """The end of the first whole snapshot from `offset` on, if it is before `limit` and the place."""
        log, point = self._log, self._point
        for at in log.snapshots():
            if at.offset < offset or not log.is_whole(at):
                continue
            is_past = point.offset is not None and at.offset > point.offset
            if point.time_ms is not None:
                is_past = log.snapshot(at).snapshot_timestamp_ms() > point.time_ms
            return None if is_past or (limit is not None and at.offset >= limit) else at.offset
        return None

    def _past_time(self, time_ms: int) -> None:
        if self._is_first and not self._log.start_offset:
            raise InspectError(
                f"{self._log.path} begins at {utc_text(time_ms)}, after"
                f" {utc_text(self._point.time_ms or 0)}; give a later time, or an offset from 0 on"
            )
        self.is_over = True

    def _tell(self, line: str) -> None:
        if self._on_problem is not None:
            self._on_problem(line)


def _missing(log: MetadataLog, start: int, found: int, cure: int | None = None) -> Uncovered:
    text = "these records are lost here, and their effect is missing from the answer"
    if cure is not None:
        text = (
            "these records are lost here: what follows comes from the records alone, up to the snapshot that"
            f" ends at {cure}"
        )
    return Uncovered(from_offset=start, to_offset=found, reason=MISSING, text=text, path=log.path)


def _not_looked_at(log: MetadataLog, start: int, found: int, end: int | None) -> Uncovered:
    text = f"records are missing before offset {found}; the answer stops there"
    return Uncovered(from_offset=start, to_offset=end, reason=NOT_LOOKED_AT, text=text, path=log.path)
