"""Whether a log keeps the invariants, and whether its snapshots agree with it.

Findings are limited in number. `matching` handles several logs of one quorum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.features import is_newer
from metaquorum.metadata.image import MetadataImage, TopicsImage
from metaquorum.metadata.inspect.checks.node_files import (
    FilesOfNode,
    file_faults,
    lost_behind,
    read_node_files,
)
from metaquorum.metadata.inspect.checks.record_checks import (
    IDLE_RULE,
    Fault,
    clock_faults,
    quorum_faults,
    record_faults,
)
from metaquorum.metadata.inspect.entities.diff import state_differences
from metaquorum.metadata.inspect.entities.views import touched
from metaquorum.metadata.inspect.log.clock import LogClock, Stamps, clock_of
from metaquorum.metadata.inspect.log.coverage import (
    NOT_LOOKED_AT,
    Coverage,
    before_the_log,
    before_the_state,
    behind_the_log,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, damage_line
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.log.quorum import voter_set_texts
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.metadata.inspect.walk.reader import HistoryReader, WrongPlace
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    OnProblem,
    Passed,
    WalkStep,
    state_at,
    steps_about,
)
from metaquorum.metadata.inspect.walk.steps import RULES, BatchPlace, Broken, FastForward
from metaquorum.metadata.invariants import ERROR, Violation, check_batch, check_image
from metaquorum.metadata.records.control import VotersRecord
from metaquorum.metadata.snapshot import QuorumRecord
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.types import LogPosition

MAX_FINDINGS = 1_000
"""Findings kept per log; further ones add nothing new and are only counted."""

MAX_OPEN = 100_000
"""Violations that are remembered, so that none is reported twice."""

STOPPED = (NOT_LOOKED_AT, None)
"""Of the range behind damage: its reason, and that it has no end."""

_REFUSED = re.compile(r"skipped: offset (\d+): (.*)")
"""How `states` reports a record that does not fit the state before it."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A broken rule. `offset` is that of the batch (or the end of the snapshot) that shows it, `time_ms` its
    time, `where` the entity's path; `severity` is ERROR or WARNING of `metadata.invariants`."""

    rule: str
    severity: str
    offset: int
    epoch: int
    time_ms: int
    where: str
    text: str


@dataclass(slots=True, kw_only=True)
class LogReport:
    """The findings of one log.

    `problems` are lines about damage; `unknown` counts records from a newer version. A broken rule is
    reported once per entity, where it was first broken; `lasting` are the (rule, entity) pairs still broken
    at the end. `dropped` findings exceeded the limit. `coverage` has the ranges whose records were not
    checked against every rule. `files` is what the files beside a node's log say. `snapshots` were compared
    with the log; `older_snapshots` end where it has no record, and were only read."""

    log: MetadataLog
    start_offset: int = 0
    end_offset: int = 0
    epoch: int = -1
    batches: int = 0
    records: int = 0
    snapshots: int = 0
    older_snapshots: int = 0
    findings: list[Finding] = field(default_factory=list)
    lasting: frozenset[tuple[str, str]] = frozenset()
    dropped: int = 0
    problems: list[str] = field(default_factory=list)
    unknown: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    files: FilesOfNode | None = None

    @property
    def is_sound(self) -> bool:
        """No rule of severity error is broken, and all of the log was read and checked."""
        return not (self.errors or self.problems or self.coverage or self.dropped)

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]

    def add_fault(self, fault: Fault, time_ms: int) -> None:
        """Adds what a file beside the log breaks."""
        self.add(_of_fault(fault, self.epoch, time_ms))

    def add(self, finding: Finding) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.dropped += 1


def check_log(
    log: MetadataLog,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
    also: Sequence[MetadataLog] = (),
) -> LogReport:
    """Checks all invariants over one log (or one checkpoint), and its snapshots against the log's state.

    `also` are snapshots of other nodes of the quorum, which must agree as well. Raises InspectError for a log
    without a beginning.
    """
    report = LogReport(log=log)

    def problem(line: str) -> None:
        if _REFUSED.match(line):
            return  # a finding, not damage: see _Checker._refused
        report.problems.append(line)
        if on_problem is not None:
            on_problem(line)

    if log.is_checkpoint:
        _check_one_state(log, report, problem)
        return report
    _Checker(log, report, problem, past_corruption, also).run()
    if log.has_node_files:
        report.files = files = read_node_files(log)
        for fault in file_faults(log, files):
            report.add_fault(fault, files.last_ms)
    behind = behind_the_log(log, END, report.end_offset)
    if behind is not None:
        report.coverage.add(behind)
        report.add_fault(lost_behind(behind), report.files.last_ms if report.files is not None else -1)
    return report


