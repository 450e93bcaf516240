"""The differences between two states, and the record that made each.

The comparison by entity and field, and the search for the records: those between two places of one log, or
those of each of two logs. Memory is that of the two images and of the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from metaquorum.metadata.delta import diff as image_diff
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import FLAGS, LEADER, LEADER_EPOCH, LISTS, PARTITION_EPOCH
from metaquorum.metadata.inspect.entities.views import (
    EVERYTHING,
    NO_QUORUM,
    Fields,
    Wanted,
    changed_paths,
    falls_with,
    fields_of,
    touched,
)
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.metadata.inspect.walk.states import (
    FoundState,
    OnProblem,
    Passed,
    WalkStep,
    steps,
    steps_about,
    with_quorum,
)
from metaquorum.metadata.inspect.walk.steps import FastForward
from metaquorum.metadata.invariants import partition_path
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_in
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.settings.keys import MAX_LONG, whole_number
from metaquorum.storage.batches.format import BatchHeader, parse_header
from metaquorum.storage.batches.places import Places

ADDED, CHANGED, REMOVED = "added", "changed", "removed"

SHOWN_DIFFERENCES = 3
"""If two states should be equal, this many differences are reported one by one."""


class ChangeCause(msgspec.Struct, frozen=True, kw_only=True):
    """The record that caused a change: its offset, the leader epoch and time (Unix ms) of its batch, its
    type, the log file that holds it, and what caused its batch, if the log says so."""

    offset: int
    epoch: int
    time_ms: int
    type_name: str
    version: int
    file: str = ""
    asked: BatchCause | None = None

    @classmethod
    def of(cls, step: WalkStep, decoded: DecodedRecord) -> ChangeCause:
        """The cause for a record of a step."""
        return cls(
            offset=decoded.offset,
            epoch=step.epoch,
            time_ms=decoded.timestamp_ms,
            type_name=decoded.record.type_name,
            version=decoded.version,
            file=step.batch.file,
            asked=cause_in(step.records[0].record),
        )


def causes_together(fast_forward: FastForward, numbers: Places) -> Iterator[tuple[BatchHeader, ChangeCause]]:
    """The causes for the partition changes with these numbers in their run, with the headers of their
    batches."""
    part, run = fast_forward.part, fast_forward.part.run
    others = part.others()
    headers: dict[int, BatchHeader] = {}
    batches, versions = run.batch_of(numbers), part.frames.versions[numbers]
    for number, batch, version in zip(numbers.tolist(), batches.tolist(), versions.tolist(), strict=True):
        header = headers.get(batch)
        if header is None:
            header = headers[batch] = parse_header(run.data, int(run.places[batch]))
        cause = ChangeCause(
            offset=run.base_offset + number,
            epoch=header.leader_epoch,
            time_ms=header.base_timestamp_ms,
            type_name=r.PartitionChangeRecord.type_name,
            version=version,
            file=run.file,
            asked=cause_in(others.get(header.base_offset - run.base_offset)),
        )
        yield header, cause


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """One field of an entity; None if it is absent. `cause` is the record that made the new value (for two
    logs: in the second one, `old_cause` in the first); None if only a snapshot has it."""

    name: str
    old: Any
    new: Any
    cause: ChangeCause | None = None
    old_cause: ChangeCause | None = None


class EntityChange(msgspec.Struct, frozen=True, kw_only=True):
    """One entity that differs. `kind` is ADDED, CHANGED or REMOVED. `cause` is the record that added or
    removed it, or the newest of those that changed it; for two logs, `old_cause` is the same in the first."""

    entity: str
    kind: str
    fields: tuple[FieldChange, ...]
    cause: ChangeCause | None = None
    old_cause: ChangeCause | None = None


def changes_between(
    old: MetadataImage,
    new: MetadataImage,
    wanted: Wanted = EVERYTHING,
    *,
    quorums: tuple[QuorumView, QuorumView] = (NO_QUORUM, NO_QUORUM),
) -> list[EntityChange]:
    """The differences between two images, sorted by entity, without causes. `wanted` restricts them."""
    changes = []
    paths = set(changed_paths(image_diff(old, new)))
    if quorums[0] != quorums[1]:
        paths.add("quorum")
    for path in sorted(paths, key=sort_key):
        if not wanted.has(path):
            continue
        before = wanted.cut(path, fields_of(old, path, quorums[0]))
        after = wanted.cut(path, fields_of(new, path, quorums[1]))
        change = compared(path, before, after)
        if change is not None:
            changes.append(change)
    return changes


def sort_key(path: str) -> tuple[tuple[int, int, str], ...]:
    """Orders paths part by part, numbers by value: topic/orders/7 before topic/orders/10."""
    parts = ((whole_number(part, MAX_LONG), part) for part in path.split("/"))
    return tuple((1, 0, part) if number is None else (0, number, "") for number, part in parts)


def compared(entity: str, before: Fields | None, after: Fields | None) -> EntityChange | None:
    """The change from one set of fields to another; None if they are equal."""
    if before == after:
        return None
    kind = ADDED if before is None else REMOVED if after is None else CHANGED
    old, new = before or {}, after or {}
    names = [*new, *(name for name in old if name not in new)]
    fields = tuple(
        FieldChange(name=name, old=old.get(name), new=new.get(name))
        for name in names
        if old.get(name) != new.get(name) or (name in old) != (name in new)
    )
    return EntityChange(entity=entity, kind=kind, fields=fields)


def diff_points(
    log: MetadataLog,
    old: FoundState,
    new: FoundState,
    wanted: Wanted = EVERYTHING,
    on_problem: OnProblem | None = None,
) -> list[EntityChange]:
    """The differences between two states of one log, each with its record. If `old` is the later one, the
    changes are reversed, with the records that made what is gone."""
    if wanted.has("quorum"):
        _know_quorums(log, old, log, new)
    changes = changes_between(old.image, new.image, wanted, quorums=(old.quorum, new.quorum))
    if not changes:
        return []
    forward = old.end_offset <= new.end_offset
    first, last = (old, new) if forward else (new, old)
    tracker = CauseTracker({change.entity for change in changes}, first)
    start, end = _shown_end(first), Point(offset=last.end_offset)
    # If replay stopped at a gap, `last` is before it; a snapshot leads past it, and so do causes.
    walk: Iterator[WalkStep | Passed] = steps(log, start, end, on_problem, past_corruption=True)
    if not first.problems and start.offset == first.end_offset:
        walk = steps_about(log, first, BatchFilter(together=True), end, on_problem, past_corruption=True)
    for step in walk:
        if isinstance(step, WalkStep):
            tracker.step(step)
        elif isinstance(step, FastForward):
            tracker.fast_forward(step)
    tracker.take_back()
    return [_with_causes(change, tracker, None) for change in changes]


def diff_logs(
    old_log: MetadataLog,
    old: FoundState,
    new_log: MetadataLog,
    new: FoundState,
    wanted: Wanted = EVERYTHING,
    *,
    past_corruption: bool = False,
) -> list[EntityChange]:
    """The differences between states of two logs, each with the record of either log. Elections are compared
    only if both logs have one: a checkpoint has none."""
    if wanted.has("quorum"):
        _know_quorums(old_log, old, new_log, new)
        if not (old.quorum.is_known and new.quorum.is_known):
            old.quorum = new.quorum = NO_QUORUM
    changes = changes_between(old.image, new.image, wanted, quorums=(old.quorum, new.quorum))
    if not changes:
        return []
    entities = {change.entity for change in changes}
    trackers = []
    for log, found in ((old_log, old), (new_log, new)):
        tracker = CauseTracker(entities, FoundState(state=ReplayState()))
        if not log.is_checkpoint and log.segments:
            for step in steps(log, None, Point(offset=found.end_offset), past_corruption=past_corruption):
                tracker.step(step)
            tracker.take_back()
        trackers.append(tracker)
    return [_with_causes(change, trackers[1], trackers[0]) for change in changes]


def _shown_end(state: FoundState) -> Point:
    """Where the visible state ends: before an open transaction."""
    opened = state.state.transaction
    return Point(offset=state.end_offset if opened is None else opened.begin_offset)


def _know_quorums(old_log: MetadataLog, old: FoundState, new_log: MetadataLog, new: FoundState) -> None:
    """States that began at a snapshot lack the election before it; the logs may have it."""
    with_quorum(old_log, old)
    with_quorum(new_log, new)


def _with_causes(change: EntityChange, new: CauseTracker, old: CauseTracker | None) -> EntityChange:
    fields = tuple(
        FieldChange(
            name=field.name,
            old=field.old,
            new=field.new,
            cause=new.of_field(change.entity, field.name),
            old_cause=None if old is None else old.of_field(change.entity, field.name),
        )
        for field in change.fields
    )
    return EntityChange(
        entity=change.entity,
        kind=change.kind,
        fields=fields,
        cause=_entity_cause(change, fields, new),
        old_cause=None if old is None else old.newest(change.entity),
    )


def _entity_cause(
    change: EntityChange, fields: tuple[FieldChange, ...], new: CauseTracker
) -> ChangeCause | None:
    if change.kind == CHANGED:
        causes = [one.cause for one in fields if one.cause is not None]
        return max(causes, key=lambda cause: cause.offset, default=None)
    return new.of_existence(change.entity) or new.newest(change.entity)


@dataclass(slots=True)
class _Origin:
    """One entity: its fields now, the record of each, and the record by which it exists or does not."""

    now: Fields | None
    existence: ChangeCause | None = None
    fields: dict[str, ChangeCause] = field(default_factory=dict)

    def copy(self) -> _Origin:
        return _Origin(self.now, self.existence, dict(self.fields))


class CauseTracker:
    """Follows some entities through a walk and remembers the record that last changed each field.

    Records inside a metadata transaction count when they occur; those of an aborted one are forgotten.
    """

    def __init__(self, entities: Iterable[str], start: FoundState) -> None:
        """`start` is where the walk begins; if a transaction is open there, the walk begins before it."""
        self._entities = frozenset(entities)
        self._origins = {path: _Origin(fields_of(start.image, path, start.quorum)) for path in self._entities}
        self._saved: dict[str, _Origin] | None = None

    def of_field(self, entity: str, name: str) -> ChangeCause | None:
        """The record that gave the field its value (or removed it)."""
        origin = self._origins[entity]
        return origin.fields.get(name) or origin.existence

    def of_existence(self, entity: str) -> ChangeCause | None:
        """The record that added or removed the entity, whichever was last."""
        return self._origins[entity].existence

    def newest(self, entity: str) -> ChangeCause | None:
        """The last record that changed the entity in any way."""
        origin = self._origins[entity]
        causes = [*origin.fields.values(), *([origin.existence] if origin.existence else [])]
        return max(causes, key=lambda cause: cause.offset, default=None)

    def step(self, step: WalkStep) -> None:
        """Takes the next batch."""
        before, after = step.state_before.newest, step.state_after.newest
        touches: dict[str, list[DecodedRecord]] = {}
        for decoded in step.records:
            self._transaction(decoded.record)
            for path in touched(decoded.record, before, after):
                for one in (path, *falls_with(decoded.record, path, (before, after))):
                    if one in self._entities:
                        touches.setdefault(one, []).append(decoded)
        single = {path: records[0] for path, records in touches.items() if len(records) == 1}
        for path, decoded in single.items():
            self._note(path, fields_of(after, path, step.quorum_after), ChangeCause.of(step, decoded))
        several = [path for path in touches if path not in single]
        if several:
            self._one_by_one(step, several)

    def fast_forward(self, fast_forward: FastForward) -> None:
        """Takes many batches that only change partitions."""
        versions, topics = fast_forward.versions, fast_forward.after.topics
        before, after = versions.before(), versions.after
        paths = {
            row: path
            for row in versions.rows[versions.first].tolist()
            if (path := partition_path(topics, row)) in self._entities
        }
        isr = versions.chunk(after).isr_start
        fields: dict[str, Any] = {
            "leader": LEADER,
            "leaderEpoch": LEADER_EPOCH,
            "partitionEpoch": PARTITION_EPOCH,
            "isr": slice(isr, None),
            "directories": slice(LISTS + versions.replica_width, isr),
            "leaderRecoveryState": FLAGS,
        }
        for name, columns in fields.items():
            differs = before[columns] != after[columns]
            places = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=0))
            rows = versions.rows[places]
            newest = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
            newest &= np.isin(rows, list(paths))
            causes = causes_together(fast_forward, versions.records[places[newest]])
            for row, (_, cause) in zip(rows[newest].tolist(), causes, strict=True):
                self._origins[paths[row]].fields[name] = cause
        for path in paths.values():
            self._origins[path].now = fields_of(fast_forward.after, path)

    def take_back(self) -> None:
        """Undoes what the open transaction did: it has no effect."""
        self._origins.update(self._saved or {})
        self._saved = None

    def _transaction(self, record: object) -> None:
        match record:
            case r.BeginTransactionRecord():
                self._saved = {}
            case r.EndTransactionRecord():
                self._saved = None
            case r.AbortTransactionRecord():
                self.take_back()

    def _note(self, path: str, fields: Fields | None, cause: ChangeCause) -> None:
        origin = self._origins[path]
        if fields == origin.now:
            return
        # Elections hold whatever the outcome of a transaction.
        if self._saved is not None and path not in self._saved and path != "quorum":
            self._saved[path] = origin.copy()
        old, new = origin.now or {}, fields or {}
        if origin.now is None or fields is None:
            origin.existence = cause
            origin.fields = {}
        else:
            changed: Mapping[str, Any] = {**old, **new}
            origin.fields.update({name: cause for name in changed if old.get(name) != new.get(name)})
        origin.now = fields

    def _one_by_one(self, step: WalkStep, paths: list[str]) -> None:
        """For entities that several records of one batch touch: finds which of them changed what."""
        engine = Replayer(step.state_before, on_error=lambda error: None)
        quorum = step.quorum_before
        control = step.batch.header.is_control
        for decoded in step.records:
            if control:
                quorum = quorum.after(step.epoch, (decoded,))
            else:
                engine.apply(decoded.record, decoded.offset, step.epoch, step.time_ms)
            image = engine.state().newest
            for path in paths:
                self._note(path, fields_of(image, path, quorum), ChangeCause.of(step, decoded))


def all_touched(step: WalkStep, *, partitions: bool = True) -> Iterator[tuple[str, DecodedRecord]]:
    """(canonical path, record) of everything that a batch may have changed. Without `partitions`, what their
    own records changed may be left out."""
    before, after = step.state_before.newest, step.state_after.newest
    for decoded in step.records if partitions else step.records_without_partitions():
        for path in touched(decoded.record, before, after):
            yield path, decoded
            for one in falls_with(decoded.record, path, (before, after)):
                yield one, decoded


def state_differences(image: MetadataImage, other: MetadataImage) -> Iterator[tuple[str, str]]:
    """(entity, difference) of two images that should be equal, up to a few."""
    changes = changes_between(image, other)
    for change in changes[:SHOWN_DIFFERENCES]:
        fields = ", ".join(f"{at.name} {at.old} -> {at.new}" for at in change.fields)
        yield change.entity, f"{fields}"
    if len(changes) > SHOWN_DIFFERENCES:
        yield "snapshot", f"{len(changes) - SHOWN_DIFFERENCES} more"
