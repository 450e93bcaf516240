"""Goes through a log once, batch by batch, and replays it; the engine of `states`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from metaquorum.metadata.columnar.apply import store
from metaquorum.metadata.errors import InspectError, ReplayError, UnknownRecordError
from metaquorum.metadata.inspect.log.coverage import MISSING, NOT_LOOKED_AT, Coverage, Uncovered
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.inspect.log.points import Point, ms_hint, utc_text
from metaquorum.metadata.inspect.walk.concern import Concern, Stretch, pass_over, pieces
from metaquorum.metadata.inspect.walk.leaps import Leap, first_unfit, versions_in
from metaquorum.metadata.inspect.walk.lost_ends import ends_behind
from metaquorum.metadata.inspect.walk.passage import Passage, Split
from metaquorum.metadata.inspect.walk.rewrite import with_header
from metaquorum.metadata.inspect.walk.steps import SHOWN_PROBLEMS, FoundState, Passed, WalkStep
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.records.control import (
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    UnknownControlRecord,
)
from metaquorum.metadata.records.types import EndTransactionRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun

OnProblem = Callable[[str], None]
"""Receives a line about anything damaged, left out or not applied, as it is found."""


class Walk:
    """Goes through a log once, in pieces: `run_to` one place, then `steps` to another."""

    def __init__(self, log: MetadataLog, found: FoundState, notes: Notes, past_corruption: bool) -> None:
        """Starts at `found`."""
        self._log = log
        self._past_corruption = past_corruption
        self._notes = notes
        self.found = found
        self.engine = Replayer(found.state, on_error=notes.refused)
        self._start_offset = self.engine.end_offset
        self._passage = Passage(log, self._start_offset)
        self._concern: Concern | None = None
        self._beyond: RecordBatch | None = None
        self._damage: Damage | None = None
        self._moved = found.snapshot is not None
        self._reached = False
        self.header: SnapshotHeaderRecord | None = None
        self.footer = False

    def run_to(self, limit: Point) -> None:
        """Applies every batch before `limit`."""
        while (batch := self._next(limit, self._apply_run)) is not None:
            if isinstance(batch, RecordBatch):
                self._apply(batch)

    def strides(self, limit: Point, batches: int) -> Iterator[FoundState]:
        """Applies every batch before `limit` and yields the state once per `batches` batches. Ends early
        after the first unusual batch."""
        count = 0
        while (batch := self._next(limit, BatchRun.batches)) is not None:
            if isinstance(batch, RecordBatch):
                self._apply(batch)
            if self._notes.lines or self._notes.unknown:
                return
            count += 1
            if count % batches == 0:
                found = self.found
                yield FoundState(state=self.engine.state(), snapshot=found.snapshot, quorum=found.quorum)

    def steps(self, limit: Point, concern: Concern | None = None) -> Iterator[WalkStep | Passed]:
        """Applies every batch before `limit` and yields each with its effect; those that `concern` does not
        need are passed over together."""
        self._concern = concern
        before: ReplayState | None = None
        split = BatchRun.batches if concern is None else self._needed
        while (batch := self._next(limit, split)) is not None:
            if isinstance(batch, Stretch):
                if concern is not None and concern.together and not batch.is_idle:
                    leapt = self._leap(batch)
                    if leapt is not None:
                        yield leapt
                    before = None
                    continue
                before = None
                self._moved = True
                pass_over(self.engine, batch)
                yield Passed(stretch=batch)
                continue
            before = self.engine.state() if before is None else before
            quorum = self.found.quorum
            self._notes.begin_step()
            unknown = self._notes.unknown
            self._apply(batch)
            after = self.engine.state()
            yield WalkStep(
                batch=batch,
                unknown=self._notes.unknown - unknown,
                state_before=before,
                state_after=after,
                quorum_before=quorum,
                quorum_after=self.found.quorum,
                problems=self._notes.of_step(),
            )
            before = after

    def _leap(self, stretch: Stretch) -> Passed | None:
        """Applies a stretch of partition changes as one step, as far as it can be checked as one; the next
        batch after that follows alone.
        """
        before, builder = self.engine.state(), self.engine.builder
        whole = before.transaction is None and stretch.next_offset - stretch.base_offset >= MIN_BATCHES
        versions = versions_in(builder, stretch) if whole else None
        if versions is None:
            self._open(stretch, stretch.batches // 2 if whole else 0)
            return None
        fits = first_unfit(stretch, versions, before.image.provenance.epoch)
        if fits < stretch.batches:
            self._open(stretch, fits if fits >= MIN_BATCHES else 0)
            return None
        store(builder, versions)
        builder.offset, builder.epoch = stretch.next_offset, stretch.epoch
        builder.timestamp_ms = stretch.time_ms
        self._moved = True
        if not len(versions.rows):
            return Passed(stretch=stretch)  # all of it is idle
        return Leap(stretch=stretch, after=self.engine.state().image, versions=versions)

    def _open(self, stretch: Stretch, fits: int) -> None:
        """Puts a stretch back in parts: the first `fits` batches as one or, if 0, a few one by one."""
        middle = fits or min(MIN_BATCHES, stretch.batches)
        low, rest = stretch.split(middle)
        parts: Iterator[RecordBatch | Stretch] = iter((low,))
        if not fits:
            concern = replace(self._concern or Concern(), together=False)
            parts = pieces(low.part(), concern, self.engine.builder.topics.by_name.get)
        if rest.batches:
            self._passage.put_in((rest,))
        self._passage.put_in(parts)

    def finish(self, point: Point) -> FoundState:
        """The state reached. Raises InspectError for a place past the log's end."""
        found = self.found
        found.state = self.engine.state()
        found.problems, found.unknown = self._notes.lines, self._notes.unknown
        found.coverage = self._notes.coverage
        if found.stopped is None and self._beyond is None:
            self._check_reaches(point)
        if point.time_ms is not None and self._beyond is not None and not self._moved:
            raise InspectError(
                f"{self._log.path} begins at {utc_text(self._beyond.header.max_timestamp_ms)}, after"
                f" {utc_text(point.time_ms)}; give a later time, or an offset from {found.end_offset} on"
            )
        return found

    def _check_reaches(self, point: Point) -> None:
        """An offset past the log's end is the user's mistake; a time past it is only noted."""
        found = self.found
        if point.offset is not None and point.offset > found.end_offset and not found.problems:
            raise InspectError(
                f"{self._log.path} ends at offset {found.end_offset}, before {point.offset};"
                f" give {found.end_offset} or less{ms_hint(point.offset)}"
            )
        last_ms = self.engine.builder.timestamp_ms
        if point.time_ms is not None and point.time_ms > last_ms:
            found.notes.append(
                f"{self._log.path} ends at {utc_text(last_ms)}, before {utc_text(point.time_ms)};"
                f" this is the state at its end, offset {found.end_offset}"
            )

    def _next(self, limit: Point, split: Split) -> RecordBatch | Stretch | None:
        """The next batch to apply; None at the limit, at the end, and if records are missing."""
        self._beyond = None
        while self.found.stopped is None:
            item = self._passage.next(self.engine.end_offset, limit, split)
            if item is None:
                self._tell_lost_end()
                return None
            if isinstance(item, Stretch):
                return item
            if isinstance(item, Damage):
                if limit.offset is None or item.offset < limit.offset:
                    self._damage = item
                    self._notes.add(damage_line(item))
                continue
            header = item.header
            self._reached = self._reached or header.next_offset > self._start_offset
            if not self._reached:
                continue
            if not limit.covers(header.next_offset, header.max_timestamp_ms):
                self._beyond = item
                self._passage.put_back(item)
                return None
            if header.base_offset == self.engine.end_offset:
                return item
            fitting = self._goes_on(item, limit)
            if fitting is not None:
                return fitting
        return None

    def _apply_run(self, run: BatchRun) -> Iterator[RecordBatch | Stretch]:
        self._moved = self._reached = True
        self.engine.apply_run(run)
        return iter(())

    def _needed(self, run: BatchRun) -> Iterator[RecordBatch | Stretch]:
        self._reached = True
        return pieces(run, self._concern or Concern(), self.engine.builder.topics.by_name.get)

    def _goes_on(self, batch: RecordBatch, limit: Point) -> RecordBatch | None:
        """For a batch that does not follow: the batch to continue with, either itself or with its damaged
        base offset repaired. If neither fits, stops the walk and returns None."""
        expected, base = self.engine.end_offset, batch.header.base_offset
        if self._follows_at(batch, expected):
            place = f"{batch.file} at byte {batch.position}"
            what = f"the base offset {base} of the batch there is damaged; {expected} matches"
            if self._past_corruption:
                self._notes.add(f"{place}: {what}; it was corrected")
                return with_header(batch, batch.header._replace(base_offset=expected))
            self.found.stopped = Damage(
                file=batch.file, position=batch.position, offset=expected, reason=what
            )
            self._not_looked_at(expected, limit)
            self._notes.add(
                f"stopped at offset {expected}: {place}: {what}; continue with --past-corruption, or "
                "correct it with: metaquorum log repair --past-corruption"
            )
            return None
        lost = _missing(expected, base) if base > expected else "offsets go back"
        self._lost(expected, base)
        if not self._past_corruption:
            self.found.stopped = self._damage or Damage(
                file=batch.file, position=batch.position, offset=expected, reason=lost
            )
            self._not_looked_at(max(base, expected), limit)
            self._notes.add(
                f"stopped at offset {expected}: {lost}, the next batch begins at {base}; continue with "
                "--past-corruption"
            )
            return None
        self._notes.add(f"continued at offset {base}: {lost}")
        self._end_transaction(expected, base)
        self.engine.builder.offset = base
        return batch

    def _end_transaction(self, lost: int, base: int) -> None:
        """Lets an open transaction take effect if its end is among the lost records."""
        is_open = self.engine.state().transaction
        if is_open is not None and not ends_behind(self._log, base):
            began = is_open.begin_offset
            self._notes.add(
                f"the end of the metadata transaction that begins at {began} is lost; its records are"
                " assumed to have taken effect"
            )
            self.engine.apply(EndTransactionRecord(), lost, -1, -1)

    def _lost(self, start: int, end: int | None) -> None:
        text = "these records are lost here, and their effect is missing from the answer"
        self._uncovered(start, end, MISSING, text)

    def _not_looked_at(self, start: int, limit: Point) -> None:
        text = "the answer stops before them; continue past them with --past-corruption"
        self._uncovered(start, limit.offset, NOT_LOOKED_AT, text)

    def _tell_lost_end(self) -> None:
        """Reports damage after which nothing could be read."""
        if self._damage is not None and self._damage.offset >= self.engine.end_offset:
            self._lost(self.engine.end_offset, None)

    def _uncovered(self, start: int, end: int | None, reason: str, text: str) -> None:
        self._notes.coverage.add(
            Uncovered(from_offset=start, to_offset=end, reason=reason, text=text, path=self._log.path)
        )

    def _follows_at(self, batch: RecordBatch, expected: int) -> bool:
        """Whether the next batch continues as if this one began at `expected`: then its base offset, which no
        CRC covers, is damaged (see `sound_headers`)."""
        following = self._passage.peek()
        if following is None:
            return False
        next_base = (
            following.header.base_offset if isinstance(following, RecordBatch) else following.base_offset
        )
        return next_base == expected + batch.header.last_offset_delta + 1

    def _apply(self, batch: RecordBatch) -> None:
        self._moved = True
        if batch.header.is_control:
            self._control(batch.header, decode_readable(batch))
        try:
            self.engine.apply_batch(batch)
        except BatchError as error:
            self._damage = Damage(
                file=batch.file,
                position=batch.position,
                offset=batch.header.base_offset,
                reason=str(error),
            )
            self._notes.add(damage_line(self._damage))

    def _control(self, header: BatchHeader, records: tuple[DecodedRecord, ...]) -> None:
        self.found.quorum = self.found.quorum.after(header.leader_epoch, records)
        for decoded in records:
            match decoded.record:
                case UnknownControlRecord():
                    self._notes.unknown += 1
                case SnapshotHeaderRecord():
                    self.header = decoded.record
                case SnapshotFooterRecord():
                    self.footer = True


