"""Feeds the chain of `why` the history of a log up to the place in question.

A chain begins at the newest snapshot from which the log holds everything asked for, such as one without the
topic. For the last few links it begins at the newest snapshot and moves further and further back as long as
that is not enough; failing that, at the log's beginning. At offset 0 the state is empty. In a trimmed log, it
is that of the oldest snapshot, and before that what records say on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.inspect.walk.mentions import BrokerMention, between
from metaquorum.metadata.inspect.walk.reader import (
    Cures,
    HistoryReader,
    LostRecords,
    StateKnown,
    WrongPlace,
)
from metaquorum.metadata.inspect.walk.states import (
    LogPart,
    OnProblem,
    known_state,
    nothing_known,
    settle,
    state_at,
)
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
    parts: Sequence[LogPart] | None = None,
    brokers: Sequence[BrokerMention] = (),
) -> Explanation:
    """The chain of records up to `point` that led to the state of `target` there. With `last`, at least that
    many of its newest links, if it has them; nothing before the snapshot at which the chain begins is read.
    `parts`: nothing else is read of a sound log; they hold all records about the target, and what was written
    up to SPLIT_MS before and after these, and the last one ends at `point`. `brokers` then are the records
    about brokers.

    Stops at missing records, after calling `on_problem`, unless `past_corruption`. With `secrets`, causes
    show the values of secret settings. Raises InspectError for a target without records, and for a place that
    the log does not reach.
    """
    point, shown = settle(log, point)
    base, known_start = log.start_offset, known_from(log)
    if point.offset is not None and point.offset < base:
        raise InspectError(f"{log.path} begins at offset {base}, after {point.offset}; give {base} or more")
    clock = None if log.is_checkpoint else partial(clock_of, log)
    middle = partial(Chain, target, secrets=secrets, clock=clock, is_middle=True)
    if parts is None:
        starts = _starts(log, target, point, last, known_start)
        tries = _from_snapshots(log, middle, starts, point, past_corruption)
    else:
        tries = _from_newest(log, middle, parts, brokers, last)
    for chain, lines in tries:
        if _is_enough(chain, last):
            chain.limits.place(shown)
            _report_all(on_problem, lines)
            return chain.result()
    feeding = _Feeding(log, point, on_problem, past_corruption)
    if known_start == base:
        begun = None
        if not log.is_checkpoint:
            begun = state_at(log, Point(offset=base), on_problem, past_corruption=past_corruption)
        at_start = on_clock(log, begun.image) if base and begun is not None else None
        chain = Chain(target, at_start, secrets=secrets, clock=clock)
        if begun is not None and begun.quorum.voter_set:
            chain.learn_quorum(begun.quorum, begun.image.provenance)
    else:
        names = log.namer().names()
        chain = Chain(
            target, nothing_known(base).image, is_known=False, names=names, secrets=secrets, clock=clock
        )
    chain.limits.place(shown)
    if parts is None:
        feeding.feed(chain, base, None if known_start == base else known_start)
    _feed_parts(log, chain, parts or (), brokers)
    if known_start != base and not chain.is_whole(known_start) and not _reaches(chain, known_start, last):
        reached = Point(offset=chain.end_offset) if feeding.is_over else point
        chain.limits.coverage.add(before_the_state(log, None, reached, ALONE))
    return chain.result()


def _from_snapshots(
    log: MetadataLog,
    middle: Callable[..., Chain],
    starts: Iterable[int],
    point: Point,
    past_corruption: bool,
) -> Iterator[tuple[Chain, list[str]]]:
    """Chains that begin at snapshots, and what could not be read of each."""
    for start in starts:
        lines: list[str] = []
        chain = middle(state_at(log, Point(offset=start), lines.append, past_corruption=True).image)
        _Feeding(log, point, lines.append, past_corruption, is_middle=True).feed(chain, start)
        yield chain, lines


def _from_newest(
    log: MetadataLog,
    middle: Callable[..., Chain],
    parts: Sequence[LogPart],
    brokers: Sequence[BrokerMention],
    last: int | None,
) -> Iterator[tuple[Chain, list[str]]]:
    """Chains of the newest parts, as many as probably hold the last links, if that is much less than all."""
    for count in () if last is None else (last, 4 * last):
        if 2 * count < len(parts):
            chain = middle()
            _feed_parts(log, chain, parts[-count - 1 :], brokers)  # the last may be what was written since
            yield chain, []


def _feed_parts(
    log: MetadataLog, chain: Chain, parts: Sequence[LogPart], brokers: Sequence[BrokerMention]
) -> None:
    for part in parts:
        begun = part.begun()
        chain.skip_to(begun.image, between(brokers, chain.end_offset, begun.end_offset))
        feeding = _Feeding(log, Point(offset=part.end_offset), None, past_corruption=True)
        feeding.feed(chain, begun.end_offset)


def _report_all(on_problem: OnProblem | None, lines: list[str]) -> None:
    if on_problem is not None:
        for line in lines:
            on_problem(line)


def _starts(
    log: MetadataLog, target: EntityTarget, point: Point, last: int | None, first_known: int | None
) -> Iterator[int]:
    """Ends of snapshots at which the chain may begin, newest first, each twice as far back."""
    kind, _, name = target.entity.partition("/")
    topic, slash, _ = name.partition("/")
    if kind != "topic":
        topic = ""
    elif topic and not slash:
        last = None  # its chain has few links after its creation: trying whether they are enough costs more
    if first_known is None or log.is_checkpoint or kind == "quorum" or (last is None and not topic):
        return
    snapshots = [at for at in log.snapshots() if at.offset > first_known]
    step = 1
    while snapshots:
        position = snapshots[-1]
        if (last is None and _holds(log.snapshot(position), topic)) or not _is_usable(log, position, point):
            snapshots.pop()
            continue
        yield position.offset
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


def _is_usable(log: MetadataLog, snapshot: LogPosition, point: Point) -> bool:
    """Whether a snapshot ends before the place and the log continues from there."""
    if point.offset is not None and snapshot.offset >= point.offset:
        return False
    if point.time_ms is not None and log.snapshot(snapshot).snapshot_timestamp_ms() > point.time_ms:
        return False
    following = next(iter(log.runs(snapshot.offset)), None)
    base = following.base_offset if isinstance(following, BatchRun) else None
    if isinstance(following, RecordBatch):
        base = following.header.base_offset
    return base == snapshot.offset and log.is_whole(snapshot)


def _holds(snapshot: MetadataLog, topic: str) -> bool:
    """Whether a snapshot may contain a topic of this name: its record has the name after its length."""
    name = topic.encode()
    wanted = bytes((len(name) + 1,)) + name if len(name) < 0x7F else name
    return any(
        isinstance(item, Damage) or item.header.compression or wanted in item.data
        for item in snapshot.batches()
    )


class _Feeding:
    """Feeds a chain with the history of a log."""

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
        self._is_damaged = False
        self.is_over = False

    def feed(self, chain: Chain, first: int, known_at: int | None = None) -> None:
        """Feeds the batches from `first` up to the place in question. With `known_at`, the state is unknown
        up to there. Stops at lost records without a cure unless they may be passed."""
        log, point = self._log, self._point
        reader = HistoryReader(log, first, chain.pieces, chain.is_passed, cures=Cures.BEFORE_END)
        for item in reader.read(point, known_at):
            match item:
                case Damage() | WrongPlace():
                    self._damage(reader, item)
                case LostRecords():
                    if not self._lose(chain, reader, item):
                        return
                case StateKnown():
                    found = known_state(log, item.offset)
                    chain.learn(found.image)
                    if found.quorum.voter_set:
                        chain.learn_quorum(found.quorum, found.image.provenance)
                case ReadBatch():
                    self._is_first = False
                    header = item.batch.header
                    records = [(decoded.offset, decoded.record) for decoded in item.records]
                    chain.batch(header.leader_epoch, header.max_timestamp_ms, records)
                case RecordBatch() | RunPart():
                    self._is_first = False
                    for error in chain.pass_over(item):
                        self._warn(f"skipped: {error}")
        if reader.past is not None and point.time_ms is not None:
            self._past_time(reader.past.max_timestamp_ms)
        expected, limit = reader.place, reader.limit
        self.is_over |= reader.is_over or (
            point.offset is not None and limit is not None and point.offset < limit
        )
        if limit is None and point.offset is not None and point.offset > expected and not self._is_damaged:
            raise InspectError(
                f"{log.path} ends at offset {expected}, before {point.offset}; give {expected} or less"
            )

    def _damage(self, reader: HistoryReader, damage: Damage | WrongPlace) -> None:
        self._is_damaged = True
        if isinstance(damage, WrongPlace):
            if damage.is_mended:
                self._warn(damage.line)
            return
        end = self._point.offset
        if reader.limit is not None and self._point.time_ms is None:
            end = reader.limit if end is None else min(reader.limit, end)
        if end is None or damage.offset < end:
            self._warn(damage_line(damage))

    def _lose(self, chain: Chain, reader: HistoryReader, lost: LostRecords) -> bool:
        """Whether to continue after lost records."""
        coverage = chain.limits.coverage
        if lost.cure is None and not self._past_corruption:
            self._warn(
                f"stopped at offset {lost.start}: the next readable batch is at offset {lost.end}; "
                "continue past the gap with --past-corruption"
            )
            coverage.add(_not_looked_at(self._log, lost.start, lost.end, reader.limit or self._point.offset))
            return False
        coverage.add(lost.behind or _missing(self._log, lost.start, lost.end, lost.cure))
        chain.lose(lost.ends_behind)
        if lost.cure is not None:
            chain.forget(lost.end)
        return True

    def _past_time(self, time_ms: int) -> None:
        if self._is_first and not self._log.start_offset:
            raise InspectError(
                f"{self._log.path} begins at {utc_text(time_ms)}, after"
                f" {utc_text(self._point.time_ms or 0)}; give a later time, or an offset from 0 on"
            )

    def _warn(self, line: str) -> None:
        if self._on_problem is not None:
            self._on_problem(line)


def _missing(log: MetadataLog, start: int, next_offset: int, cure: int | None = None) -> Uncovered:
    text = "these records are lost here, and their effect is missing from the answer"
    if cure is not None:
        text = (
            "these records are lost here: what follows comes from the records alone, up to the snapshot that"
            f" ends at {cure}"
        )
    return Uncovered(from_offset=start, to_offset=next_offset, reason=MISSING, text=text, path=log.path)


def _not_looked_at(log: MetadataLog, start: int, next_offset: int, end: int | None) -> Uncovered:
    text = f"records are missing before offset {next_offset}; the answer stops there"
    return Uncovered(from_offset=start, to_offset=end, reason=NOT_LOOKED_AT, text=text, path=log.path)
