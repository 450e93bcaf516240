"""The first place in a log at which a check turns false: by binary search if that is sound, else by a scan.

A check that can turn false only once (by its form, or because the user vouches for it) is evaluated at
snapshots, so that only the records between two of them are read; any other check is evaluated after every
batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import Provenance
from metaquorum.metadata.inspect.checks.checks import Check
from metaquorum.metadata.inspect.checks.predicate import Predicate, Verdict
from metaquorum.metadata.inspect.checks.predicate_names import Subject
from metaquorum.metadata.inspect.entities.diff import EntityChange, changes_between
from metaquorum.metadata.inspect.log.coverage import (
    Limits,
    before_the_log,
    before_the_state,
    behind_the_log,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.log_replay import LogReplay, Notes
from metaquorum.metadata.inspect.walk.reader import Happening, HistoryReader, LostRecords, WrongPlace
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    OnProblem,
    Passed,
    WalkStep,
    nothing_known,
    settle,
    state_at,
    steps_about,
    steps_from,
    with_quorum,
)
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.types import LogPosition

# The result of a search over a log: the offset at which an expression turned, and how certain that is.

BINARY, SCAN, HEADERS = "binary search", "scan", "scan of batch headers"


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search.

    `step` is the batch with which the check turned false, with the states around it, and `record` the first
    of its records after which it is false (None: the batch as a whole). Both are None if the check never
    turns false (`always_false` False) and if it is false from the first state on (`always_false` True, at
    `from_offset`). `never_defined`: what it refers to is in no state, so it was neither true nor false.
    `method` is BINARY, SCAN or HEADERS, and `reason` says why. `snapshots` is the number available, `loaded`
    the number read. `batches` is the number evaluated one by one, and `unknown` the number of their records
    from a newer version. `limits` has what was not covered.
    """

    check: str
    method: str
    reason: str
    from_offset: int
    end_offset: int
    step: WalkStep | None = None
    record: DecodedRecord | None = None
    always_false: bool = False
    never_defined: bool = False
    snapshots: int = 0
    loaded: int = 0
    batches: int
    unknown: int
    limits: Limits

    @property
    def is_found(self) -> bool:
        return self.step is not None or self.always_false

    def changes(self) -> list[EntityChange]:
        """What the batch changed, by entity."""
        if self.step is None:
            return []
        quorums = (self.step.quorum_before, self.step.quorum_after)
        return changes_between(self.step.before, self.step.after, quorums=quorums)


STRIDE = 64
"""Batches between two evaluations while a binary search walks from one snapshot to the next."""


def bisect(
    log: MetadataLog,
    check: Check,
    start: Point | None = None,
    end: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
) -> Bisection:
    """Where `check` first turns false between `start` (None: as early as the log reaches) and `end`.

    A state in which the check is undefined (the entity does not exist) is neither true nor false. Raises
    InspectError for places that the log does not reach, PredicateError for a predicate that fails on a state.
    """
    if log.is_checkpoint:
        raise InspectError(f"{log.path} is a single state, not a history; give the directory of its log")
    limits = Limits()
    first, shown = (None, None) if start is None else settle(log, start)
    limits.place(shown)
    end, shown = settle(log, end)
    limits.place(shown)
    limits.coverage.add(before_the_log(log, first))
    limits.coverage.add(behind_the_log(log, end))
    search = _Search(log, check, end, on_problem, past_corruption, limits)
    if check.headers is not None:
        return search.headers(check.headers, first)
    limits.coverage.add(before_the_state(log, first, end, "the check did not run there"))
    known_start = known_from(log)
    if known_start is None or (end.offset is not None and end.offset < known_start):
        raise InspectError(
            f"{log.path} has no snapshot with the state in that range, so the check cannot run "
            f"there{'' if known_start is None else f'; from offset {known_start} on it can'}"
        )
    if first is None or (first.offset is not None and first.offset < known_start):
        first = Point(offset=known_start)
    return search.run(search.state_at(first))


