"""The consumer of a log's history that keeps the state: it replays every batch; the engine of `states`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np
from msgspec.structs import replace

from metaquorum.metadata.columnar.apply import store
from metaquorum.metadata.errors import InspectError, ReplayError, UnknownRecordError
from metaquorum.metadata.features import METADATA_VERSION, is_known
from metaquorum.metadata.inspect.log.coverage import MISSING, NOT_LOOKED_AT, Coverage, Uncovered
from metaquorum.metadata.inspect.log.log import MetadataLog, NoFooter, damage_line
from metaquorum.metadata.inspect.log.points import Point, ms_hint, utc_text
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter, RunPart, pass_over, pieces
from metaquorum.metadata.inspect.walk.reader import HistoryReader, LostRecords, Split, WrongPlace, ends_behind
from metaquorum.metadata.inspect.walk.steps import (
    SHOWN_PROBLEMS,
    FastForward,
    FoundState,
    Passed,
    WalkStep,
    first_unfit,
    versions_in,
)
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.records.control import SnapshotHeaderRecord, UnknownControlRecord
from metaquorum.metadata.records.types import EndTransactionRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun, run_of

OnProblem = Callable[[str], None]
"""Receives a line about anything damaged, left out or not applied, as it is found."""


class LogReplay:
    """Replays a log once, in pieces: `run_to` one place, then `steps` to another."""

    def __init__(self, log: MetadataLog, start: FoundState, notes: Notes, past_corruption: bool) -> None:
        """Starts at `start`."""
        self._log = log
        self._past_corruption = past_corruption
        self._notes = notes
        self.reached = start
        self.engine = Replayer(start.state, on_error=notes.refused)
        self._level = 0
        self._reader = HistoryReader(log, self.engine.end_offset, as_one)
        self._damage: Damage | None = None
        self._moved = start.snapshot is not None
        self._opened_end = -1
        """Up to this offset, batches of a part that did not fit as one step come one by one."""
        self.header: SnapshotHeaderRecord | None = None

    def begin_at(self, offset: int) -> None:
        """Begins further on, before anything is read: what is between is unknown."""
        self.engine.builder.offset = self._reader.expected = offset

    def run_to(self, limit: Point) -> None:
        """Applies every batch before `limit`."""
        for item in self._read(limit, as_one):
            if isinstance(item, RecordBatch):
                self._apply(item)
                continue
            try:
                pass_over(self.engine, item)
                self._judge_level()
            except BatchError:  # the batch there cannot be read: from it on, they come one by one
                base_offset = self.engine.end_offset
                unread = int(np.searchsorted(item.run.offsets, base_offset))
                self._reader.put_in(item.run.part(unread, item.high).batches(), base_offset)

    def strides(self, limit: Point, batches: int) -> Iterator[FoundState]:
        """Applies every batch before `limit` and yields the state once per `batches` batches. Ends early
        after the first unusual batch."""
        for count, batch in enumerate(self._read(limit, BatchRun.batches), 1):
            if isinstance(batch, RecordBatch):
                self._apply(batch)
            if self._notes.lines or self._notes.unknown:
                return
            if count % batches == 0:
                found = self.reached
                yield FoundState(state=self.engine.state(), snapshot=found.snapshot, quorum=found.quorum)

    def steps(self, limit: Point, batch_filter: BatchFilter | None = None) -> Iterator[WalkStep | Passed]:
        """Applies every batch before `limit` and yields each with its effect; those that `batch_filter` does
        not need are passed over together."""
        before: ReplayState | None = None
        leaves_others = batch_filter is not None and batch_filter.leaves_others
        leaves_all = leaves_others and batch_filter is not None and batch_filter.topics == frozenset()
        split = BatchRun.batches if batch_filter is None else partial(self._pieces, batch_filter)
        for item in self._read(limit, split):
            batch = item
            if isinstance(item, RecordBatch) and batch_filter is not None and leaves_others:
                batch = self._as_part(item, batch_filter)
            if isinstance(batch, RunPart):
                is_merged = batch_filter is not None and batch_filter.together and not batch.is_idle
                if batch_filter is not None and is_merged and (batch.groups() or not leaves_others):
                    forwarded = self._fast_forward(batch, batch_filter)
                    if forwarded is not None:
                        yield forwarded
                    before = None
                    continue
                before = None
                self.engine.keeps_changes = not leaves_others
                pass_over(self.engine, batch)
                yield Passed(part=batch)
                continue
            self.engine.keeps_changes = not leaves_all
            before = self.engine.state() if before is None else before
            quorum = self.reached.quorum
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
                quorum_after=self.reached.quorum,
                problems=self._notes.of_step(),
            )
            before = after

    def _as_part(self, batch: RecordBatch, batch_filter: BatchFilter) -> RecordBatch | RunPart:
        """A large batch that stands alone as a part of a run, if `batch_filter` does not need it."""
        header = batch.header
        is_small = header.records_count < MIN_BATCHES or header.base_offset < self._opened_end
        if is_small or self._log.is_checkpoint or (run := run_of(batch)) is None:
            return batch
        return next(self._pieces(batch_filter, run))

    def _pieces(self, batch_filter: BatchFilter, run: BatchRun) -> Iterator[RecordBatch | RunPart]:
        return pieces(run, batch_filter, self.engine.builder.topics.by_name.get)

    def _fast_forward(self, part: RunPart, batch_filter: BatchFilter) -> Passed | None:
        """Applies a part with partition changes as one step, as far as it can be checked as one; the next
        batch after that follows alone.
        """
        before, builder = self.engine.state(), self.engine.builder
        is_long = before.transaction is None and part.next_offset - part.base_offset >= MIN_BATCHES
        versions = versions_in(builder, part) if is_long else None
        if versions is None:
            self._open(part, part.batches // 2 if is_long else 0, batch_filter)
            return None
        fits = first_unfit(part, versions, before.image.provenance.epoch)
        if fits < part.batches:
            self._open(part, fits if fits >= MIN_BATCHES else 0, batch_filter)
            return None
        if batch_filter.leaves_others:  # it may hold other records, too
            self.engine.keeps_changes = False
            pass_over(self.engine, part)
        store(builder, versions)
        builder.offset, builder.epoch = part.next_offset, part.epoch
        builder.timestamp_ms = part.time_ms
        if not len(versions.rows):
            return Passed(part=part)  # all of it is idle
        return FastForward(part=part, after=self.engine.state().image, versions=versions)

    def _open(self, part: RunPart, fits: int, batch_filter: BatchFilter) -> None:
        """Puts a part back in parts: the first `fits` batches as one or, if 0, a few one by one."""
        low, rest = part.split(fits or min(MIN_BATCHES, part.batches))
        if not fits:
            self._opened_end = low.next_offset
        parts: Iterator[RecordBatch | RunPart] = iter((low,))
        if not fits:
            parts = self._pieces(replace(batch_filter, together=False), low.as_run())
        self._reader.put_in(chain(parts, (rest,) if rest.batches else ()), part.base_offset)

    def finish(self, point: Point) -> FoundState:
        """The state reached. Raises InspectError for a place past the log's end."""
        self._judge_level()
        state = self.reached
        state.state = self.engine.state()
        state.problems, state.unknown = self._notes.lines, self._notes.unknown
        state.coverage = self._notes.coverage
        past = self._reader.past
        if state.stopped is None and past is None:
            self._check_reaches(point)
        if point.time_ms is not None and past is not None and not self._moved:
            raise InspectError(
                f"{self._log.name} begins at {utc_text(past.max_timestamp_ms)}, after"
                f" {utc_text(point.time_ms)}; give a later time, or an offset from {state.end_offset} on"
            )
        return state

    def _check_reaches(self, point: Point) -> None:
        """An offset past the log's end is the user's mistake; a time past it is only noted."""
        state = self.reached
        if point.offset is not None and point.offset > state.end_offset and not state.problems:
            raise InspectError(
                f"{self._log.name} ends at offset {state.end_offset}, before {point.offset};"
                f" give {state.end_offset} or less{ms_hint(point.offset)}"
            )
        last_ms = self.engine.builder.timestamp_ms
        if point.time_ms is not None and point.time_ms > last_ms:
            state.notes.append(
                f"{self._log.name} ends at {utc_text(last_ms)}, before {utc_text(point.time_ms)};"
                f" this is the state at its end, offset {state.end_offset}"
            )

    def _read(self, end: Point, split: Split) -> Iterator[RecordBatch | RunPart]:
        """The batches to apply up to `end`; none after those at which the replay stops."""
        if self.reached.stopped is not None:
            return
        self._reader.split = split
        for item in self._reader.read(end):
            match item:
                case RecordBatch() | RunPart():
                    self._moved = True
                    yield item
                case Damage():
                    if end.offset is None or item.offset < end.offset:
                        self._damage = self._damage if isinstance(item, NoFooter) else item
                        self._notes.add(damage_line(item))
                case WrongPlace() if item.is_mended:
                    if not self._past_corruption:
                        self._stop(item.damage, item.expected, end, item.advice)
                        return
                    self._notes.add(item.line)
                case WrongPlace() | LostRecords():
                    if not self._continues(item, end):
                        return
        if not self._reader.is_over:
            self._report_lost_end()

    def _continues(self, item: WrongPlace | LostRecords, end: Point) -> bool:
        """Whether to continue where offsets have a gap, or go back."""
        lost = item.damage.reason
        expected, base = (
            (item.start, item.end)
            if isinstance(item, LostRecords)
            else (item.expected, item.batch.header.base_offset)
        )
        self._lost(expected, base)
        if not self._past_corruption:
            text = f"{lost}, the next batch begins at {base}; continue with --past-corruption"
            self._stop(self._damage or item.damage, max(base, expected), end, text)
            return False
        self._notes.add(f"continued at offset {base}: {lost}")
        self._end_transaction(expected, base)
        self.engine.builder.offset = base
        return True

    def _stop(self, damage: Damage, first_unread: int, end: Point, text: str) -> None:
        self.reached.stopped = damage
        unread = "the answer stops before them; continue past them with --past-corruption"
        self._uncovered(first_unread, end.offset, NOT_LOOKED_AT, unread)
        self._notes.add(f"stopped at offset {self.engine.end_offset}: {text}")

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

    def _report_lost_end(self) -> None:
        """Reports damage after which nothing could be read."""
        if self._damage is not None and self._damage.offset >= self.engine.end_offset:
            self._lost(self.engine.end_offset, None)

    def _uncovered(self, start: int, end: int | None, reason: str, text: str) -> None:
        self._notes.coverage.add(
            Uncovered(from_offset=start, to_offset=end, reason=reason, text=text, path=self._log.path)
        )

    def _apply(self, batch: RecordBatch) -> None:
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
            self._reader.give_up(batch)
        self._judge_level()

    def _judge_level(self) -> None:
        """Counts a metadata.version that this release does not know, and that of the start."""
        level = self.engine.builder.finalized.get(METADATA_VERSION, 0)
        if level != self._level:
            self._level = level
            self._notes.unknown += not is_known(level)

    def _control(self, header: BatchHeader, records: tuple[DecodedRecord, ...]) -> None:
        self.reached.quorum = self.reached.quorum.after(header.leader_epoch, records)
        for decoded in records:
            match decoded.record:
                case UnknownControlRecord():
                    self._notes.unknown += 1
                case SnapshotHeaderRecord():
                    self.header = decoded.record


def as_one(run: BatchRun) -> Iterator[RunPart]:
    """A run of which no batch is needed."""
    last = run.part(run.batches_count - 1, run.batches_count)
    yield RunPart(run, 0, run.batches_count, False, last.epoch, int(last.timestamps_ms()[0]))


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
