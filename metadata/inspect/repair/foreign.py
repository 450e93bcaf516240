"""Segments in a log's directory that belong to another log, detected before a repair merges them.

The evidence: a name that does not match its batches, offsets that the segment before it has too, leader
epochs that decrease or contradict the directory's own table, records of which none fits the state before
them. Damage inside a segment is not evidence: headers are corrected first, as in a repair. Reads the log
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from metaquorum.metadata.errors import InspectError, RecordDecodeError, ReplayError
from metaquorum.metadata.inspect.log.entities import BROKER_RECORDS, broker_of
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.repair.log_copy import stored_epochs
from metaquorum.metadata.inspect.walk.header_repair import repaired_headers
from metaquorum.metadata.inspect.walk.states import earliest, state_at
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import name_of
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.segment import parse_segment_name

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