def _check_one_state(log: MetadataLog, report: LogReport, problem: OnProblem) -> None:
    state = state_at(log, on_problem=problem)
    report.unknown = state.unknown
    report.start_offset = report.end_offset = state.end_offset
    report.epoch = state.image.provenance.epoch
    _judge(report, check_image(state.image), state.image)


def _judge(report: LogReport, violations: Sequence[Violation], image: MetadataImage) -> None:
    at = image.provenance
    place = BatchPlace(at.offset, at.epoch, at.timestamp_ms)
    for one in violations:
        report.add(_finding(place, one.rule, one.severity, one.where, one.text))


def _finding(
    position: BatchPlace | WalkStep | FastForward, rule: str, severity: str, where: str, text: str
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        offset=position.offset,
        epoch=position.epoch,
        time_ms=position.time_ms,
        where=where,
        text=text,
    )


class _Checker:
    """Walks one log."""

    def __init__(
        self,
        log: MetadataLog,
        report: LogReport,
        problem: OnProblem,
        past_corruption: bool,
        also: Sequence[MetadataLog],
    ) -> None:
        self._log = log
        self._report = report
        self._problem = problem
        self._past_corruption = past_corruption
        self._open: dict[tuple[str, str], None] = {}
        self._reported_rows = ReportedRows()
        self._written = 0
        given = (*(log.snapshot(at) for at in log.snapshots()), *also)
        named = [(at, one) for one in given if (at := one.snapshot_position()) is not None]
        self._snapshots = sorted(named, key=lambda pair: (pair[0].offset, pair[0].epoch))

    def run(self) -> None:
        report = self._report
        last: WalkStep | FastForward | None = None
        known_start = known_from(self._log)
        report.coverage.add(before_the_log(self._log, None))
        self._older_snapshots(known_start)
        self._without_state(known_start)
        if known_start is None:
            report.lasting = frozenset()
            self._clock(None)
            return
        stamps = Stamps()
        start, last = self._walk(known_start, stamps)
        is_whole = start.end_offset == self._log.start_offset and not (report.problems or report.coverage)
        while (following := self._behind_damage()) is not None:
            start, later = self._walk(following, stamps)
            last = later or last
        self._clock(stamps if is_whole else None)
        if last is None:
            report.unknown += start.unknown
            report.lasting = frozenset((one.rule, one.where) for one in report.findings)
            return
        # Check the whole image too, for what no record can break, such as the counts of our own indexes.
        at_end = check_image(last.after, limit=MAX_OPEN)
        self._found(at_end, last)
        report.lasting = frozenset((one.rule, one.where) for one in at_end)

    def _walk(self, first_known: int, stamps: Stamps) -> tuple[FoundState, WalkStep | FastForward | None]:
        """From the state at `first_known` to the log's end, or to damage: that state, and the last step."""
        report = self._report
        last: WalkStep | FastForward | None = None
        start = state_at(
            self._log,
            Point(offset=first_known),
            self._problem,
            past_corruption=self._past_corruption,
            coverage=report.coverage,
        )
        self._begin(start)
        # Idle batches change nothing, except where a snapshot ends.
        batch_filter = BatchFilter(stops=frozenset(at.offset for at, _ in self._snapshots), together=True)
        for step in steps_about(
            self._log,
            start,
            batch_filter,
            on_problem=self._problem,
            past_corruption=self._past_corruption,
            coverage=report.coverage,
        ):
            stamps.take(step.part.as_run() if isinstance(step, Passed) else step.batch)
            if isinstance(step, FastForward):
                self._fast_forward(step)
                last = step
            if isinstance(step, Passed):
                report.batches += step.batches
                report.records += step.records
                report.end_offset, report.epoch = self._written, _ = step.next_offset, step.epoch
                continue
            self._step(step)
            last = step
        return start, last

    def _behind_damage(self) -> int | None:
        """Where the check goes on if the walk stopped at damage: the end of the next whole snapshot. None at
        the log's end, and if there is none."""
        report = self._report
        ranges = report.coverage.ranges
        last_range = next((n for n, one in enumerate(ranges) if (one.reason, one.to_offset) == STOPPED), None)
        own = [position for position in self._log.snapshots() if position.offset > report.end_offset]
        following = next((position.offset for position in own if self._log.is_whole(position)), None)
        if last_range is None or following is None:
            return None
        text = "the check goes on from the next snapshot; look at them with --past-corruption"
        ranges[last_range] = msgspec.structs.replace(ranges[last_range], to_offset=following, text=text)
        self._older_snapshots(following)
        return following

    def _older_snapshots(self, first_known: int | None) -> None:
        """Reads the snapshots that the walk does not reach; it begins with the one at `first_known`."""
        older = [pair for pair in self._snapshots if first_known is None or pair[0].offset <= first_known]
        self._snapshots = self._snapshots[len(older) :]
        for position, snapshot in older:
            if position.offset != first_known:
                self._report.older_snapshots += self._read(snapshot) is not None

    def _clock(self, stamps: Stamps | None) -> None:
        """Reports jumps of the log's clock before all else. `stamps` are those of all its
        batches, if all were read."""
        report, in_order = self._report, LogReport(log=self._log)
        clock = clock_of(self._log) if stamps is None else LogClock(*stamps.columns())
        for fault, time_ms in clock_faults(clock):
            in_order.add(_of_fault(fault, -1, time_ms))
        for finding in report.findings:
            in_order.add(finding)
        report.findings = in_order.findings
        report.dropped += in_order.dropped

    def _without_state(self, first_known: int | None) -> None:
        """Reads what precedes the first known state: only damage can be found there."""
        report = self._report
        report.start_offset = report.end_offset = first = self._log.start_offset
        what = "their records were read and decoded, but rules about states were not checked"
        uncovered = before_the_state(self._log, None, END, what)
        if uncovered is None:
            return
        report.coverage.add(uncovered)
        reader = HistoryReader(self._log, first, BatchRun.batches, lambda _: False, is_first_expected=False)
        for item in reader.read(Point(offset=first_known)):
            match item:
                case Damage() if first_known is None or item.offset < first_known:
                    self._problem(damage_line(item))
                case WrongPlace() if item.is_mended:
                    self._problem(item.line)
                case ReadBatch():
                    header = item.batch.header
                    report.batches += 1
                    report.records += header.records_count
                    report.unknown += sum(is_newer(one.record) for one in item.records)
                    report.end_offset, report.epoch = header.next_offset, header.leader_epoch

    def _begin(self, start: FoundState) -> None:
        report = self._report
        report.end_offset, report.epoch = start.end_offset, start.image.provenance.epoch
        _judge(report, check_image(start.image), start.image)
        for finding in report.findings:
            self._open[finding.rule, finding.where] = None

    def _step(self, step: WalkStep) -> None:
        report = self._report
        report.batches += 1
        report.records += step.batch.header.records_count
        report.end_offset, report.epoch = step.next_offset, step.epoch
        report.unknown += step.unknown
        refused = self._refused(step)
        self._faults(record_faults(step, refused, self._written), step.epoch, step.time_ms)
        self._faults(quorum_faults(step), step.epoch, step.time_ms)
        if not step.batch.header.is_control:
            self._written = step.next_offset
        self._found(check_batch(step.before, step.after), step)
        while self._snapshots and self._snapshots[0][0].offset <= step.next_offset:
            self._snapshot(*self._snapshots.pop(0), step)

    def _fast_forward(self, fast_forward: FastForward) -> None:
        """Reports what a fast forward broke. Violations reported before are skipped or counted,
        without a closer look."""
        broken, reported_rows = fast_forward.broken(), self._reported_rows
        states = reported_rows.of(fast_forward.after.topics, broken)
        self._report.dropped += int(np.count_nonzero(states == COUNTED))
        new = np.flatnonzero(states == NEW)
        columns = (column[new].tolist() for column in broken)
        for batch, rule, row in zip(*columns, strict=True):
            state = reported_rows.state(rule, row)
            if state == NEW:
                place, violations = fast_forward.violations(batch, rule, row)
                for one in violations:
                    self._found((one,), place)
                    reported_rows.put(rule, row, REPORTED if (one.rule, one.where) in self._open else COUNTED)
            elif state == COUNTED:
                self._report.dropped += 1

    def _faults(self, faults: Iterable[Fault], epoch: int, time_ms: int) -> None:
        """Reports rules that records break. Of records that change nothing, only the first about each entity:
        one that is set repeatedly may cause thousands."""
        for fault in faults:
            if fault.rule == IDLE_RULE:
                if (fault.rule, fault.where) in self._open:
                    continue
                if len(self._open) < MAX_OPEN:
                    self._open[fault.rule, fault.where] = None
            self._report.add(_of_fault(fault, epoch, time_ms))

    def _refused(self, step: WalkStep) -> list[int]:
        """A record that cannot be applied is wrong in any log: every node would have stopped at it."""
        offsets = []
        for match in filter(None, map(_REFUSED.match, step.problems)):
            offset = int(match[1])
            offsets.append(offset)
            record = next((one.record for one in step.records if one.offset == offset), None)
            paths = touched(record, step.before, step.after) or ("log",)
            place = BatchPlace(offset, step.epoch, step.time_ms)
            self._report.add(_finding(place, "record-applies", ERROR, paths[0], match[2]))
        return offsets

    def _found(self, violations: Sequence[Violation], step: WalkStep | BatchPlace | FastForward) -> None:
        for violation in violations:
            key = (violation.rule, violation.where)
            if key in self._open:
                continue
            if len(self._open) < MAX_OPEN:
                self._open[key] = None
            if len(self._report.findings) >= MAX_FINDINGS:
                self._report.dropped += 1
                continue
            self._report.add(
                _finding(step, violation.rule, violation.severity, violation.where, violation.text)
            )

    def _read(self, snapshot: MetadataLog) -> FoundState | None:
        """The state in a snapshot; None, after reporting why, if it is not whole."""
        found = state_at(snapshot)
        for line in found.problems:
            self._problem(line)
        return None if found.problems else found

    def _snapshot(self, position: LogPosition, snapshot: MetadataLog, step: WalkStep) -> None:
        """A snapshot must equal the state that the log leads to at its end."""
        if position.offset != step.next_offset or step.state_after.transaction is not None:
            text = f"it ends at offset {position.offset}, inside a batch or a transaction"
            self._report.add(_snapshot_finding(position, step.time_ms, "snapshot", text))
            return
        state = self._read(snapshot)
        if state is None:
            self._problem(f"{snapshot.path} is incomplete and was not compared with the log")
            return
        self._report.snapshots += 1
        if position.epoch != step.epoch:
            text = f"its name says epoch {position.epoch}, but the record before its end has {step.epoch}"
            self._report.add(_snapshot_finding(position, step.time_ms, "snapshot", text))
        own, its = (_ordered(one.snapshot_records()) for one in (step.quorum_after, state.quorum))
        if own != its:
            text = f"{_voters_text(own)} -> {_voters_text(its)} (log -> {snapshot.path})"
            self._report.add(_snapshot_finding(position, step.time_ms, "quorum", text))
        for where, text in state_differences(step.after, state.image):
            self._report.add(
                _snapshot_finding(position, step.time_ms, where, f"{text} (log -> {snapshot.path})")
            )