class _Search:
    """One search; counts its cost."""

    def __init__(
        self,
        log: MetadataLog,
        check: Check,
        end: Point,
        on_problem: OnProblem | None,
        past_corruption: bool,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._log = log
        self._check = check
        self._end = end
        self._on_problem = on_problem
        self._past_corruption = past_corruption
        self._batches = 0
        self._unknown = 0
        self._from = 0

    def run(self, first: FoundState) -> Bisection:
        check = self._check
        self._from = first.end_offset
        if (
            check.is_monotone
            and check.headers is None
            and check.image is not None
            and self._end.time_ms is None
        ):
            reason = "--monotone was given" if check.is_vouched else "its form lets it turn false only once"
            return self._binary(first, reason)
        reason = "it may turn true again" if check.image else "it concerns changes between states"
        return self._scan(first, reason)

    def _result(self, method: str, reason: str, end_offset: int) -> Bisection:
        return Bisection(
            check=self._check.name,
            method=method,
            reason=reason,
            from_offset=self._from,
            end_offset=end_offset,
            batches=self._batches,
            unknown=self._unknown,
            limits=self._limits,
        )

    def state_at(self, point: Point) -> FoundState:
        """The state at a place; records what it does not cover."""
        coverage, past = self._limits.coverage, self._past_corruption
        found = state_at(self._log, point, self._on_problem, past_corruption=past, coverage=coverage)
        return with_quorum(self._log, found)

    def _asked(self, state: FoundState) -> Verdict:
        if self._check.image is None:
            return Verdict.TRUE
        return self._check.image(Subject(image=state.image, quorum=state.quorum))

    def _scan(self, first: FoundState, reason: str) -> Bisection:
        """Evaluates the check after every batch. Until the first true state, false does not
        count as a change."""
        verdict = self._asked(first)
        was_true, false_first = verdict is Verdict.TRUE, verdict is Verdict.FALSE
        end_offset = first.end_offset
        for step in self._steps(first):
            end_offset = step.next_offset
            if isinstance(step, Passed):
                continue
            verdict = self._after(step, was_true)
            if verdict is Verdict.FALSE and was_true:
                return self._turned(self._result(SCAN, reason, end_offset), step)
            false_first = false_first or (verdict is Verdict.FALSE and not was_true)
            was_true = was_true or verdict is Verdict.TRUE
        always = false_first and not was_true
        return msgspec.structs.replace(
            self._result(SCAN, reason, end_offset),
            always_false=always,
            never_defined=not (always or was_true),
        )

    def _after(self, step: WalkStep, was_true: bool) -> Verdict:
        """Evaluates a step by its changes only if the state before it was fine."""
        if was_true or self._check.image is None:
            return self._check.step(step.before, step.after, step.quorum_after)
        return self._check.image(Subject(image=step.after, quorum=step.quorum_after))

    def _steps(self, first: FoundState) -> Iterator[WalkStep | Passed]:
        """The batches from `first` on; those that cannot change the answer are passed over together."""
        steps = steps_about(
            self._log,
            first,
            self._check.batch_filter,
            self._end,
            self._on_problem,
            past_corruption=self._past_corruption,
            coverage=self._limits.coverage,
        )
        for step in steps:
            if isinstance(step, Passed):
                self._batches += step.batches
            else:
                self._batches += 1
                self._unknown += step.unknown
            yield step

    def _binary(self, first: FoundState, reason: str) -> Bisection:
        """Halves the snapshots between `first` and the end, then evaluates after every batch
        between two of them."""
        positions = [
            at for at in self._log.snapshots() if at.offset > first.end_offset and self._is_before_end(at)
        ]
        if not positions:
            return self._scan(first, "there is no snapshot to search with")
        if self._asked(first) is Verdict.FALSE:
            result = self._result(BINARY, reason, first.end_offset)
            return msgspec.structs.replace(result, always_false=True, snapshots=len(positions))
        total, loaded = len(positions), 0
        good, low, high = first, -1, len(positions)
        while high - low > 1:
            middle = (low + high) // 2
            found_state = self._snapshot(positions[middle])
            loaded += 1
            if found_state is None:
                del positions[middle]
                high -= 1
            elif self._asked(found_state) is Verdict.FALSE:
                high = middle
            else:
                low, good = middle, found_state
        result = self._between(good, positions[high] if high < len(positions) else None, reason)
        return msgspec.structs.replace(result, snapshots=total, loaded=loaded)

    def _is_false_after(self, step: WalkStep) -> bool:
        return self._check.step(step.before, step.after, step.quorum_after) is Verdict.FALSE

    def _is_before_end(self, position: LogPosition) -> bool:
        if self._end.time_ms is not None:
            return self._log.snapshot(position).snapshot_timestamp_ms() <= self._end.time_ms
        return self._end.offset is None or position.offset <= self._end.offset

    def _snapshot(self, position: LogPosition) -> FoundState | None:
        """The state in a snapshot; None, after reporting it, if it is not whole."""
        snapshot = self._log.snapshot(position)
        state = state_at(snapshot)
        if state.problems:
            self._warn(f"{snapshot.path} is not used: {state.problems[0]}")
            return None
        return with_quorum(self._log, state)

    def _between(self, good: FoundState, bad: LogPosition | None, reason: str) -> Bisection:
        good = self._nearer(good)
        end_offset = good.end_offset
        for step in self._steps(good):
            end_offset = step.next_offset
            if isinstance(step, WalkStep) and self._is_false_after(step):
                return self._turned(self._result(BINARY, reason, end_offset), step)
            if bad is not None and end_offset >= bad.offset:
                raise InspectError(
                    f"the check is false at the snapshot that ends at {bad.offset}, but not in the log up "
                    "to there; either the check turned true again (leave out --monotone), or the "
                    "snapshot is wrong (metaquorum log check)"
                )
        return self._result(BINARY, reason, end_offset)

    def _nearer(self, good: FoundState) -> FoundState:
        """The last state that is not false, to within STRIDE batches: those before it are replayed without an
        evaluation after each. Stops early at anything that the walk batch by batch must evaluate itself."""
        start = FoundState(state=good.state, snapshot=good.snapshot, quorum=good.quorum)
        for later in LogReplay(self._log, start, Notes(None), past_corruption=False).strides(
            self._end, STRIDE
        ):
            if self._asked(later) is Verdict.FALSE:
                break
            good = later
        return good

    def headers(self, predicate: Predicate, start_at: Point | None) -> Bisection:
        """Needs no state: epochs, offsets and times are in batch headers."""
        reason = "it needs only offsets, epochs and times"
        first, verdict = self._header_start(predicate, start_at)
        was_true, false_first = verdict is Verdict.TRUE, verdict is Verdict.FALSE
        self._from = end_offset = first
        reader = HistoryReader(self._log, self._first_segment(first, predicate), BatchRun.batches)
        for item in reader.read(self._end):
            if not isinstance(item, RecordBatch):
                if not self._goes_past(item):
                    break
                continue
            header = item.header
            if header.next_offset <= first:
                continue
            self._batches += 1
            end_offset = header.next_offset
            verdict = predicate.header_verdict(end_offset, header.leader_epoch, header.max_timestamp_ms)
            if verdict is Verdict.FALSE and was_true:
                step = self._step_at(header.base_offset)
                return self._turned(self._result(HEADERS, reason, end_offset), step)
            false_first = false_first or verdict is Verdict.FALSE
            was_true = was_true or verdict is Verdict.TRUE
        always = false_first and not was_true
        return msgspec.structs.replace(self._result(HEADERS, reason, end_offset), always_false=always)

    def _goes_past(self, item: Happening) -> bool:
        """Reports what interrupts the batches. False if the search stops there."""
        match item:
            case Damage():
                self._warn(damage_line(item))
            case WrongPlace() if item.is_mended:
                is_past = self._past_corruption
                self._warn(item.line if is_past else f"stopped at offset {item.expected}: {item.advice}")
                return is_past
            case LostRecords() if not self._past_corruption:
                self._warn(
                    f"stopped at offset {item.start}: the next readable batch is at offset {item.end}; "
                    "continue past the gap with --past-corruption"
                )
                return False
        return True

    def _header_start(self, predicate: Predicate, start: Point | None) -> tuple[int, Verdict]:
        """Where to begin, and the predicate's value there: nothing is known before a
        trimmed log's first record."""
        base, known = self._log.start_offset, known_from(self._log)
        offset = base if start is None else start.offset
        if offset is not None and (known is None or offset < known):
            return max(base, offset), Verdict.UNDEFINED
        place = self.state_at(Point(offset=base) if start is None else start).image.provenance
        return place.offset, predicate.header_verdict(place.offset, place.epoch, place.timestamp_ms)

    def _first_segment(self, start: int, predicate: Predicate) -> int:
        """Where to begin: at the last segment whose first batch is not yet false, found by halving."""
        bases = [base for base in self._log.segments if base > start]
        if not self._check.is_monotone:
            return start
        low, high = -1, len(bases)
        while high - low > 1:
            middle = (low + high) // 2
            first = next(
                (one for one in self._log.batches(bases[middle]) if isinstance(one, RecordBatch)), None
            )
            header = None if first is None else first.header
            if header is not None and Verdict.FALSE is predicate.header_verdict(
                header.next_offset, header.leader_epoch, header.max_timestamp_ms
            ):
                high = middle
            else:
                low = middle
        return start if low < 0 else bases[low]

    def _step_at(self, base_offset: int) -> WalkStep:
        """The batch at an offset with the states around it, starting from the nearest snapshot."""
        known = known_from(self._log)
        if known is None or base_offset < known:
            state = nothing_known(base_offset)
        else:
            state = state_at(self._log, Point(offset=base_offset), past_corruption=self._past_corruption)
        state = with_quorum(self._log, state)
        return next(steps_from(self._log, state, past_corruption=self._past_corruption))

    def _turned(self, result: Bisection, step: WalkStep) -> Bisection:
        return msgspec.structs.replace(result, step=step, record=self._record(step))

    def _record(self, step: WalkStep) -> DecodedRecord | None:
        """The record from which on the check is false until the end of its batch."""
        if len(step.records) == 1:
            return step.records[0]
        turned: DecodedRecord | None = None
        engine = Replayer(step.state_before, on_error=lambda error: None)
        before = step.before
        for decoded in step.records:
            if step.batch.header.is_control or isinstance(
                decoded.record, UnknownRecord | UnknownControlRecord
            ):
                continue
            engine.apply(decoded.record, decoded.offset, step.epoch, step.time_ms)
            image = engine.state().image
            image = image.with_provenance(Provenance(decoded.offset + 1, step.epoch, step.time_ms))
            if self._check.step(before, image, step.quorum_after) is not Verdict.FALSE:
                turned = None
            elif turned is None:
                turned = decoded
        return turned

    def _warn(self, line: str) -> None:
        if self._on_problem is not None:
            self._on_problem(line)
