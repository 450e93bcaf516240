"""A new log without what makes the old one unusable: a poison record, lost bytes, a bad end.

The original is only read. Offsets stay the same (see `rewrite`), and so do leader epochs and times; whatever
the repair does not change is the same, byte for byte. The same log and request produce the same bytes, so the
directories of several voters can be repaired one by one. `metadata.replay` owns what a record means: a repair
replays what it writes and reports what cannot be applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from metaquorum.metadata.errors import InspectError, RecordDecodeError, ReplayError
from metaquorum.metadata.features import METADATA_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.entities import BROKER_RECORDS, broker_of
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles, NodeWriter, stored_epochs, whole_snapshot
from metaquorum.metadata.inspect.walk.rewrite import (
    NO_OP_LEVEL,
    filling,
    regular,
    repaired_headers,
    with_header,
    without_records,
)
from metaquorum.metadata.inspect.walk.states import earliest, state_at
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch, decode_readable
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.batches.batch import RecordBatch, header_problems
from metaquorum.storage.disk.interface import join, name_of, read_file
from metaquorum.storage.errors import BatchError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.segment import parse_segment_name
from metaquorum.storage.types import LogPosition

# What a repair can be asked to do, and its report.

SHOWN_CHANGES = 100
"""How many changes are kept one by one; further ones are counted."""

Kind = Literal["dropped", "filled", "adjusted", "cut", "begins", "snapshot"]


class RepairRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. `drop`: offsets of records to remove. `drop_failing`: remove all that cannot be applied.
    `past_corruption`: continue past lost bytes. `end_at`: drop this offset and all after it."""

    drop: frozenset[int] = frozenset()
    drop_failing: bool = False
    past_corruption: bool = False
    end_at: int | None = None


class RepairedRange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the old directory and the new one, from `offset` up to `end_offset`."""

    kind: Kind
    offset: int
    end_offset: int
    text: str


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """What a repair does, or did. `changed` counts all changes, and `changes` has the first SHOWN_CHANGES.
    `remaining` are lines about remaining problems, `newer` about records from a newer release. `after` is the
    state at the new log's end."""

    base: LogPosition | None = None
    changes: list[RepairedRange] = field(default_factory=list)
    changed: int = 0
    kept_snapshots: list[LogPosition] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start_offset: int = 0
    end: LogPosition = field(default_factory=lambda: LogPosition(0, 0))
    after: MetadataImage = field(default_factory=MetadataImage)

    def add(self, change: RepairedRange) -> None:
        """Counts a change, and keeps it if there is room."""
        self.changed += 1
        if len(self.changes) < SHOWN_CHANGES:
            self.changes.append(change)

    def remains(self, line: str) -> None:
        """Keeps a line about a remaining problem if there is room."""
        if len(self.remaining) < SHOWN_CHANGES:
            self.remaining.append(line)

    def is_newer(self, line: str) -> None:
        """Keeps a line about a record from a newer release if there is room."""
        if len(self.newer) < SHOWN_CHANGES:
            self.newer.append(line)


# Segments in a log's directory that belong to another log, detected before a repair merges them.
#
# The evidence: a name that does not match its batches, offsets that the segment before it has too, leader
# epochs that decrease or contradict the directory's own table, records of which none fits the state before
# them. Damage inside a segment is not evidence: headers are corrected first, as in a repair. Reads the log
# once.

LOOKED_AT_BATCHES = 500
"""How many batches of a segment are checked for whether its records fit."""

MIN_WITNESSES = 2
"""How many batches must agree before they count against a segment: a single one may be damaged."""

MIN_STRANGERS = 10
"""If at least this many records refer to others and none fits, the segment is of another log."""

REFERRING: tuple[type[Any], ...] = (
    *(r.PartitionRecord, r.PartitionChangeRecord, r.RemoveTopicRecord),
    *(one for one in BROKER_RECORDS if one is not r.BrokerRecord),
)
"""Records that fit only if an earlier record created what they refer to."""