def _ordered(records: Sequence[QuorumRecord]) -> list[QuorumRecord]:
    """With the voters by ascending id: Apache Kafka's nodes write a set in any order."""
    return [
        msgspec.structs.replace(one, voters=tuple(sorted(one.voters, key=lambda voter: voter.voter_id)))
        if isinstance(one, VotersRecord)
        else one
        for one in records
    ]


def _voters_text(records: Sequence[QuorumRecord]) -> str:
    voters = next((one.voters for one in records if isinstance(one, VotersRecord)), None)
    return "no voter set" if voters is None else f"voters {', '.join(voter_set_texts(voters))}"


def _of_fault(fault: Fault, epoch: int, time_ms: int) -> Finding:
    return _finding(
        BatchPlace(fault.offset, epoch, time_ms), fault.rule, fault.severity, fault.where, fault.text
    )


def _snapshot_finding(position: LogPosition, time_ms: int, where: str, text: str) -> Finding:
    return _finding(
        BatchPlace(position.offset, position.epoch, time_ms), "snapshot-agrees", ERROR, where, text
    )


NEW, REPORTED, COUNTED = 0, 1, 2
"""What to do if it recurs: look at it, nothing, count it."""


class ReportedRows:
    """Remembers, for a rule and a row, how its first occurrence was handled, so that a log that breaks one
    repeatedly is still replayed in columns. Row addresses hold while no topic is created or deleted."""

    def __init__(self) -> None:
        self._topics: object = None
        self._states: npt.NDArray[np.uint8] = np.zeros((RULES, 0), dtype=np.uint8)

    def of(self, topics: TopicsImage, broken: Broken) -> npt.NDArray[np.uint8]:
        """The state of each, in order, as known before the first of them."""
        if self._topics is not topics.by_id:
            self._topics = topics.by_id
            self._states = np.zeros((RULES, topics.columns.row_limit), dtype=np.uint8)
        return self._states[broken.rules, broken.rows]

    def state(self, rule: int, row: int) -> int:
        """The current state of one."""
        return int(self._states[rule, row])

    def put(self, rule: int, row: int, state: int) -> None:
        self._states[rule, row] = state
