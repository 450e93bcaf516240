"""The walk behind `why`: the batches that a chain is fed, from the log's first one to the place asked about.

Owns where a chain gets its state from: nothing at offset 0; in a trimmed log the oldest snapshot, and before
that what records say by themselves. The chain is `why`'s. Reads a log once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from metaquorum.metadata.inspect.entities.targets import Target
from metaquorum.metadata.inspect.errors import InspectError
from metaquorum.metadata.inspect.log.clock import clock_of
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
from metaquorum.metadata.inspect.walk.decoded_runs import decoded_runs, place_of
from metaquorum.metadata.inspect.walk.states import OnProblem, nothing_known, settle, state_at
from metaquorum.metadata.inspect.why.explanation import Explanation
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage

ALONE = "from the records alone: earlier state and causes are unknown there"
"""What the links of a trimmed log lack before its oldest snapshot."""


def explain(
    log: MetadataLog,
    target: Target,
    point: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
    secrets: bool = False,
) -> Explanation:
    """The chain of records up to `point` that made `target` what it is there.

    Stops where records are missing, after telling `on_problem`, unless `past_corruption`. With `secrets`,
    causes tell the values of secret settings. Raises InspectError for a target that no record is about, and
    for a place that the log does not reach.
    """
    point, shown = settle(log, point)
    base, known = log.start_offset, known_from(log)
    if point.offset is not None and point.offset < base:
        raise InspectError(f"{log.path} begins at offset {base}, after {point.offset}; give {base} or more")
    walk = _Walk(log, point, on_problem, past_corruption)
    clock = None if log.is_checkpoint else partial(clock_of, log)
    if known == base:
        image = None
        if base and not log.is_checkpoint:
            image = state_at(log, Point(offset=base), on_problem, past_corruption=past_corruption).image
        chain = Chain(target, image, secrets=secrets, clock=clock)
    else:
        names = log.namer().names()
        chain = Chain(
            target, nothing_known(base).image, is_known=False, names=names, secrets=secrets, clock=clock
        )
        walk.feed(chain, base, known)
        if known is not None and not walk.is_over:
            chain.learn(state_at(log, Point(offset=known), past_corruption=True).image)
    chain.limits.place(shown)
    if known is not None and not walk.is_over:
        walk.feed(chain, known, None)
    if known != base and not chain.is_whole(known):
        reached = Point(offset=chain.end_offset) if walk.is_over else point
        chain.limits.coverage.add(before_the_state(log, None, reached, ALONE))
    return chain.result()


class _Walk:
    """Feeds a chain with the batches of a log, stretch by stretch."""

    def __init__(
        self, log: MetadataLog, point: Point, on_problem: OnProblem | None, past_corruption: bool
    ) -> None:
        self._log = log
        self._point = point
        self._on_problem = on_problem
        self._past_corruption = past_corruption
        self._is_first = True
        self.is_over = False

    def feed(self, chain: Chain, first: int, limit: int | None) -> None:
        """Feeds the batches from `first` up to `limit` (an offset), or up to the place asked about."""
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
        """Damage is told, and is the end unless it is to be passed."""
        log, point, expected, damaged = self._log, self._point, first, False
        end = point
        if limit is not None and point.time_ms is None:
            end = Point(offset=limit if point.offset is None else min(limit, point.offset))
        for item in decoded_runs(log, first, end, chain.pieces, chain.is_passed):
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
            if base_offset > expected and not self._past_corruption:
                self._tell(
                    f"stopped at offset {expected}: the next readable batch is at offset {base_offset}; "
                    "continue past the gap with --past-corruption"
                )
                chain.limits.coverage.add(_not_looked_at(log, expected, base_offset, limit or point.offset))
                return
            if base_offset > expected:
                chain.limits.coverage.add(_missing(log, expected, base_offset))
            expected = next_offset
            yield item
        if limit is None and point.offset is not None and point.offset > expected and not damaged:
            raise InspectError(
                f"{log.path} ends at offset {expected}, before {point.offset}; give {expected} or less"
            )

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


def _missing(log: MetadataLog, start: int, found: int) -> Uncovered:
    text = "these records are lost here, and their effect is missing from the answer"
    return Uncovered(from_offset=start, to_offset=found, reason=MISSING, text=text, path=log.path)


def _not_looked_at(log: MetadataLog, start: int, found: int, end: int | None) -> Uncovered:
    text = f"records are missing before offset {found}; the answer stops there"
    return Uncovered(from_offset=start, to_offset=end, reason=NOT_LOOKED_AT, text=text, path=log.path)