def _missing(expected: int, found: int) -> str:
    last = found - 1
    return f"offset {last} is missing" if last == expected else f"offsets {expected} to {last} are missing"


class Notes:
    """Lines about problems, reported at once and kept up to a bound, and what they left uncovered."""

    def __init__(self, on_problem: OnProblem | None, coverage: Coverage | None = None) -> None:
        self.lines: list[str] = []
        self.coverage = Coverage() if coverage is None else coverage
        self.unknown = 0
        self.is_alone = False
        """Whether the state before is unknown: records that do not fit are then not faults."""
        self._on_problem = on_problem
        self._step: list[str] = []

    def add(self, line: str) -> None:
        if self._on_problem is not None:
            self._on_problem(line)
        if len(self._step) < SHOWN_PROBLEMS:
            self._step.append(line)
        if len(self.lines) < SHOWN_PROBLEMS:
            self.lines.append(line)
        elif len(self.lines) == SHOWN_PROBLEMS:
            self.lines.append("more problems follow; see them with: metaquorum log dump")

    def begin_step(self) -> None:
        self._step = []

    def of_step(self) -> tuple[str, ...]:
        return tuple(self._step)

    def refused(self, error: ReplayError) -> None:
        """Takes refused records from the replayer: counts those from a newer version, reports
        those that do not fit."""
        if isinstance(error.__cause__, UnknownRecordError):
            self.unknown += 1
        elif not self.is_alone:
            self.add(f"skipped: {error}")