@dataclass(slots=True)
class _Segment:
    """What one segment shows. Offsets are those of its batches, after correction."""

    file: str
    named: int
    first: int
    second: int | None = None
    end: int = 0
    high_epoch: int = 0
    batches: int = 0
    denied: int = 0
    referring: int = 0
    refused: set[int] = field(default_factory=set)
    begun: set[bytes | int] = field(default_factory=set)
    voters: set[int] = field(default_factory=set)
    behind_damage: bool = False
    """Also set if a snapshot covers it: a gap before it then explains why its records do not fit."""


def refuse_foreign(log: MetadataLog) -> None:
    """Raises InspectError, one line, if the directory has a segment of another log."""
    if not log.is_directory or len(log.segments) < 2:
        return
    before: _Segment | None = None
    for segment in _segments(log, stored_epochs(log)):
        why = _own_evidence(segment) or (None if before is None else _evidence(segment, before))
        if why is not None:
            raise InspectError(
                f"{segment.file} does not belong to this log: {why}; take it out of the directory, put the"
                " log's own segment there, or give another node's directory"
            )
        before = segment


def _own_evidence(segment: _Segment) -> str | None:
    moved = segment.first < segment.named or (segment.first > segment.named and not segment.behind_damage)
    if moved and segment.second is not None and segment.batches >= MIN_WITNESSES:
        return f"its name says offset {segment.named}, but its batches begin at {segment.first}"
    return None


def _evidence(segment: _Segment, before: _Segment) -> str | None:
    name = name_of(before.file)
    if segment.named < before.end:
        last = f"{segment.named} to {before.end - 1}"
        return f"offsets {last} are in {name} already"
    if segment.high_epoch < before.high_epoch:
        return f"its leader epochs end at {segment.high_epoch}, those of {name} at {before.high_epoch}"
    if segment.batches >= MIN_WITNESSES and segment.denied == segment.batches:
        return "the directory's leader-epoch-checkpoint has other epochs for every one of its batches"
    if segment.voters and before.voters and not segment.voters & before.voters:
        return f"its voters are {sorted(segment.voters)}, but those of {name} are {sorted(before.voters)}"
    if (
        segment.named > before.end
        and not segment.behind_damage
        and segment.referring >= MIN_STRANGERS
        and len(segment.refused) == segment.referring
    ):
        return (
            f"it does not follow {name}, which ends at {before.end}, and none of the"
            f" {segment.referring} records that refer to others applies to the state there"
        )
    return None


def _segments(log: MetadataLog, table: EpochTable) -> Iterator[_Segment]:
    """Every segment with a batch in it, read to its end."""
    refused: set[int] = set()

    def note(error: ReplayError) -> None:
        refused.add(error.offset)

    try:
        state = state_at(log, Point(offset=log.start_offset)).state if log.start_offset else ReplayState()
    except InspectError:
        state = state_at(log, earliest(log), past_corruption=True).state
    engine = Replayer(state, on_error=note)
    current: _Segment | None = None
    snapshots_end = max((at.offset for at in log.snapshots()), default=0)
    damaged = False
    for batch, _ in repaired_headers(log.batches(), log.start_offset):
        if not isinstance(batch, RecordBatch):
            damaged = damaged or "expected a segment" not in batch.reason
            continue
        header = batch.header
        if current is None or batch.file != current.file:
            if current is not None:
                yield current
            named = parse_segment_name(name_of(batch.file))
            current = _Segment(
                file=batch.file,
                named=header.base_offset if named is None else named,
                first=header.base_offset,
                behind_damage=damaged or header.base_offset <= snapshots_end,
            )
        elif current.second is None:
            current.second = header.base_offset
        damaged = False
        current.batches += 1
        current.end = max(current.end, header.next_offset)
        current.high_epoch = max(current.high_epoch, header.leader_epoch)
        known = table.epoch_at(header.base_offset)
        current.denied += known is not None and known != header.leader_epoch
        refused.clear()
        apply_anywhere(engine, batch)
        if current.batches <= LOOKED_AT_BATCHES:
            _witness(current, batch, refused)
    if current is not None:
        yield current


def apply_anywhere(engine: Replayer, batch: RecordBatch) -> str | None:
    """Applies a batch at its own offset, whatever is missing before it; does nothing if it was already
    replayed. Returns what is wrong with a batch whose records cannot be read; replay then continues after
    it."""
    header = batch.header
    if header.next_offset <= engine.end_offset:
        return None
    engine.builder.offset = header.base_offset
    try:
        engine.apply_batch(batch)
    except (BatchError, RecordDecodeError) as error:
        engine.builder.offset, engine.builder.epoch = header.next_offset, header.leader_epoch
        return str(error)
    return None


def _witness(segment: _Segment, batch: RecordBatch, refused: set[int]) -> None:
    """Counts records that refer to others, except to those that this segment created itself."""
    for decoded in decode_readable(batch):
        record = decoded.record
        match record:
            case control.LeaderChangeMessage(voters=voters):
                segment.voters |= {voter.voter_id for voter in voters}
            case r.TopicRecord(topic_id=made):
                segment.begun.add(made)
            case r.BrokerRecord(broker_id=broker_id):
                segment.begun.add(broker_id)
            case _ if isinstance(record, REFERRING) and _about(record) not in segment.begun:
                segment.referring += 1
                if decoded.offset in refused:
                    segment.refused.add(decoded.offset)
            case _:
                pass


def _about(record: object) -> bytes | int | None:
    match record:
        case r.PartitionRecord() | r.PartitionChangeRecord() | r.RemoveTopicRecord():
            return record.topic_id
    return broker_of(record)


__all__ = ["RepairReport", "RepairRequest", "RepairedRange", "plan_repair", "write_repair"]

VOTER_FILES = (QUORUM_STATE, "configured-voters")
"""What a voter must not forget; a repaired directory belongs to the same voter."""


def plan_repair(source: NodeFiles, request: RepairRequest) -> RepairReport:
    """What `write_repair` would do, without writing.

    Raises InspectError if it cannot be done, naming the alternative, or if nothing would change.
    """
    return RepairPass(source, request, None).run()


def write_repair(source: NodeFiles, request: RepairRequest, target: str) -> RepairReport:
    """Writes the new directory `target`. Raises InspectError as `plan_repair` does, and if `target` exists
    and is not empty; StorageError if the disk fails."""
    plan = plan_repair(source, request)
    writer = NodeWriter(source.log.disk, target, _first_epochs(source.log, plan))
    try:
        report = RepairPass(source, request, writer).run()
        for position in report.kept_snapshots:
            writer.copy_snapshot(source.log, position)
        writer.copy_beside(source, VOTER_FILES)
        writer.finish(_identity(source))
    finally:
        writer.close()
    return report


def _identity(source: NodeFiles) -> bytes | None:
    """The new directory's meta.properties: the old one's bytes or, if damaged, what is known of it."""
    if source.identity is None:
        return None
    if source.identity_problem is None:
        return read_file(source.log.disk, join(source.home, META_PROPERTIES))
    if source.identity.cluster_id is None or source.identity.node_id is None:
        return None
    return source.identity.encode()


def _first_epochs(log: MetadataLog, plan: RepairReport) -> EpochTable:
    if plan.start_offset == 0:
        return EpochTable()
    base = plan.base
    if base is not None and base.offset == plan.start_offset:
        return EpochTable.reset(base)
    epoch = stored_epochs(log).epoch_at(plan.start_offset)
    return EpochTable() if epoch is None else EpochTable.reset(LogPosition(epoch, plan.start_offset))


MAX_HOLE = 10_000_000
"""Maximum number of offsets in a gap: a larger one is a lost segment, which NoOpRecords cannot replace."""


class RepairPass:
    """Create one and run it once; needs the memory of two images. Without a writer it only finds out what
    would happen."""

    def __init__(self, source: NodeFiles, request: RepairRequest, writer: NodeWriter | None) -> None:
        self._log = source.log
        self._request = request
        self._writer = writer
        self._report = RepairReport()
        self._table = stored_epochs(source.log)
        self._failing: dict[int, str] = {}
        self._engine = self._replayer(ReplayState())
        self._twin: Replayer | None = None
        self._segment: int | None = None
        self._expected = 0
        self._epoch = 0
        self._time_ms = 0
        self._first_change: int | None = None
        self._dropped: set[int] = set()
        self._written = False

    def run(self) -> RepairReport:
        """The whole pass. Raises InspectError if it cannot be done, or if nothing would change."""
        report = self._report
        refuse_foreign(self._log)
        self._begin()
        pending: list[Damage] = []
        for item, mended in repaired_headers(self._log.batches(self._expected or None), self._expected):
            if isinstance(item, Damage):
                pending.append(item)
                continue
            if item.header.next_offset <= self._expected and item.header.base_offset < report.start_offset:
                pending.clear()  # it is before the snapshot from which the new log continues
                continue
            end_at = self._request.end_at
            if end_at is not None and item.header.next_offset > end_at:
                self._cut(item.header.base_offset, f"ends before offset {end_at}, as requested")
                pending.clear()
                break
            if mended is not None:
                self._adjust(item, mended, harmless=True)
            self._take(item, pending)
            pending.clear()
        for damage in pending:
            self._cut(self._expected, f"ends at {damage_line(damage)}")
        self._finish()
        return report

    # --- where the new log begins

    def _begin(self) -> None:
        report, log = self._report, self._log
        start = log.start_offset
        hole_end = self._last_hole_end() if self._request.past_corruption else None
        base: LogPosition | None = None
        image: MetadataImage | None = None
        for position in log.snapshots():
            beyond = start if hole_end is None else hole_end
            if position.offset < beyond or (start == 0 and hole_end is None):
                continue
            image = whole_snapshot(log, position)
            if image is not None:
                base = position
                break
        if base is None and start > 0:
            raise InspectError(
                f"{log.path} begins at offset {start}, and no complete snapshot beside it reaches that "
                "offset"
                + (" from after the damage" if hole_end is not None else "")
                + "; copy one from another node into the directory, or give another node's directory"
            )
        report.base = base
        report.start_offset = self._expected = start
        if hole_end is not None and base is not None:
            report.start_offset = self._expected = base.offset
            text = (
                f"begins at the snapshot at offset {base.offset}, which includes the effect of the lost bytes"
            )
            self._note(RepairedRange(kind="begins", offset=start, end_offset=base.offset, text=text))
            self._first_change = None  # the state is unharmed: later snapshots stay valid
        if base is not None and image is not None:
            self._engine = self._replayer(ReplayState(image))
            if report.start_offset == base.offset:
                self._epoch, self._time_ms = base.epoch, max(image.provenance.timestamp_ms, 0)
        self._enter(report.start_offset)

    def _last_hole_end(self) -> int | None:
        """The offset after the last place with lost bytes; None if there is none."""
        expected, found_end = self._log.start_offset, None
        for item, _ in repaired_headers(self._log.batches(), expected):
            if isinstance(item, RecordBatch):
                if item.header.base_offset > expected:
                    found_end = item.header.base_offset
                expected = max(expected, item.header.next_offset)
        return found_end

    # --- one batch

    def _take(self, batch: RecordBatch, pending: list[Damage]) -> None:
        base = batch.header.base_offset
        if base > self._expected:
            self._fill(base, batch.header.leader_epoch, pending)
            pending.clear()
        out = self._made_regular(batch)
        if out is None:
            return
        header = out.header
        named = frozenset(at for at in self._request.drop if header.base_offset <= at < header.next_offset)
        if named:
            out = self._drop(out, named, "named")
        consequences = self._replay(batch, out)
        if consequences and self._request.drop_failing:
            out = self._drop(out, frozenset(consequences), "it cannot be applied")
        self._write(out)

    def _made_regular(self, batch: RecordBatch) -> RecordBatch | None:
        """The batch with matching offsets and epoch; None if it only repeats offsets already there."""
        header = batch.header
        is_odd = header.records_count != header.last_offset_delta + 1
        repeats, falls = header.base_offset < self._expected, header.leader_epoch < self._epoch
        if not (is_odd or repeats or falls):
            return batch
        self._adjust(batch, "; ".join(header_problems(header, self._expected, self._epoch)))
        if repeats:
            return None
        fitting = with_header(batch, header._replace(leader_epoch=self._epoch)) if falls else batch
        return regular(fitting) if is_odd else fitting

    def _adjust(self, batch: RecordBatch, reason: str, *, harmless: bool = False) -> None:
        """Notes that a header is corrected. `harmless`: every record stays, so later snapshots do too. Raises
        InspectError if the request does not include this."""
        header = batch.header
        if not self._request.past_corruption:
            raise InspectError(
                f"the batch at offset {header.base_offset} of {batch.file} is damaged ({reason}); add "
                f"--past-corruption to correct it, or --end-at {self._expected} to end before it"
            )
        change = RepairedRange(
            kind="adjusted", offset=header.base_offset, end_offset=header.next_offset, text=reason
        )
        if harmless:
            self._report.add(change)
        else:
            self._note(change)

    def _fill(self, end: int, next_epoch: int, pending: list[Damage]) -> None:
        """Writes NoOpRecords for the lost offsets before `end`."""
        start = self._expected
        reason = "; ".join(damage_line(damage) for damage in pending) or "offsets are missing"
        if not self._request.past_corruption:
            raise InspectError(
                f"{_offsets(start, end)} lost ({reason}); add --past-corruption to continue past them, or "
                f"--end-at {start} to end the log there"
            )
        if end - start > MAX_HOLE:
            raise InspectError(
                f"{_offsets(start, end)} lost, more than a damaged batch can hold: a segment is missing; "
                f"copy it from another node, or use --end-at {start}"
            )
        self._fork()
        text = f"lost, replaced by NoOpRecords ({reason})"
        self._note(RepairedRange(kind="filled", offset=start, end_offset=end, text=text))
        while start < end:
            known = self._table.epoch_at(start) or self._epoch
            epoch = min(max(known, self._epoch), next_epoch)
            later = [at for _, at in self._table.entries if start < at < end]
            stop = later[0] if later else end
            for batch in filling(start, stop, epoch, self._time_ms):
                self._apply(self._engine, batch)
                self._write(batch)
            start = stop

    def _drop(self, batch: RecordBatch, offsets: frozenset[int], why: str) -> RecordBatch:
        if batch.header.is_control:
            raise InspectError(
                f"the record at offset {min(offsets)} is the quorum's own (an election): it marks an epoch "
                "and cannot be removed; give the offset of a metadata record"
            )
        self._fork()
        for offset in sorted(offsets):
            what = _record_text(batch, offset)
            self._note(
                RepairedRange(kind="dropped", offset=offset, end_offset=offset + 1, text=f"{what} ({why})")
            )
        self._dropped |= offsets & self._request.drop
        return without_records(batch, offsets)

    def _write(self, batch: RecordBatch) -> None:
        header = batch.header
        segment = parse_segment_name(name_of(batch.file)) if batch.file else None
        if segment is not None and (self._segment is None or segment > self._segment):
            self._enter(max(segment, self._report.start_offset))
        self._written = True
        if self._writer is not None:
            self._writer.append(batch)
        self._expected, self._epoch = header.next_offset, header.leader_epoch
        self._time_ms = header.max_timestamp_ms

    def _enter(self, base_offset: int) -> None:
        if self._segment != base_offset:
            self._segment = base_offset
            if self._writer is not None:
                self._writer.begin_segment(base_offset)

    # --- replay

    def _replayer(self, state: ReplayState) -> Replayer:
        def note(error: ReplayError) -> None:
            self._failing[error.offset] = str(error)

        return Replayer(state, on_error=note)

    def _fork(self) -> None:
        """From the first change on, replays the original too, to find what only the change breaks."""
        if self._twin is None:
            self._twin = self._replayer(self._engine.state())

    def _apply(self, engine: Replayer, batch: RecordBatch) -> dict[int, str]:
        """The records of a batch that cannot be applied, by offset; those below the snapshot are ignored."""
        self._failing = {}
        unreadable = apply_anywhere(engine, batch)
        if unreadable is not None:
            return dict.fromkeys(range(batch.header.base_offset, batch.header.next_offset), unreadable)
        return self._failing

    def _replay(self, batch: RecordBatch, out: RecordBatch) -> dict[int, str]:
        """Records that `drop_failing` removes. Raises InspectError for those that only the repair breaks, if
        the request does not include this."""
        failed_before = {} if self._twin is None else self._apply(self._twin, batch)
        failing = self._apply(self._engine, out)
        if not failing:
            return {}
        unknown = _unknown_offsets(out)
        broken = {at: why for at, why in failing.items() if at not in unknown}
        for record_offset in sorted(unknown & failing.keys()):
            self._report.is_newer(f"{failing[record_offset]}; it is kept, for a newer release to read")
        caused = [at for at in broken if self._twin is not None and at not in failed_before]
        if self._request.drop_failing:
            return broken
        if caused:
            raise InspectError(
                f"without the removed records, the record at offset {caused[0]} no longer applies "
                f"({broken[caused[0]]}); add --drop-failing to remove such records too"
            )
        for record_offset, why in broken.items():
            self._report.remains(f"{why}; name it with --drop {record_offset}, or --drop-failing")
        return {}

    # --- the end

    def _cut(self, offset: int, text: str) -> None:
        self._note(
            RepairedRange(
                kind="cut", offset=self._expected, end_offset=max(offset, self._expected), text=text
            )
        )

    def _note(self, change: RepairedRange) -> None:
        self._report.add(change)
        if self._first_change is None:
            self._first_change = change.offset

    def _finish(self) -> None:
        report, request = self._report, self._request
        least = report.start_offset if report.base is None else report.base.offset
        if self._expected < least or not self._written:
            raise InspectError(
                f"nothing would remain of {self._log.path}: its oldest state is at offset {least}; give a "
                "later --end-at, or another node's directory"
            )
        missing = sorted(request.drop - self._dropped)
        if missing:
            inside = f"offsets {report.start_offset} to {self._expected - 1}"
            raise InspectError(f"there is no record at offset {missing[0]}; the log has {inside}")
        if self._first_change is not None and self._first_change < least:
            raise InspectError(
                f"offset {self._first_change} precedes the oldest snapshot ({least}), which includes its "
                "effect: it cannot be removed; copy an older snapshot into the directory"
            )
        changed = report.changed
        is_damaged = self._choose_snapshots()
        if not (changed or is_damaged):
            left = (*report.remaining, *report.newer)
            problem = f"; {left[0]}" if left else ""
            raise InspectError(f"nothing would change: {self._log.path} is intact up to its end{problem}")
        report.end = LogPosition(self._epoch, self._expected)
        report.after = self._engine.state().image
        dropped = any(change.kind in ("dropped", "filled") for change in report.changes)
        if dropped and report.after.features.metadata_version < NO_OP_LEVEL:
            report.notes.append(
                f"NoOpRecord needs {METADATA_VERSION} 3.3-IV1: Kafka before 3.3 cannot read the new log"
            )

    def _choose_snapshots(self) -> bool:
        """Returns whether a damaged one is left out, which alone is worth a new directory."""
        is_damaged = False
        report = self._report
        limit = self._expected if self._first_change is None else min(self._first_change, self._expected)
        for position in self._log.snapshots():
            text = None
            if position.offset < report.start_offset:
                text = "it ends before the new log begins"
            elif position.offset > limit:
                text = "it includes what was changed; the controllers write a new one"
            elif position != report.base and whole_snapshot(self._log, position) is None:
                text, is_damaged = "it is damaged", True
            if text is None:
                report.kept_snapshots.append(position)
            else:
                name = name_of(self._log.snapshot(position).path)
                report.add(
                    RepairedRange(
                        kind="snapshot",
                        offset=position.offset,
                        end_offset=position.offset,
                        text=f"{name} is left out: {text}",
                    )
                )
        return is_damaged


def _unknown_offsets(batch: RecordBatch) -> set[int]:
    """Offsets of records from a newer version: they fail here but are not poison to their own release."""
    try:
        decoded = decode_batch(batch, tolerant=True)
    except (RecordDecodeError, BatchError):
        return set()
    return {one.offset for one in decoded if isinstance(one.record, UnknownRecord)}


def _record_text(batch: RecordBatch, offset: int) -> str:
    try:
        decoded = decode_batch(batch, tolerant=True)
    except (RecordDecodeError, BatchError):
        return "a record that cannot be read"
    return next((one.record.type_name for one in decoded if one.offset == offset), "a record")


def _offsets(start: int, end: int) -> str:
    return f"offset {start} is" if end == start + 1 else f"offsets {start} to {end - 1} are"
